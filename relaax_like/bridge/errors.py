"""Errors on the bridge: converts our exceptions to gRPC status codes and back.

The client decides by the codes, and only repeats the texts.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import grpc

from relaax_like.core.manifest import Manifest
from relaax_like.wire.errors import (
    InvalidInputError,
    LeasedError,
    NotAllowedError,
    ProtocolError,
    ServerUnavailableError,
)

# The first that fits decides.
Codes = Sequence[tuple[type[Exception], grpc.StatusCode]]
_CODES: Codes = (
    (InvalidInputError, grpc.StatusCode.INVALID_ARGUMENT),
    (LeasedError, grpc.StatusCode.FAILED_PRECONDITION),
    (ServerUnavailableError, grpc.StatusCode.UNAVAILABLE),
    (TimeoutError, grpc.StatusCode.DEADLINE_EXCEEDED),
)
# The server could not be reached, or was too slow: the request can be retried.
_UNAVAILABLE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,
)
# Trailing metadata of calls whose text is ours; gRPC's own texts are meant for its developers.
OWN_TEXT = ("relaax-text", "own")
_REASONS = {
    grpc.StatusCode.UNAVAILABLE: "nothing listens there, or the connection was lost; is it "
    "running?",
    grpc.StatusCode.DEADLINE_EXCEEDED: "it did not answer in time; retry later",
    grpc.StatusCode.CANCELLED: "the call was cancelled, because it took too long, or one end was "
    "closing; retry later",
}
# What gRPC's server itself answers beyond `maximum_concurrent_rpcs`.
_TOO_MANY_CALLS = "Concurrent RPC limit exceeded!"
_MAX_TEXT = 4000  # characters: gRPC sends the text as metadata
# The token or its role is not sufficient; see bridge/access.py.
_NOT_ALLOWED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


def abort(context: grpc.ServicerContext, error: Exception, codes: Codes = ()) -> NoReturn:
    """Ends a call with the status code of `error`.

    Args:
      context: of the call.
      error: of the request.
      codes: of errors that only this service has.

    Raises:
      Exception: always: gRPC's own exception, or `error` if it has no code; gRPC then answers
        UNKNOWN.
    """
    for kind, code in (*codes, *_CODES):
        if isinstance(error, kind):
            context.set_trailing_metadata((OWN_TEXT,))
            context.abort(code, str(error)[:_MAX_TEXT])
    raise error


def validate_format(came: int, ours: int, client: str, server: str) -> None:
    """Checks the format number in the first message of a protocol.

    Args:
      came: the received number.
      ours: the number of this version.
      client: what the client is, for the error.
      server: what the server is, for the error.

    Raises:
      InvalidInputError: the numbers differ; the error names both.
    """
    if came != ours:
        raise InvalidInputError(
            f"format: the {client} speaks format {came} of this protocol, the {server} format "
            f"{ours}; run the same version of relaax_like on both"
        )


def validate_hello(hello: Any, ours: int, manifest: Manifest, **longest: int) -> None:
    """Checks a learner's first message: its format and fingerprint, and its texts.

    Args:
      hello: the message.
      ours: format number of this version.
      manifest: of the run.
      longest: field of the message -> largest number of characters.

    Raises:
      InvalidInputError: the learner has another version of relaax_like or another model, or a text
        is empty, too long, or not printable.
    """
    validate_format(hello.format, ours, "learner", "parameter server")
    for field, most in longest.items():
        validate_text(field, getattr(hello, field), most)
    if hello.fingerprint != manifest.fingerprint:
        raise InvalidInputError(
            f"fingerprint: {hello.fingerprint:08x}, expected {manifest.fingerprint:08x}; the "
            "learner has another model than this run, so start both with the same algorithm folder "
            "and settings"
        )


def validate_text(field: str, text: str, longest: int) -> None:
    """Checks that a text is printable, and has 1 to `longest` characters.

    Raises:
      InvalidInputError: it is not; the error names the field.
    """
    if not 1 <= len(text) <= longest or not text.isprintable():
        raise InvalidInputError(
            f"{field}: {text[:60]!r} of length {len(text)}, expected 1 to {longest} printable "
            "characters"
        )


class ClosedChannelError(ServerUnavailableError):
    """This process has closed its channel; a retry on the same channel would fail, too."""


class NoAnswerError(ServerUnavailableError):
    """Nothing listens at the address, the connection was lost, or something else listens there."""


# What a link leads to, for messages.
PARAMETER_SERVER, LEARNER = "the parameter server", "the learner"


def to_exception(error: grpc.RpcError, address: str, server: str = PARAMETER_SERVER) -> Exception:
    """Converts the error of a call to our exception.

    Args:
      error: of the call.
      address: of the server, for the text.
      server: what the server is, for the text.

    Returns:
      InvalidInputError: the server refused the request as invalid.
      LeasedError: the run learns in another place, with another learner or with other Algorithms.
      NotAllowedError: the token, or its role, is not sufficient.
      NoAnswerError: the server could not be reached, or does not speak gRPC.
      ServerUnavailableError: no answer in time, or the server is not ready or too busy.
      ProtocolError: something else listens at the address, or the server has failed.
    """
    code, details = error.code(), error.details()
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        refused = f"{server} at {address} refused the request as invalid, without a reason"
        return InvalidInputError(details or f"{refused}; check the address", "")
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return LeasedError(f"{server} at {address} refused: {details}")
    if code in _NOT_ALLOWED:
        return NotAllowedError(f"{server} at {address} refused: {details}")
    if code in _UNAVAILABLE:
        if details == _TOO_MANY_CALLS:
            details = "it already serves the maximum number of calls; retry later"
        own = OWN_TEXT in (error.trailing_metadata() or ())
        if own or code not in _REASONS:  # it has answered, or refuses calls at the moment
            return ServerUnavailableError(f"{server} at {address}: {details}")
        kind = NoAnswerError if code is grpc.StatusCode.UNAVAILABLE else ServerUnavailableError
        return kind(f"no answer from {server} at {address}: {_REASONS[code]}")
    cure = "check the address, and see the log of the server"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        cure = "check the address, and run the same version of relaax_like on both ends"
    return ProtocolError(f"{server} at {address} answered {code.name}: {details!s:.500}; {cure}")


@contextlib.contextmanager
def translate(
    address: str,
    server: str = PARAMETER_SERVER,
    convert: Callable[[grpc.RpcError, str, str], Exception] = to_exception,
) -> Iterator[None]:
    """Converts gRPC's errors in its block to our exceptions.

    Args:
      address: of the server, for the text.
      server: what the server is, for the text.
      convert: returns the exception of an error, with the arguments of `to_exception`.

    Raises:
      ClosedChannelError: this process has closed the channel, as at its end.
      Exception: see `to_exception`.
    """
    try:
        yield
    except grpc.RpcError as error:
        # The error is the call itself: objects in its frames, such as shared memory, would be kept
        # until the next garbage collection.
        error.__traceback__ = None
        raise convert(error, address, server) from None
    except InvalidInputError:
        raise
    except ValueError as error:
        if "closed" not in str(error):  # "... on closed channel", "... Channel closed"
            raise
        raise ClosedChannelError(
            f"this process has closed its connection to {address} ({error}); open a new one"
        ) from None
