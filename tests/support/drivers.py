"""The client library of each language, driven by a test: it makes the calls that it is sent.

A call is a message of docs/json.md, always with a slot axis. A driver (`client_drivers/`) makes it
with its client, and sends the answer back: as JSON, with the keys of the page. Drivers in C and C++
read calls as words instead; see `_to_words`.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from relaax_like.rlx_server.json_spaces import read_spaces
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from support import godot4
from support.chromium import Tab, open_tab
from support.cluster import ROOT

CLIENTS = ROOT / "environments"
_FOLDER = Path(__file__).with_name("client_drivers")
_WAIT_SEC = 60.0
_SUCCESS = {True: 1, False: 0, None: -1}


@dataclass(frozen=True)
class Setup:
    """How a driver is started, and what its client can do.

    Attributes:
      argv: the program; the server's address and the authority of TLS follow. Of a page: URLs of
        the browser's DevTools and of the page.
      kind: how it is called: "json", "words" or "shell" on standard input, "port" over TCP, "page"
        in a browser.
      env: more of the environment.
      numbers_steps: whether the caller numbers steps.
      wanted: features that it can ask for.
      sends: what it can send of "ping" and "scalars", which have no answer.
    """

    argv: tuple[str, ...]
    kind: str = "json"
    env: Mapping[str, str] | None = None
    numbers_steps: bool = False
    wanted: tuple[str, ...] = ()
    sends: tuple[str, ...] = ("ping", "scalars")

    def write(self) -> str:
        """Returns a text for `read`."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> "Setup":
        """Reads what `write` has returned."""
        given = json.loads(text)
        lists = {name: tuple(given[name]) for name in ("argv", "wanted", "sends")}
        return cls(**{**given, **lists})


_FEATURES = ("executed", "hello_ping", "ping", "present", "step_id", "timings")
ALL_FEATURES = (*_FEATURES, "max_wait", "versions")


def build(language: str, folder: Path) -> Setup:
    """Compiles or copies what a driver needs; see `Setup`."""
    if language == "Python":
        driver = str(_FOLDER / "driver.py")
        return Setup((sys.executable, driver), wanted=("max_wait", "versions"))
    if language in ("C", "C++"):
        wanted = ("agents", "masks", "max_wait", "slot_versions", "versions")
        return Setup((_compile(language, folder),), "words", wanted=wanted)
    if language == "C#":
        program = str(folder / "driver.exe")
        sources = [str(_FOLDER / "Driver.cs"), str(CLIENTS / "csharp" / "Rlx.cs")]
        _run("mcs", "-langversion:7.2", "-warnaserror", f"-out:{program}", *sources)
        return Setup(("mono", program), wanted=(*_FEATURES, "max_wait"), sends=("ping",))
    if language == "JavaScript":
        argv = ("node", str(_FOLDER / "driver.js"), str(CLIENTS / "javascript"))
        return Setup(argv, numbers_steps=True, wanted=ALL_FEATURES)
    if language == "Godot 3":
        for path in (_FOLDER / "driver.gd", CLIENTS / "godot3" / "rlx.gd"):
            shutil.copy(path, folder)
        env = {"LC_ALL": "en_US.UTF-8", "LANG": "en_US.UTF-8", "XDG_DATA_HOME": str(folder)}
        argv = ("godot3-server", "--path", str(folder), "-s", "driver.gd")
        return Setup(argv, "port", env, wanted=ALL_FEATURES)
    if language == "Lua":
        argv = ("lua5.4", str(_FOLDER / "driver.lua"), str(CLIENTS / "lua" / "rlx.lua"))
        return Setup(argv, numbers_steps=True, wanted=ALL_FEATURES, sends=())
    assert language == "shell"
    program = folder / "main"
    text = (CLIENTS / "shell" / "main").read_text().replace("read -r -t 60", "read -r -t 4")
    play = re.compile(r"^play\(\) \{.*?^\}\n", re.MULTILINE | re.DOTALL)
    program.write_text(play.sub(lambda _: (_FOLDER / "driver.sh").read_text(), text))
    argv = ("bash", str(program), "--rlx-server")
    return Setup(argv, "shell", numbers_steps=True, wanted=ALL_FEATURES, sends=())


