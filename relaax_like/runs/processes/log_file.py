"""RUN/log.txt: the output of a run, with the date.

Of servers that are started individually, only the parameter server writes to it.
"""

import contextlib
import logging
import logging.handlers
from collections.abc import Iterator
from pathlib import Path

from relaax_like.wire.errors import ConfigError

LOG_NAME = "log.txt"
# At this size the file is renamed to `log.txt.1`, which replaces an older one.
_MAX_BYTES = 50_000_000


class _LogFile(logging.handlers.RotatingFileHandler):
    """Drops lines that cannot be written: a full disk does not end the training run."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Does nothing; called in the handler of an exception."""

    def close(self) -> None:
        """Closes the file, even if there is no space for its last lines."""
        with contextlib.suppress(OSError):
            super().close()


def add_log_file(run_dir: Path, names: tuple[str, ...] = ("",)) -> logging.Handler:
    """Appends log lines to `RUN/log.txt`, in addition to other outputs.

    Args:
      run_dir: an existing folder.
      names: names of the loggers whose lines are written; "": all loggers that propagate their
        lines.

    Returns:
      The handler that was added to the loggers; it writes until it is removed from them.

    Raises:
      ConfigError: the file cannot be written.
    """
    path = run_dir / LOG_NAME
    try:
        handler = _LogFile(path, maxBytes=_MAX_BYTES, backupCount=1, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"run_dir: {path} cannot be written: {error.strerror}; free disk space, make it "
            "writable, or choose another run_dir"
        ) from None
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    for name in names:
        logging.getLogger(name).addHandler(handler)
    return handler


@contextlib.contextmanager
def keeping_log(run_dir: Path) -> Iterator[None]:
    """Appends log lines to `RUN/log.txt` within the block; raises the error of `add_log_file`."""
    handler = add_log_file(run_dir)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
