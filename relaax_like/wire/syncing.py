"""Syncs written data to disk; names files that are not complete yet."""

import os
from pathlib import Path
from typing import IO, Any

# Files and folders with this prefix are deleted at the next start.
TEMPORARY = ".tmp-"


def sync_file(file: IO[Any]) -> None:
    """Flushes a file's buffer and syncs the file to disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_path(path: Path) -> None:
    """Syncs a file, or a directory's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
