"""Syncs written data to disk; defines the prefix of files that are not complete yet."""

import os
from pathlib import Path
from typing import IO, Any

# Files and folders with this prefix are deleted at the next start.
TEMPORARY = ".tmp-"


def sync_file(file: IO[Any]) -> None:
    """Flushes a file's buffer and syncs the file to disk.

    Raises:
      OSError: the data could not be written, such as to a full disk.
    """
    file.flush()
    os.fsync(file.fileno())


def sync_path(path: Path) -> None:
    """Syncs a file, or a directory's entries, to disk; on Windows, does nothing.

    Raises:
      OSError: the path cannot be opened, or the data could not be written.
    """
    if os.name == "nt":  # can sync neither a directory nor what was opened for reading
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Writes a small file, or replaces it: after a crash, it is the old or the new one.

    Raises:
      OSError: the file cannot be written, and the old one is untouched; or the folder cannot be
        synced, and a power cut can leave either file.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            sync_file(file)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_path(path.parent)