def write_page(language: str, name: str, folder: Path) -> None:
    """Writes a page: `name` is "driver", or "game" for the project of the folder."""
    if language == "Godot 4":
        files = read_godot4()
        if name == "driver":
            files["driver4.gd"] = (_FOLDER / "driver4.gd").read_bytes()
            files["cartpole.tscn"] = files["cartpole.tscn"].replace(b"cartpole.gd", b"driver4.gd")
        godot4.make_page(folder, files)
        return
    for path in (_FOLDER / "driver.js", CLIENTS / "javascript" / "rlx.js"):
        shutil.copy(path, folder)
    scripts = "".join(f'<script src="{name}"></script>' for name in ("rlx.js", "driver.js"))
    (folder / "index.html").write_text(f"<!doctype html>{scripts}")


def read_godot4() -> dict[str, bytes]:
    """Returns the files of the project for Godot 4."""
    suffixes = (".gd", ".tscn", ".godot")
    paths = (CLIENTS / "godot4").iterdir()
    return {path.name: path.read_bytes() for path in paths if path.suffix in suffixes}


def _compile(language: str, folder: Path) -> str:
    flags = ["-Wall", "-Wextra", "-Werror", f"-I{CLIENTS / 'c'}"]
    program, library = str(folder / f"driver-{language}"), str(folder / f"rlx-{language}.o")
    source = str(CLIENTS / "c" / "rlx_more.c")
    _run("cc", "-std=c99", *flags, "-DRLX_TLS", "-c", "-o", library, source)
    if language == "C":
        compiler = ["cc", "-std=c99", str(_FOLDER / "driver.c")]
    else:
        compiler = ["c++", "-std=c++17", str(_FOLDER / "driver.cpp")]
    _run(*compiler, *flags, "-o", program, library, "-lm", "-lssl", "-lcrypto")
    return program


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, timeout=200)


