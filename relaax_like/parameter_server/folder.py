"""Locks folders that only one process can use at a time, and counts a parameter server's starts."""

import fcntl
import logging
import os
import time
from pathlib import Path
from typing import IO

from relaax_like.wire.errors import SnapshotError
from relaax_like.wire.syncing import replace_file

_LOG = logging.getLogger(__name__)
# What locks a folder of checkpoints.
_HOLDERS = "a parameter server, relaax train or relaax fsck"


def lock_folder(directory: Path, what: str = _HOLDERS) -> IO[str]:
    """Locks a folder; returns the lock file.

    The lock is released when the file is closed or the process dies.

    Args:
      directory: the folder, which exists.
      what: which processes lock such a folder, for the error.

    Raises:
      SnapshotError: the lock is held, and the error names the pid of its holder, if known; or the
        lock file cannot be locked.
    """
    path = directory / "lock"
    try:
        return _lock(path, what)
    except OSError as error:
        raise SnapshotError(
            f"{path}: cannot be locked: {error.strerror or error}; it must be a file that this "
            "user can create, write to and lock. Change that, or choose another folder"
        ) from error


def _lock(path: Path, what: str) -> IO[str]:
    # A damaged file must not hide who has the lock.
    file = open(path, "a+", encoding="ascii", errors="replace")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        holder = file.read(20).strip()
        file.close()
        if not isinstance(error, BlockingIOError):
            raise
        raise SnapshotError(
            f"{path.parent}: in use by {what} (pid {holder if holder.isdecimal() else 'unknown'}); "
            "stop it, or use another folder"
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def count_start(path: Path) -> int:
    """Increments the number in a file, and returns the new number.

    If the file is missing or damaged, the new number is the time in milliseconds since 1970.

    Raises:
      OSError: the file cannot be read or written.
    """
    try:
        epoch = int(path.read_text("ascii")) + 1
    except FileNotFoundError:
        # A new folder might replace a lost one: agents that knew that one must notice, even if the
        # server is back within a second.
        epoch = time.time_ns() // 1_000_000
    except ValueError:
        # Larger than any number of starts, so that the number still grows.
        epoch = time.time_ns() // 1_000_000
        _LOG.warning("%s: damaged; continuing with epoch %d", path, epoch)
    replace_file(path, str(epoch).encode())
    return epoch
