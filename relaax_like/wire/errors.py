"""The one family of errors that users meet: what came, what was expected, and the cure."""


class RelaaxError(Exception):
    """Base of all errors that a user can cause or cure; shown without a stack trace."""

    # AutoGraph of TensorFlow would replace the error by one of its own, with a stack trace.
    ag_pass_through = True


class DamagedError(Exception):
    """A file is not what was written. The code that knows the file turns it into a RelaaxError."""


class ConfigError(RelaaxError, ValueError):
    """The YAML file, a flag or the algorithm's code is wrong. Not worth a retry."""


class InvalidInputError(RelaaxError, ValueError):
    """A value that came from outside is wrong; it had no effect.

    Attributes:
      field: name of the wrong field, "" when the whole message is meant.
    """

    def __init__(self, message: str, field: str = ""):
        super().__init__(message)
        self.field = field


class ProtocolError(RelaaxError):
    """The peer refused what we sent, or sent what the protocol does not allow. Not worth a retry.

    Attributes:
      code: name of the `relaax.v1.ErrorCode`.
      field: name of the wrong field, or "".
    """

    def __init__(self, message: str, code: str = "MALFORMED", field: str = ""):
        super().__init__(message)
        self.code = code
        self.field = field


class NotAllowedError(RelaaxError):
    """One end does not trust the other: certificates, a token, a role. Not worth a retry."""


class LeasedError(RelaaxError):
    """The run's learner is another one: gradients are not taken. Not worth a retry."""


class ServerUnavailableError(RelaaxError, ConnectionError):
    """The peer cannot be reached or went away. Reconnect and begin a new episode."""


class SnapshotError(RelaaxError):
    """A snapshot on disk is damaged, foreign, or cannot be written."""


class JournalError(RelaaxError):
    """The journal on disk is damaged or foreign, or a record cannot be appended to it."""


class CollectorFullError(RelaaxError):
    """A collector is full; nothing was added, nothing lost. Worth a retry."""


class CollectorClosedError(RelaaxError):
    """A collector takes nothing more. Not worth a retry."""


class ReplayClosedError(RelaaxError):
    """A replay table takes no more steps, or has nothing due any more. Not worth a retry."""
