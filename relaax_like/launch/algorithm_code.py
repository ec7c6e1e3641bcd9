"""Calls of an algorithm folder's functions: their errors are reported with file and line."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from relaax_like.config.places import describe_error
from relaax_like.wire.errors import ConfigError, RelaaxError


@contextlib.contextmanager
def locate_errors(folder: Path) -> Iterator[None]:
    """Turns errors of the code in a folder into one that says where they arose.

        with locate_errors(experiment.algorithm_folder):
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
        raise ConfigError(describe_error(error, folder, str(folder))) from error
