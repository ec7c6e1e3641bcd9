"""Tokens on gRPC calls: checks which methods a caller can use, before a message is read.

A token is sent as metadata, `authorization: Bearer TOKEN`, with each call, with or without TLS:
gRPC's own call credentials refuse plaintext connections, which are safe on loopback.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import grpc

from relaax_like.wire.security import Role, Tokens, describe_missing_role

logger = logging.getLogger(__name__)

_METADATA_KEY = "authorization"
_SCHEME = "Bearer "
_LOG_SEC = 1.0
_ASK_SEC = 1.0

# Method -> lowest role; None: no token needed. Methods that are not listed are for operators: a
# method that is forgotten here fails immediately, and is not exposed.
METHOD_ROLES: Mapping[str, Role | None] = {
    "/relaax.v1.ParameterServer/GetManifest": Role.AGENT,
    "/relaax.v1.ParameterServer/PushPull": Role.AGENT,
    "/relaax.v1.ParameterServer/PushPullWhole": Role.AGENT,
    "/relaax.v1.ParameterServer/Pull": Role.AGENT,
    "/relaax.v1.ParameterServer/GetStatus": Role.AGENT,
    "/relaax.v1.ParameterServer/ReportClients": Role.AGENT,
    "/relaax.v1.Experience/Collect": Role.AGENT,
    "/relaax.v1.LearnerGroup/Join": Role.AGENT,
    "/relaax.v1.RunSpaces/Propose": Role.AGENT,
    "/relaax.v1.Publisher/Acquire": Role.AGENT,
    "/relaax.v1.Publisher/Renew": Role.AGENT,
    "/relaax.v1.Publisher/Publish": Role.AGENT,
    "/relaax.v1.Publisher/FindLearner": Role.AGENT,
    "/relaax.v1.ParameterServer/Save": Role.OPERATOR,
    "/relaax.v1.ParameterServer/Stop": Role.OPERATOR,
    "/relaax.v1.Coordinator/Submit": Role.OPERATOR,
    "/relaax.v1.Coordinator/List": Role.OPERATOR,
    "/relaax.v1.Coordinator/Cancel": Role.OPERATOR,
    "/relaax.v1.Coordinator/SetCollectors": Role.OPERATOR,
    "/relaax.v1.Coordinator/Poll": Role.LEARNER,
    "/relaax.v1.Coordinator/Report": Role.LEARNER,
    "/relaax.v1.Coordinator/Leave": Role.LEARNER,
    "/relaax.v1.Coordinator/SendVersion": Role.LEARNER,
    "/relaax.v1.Coordinator/GetVersion": Role.LEARNER,
    # The tutorial's.
    "/ParameterServer/IncrementGlobalT": Role.AGENT,
    "/ParameterServer/ApplyGradients": Role.AGENT,
    "/ParameterServer/GetValues": Role.AGENT,
    "/ParameterServer/StoreScalarMetric": Role.AGENT,
    "/relaax.v1.Metrics/StoreScalars": Role.AGENT,
    "/grpc.health.v1.Health/Check": None,
    # These stay open, so clients without a token could occupy all calls of a server.
    "/grpc.health.v1.Health/Watch": Role.AGENT,
    "/grpc.health.v1.Health/List": Role.AGENT,
}


class TokenCheck(grpc.ServerInterceptor):
    """Refuses calls without a sufficient token, before a byte of their messages is read.

    The token of a bidirectional stream is also checked later: when a message arrives, at most once
    a second.

    Args:
      tokens: the tokens that the server accepts, and their roles.
    """

    def __init__(self, tokens: Tokens):
        self._tokens = tokens
        self._next_line = 0.0

    def intercept_service(
        self, continuation: Callable[..., Any], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Returns the handler of a call, or one that refuses it; see `grpc.ServerInterceptor`.

        gRPC calls this in its only serving thread, so it takes only some microseconds.
        """
        method = handler_call_details.method
        needed = METHOD_ROLES.get(method, Role.OPERATOR)
        if needed is None:
            return continuation(handler_call_details)
        token = _find_token(handler_call_details.invocation_metadata)
        missing = describe_missing_role(self._tokens, token, needed)
        if not missing:
            handler = continuation(handler_call_details)
            if handler is None or handler.stream_stream is None:
                return handler
            return self._watch(handler, method, token, needed)

        def refuse(requests: Any, context: grpc.ServicerContext) -> None:
            self._refuse(context, method, token, missing)

        # Stream handlers for all: a handler of one message would wait for it in a thread.
        return grpc.stream_stream_rpc_method_handler(refuse)

    def _watch(self, handler: Any, method: str, token: str, needed: Role) -> grpc.RpcMethodHandler:
        """Returns a handler that also checks the token later: a stream can last for days.

        It does so when a message arrives, at most once a second.
        """

        def watch(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            asked = time.monotonic()
            for request in requests:
                if (now := time.monotonic()) - asked > _ASK_SEC:
                    asked = now
                    missing = describe_missing_role(self._tokens, token, needed)
                    if missing:
                        self._refuse(context, method, token, missing)
                yield request

        return grpc.stream_stream_rpc_method_handler(
            lambda requests, context: handler.stream_stream(watch(requests, context), context),
            handler.request_deserializer,
            handler.response_serializer,
        )

    def _refuse(
        self, context: grpc.ServicerContext, method: str, token: str, missing: str
    ) -> NoReturn:
        known = self._tokens.find_role(token) is not None
        code = grpc.StatusCode.PERMISSION_DENIED if known else grpc.StatusCode.UNAUTHENTICATED
        self._log(f"{context.peer()}: {method}: {missing}")
        context.abort(code, f"{method.rpartition('/')[2]}: {missing}")

    def _log(self, line: str) -> None:
        # Unlocked: in the worst case, two threads write one line too many.
        if time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LOG_SEC
            logger.warning("refused %s", line)


def _find_token(metadata: Sequence[tuple[str, str | bytes]] | None) -> str:
    for key, value in metadata or ():
        if key == _METADATA_KEY and isinstance(value, str) and value.startswith(_SCHEME):
            return value.removeprefix(_SCHEME)
    return ""


class TokenSender(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds a token to each call of a channel.

    Args:
      get_token: returns the current token; must be fast.
    """

    def __init__(self, get_token: Callable[[], str]):
        self._get_token = get_token

    def _intercept(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """Sends a call with the token."""
        token = (_METADATA_KEY, _SCHEME + self._get_token())
        metadata = [*(client_call_details.metadata or ()), token]
        return continuation(client_call_details._replace(metadata=metadata), request)

    intercept_unary_unary = _intercept
    intercept_unary_stream = _intercept
    intercept_stream_unary = _intercept  # type: ignore[assignment]  # another name
    intercept_stream_stream = _intercept  # type: ignore[assignment]  # another name
