"""Both ends of our gRPC services, as their .proto files describe them, and health checks.

Methods raise our exceptions, and send chunks without conversion.
"""

import functools
import inspect
import queue
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from relaax_like.bridge import errors, frames
from relaax_like.bridge.malformed import HANDLER_MAKERS

# Parses a received message.
Read = Callable[[bytes], Any]


def add_service(server: grpc.Server, servicer: Any) -> None:
    """Adds a service to a server.

    Args:
      server: not started yet.
      servicer: has the service's methods; for exceptions that they raise, see `answering`. Its
        `service` is the description of the service. If some requests are not parsed by protobuf
        alone, `readers` has their methods, and what parses them.
    """
    service: ServiceDescriptor = servicer.service
    readers: Mapping[str, Read] = getattr(servicer, "readers", {})
    handlers = {}
    for method in service.methods:
        make = HANDLER_MAKERS[method.client_streaming, method.server_streaming]
        read = readers.get(method.name) or GetMessageClass(method.input_type).FromString
        serve = answering(getattr(servicer, method.name))
        handlers[method.name] = make(serve, read, frames.to_bytes)
    added = grpc.method_handlers_generic_handler(service.full_name, handlers)
    server.add_generic_rpc_handlers((added,))


def open_method(
    channel: grpc.Channel, service: ServiceDescriptor, name: str, read: Read | None = None
) -> Any:
    """Returns the client's end of a method, which is called as gRPC's own are.

    Args:
      channel: to the server.
      service: description of the service.
      name: of the method.
      read: parses its replies; None: protobuf alone.
    """
    method = service.methods_by_name[name]
    sent = "stream" if method.client_streaming else "unary"
    received = "stream" if method.server_streaming else "unary"
    return getattr(channel, f"{sent}_{received}")(
        f"/{service.full_name}/{name}",
        request_serializer=frames.to_bytes,
        response_deserializer=read or GetMessageClass(method.output_type).FromString,
    )


def add_health(server: grpc.Server, *services: str) -> None:
    """Adds gRPC's standard health check, which answers SERVING for "" and for `services`."""
    servicer = health.HealthServicer()
    for service in ("", *services):
        servicer.set(service, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)


def answering(serve: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method that ends its call with the status code of an exception; see `abort`.

    Args:
      serve: takes a request, or an iterator of them, and the context last; it can be a generator.
    """

    def answer(*arguments: Any) -> Any:
        try:
            return serve(*arguments)
        except Exception as error:
            errors.abort(arguments[-1], error)

    def answer_each(*arguments: Any) -> Iterator[Any]:
        try:
            yield from serve(*arguments)
        except Exception as error:
            errors.abort(arguments[-1], error)

    return functools.wraps(serve)(answer_each if inspect.isgeneratorfunction(serve) else answer)


class GrpcCall(Iterator[Any]):
    """A stream to a server, which sends in a separate thread, so `put` never waits.

    Its iterator yields the replies, and raises the errors of `errors.to_exception`.

    Args:
      channel: to the server.
      service: description of the service.
      name: of the method.
      read: parses its replies.
      address: of the server, for errors.
      server: what the server is, for errors.

    Raises:
      ServerUnavailableError: the channel has been closed.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        service: ServiceDescriptor,
        name: str,
        read: Read,
        address: str,
        server: str = errors.PARAMETER_SERVER,
    ):
        self._address = address
        self._server = server
        # Messages that the thread has not taken yet; None ends it.
        self._outbox: queue.SimpleQueue[Message | memoryview | None] = queue.SimpleQueue()
        with errors.translate(address, server):
            self._call = open_method(channel, service, name, read)(iter(self._outbox.get, None))

    def __next__(self) -> Any:
        try:
            return next(self._call)
        except grpc.RpcError as error:
            raise errors.to_exception(error, self._address, self._server) from None

    def put(self, part: Message | memoryview | None) -> None:
        """Adds a message to the thread's queue; None ends the sending direction."""
        self._outbox.put(part)

    def is_active(self) -> bool:
        """Returns whether the call has not ended."""
        return bool(self._call.is_active())

    def cancel(self) -> None:
        """Ends the call and the thread. Idempotent and thread-safe."""
        self._outbox.put(None)
        self._call.cancel()
