"""Errors of a user's data handler, which name the line."""

import contextlib
from collections.abc import Iterator

from relaax_like.config.places import describe_error, describe_place, find_folder
from relaax_like.experience.collector import DataHandler
from relaax_like.wire.errors import ConfigError, RelaaxError


@contextlib.contextmanager
def locate_handler_errors(data_handler: DataHandler | None, method: str) -> Iterator[None]:
    """Converts an error in a data handler to one that names the line.

    Args:
      data_handler: whose method is called in the block; None: errors are not converted.
      method: its name.

    Raises:
      ConfigError: the method has raised an error that is not a RelaaxError.
    """
    try:
        yield
    except RelaaxError:
        raise
    except Exception as error:
        if data_handler is None:
            raise
        owner = type(data_handler)
        place = describe_place(owner, method)
        raise ConfigError(describe_error(error, find_folder(owner), place)) from error