class Driver(Protocol):
    """A running client. A context manager."""

    def __enter__(self) -> "Driver": ...

    def __exit__(self, *unused: object) -> None: ...

    def send(self, message: Mapping[str, Any]) -> None:
        """Makes a call that has no answer."""
        ...

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Makes a call; returns its answer, whose actions are flat, or `{"error": ...}`."""
        ...


def start(setup: Setup, address: str, ca: str = "") -> Driver:
    """Starts a driver for the server at an address."""
    if setup.kind == "page":
        return Page(setup, address, ca)
    return _Program(setup, address, ca)


class _Program:
    def __init__(self, setup: Setup, address: str, ca: str):
        self._kind = setup.kind
        self._spaces: dict[str, dict[str, Space]] = {}
        env = {**os.environ, "PYTHONPATH": str(ROOT), **(setup.env or {})}
        with socket.create_server(("127.0.0.1", 0)) as listener:
            env["DRIVER_ARGUMENTS"] = f"{listener.getsockname()[1]} {address}"
            argv = [*setup.argv, *([] if setup.kind == "port" else filter(None, (address, ca)))]
            stderr = subprocess.STDOUT if setup.kind == "shell" else None
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, stderr=stderr)
            if setup.kind == "port":
                listener.settimeout(_WAIT_SEC)
                connection, _ = listener.accept()
                connection.settimeout(None)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._input, self._output = connection.makefile("wb"), connection.makefile("rb")
                connection.close()  # the files hold it
            else:
                self._input, self._output = self._process.stdin, self._process.stdout  # type: ignore[assignment]

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *unused: object) -> None:
        self._process.kill()
        self._process.wait()
        for file in (self._input, self._output, self._process.stdin, self._process.stdout):
            assert file is not None
            try:
                file.close()
            except OSError:  # what is left cannot be written
                pass

    def send(self, message: Mapping[str, Any]) -> None:
        text = json.dumps(message)
        if self._kind == "words":
            text = _to_words(message, self._spaces)
        try:
            self._input.write(text.encode() + b"\n")
            self._input.flush()
        except OSError:  # it has ended, and said why
            pass

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        self.send(message)
        line = self._output.readline().decode()
        if not (found := re.search(r"\{.*\}", line)):
            return {"error": {"code": "LOST", "message": line}}
        answer: dict[str, Any] = json.loads(found[0])
        return answer


class Page:
    """A driver in a page of a browser. A context manager.

    Attributes:
      address: of the server; another one can be set before a hello.
      tab: the page.
    """

    def __init__(self, setup: Setup, address: str, ca: str = ""):
        browser, url = setup.argv
        self.tab: Tab = open_tab(browser, url, in_window=True)
        self.address = address
        self._ca = ca
        self.tab.wait_for("typeof call === 'function'")

    def __enter__(self) -> "Page":
        return self

    def __exit__(self, *unused: object) -> None:
        self.tab.call("Page.close")
        self.tab.close()

    def send(self, message: Mapping[str, Any]) -> None:
        self.ask(message)

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        parts = ", ".join(map(json.dumps, (message, self.address, self._ca)))
        answer: dict[str, Any] = self.tab.evaluate(f"call({parts})")
        return answer


# Words.


def _to_words(message: Mapping[str, Any], spaces: dict[str, dict[str, Space]]) -> str:
    """Spells a call for a driver that cannot read JSON; notes the spaces of a hello.

    The order of words is that in which `client_drivers/driver.c` reads them. Numbers have no
    brackets, as their count follows from the spaces.
    """
    ((kind, content),) = message.items()
    if kind == "ping":
        return kind
    if kind == "scalars":
        return f"{kind} {content[0]['y']}"
    if kind == "hello":
        words = [kind, content["name"], content.get("token") or "-", content["slots"]]
        words += [
            int(content.get("mode") == "exploit"),
            int("masks" in content.get("features", ())),
        ]
        for name in ("observation", "action"):
            spaces[name], _ = read_spaces(content[name], name)
            words.append(len(spaces[name]))
            for leaf, space in spaces[name].items():
                words += [leaf, *_spell_space(space)]
        return " ".join(map(str, words))
    words = ["step"]
    for key, value in content.items():
        if key in ("observation", "final_observation", "executed"):
            plain = "action" if key == "executed" else "observation"
            named = value if isinstance(value, dict) else {plain: value}
            for leaf, numbers in named.items():
                words += [key, leaf, *np.ravel(numbers).tolist()]
        elif key == "success":
            words += [key, *(_SUCCESS[one] for one in value)]
        else:
            words += [key, *np.ravel(value).astype(float).tolist()]
    return " ".join([*(str(word).removesuffix(".0") for word in words), "end"])


def _spell_space(space: Space) -> list[object]:
    kind = (Box, Discrete, MultiDiscrete, MultiBinary).index(type(space)) + 1
    n = np.ravel(getattr(space, "n", ())).tolist()
    bounds = [getattr(space, name, None) for name in ("low", "high")]
    words: list[object] = [kind, space.dtype, len(space.shape), *space.shape, len(n), *n]
    words.append(getattr(space, "start", 0) or 0)
    for bound in bounds:
        numbers = [] if bound is None else np.ravel(bound).tolist()
        words += [len(numbers), *numbers]
    return words


def find_code(error: Mapping[str, Any]) -> str:
    """Returns the name of an error's code; drivers in C and C++ give its number."""
    code = error["code"]
    return rlx_pb2.ErrorCode.Name(code) if isinstance(code, int) else str(code)


def to_arrays(action: Any, spaces: Mapping[str, Space], slots: int) -> dict[str, np.ndarray]:
    """Returns the actions of an answer as arrays `[k, ...]`."""
    named: Sequence[tuple[str, Any]] = (
        list(action.items()) if isinstance(action, dict) else [("action", action)]
    )
    return {
        name: np.reshape(value, (slots, *spaces[name].shape)).astype(spaces[name].dtype)
        for name, value in named
    }
