"""Channels and ports: the options and the credentials of both ends of gRPC connections."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from relaax_like.bridge.access import TokenCheck, TokenSender
from relaax_like.bridge.limits import CallLimit
from relaax_like.bridge.malformed import MessageCheck
from relaax_like.bridge.reloading_channel import ReloadingChannel
from relaax_like.config.address import parse_address
from relaax_like.wire.errors import RelaaxError
from relaax_like.wire.ports import describe_bind_failure
from relaax_like.wire.security import ClientSecurity, ServerSecurity, watch_token
from relaax_like.wire.tls import Pem, ServerTls

SERVER_OPTIONS = (
    # Without it a second server on a used port starts silently and receives a part of the calls.
    ("grpc.so_reuseport", 0),
    # Bytes that a stream can send before they are read. By default gRPC lets them grow to
    # megabytes, for each of a thousand streams; pushes of 1 M and 16 M parameters are not slower
    # with this limit.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 512 * 1024),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Else its default of a minute comes first.
    ("grpc.http2.ping_timeout_ms", 30_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Else its default of a minute comes first.
    ("grpc.http2.ping_timeout_ms", 30_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    # A server restarts in about a second: attempts must not come just before, and then long after.
    ("grpc.max_reconnect_backoff_ms", 250),
    # Otherwise an http_proxy in the environment would intercept calls to this machine.
    ("grpc.enable_http_proxy", 0),
)

Options = Sequence[tuple[str, Any]]


def make_channel(
    address: str,
    security: ClientSecurity | None = None,
    options: Options = CHANNEL_OPTIONS,
) -> grpc.Channel:
    """Opens a channel to `host:port`; it connects automatically, and again after a loss.

    Files that change are read again: a new token and new certificates apply to new calls.

    Args:
      address: of the server.
      security: token and certificates; None: no token and no TLS.
      options: of gRPC.

    Raises:
      ConfigError: a file that `security` names cannot be used.
    """
    security = security or ClientSecurity()
    channel: grpc.Channel
    if security.tls is None:
        channel = grpc.insecure_channel(address, options=options)
    else:
        channel = ReloadingChannel(
            lambda pem: grpc.secure_channel(address, _make_client_credentials(pem), options),
            security.tls.watch().get,
        )
    if security.token_file is not None:
        return grpc.intercept_channel(channel, TokenSender(watch_token(security.token_file).get))
    if security.token:
        return grpc.intercept_channel(channel, TokenSender(lambda: security.token))
    return channel


def make_server(
    name: str,
    max_calls: int,
    security: ServerSecurity | None,
    max_message_bytes: int | None = None,
    lanes: Sequence[grpc.ServerInterceptor] = (),
    threads: int | None = None,
) -> grpc.Server:
    """Returns a server without services and ports.

    Args:
      name: of its threads.
      max_calls: see `make_interceptors`; a further call is refused.
      security: see `make_interceptors`.
      max_message_bytes: longest message that it receives; None: gRPC's 4 MiB.
      lanes: see `make_interceptors`.
      threads: maximum number of threads; None: one for each call.
    """
    limit = (
        ()
        if max_message_bytes is None
        else (("grpc.max_receive_message_length", max_message_bytes),)
    )
    return grpc.server(
        ThreadPoolExecutor(threads or max_calls, thread_name_prefix=name),
        options=(*SERVER_OPTIONS, *limit),
        maximum_concurrent_rpcs=max_calls,
        interceptors=make_interceptors(security, max_calls, lanes),
    )


def make_interceptors(
    security: ServerSecurity | None,
    max_calls: int,
    lanes: Sequence[grpc.ServerInterceptor] = (),
) -> list[grpc.ServerInterceptor]:
    """Returns the interceptors of a `grpc.server` that limit calls, and check messages and tokens.

    Args:
      security: what clients must present; None: nothing, and no TLS. Tokens are only checked if
        they are required.
      max_calls: maximum number of calls at a time; one address can have half of them.
      lanes: interceptors that receive messages in other ways; such messages are checked like all
        others.
    """
    limit = CallLimit(max_calls // 2)
    if security is None or security.tokens is None:
        return [limit, *lanes, MessageCheck()]
    return [limit, *lanes, TokenCheck(security.tokens), MessageCheck()]


def bind(server: grpc.Server, address: str, security: ServerSecurity | None = None) -> int:
    """Binds a gRPC server to `host:port` and returns the port.

    Raises:
      RelaaxError: the port is taken (the error names the process that holds it, if possible), or
        the address cannot be used on this machine, or is not `host:port`.
    """
    try:
        if security is None or security.tls is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, _make_credentials(security.tls))
    except RuntimeError:
        bound = 0
    if not bound:
        where = parse_address(address)
        raise RelaaxError(f"cannot bind {address}: {describe_bind_failure(where.host, where.port)}")
    return bound


def _make_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    loaded = tls.get()

    def fetch() -> Any:
        """Returns new credentials; None: nothing has changed. Called at each handshake."""
        nonlocal loaded
        newest = tls.get()
        if newest is loaded:
            return None
        loaded = newest
        return _make_configuration(newest)

    return grpc.dynamic_ssl_server_credentials(
        _make_configuration(loaded), fetch, tls.client_cert_required
    )


def _make_client_credentials(pem: Pem) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(pem.ca, pem.key or None, pem.cert or None)


def _make_configuration(pem: Pem) -> Any:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.ca)
