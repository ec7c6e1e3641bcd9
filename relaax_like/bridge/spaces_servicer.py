"""The `relaax.v1.RunSpaces` service: a client defines the spaces that the settings leave open."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc

from relaax_like.bridge import errors
from relaax_like.bridge.serving import open_method
from relaax_like.v1 import spaces_pb2
from relaax_like.wire.errors import ServerUnavailableError
from relaax_like.wire.spaces import RunSpaces, message_to_run_spaces, run_spaces_to_message

_SERVICE = spaces_pb2.DESCRIPTOR.services_by_name["RunSpaces"]

# Receives a proposal, or None for a request; returns the run's spaces, or None if not known yet.
Propose = Callable[[RunSpaces | None], RunSpaces | None]


def make_spaces_servicer(propose: Propose) -> Any:
    """Returns a servicer, see `add_service`.

    Args:
      propose: receives proposals, see `Propose`; raises InvalidInputError for spaces that cannot be
        used, and ServerUnavailableError if they cannot be stored.
    """

    def answer(request: spaces_pb2.Spaces, context: grpc.ServicerContext) -> spaces_pb2.Spaces:
        return _to_message(propose(_read(request)))

    return SimpleNamespace(service=_SERVICE, Propose=answer)


def _to_message(spaces: RunSpaces | None) -> spaces_pb2.Spaces:
    return spaces_pb2.Spaces() if spaces is None else run_spaces_to_message(spaces)


def _read(message: spaces_pb2.Spaces) -> RunSpaces | None:
    """Converts a message to spaces; None: it has none."""
    if not (message.observation_spaces or message.action_spaces):
        return None
    return message_to_run_spaces(message)


class WaitingHandler(grpc.GenericRpcHandler):
    """Answers UNAVAILABLE to all calls without another handler; must be added last.

    Args:
      text: what the server is waiting for.
    """

    def __init__(self, text: str):
        self._error = ServerUnavailableError(text)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Returns a handler that refuses the call; see `grpc.GenericRpcHandler`."""

        def refuse(requests: object, context: grpc.ServicerContext) -> NoReturn:
            errors.abort(context, self._error)

        return grpc.stream_stream_rpc_method_handler(refuse)


def propose_spaces(
    channel: grpc.Channel, address: str, spaces: RunSpaces | None, timeout_sec: float = 5.0
) -> RunSpaces | None:
    """Proposes the spaces of a run, or requests them; returns those of the run, None if unknown.

    Args:
      channel: to the parameter server.
      address: address of the parameter server, for errors.
      spaces: spaces to propose; None: only requests the spaces of the run.
      timeout_sec: longest wait for the answer.

    Raises:
      InvalidInputError: the algorithm cannot use the proposed spaces, or the received ones are not
        valid.
      ServerUnavailableError: no answer in time, the server is too busy, or it could not store the
        spaces.
      NotAllowedError: an agent's token is required.
      ProtocolError: the server does not accept proposals or has failed, or something else listens
        at the address.
    """
    call = open_method(channel, _SERVICE, "Propose")
    with errors.translate(address):
        return _read(call(_to_message(spaces), timeout=timeout_sec))
