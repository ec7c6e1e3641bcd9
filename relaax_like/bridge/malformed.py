"""Refuses invalid messages as the caller's mistake, before a method receives them.

If a deserializer raises, gRPC's server writes a stack trace, answers INTERNAL, can end the call
twice, and can then wait forever when it stops.
"""

from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError

# Whether a method receives, and sends, a stream -> what makes its handler.
HANDLER_MAKERS: dict[tuple[bool, bool], Callable[..., grpc.RpcMethodHandler]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
_MALFORMED = object()


class MessageCheck(grpc.ServerInterceptor):
    """Answers INVALID_ARGUMENT to messages that cannot be read, for all services of a server.

    This must be the last interceptor: the handlers that it receives must be those of the services.
    """

    def __init__(self) -> None:
        self._checked: dict[str, grpc.RpcMethodHandler] = {}

    def intercept_service(
        self, continuation: Callable[..., Any], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Returns the handler of a call, with the check; see `grpc.ServerInterceptor`.

        gRPC calls this in its only serving thread; usually it takes one dict lookup.
        """
        method = handler_call_details.method
        checked = self._checked.get(method)
        if checked is None:
            handler = continuation(handler_call_details)
            if handler is None:  # no such method: names invented by strangers are not stored
                return None
            checked = self._checked[method] = _check(handler, method)
        return checked


def _check(handler: Any, method: str) -> grpc.RpcMethodHandler:
    """Returns a handler that passes valid messages to `handler` and refuses all others."""
    read = handler.request_deserializer

    def try_to_read(data: bytes) -> Any:
        try:
            return read(data)
        except DecodeError:
            return _MALFORMED

    def refuse_malformed(request: Any, context: grpc.ServicerContext) -> Any:
        if request is _MALFORMED:
            name = method.rpartition("/")[2]
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{name}: the request is not a valid message; use the same .proto file on both "
                "ends",
            )
        return request

    def refuse_each(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        for request in requests:
            yield refuse_malformed(request, context)

    kind = handler.request_streaming, handler.response_streaming
    serve = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )
    refuse = refuse_each if handler.request_streaming else refuse_malformed
    return HANDLER_MAKERS[kind](
        lambda requests, context: serve(refuse(requests, context), context),
        try_to_read,
        handler.response_serializer,
    )
