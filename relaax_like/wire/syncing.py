"""Waiting until the disk has what was written."""

import os
from pathlib import Path
from typing import IO, Any


def sync_file(file: IO[Any]) -> None:
    """Writes a file's buffer and waits until the disk has it."""
    file.flush()
    os.fsync(file.fileno())


def sync_path(path: Path) -> None:
    """Waits until the disk has a file's bytes, or a directory's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
