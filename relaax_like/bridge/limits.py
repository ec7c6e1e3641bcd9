"""Limits the calls that one address can have open at a server."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import grpc


class CallLimit(grpc.ServerInterceptor):
    """Refuses calls of an address that already has too many open, so that others are served.

    A call counts once its headers have arrived, even if no message follows. This must be the first
    interceptor. All programs of one machine, or behind one router, share an address.

    Args:
      most: maximum number of calls of one address at a time.
    """

    def __init__(self, most: int):
        self._most = most
        self._open: Counter[str] = Counter()
        self._lock = threading.Lock()

    def intercept_service(
        self, continuation: Callable[..., Any], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Returns a handler that counts the call; see `grpc.ServerInterceptor`.

        The caller's address is only known in the handler.
        """
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        call = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )

        def serve(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            self._enter(context)
            request = requests if handler.request_streaming else _take_one(requests, context)
            response = call(request, context)
            if handler.response_streaming:
                yield from response
            else:
                yield response

        # Stream handlers for all: a handler of one message is only called once it has arrived.
        return grpc.stream_stream_rpc_method_handler(
            serve, handler.request_deserializer, handler.response_serializer
        )

    def _enter(self, context: grpc.ServicerContext) -> None:
        # "ipv4:10.0.0.5:41234": without the port.
        address = context.peer().rpartition(":")[0]
        with self._lock:
            count = self._open[address]
            full = count >= self._most
            if not full:
                self._open[address] = count + 1
        if full:
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{count} calls are open from {address}, the maximum for one address; close "
                "idle ones",
            )
        if not context.add_callback(lambda: self._leave(address)):  # it has already ended
            self._leave(address)

    def _leave(self, address: str) -> None:
        with self._lock:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]


def _take_one(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
    for request in requests:
        return request
    return context.abort(
        grpc.StatusCode.INVALID_ARGUMENT, "the call ended before its message arrived"
    )
