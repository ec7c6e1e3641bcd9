"""The exit status of our environment programs after an error."""

from relaax_like.wire.errors import ConfigError, NotAllowedError, ProtocolError, RelaaxError


def find_exit_status(error: RelaaxError) -> int:
    """Returns the exit status of an environment program that an error ended.

    `relaax run` restarts a program that exits with another status than 0 and 2.

    Returns:
      2: the configuration, the credentials, the spaces or the protocol version are wrong, so a
      retry would fail, too; 1: any other error.
    """
    if isinstance(error, ProtocolError):
        return 2 if error.code in ("SPACE_MISMATCH", "VERSION_MISMATCH") else 1
    return 2 if isinstance(error, ConfigError | NotAllowedError) else 1
