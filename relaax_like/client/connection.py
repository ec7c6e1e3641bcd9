"""One blocking TCP connection that speaks frames of the rlx protocol."""

import contextlib
import socket
import time
from typing import Any

from google.protobuf.message import DecodeError

from relaax_like.client.argument_types import NUMBER, TEXT, validate_type
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.closing import Closing
from relaax_like.wire.errors import (
    ConfigError,
    InvalidInputError,
    NotAllowedError,
    ProtocolError,
    ServerUnavailableError,
)
from relaax_like.wire.framing import (
    DEFAULT_PORT,
    HEADER,
    MAX_MESSAGE_BYTES,
    pack_frame,
    unpack_length,
)
from relaax_like.wire.tls import ClientTls, describe_tls_error, find_tls_mistake

_CHUNK_BYTES = 1 << 16
# More than 9.2e9 would overflow the nanoseconds in which Python waits.
MAX_WAIT_SEC = 1e9
_PING = rlx_pb2.ServerMessage(ping=rlx_pb2.Ping()).SerializeToString()
# The server can recover a moment later; everything else would be refused again.
_WORTH_A_RETRY = (rlx_pb2.OVERLOADED, rlx_pb2.UNAVAILABLE)


def parse_address(address: str) -> tuple[str, int]:
    """Returns host and port of "host:port" or "[ipv6]:port".

    Raises:
      ConfigError: it is not such an address.
    """
    validate_type("address", address, TEXT)
    expected = (
        f"expected HOST:PORT with a port of 1 to 65535, for example localhost:{DEFAULT_PORT} or "
        f"[::1]:{DEFAULT_PORT}"
    )
    if "/" in address:
        raise ConfigError(f"address {address!r:.100}: a URL or a path; {expected}")
    host, colon, port = address.rpartition(":")
    # An IPv6 address contains colons, so it must be in brackets.
    if not (colon and port) or port.endswith("]") or (":" in host and not host.startswith("[")):
        raise ConfigError(
            f"address {address!r:.100}: port missing, or an IPv6 address without brackets; "
            f"{expected}"
        )
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    is_number = port.isascii() and port.isdigit() and len(port) <= 9
    if not host or "[" in host or not is_number or not 1 <= int(port) <= 65535:
        raise ConfigError(f"address {address!r:.100}: {expected}")
    return host, int(port)


