"""Channels and ports: the options of both ends of every gRPC connection."""

import grpc

from relaax_like.wire.errors import RelaaxError
from relaax_like.wire.ports import describe_bind_failure

SERVER_OPTIONS = (
    # Without it a second server on a used port starts silently and takes a share of the calls.
    ("grpc.so_reuseport", 0),
    # Our own messages stay under 1 MiB; the tutorial's ApplyGradients sends whole arrays.
    ("grpc.max_receive_message_length", 256 * 1024 * 1024),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Otherwise an http_proxy of the environment would catch calls to the own machine.
    ("grpc.enable_http_proxy", 0),
)


def make_channel(address: str) -> grpc.Channel:
    """Opens a channel to `host:port`; it connects by itself and again after a loss."""
    return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)


def bind(server: grpc.Server, address: str) -> int:
    """Binds a gRPC server to `host:port` and returns the port.

    Raises:
      RelaaxError: the port is taken; names the process that holds it.
    """
    host, _, port = address.rpartition(":")
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError:
        bound = 0
    if not bound:
        raise RelaaxError(f"cannot bind {address}: {describe_bind_failure(host, int(port))}")
    return bound
