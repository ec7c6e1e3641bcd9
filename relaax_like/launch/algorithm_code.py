"""Calls of an algorithm folder's functions: what they raise is told with file and line."""

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from relaax_like.wire.errors import ConfigError, RelaaxError


@contextlib.contextmanager
def naming_place(folder: Path) -> Iterator[None]:
    """Turns errors of the code in a folder into one that says where they arose.

        with naming_place(experiment.algorithm_folder):
            model = module.make_model(config, seed)

    Raises:
      ConfigError: the line of the folder's code, what it raised and why. Errors of our own family
        come through as they are.
    """
    try:
        yield
    except RelaaxError:
        raise
    except Exception as error:
        raise ConfigError(f"{_find_place(error, folder)}: {_describe(error)}") from error


def _find_place(error: Exception, folder: Path) -> str:
    """Returns `FILE:LINE`, the innermost one in the folder."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).is_relative_to(folder):
            return f"{frame.filename}:{frame.lineno}"
    return str(folder)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
