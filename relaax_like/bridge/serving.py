"""Adds services to a gRPC server: ours, whose methods raise our exceptions, and health checks."""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from relaax_like.bridge import errors, frames

# Makes a handler (one of gRPC's four functions); the method; what parses a request.
Method = tuple[Callable[..., grpc.RpcMethodHandler], Callable[..., Any], Callable[[bytes], Any]]


def add_service(server: grpc.Server, name: str, *methods: Method) -> None:
    """Adds a service whose methods have the names of functions, and send chunks unconverted.

    Args:
      server: not started yet.
      name: of the service.
      methods: see `Method`; for exceptions that they raise, see `answering`.
    """
    handlers = {
        serve.__name__: make(answering(serve), parse, frames.to_bytes)
        for make, serve, parse in methods
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))


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