class Connection(Closing):
    """Sends `ClientMessage`s and receives `ServerMessage`s; each call blocks until it is done.

    Not thread-safe. Any error closes the connection, because the position in the stream is then
    unknown; only an InvalidInputError, for a message that is too long to send, does not.

        with Connection("localhost:7001") as connection:
            connection.send(rlx_pb2.ClientMessage(hello=hello))
            message = connection.receive()

    Attributes:
      address: "host:port" of the rlx server.
      max_send_bytes: longest message that can be sent.
    """

    def __init__(
        self,
        address: str,
        *,
        connect_timeout_sec: float = 10.0,
        timeout_sec: float = 60.0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        tls: ClientTls | None = None,
    ) -> None:
        """Connects.

        Args:
          address: "host:port" of the rlx server.
          connect_timeout_sec: longest wait for the TCP connection.
          timeout_sec: longest time to send a message, and longest wait for a complete message or a
            ping of the server.
          max_message_bytes: longest message that is accepted or sent. Set `max_send_bytes` to the
            server's own bound once the server has reported it.
          tls: certificates; None: no TLS.

        Raises:
          ConfigError: bad address, a time out of range, or a file of `tls` that cannot be used.
          ServerUnavailableError: nothing listens there, there was no answer in time, or the server
            closed the connection during the TLS handshake.
          NotAllowedError: with `tls`: the server's certificate is not accepted, the server does not
            accept the client's, or it does not use TLS.
        """
        self.address = address
        self.max_send_bytes = max_message_bytes
        self._max_message_bytes = max_message_bytes
        self._tls = tls
        self._heard = False
        self._buffer = bytearray()
        self._socket: socket.socket | None = None
        connect_timeout_sec = _validate_time("connect_timeout_sec", connect_timeout_sec)
        self._timeout_sec = _validate_time("timeout_sec (--timeout)", timeout_sec)
        self._socket = self._connect(connect_timeout_sec)

    def _connect(self, timeout_sec: float) -> socket.socket:
        host, port = parse_address(self.address)
        try:
            connected = socket.create_connection((host, port), timeout=timeout_sec)
        except TimeoutError:
            raise ServerUnavailableError(
                f"rlx server {self.address}: no connection within {timeout_sec:g} s; is the "
                "address correct, and is the server running?"
            ) from None
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ServerUnavailableError(
                f"rlx server {self.address}: cannot connect ({reason}); is the address correct, "
                "and is the server running?"
            ) from None
        # Each step waits for its answer: without this, a small message can be delayed by 40 ms.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._tls is not None:
            connected = self._secure(connected, host, self._tls)
        connected.settimeout(self._timeout_sec)
        return connected

    def _secure(self, connected: socket.socket, host: str, tls: ClientTls) -> socket.socket:
        """Does the handshake, within the time for connecting."""
        try:
            return tls.make_context().wrap_socket(connected, server_hostname=host)
        except TimeoutError:
            connected.close()
            raise ServerUnavailableError(
                f"rlx server {self.address}: the TLS handshake timed out; is the address correct, "
                "and does the server use TLS? If it does not, remove tls_ca (--tls-ca)"
            ) from None
        except OSError as error:
            connected.close()
            raise self._lost(error) from None
        except BaseException:
            connected.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether the connection has been closed or lost."""
        return self._socket is None

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        connected, self._socket = self._socket, None
        if connected is not None:
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
            connected.close()

    def send(self, message: rlx_pb2.ClientMessage) -> None:
        """Sends one message.

        Raises:
          InvalidInputError: the message is longer than the server accepts. Nothing was sent.
          ServerUnavailableError: the connection is lost, or the server did not read the message in
            time; or it had closed the connection after an Error after which a retry can succeed.
          NotAllowedError, ProtocolError: the server had closed the connection after another Error;
            or one end expects TLS, and the other does not.
        """
        self.send_bytes(message.SerializeToString())

    def send_bytes(self, body: bytes) -> None:
        """Sends one serialised message; raises the same as `send`."""
        if len(body) > self.max_send_bytes:
            raise InvalidInputError(
                f"a message of {len(body)} bytes, but {self.address} accepts at most "
                f"{self.max_send_bytes}; use fewer slots or smaller observations"
            )
        connected = self._open_socket()
        try:
            connected.sendall(pack_frame(body))
        except OSError as error:
            if not isinstance(error, TimeoutError):
                self._raise_received_error()
            raise self._lost(error, f"it did not read a message of {len(body)} bytes") from None
        except BaseException:
            self.close()
            raise

    def _raise_received_error(self) -> None:
        """Raises the Error that the server sent before it closed the connection, if there is one.

        It is more useful than "broken pipe". Answers before it, such as late ones, are dropped.
        """
        while True:
            try:
                body = self.receive_bytes()
            except ServerUnavailableError:
                return  # nothing more was received
            self.parse(body)

    def receive(self) -> rlx_pb2.ServerMessage:
        """Waits for one message.

        Raises:
          ServerUnavailableError: the connection is lost, no message arrived in time, or the
            server sent an Error after which a retry can succeed.
          NotAllowedError: the server does not accept the token, or one end does not trust the
            other's certificate or does not use TLS.
          ProtocolError: any other Error, or bytes that are not a valid message.
        """
        return self.parse(self.receive_bytes())

    def receive_bytes(self) -> bytes:
        """Waits for one message, and returns it unparsed, as one that `parse` takes.

        Waits longer while the server reports that it is still alive. Raises the same as `receive`,
        except for Errors that the server has sent, and bytes that are not a valid message: `parse`
        raises for these.
        """
        try:
            body = self._receive(self._timeout_sec)
            while body == _PING:
                body = self._receive(self._timeout_sec)
            return body
        except OSError as error:
            raise self._lost(error) from None
        except BaseException:
            # Also Ctrl-C: part of a message might have been read.
            self.close()
            raise

    def receive_within(self, seconds: float) -> bytes | None:
        """Waits at most `seconds` for one message; returns None if no complete one has arrived.

        It can still arrive later, so the connection stays open. Raises the same as `receive`.
        """
        # On Windows, time.monotonic advances in steps of 16 ms before Python 3.13.
        end = time.perf_counter() + seconds
        connected = self._open_socket()
        try:
            while True:
                try:
                    connected.settimeout(max(end - time.perf_counter(), 1e-6))
                    body = self._receive(max(end - time.perf_counter(), 0.0))
                finally:
                    connected.settimeout(self._timeout_sec)
                if body != _PING:
                    return body
        except TimeoutError:
            return None
        except OSError as error:
            raise self._lost(error) from None
        except BaseException:
            self.close()
            raise

    def parse(self, body: bytes) -> rlx_pb2.ServerMessage:
        """Parses a received message; raises the same as `receive`."""
        try:
            message = rlx_pb2.ServerMessage.FromString(body)
        except DecodeError:
            self.close()
            raise self._malformed("bytes that are not an rlx protocol message") from None
        kind = message.WhichOneof("body")
        if kind is None:
            self.close()
            raise self._malformed("a message without a known body")
        if kind == "error":
            self.close()
            raise _error_to_exception(message.error, self.address)
        return message

    def _receive(self, timeout_sec: float) -> bytes:
        deadline = time.perf_counter() + timeout_sec
        self._fill(HEADER.size, deadline)
        try:
            length = unpack_length(bytes(self._buffer[: HEADER.size]), self._max_message_bytes)
        except ProtocolError as error:
            raise ProtocolError(f"{self.address}: {error}") from None
        end = HEADER.size + length
        self._fill(end, deadline)
        body = bytes(self._buffer[HEADER.size : end])
        del self._buffer[:end]
        return body

    def _fill(self, size: int, deadline: float) -> None:
        """Reads until the buffer holds `size` bytes. Memory is used only for what has arrived."""
        connected = self._open_socket()
        while len(self._buffer) < size:
            chunk = connected.recv(max(_CHUNK_BYTES, min(size - len(self._buffer), 1 << 22)))
            if not chunk:
                raise ConnectionError("the server closed the connection")
            self._heard = True
            self._buffer += chunk
            if len(self._buffer) < size and time.perf_counter() > deadline:
                raise TimeoutError

    def _open_socket(self) -> socket.socket:
        if self._socket is None:
            raise ServerUnavailableError(
                f"the connection to {self.address} is closed; open a new one"
            )
        return self._socket

    def _malformed(self, what: str) -> ProtocolError:
        return ProtocolError(
            f"{self.address} sent {what}; check that it is an rlx server, and update the client or "
            "the server"
        )

    def _lost(
        self, error: OSError, late: str = "no reply"
    ) -> ServerUnavailableError | NotAllowedError:
        """Closes the connection; returns what to raise.

        Args:
          error: what happened.
          late: what a TimeoutError means.
        """
        self.close()
        if isinstance(error, ServerUnavailableError):
            return error
        if mistake := describe_tls_error(error) or self._find_tls_mistake(error):
            return NotAllowedError(f"the rlx server {self.address}: {mistake}")
        reason: Any = error.strerror or str(error)
        if isinstance(error, TimeoutError):
            reason = f"{late} within {self._timeout_sec:g} s"
        elif not self._heard and self._tls is not None and self._tls.cert is None:
            reason = (
                f"{reason} without sending anything; if it requires a client certificate, set "
                "tls_cert and tls_key"
            )
        return ServerUnavailableError(f"lost the rlx server {self.address}: {reason}")

    def _find_tls_mistake(self, error: OSError) -> str:
        """Returns the TLS mistake if a server that closes silently expects TLS; else ""."""
        if self._heard or self._tls is not None or isinstance(error, TimeoutError):
            return ""
        host, port = parse_address(self.address)
        return find_tls_mistake(host, port, None)


def _validate_time(name: str, seconds: float) -> float:
    validate_type(name, seconds, NUMBER)
    if not 0 < seconds <= MAX_WAIT_SEC:
        raise ConfigError(f"{name}: {seconds} s, expected more than 0, and at most 1e9")
    return float(seconds)  # sockets do not take all of NumPy's numbers


def _error_to_exception(
    error: rlx_pb2.Error, address: str
) -> ProtocolError | ServerUnavailableError | NotAllowedError:
    known = error.code in rlx_pb2.ErrorCode.values()
    code = rlx_pb2.ErrorCode.Name(error.code) if known else f"ERROR_CODE_{error.code}"
    if error.code == rlx_pb2.UNAUTHENTICATED:
        return NotAllowedError(f"the rlx server {address} refused: {error.message or code}")
    text = error.message or f"the rlx server {address} sent {code} without a message"
    if error.code in _WORTH_A_RETRY:
        return ServerUnavailableError(text)
    return ProtocolError(text, code, error.field)
