"""The errors that users see: what was wrong, what was expected, and what to do."""

import os
import sys
import traceback

# Environment variable that `-v` sets, also for child processes.
VERBOSE = "RELAAX_VERBOSE"
_MAX_TEXT = 500


class RelaaxError(Exception):
    """Base of all errors that a user can cause or cure; shown without a stack trace."""

    # TensorFlow's AutoGraph would replace the error by its own, with a stack trace.
    ag_pass_through = True


class DamagedError(Exception):
    """A file is damaged, of another kind, or cannot be read.

    The code that knows the file converts this to a RelaaxError.
    """


class ConfigError(RelaaxError, ValueError):
    """Settings, a file that they name, an argument or an algorithm's code is wrong.

    A retry would fail, too.
    """


class InvalidInputError(RelaaxError, ValueError):
    """An input value is wrong; it had no effect.

    Attributes:
      field: name of the wrong field; "": the complete message, or not known, as in an error that
        came over gRPC. By default it is what the message begins with, before a colon.
    """

    def __init__(self, message: str, field: str | None = None):
        super().__init__(message)
        name, colon, _ = message.partition(": ")
        self.field = field if field is not None else name * bool(colon)


class ProtocolError(RelaaxError):
    """The peer refused a message, or violated the protocol. A retry would usually fail, too.

    The rlx server also raises it to end a session with the code UNAVAILABLE or OVERLOADED, after
    which a retry can succeed; the client raises ServerUnavailableError for these.

    Attributes:
      code: name of the `relaax.v1.ErrorCode`; "ERROR_CODE_" and the number for an unknown one.
      field: name of the wrong field, or "".
    """

    def __init__(self, message: str, code: str = "MALFORMED", field: str = ""):
        super().__init__(message)
        self.code = code
        self.field = field


class NotAllowedError(RelaaxError):
    """One end does not trust the other: certificates, a token, a role. A retry would fail, too."""


class LeasedError(RelaaxError):
    """The run learns in another place, with another learner or with other Algorithms.

    So what was sent or requested, such as gradients, experience or a snapshot, is refused. A retry
    would fail, too.
    """


class ServerUnavailableError(RelaaxError, ConnectionError):
    """The peer cannot be reached, went away, or is not ready or too busy. A retry can succeed.

    An environment reconnects and begins a new episode.
    """


class SnapshotError(RelaaxError):
    """A snapshot or a file beside it is damaged, of another model, or cannot be read or written.

    Or another process uses the folder.
    """


class JournalError(RelaaxError):
    """A journal on disk is damaged, of another model, or cannot be read or appended to."""


class CollectorFullError(RelaaxError):
    """A collector is full; nothing was added, and nothing was lost. A retry can succeed."""


class CollectorClosedError(RelaaxError):
    """A collector is closed and takes nothing more. A retry would fail, too."""


def describe_exception(error: BaseException) -> str:
    """Returns an exception of a user's code on one line: its type, and its text.

    If it has no text, file and line of its origin instead.
    """
    text = " ".join(str(error).split())[:_MAX_TEXT]
    if not text and (frames := traceback.extract_tb(error.__traceback__)):
        text = f"{frames[-1].filename}:{frames[-1].lineno}"
    return f"{type(error).__name__}: {text}"


def print_error(prefix: str, error: RelaaxError) -> None:
    """Prints an error to standard error; with `-v`, also its traceback."""
    print(f"{prefix}: {error}", file=sys.stderr)
    if os.environ.get(VERBOSE):
        traceback.print_exception(error)
