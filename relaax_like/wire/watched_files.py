"""Small files that can be replaced while a process runs: certificates and tokens."""

import logging
import os
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from relaax_like.wire.errors import ConfigError

logger = logging.getLogger(__name__)

# Seconds between two checks of the files.
CHECK_SEC = 1.0
_MAX_BYTES = 1 << 20

T = TypeVar("T")


class WatchedFiles(Generic[T]):
    """Keeps a value that is read from files, and read again when one has changed. Thread-safe.

        tokens = WatchedFiles([path], lambda: read_tokens(path))
        tokens.get()

    If changed files cannot be used, or one is missing, a warning is logged: the previous value
    stays in effect, and the files are read again until they can be used.

    Args:
      paths: of the files.
      read: reads all of them; raises ConfigError if they cannot be used.

    Raises:
      ConfigError: the files cannot be used when the object is made.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], T]):
        self._paths = paths
        self._read = read
        self._lock = threading.Lock()  # guards the check; the value is replaced atomically
        self._state = self._look()
        self._value = read()
        self._told = ""  # what is wrong with a newer state
        self._next_check = time.monotonic() + CHECK_SEC

    def get(self) -> T:
        """Returns the value; checks the files at most once per second."""
        if time.monotonic() >= self._next_check:
            with self._lock:
                if time.monotonic() >= self._next_check:
                    self._check()
                    self._next_check = time.monotonic() + CHECK_SEC
        return self._value

    def _check(self) -> None:
        state = self._look()
        if state == self._state:
            self._told = ""
            return
        names = ", ".join(map(str, self._paths))
        try:
            self._value = self._read()
        except ConfigError as error:
            if str(error) != self._told:
                self._told = str(error)
                logger.warning("%s; the previous contents of %s remain in effect", error, names)
            return
        self._state, self._told = state, ""
        logger.info("reloaded after a change: %s", names)

    def _look(self) -> list[tuple[int, ...] | None]:
        return [_describe(path) for path in self._paths]


def _describe(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    # Includes the time of the inode's change: `chmod` repairs a file that was refused.
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def read_bytes(path: Path, what: str, private: bool = False) -> bytes:
    """Returns the content of a file of at most 1 MiB.

    Args:
      path: of the file.
      what: names the file in errors.
      private: on POSIX systems, refuse it if users other than its owner have permissions for it.

    Raises:
      ConfigError: it cannot be read, is too long, or not private.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{what} {path}: cannot be read: {error.strerror}") from None
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{what} {path}: larger than {_MAX_BYTES} bytes; is it the right file?")
    if private and os.name == "posix" and mode & 0o077:
        raise ConfigError(
            f"{what} {path}: users other than its owner have permissions for it (mode "
            f"{mode & 0o777:03o}); run: chmod 600 {shlex.quote(str(path))}"
        )
    return data
