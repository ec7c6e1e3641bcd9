"""What strangers send to a gRPC port: bytes by hand, and calls below our own client."""

import contextlib
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence

import grpc

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PUSH_PULL = "/relaax.v1.ParameterServer/PushPull"
PUSH_PULL_WHOLE = "/relaax.v1.ParameterServer/PushPullWhole"
# Frame types and flags of HTTP/2, RFC 9113, section 6.
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 3, 4, 6, 7, 9
END_STREAM, END_HEADERS = 1, 4
HELLO = PREFACE + struct.pack(">I", 0)[1:] + bytes([SETTINGS, 0, 0, 0, 0, 0])


def pack_frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Returns a frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def pack_request(stream: int, path: str, *headers: tuple[str, str]) -> bytes:
    """Returns the HEADERS frame of a gRPC call, every field as a literal (RFC 7541, 6.2.2)."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")]
    fields += [("te", "trailers"), ("content-type", "application/grpc"), *headers]
    block = b"".join(b"\x00" + _pack_text(name) + _pack_text(value) for name, value in fields)
    return pack_frame(HEADERS, END_HEADERS, stream, block)


def pack_message(stream: int, data: bytes, flags: int = END_STREAM, compressed: int = 0) -> bytes:
    """Returns the DATA frame of a gRPC message."""
    return pack_frame(DATA, flags, stream, struct.pack(">BI", compressed, len(data)) + data)


def _pack_text(text: str) -> bytes:
    assert len(text) < 127
    return bytes([len(text)]) + text.encode("latin-1")


@contextlib.contextmanager
def connect(port: int) -> Iterator[socket.socket]:
    """Opens a TCP connection to a port of this machine."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        yield connection


def send_and_drain(connection: socket.socket, data: bytes, timeout_sec: float = 1.0) -> bytes:
    """Sends bytes and returns what comes until the server closes, or is silent for so long."""
    connection.settimeout(timeout_sec)
    came = b""
    with contextlib.suppress(OSError):  # it can be cut off in the middle
        connection.sendall(data)
        while piece := connection.recv(65536):
            came += piece
    return came


def open_channel(port: int) -> grpc.Channel:
    """Opens a channel with a connection of its own and no limits of the client's."""
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_send_message_length", -1),
        ("grpc.enable_http_proxy", 0),
    ]
    return grpc.insecure_channel(f"127.0.0.1:{port}", options)


def refuse(
    channel: grpc.Channel, method: str, messages: Iterable[bytes], timeout_sec: float = 20.0
) -> tuple[grpc.StatusCode, str]:
    """Sends messages to any method, whatever its kind, and returns code and text of its refusal."""
    replies = channel.stream_stream(method)(iter(messages), timeout=timeout_sec)
    try:
        came: Sequence[bytes] = list(replies)
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError(f"{method} was answered: {came!r}"[:500])
