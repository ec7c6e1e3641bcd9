"""Files of the compile cache: only this user's, complete, and not too many.

They are machine code, which TensorFlow writes, and loads without checking it. Each file therefore
gets a checksum, in a field that readers of its message skip. TensorFlow and this module only
replace complete files, so that processes can share a folder without locks.
"""

import contextlib
import logging
import os
import shutil
import stat
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

logger = logging.getLogger(__name__)

# Start of the names of folders that we make: only in them are files removed.
OURS = "relaax_like-"
# Of all these folders in one folder; the oldest files leave.
_MAX_BYTES = 256 << 20
_MIN_FREE_BYTES = 64 << 20
# A file that is being written, and how old it is if its process is gone.
_UNFINISHED, _UNFINISHED_SEC = ".tmp", 3600.0
# Field 100 with 12 bytes: this word and a CRC-32.
_SEAL = b"\xa2\x06\x0cchecksum"
_SEAL_BYTES = len(_SEAL) + 4

_scanned = 0  # when the folder changed last before its newest scan


def make_private_folder(parent: Path, parts: Sequence[str]) -> None:
    """Creates a folder in a folder, and so on, each accessible to this user only.

    Args:
      parent: of the first one; it exists.
      parts: the names.

    Raises:
      OSError: one of them cannot be created, or is a link or accessible to others; or the last one
        cannot be written, or its disk is almost full.
    """
    folder = parent
    for part in parts:
        folder /= part
        with contextlib.suppress(FileExistsError):
            folder.mkdir(0o700)
        if fault := _find_fault(folder, stat.S_IFDIR):
            raise OSError(0, f"{folder} {fault}")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise OSError(0, "no permission to read and write")
    if shutil.disk_usage(folder).free < _MIN_FREE_BYTES:
        raise OSError(0, "less than 64 MiB of its disk are free")


def clean(folder: Path) -> None:
    """Removes files of a folder that cannot be used, and the oldest ones of all beyond the limit.

    These are damaged, or have no checksum because their process was killed; or another user could
    have changed them, which one line says.

    Raises:
      OSError: a file cannot be read or removed, as when another process has just removed it.
    """
    for path in folder.iterdir():
        if path.suffix == _UNFINISHED:
            if time.time() - path.lstat().st_mtime > _UNFINISHED_SEC:
                path.unlink()
        elif not _is_intact(path):
            path.unlink()
        elif fault := _find_fault(path, stat.S_IFREG):
            logger.warning("compile_cache: removed %s, because it %s", path, fault)
            path.unlink()
    total = 0
    found = [(path.lstat(), path) for path in folder.parent.glob(f"{OURS}*/*")]
    for status, path in sorted(found, key=lambda one: -one[0].st_mtime):
        total += status.st_size
        if total > _MAX_BYTES:
            path.unlink()


def seal_files(folder: Path) -> None:
    """Puts checksums into files that TensorFlow has written, and makes them this user's only.

    Raises:
      OSError: a file cannot be read or written, as when another process has just removed it.
    """
    global _scanned
    if folder.stat().st_mtime_ns == _scanned:
        return
    for path in folder.iterdir():
        if path.suffix == _UNFINISHED:
            continue
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - _SEAL_BYTES, 0))
            if file.read().startswith(_SEAL):
                continue
        content = path.read_bytes()
        new = path.with_name(f"{path.name}.{os.getpid()}{_UNFINISHED}")
        new.write_bytes(content + _SEAL + zlib.crc32(content).to_bytes(4, "little"))
        new.chmod(0o600)
        new.replace(path)
    _scanned = folder.stat().st_mtime_ns


def _is_intact(path: Path) -> bool:
    content = path.read_bytes()
    body, seal = content[:-_SEAL_BYTES], content[-_SEAL_BYTES:]
    return seal == _SEAL + zlib.crc32(body).to_bytes(4, "little")


def _find_fault(path: Path, kind: int) -> str:
    """Returns why another user could have changed a file or folder; "": none could."""
    status = path.lstat()
    if stat.S_IFMT(status.st_mode) != kind or (kind == stat.S_IFREG and status.st_nlink > 1):
        return "is a link, or of another kind"
    if status.st_uid != os.geteuid():
        return "belongs to another user"
    mode = stat.S_IMODE(status.st_mode)
    return f"has mode {mode:04o}, which includes others" if mode & 0o077 else ""
