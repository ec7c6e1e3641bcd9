"""WebSocket on the server's port: openings, origins, frames, ends. covers PE9, PE25"""

import asyncio
import base64
import contextlib
import json
import os
import socket
import struct

import pytest
from support.doors import Door
from support.rlx import make_hello, make_next, make_start, serve_rlx
from support.threads import wait_until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from relaax_like.v1 import rlx_pb2

HELLO = b'{"hello": {"name": "w", "observation": {"box": [2]}, "action": {"discrete": 3}}}'
ACT = b'{"act": {"observation": [0, 1]}}'
TEXT, BINARY, CONT, CLOSE, PING, PONG = 1, 2, 0, 8, 9, 10


def make_request(*headers, first="GET / HTTP/1.1", key=True):
    lines = [first, "Host: localhost", "Upgrade: websocket", "Connection: Upgrade"]
    lines += ["Sec-WebSocket-Version: 13", *headers]
    if key:
        lines.append(f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}")
    return "\r\n".join([*lines, "", ""]).encode()


def make_frame(opcode, data=b"", fin=True, mask=True, length=None):
    """Makes a frame of a client, or one that no client sends."""
    length = len(data) if length is None else length
    head = bytes([opcode | (0x80 if fin else 0)])
    masked = 0x80 if mask else 0
    if length < 126:
        head += bytes([masked | length])
    elif length < 1 << 16:
        head += bytes([masked | 126]) + struct.pack(">H", length)
    else:
        head += bytes([masked | 127]) + struct.pack(">Q", length)
    return head + (b"\0\0\0\0" if mask else b"") + data


class Raw:
    """A socket that has opened a WebSocket, and then sends any bytes."""

    def __init__(self, port, request=None):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.stream = self.socket.makefile("rb")
        if request is None:
            self.socket.sendall(make_request())
            head = b"".join(iter(self.stream.readline, b"\r\n"))
            assert head.startswith(b"HTTP/1.1 101 ")
        else:
            self.socket.sendall(request)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stream.close()
        self.socket.close()

    def send(self, opcode, data=b"", **options):
        self.socket.sendall(make_frame(opcode, data, **options))

    def receive(self):
        """Returns opcode and data of a frame; None: the server has closed."""
        head = self.stream.read(2)
        if len(head) < 2:
            return None
        length = head[1] & 127
        if length == 126:
            (length,) = struct.unpack(">H", self.stream.read(2))
        return head[0] & 15, self.stream.read(length)

    def ask(self, text):
        self.send(TEXT, text)
        opcode, data = self.receive()
        assert opcode == TEXT
        return json.loads(data)

    def get_error(self):
        """Reads to the end; returns the error's code and the close code."""
        opcode, data = self.receive()
        assert opcode in (TEXT, BINARY)
        code = (
            json.loads(data)["error"]["code"]
            if opcode == TEXT
            else rlx_pb2.ErrorCode.Name(rlx_pb2.ServerMessage.FromString(data).error.code)
        )
        opcode, data = self.receive()
        assert opcode == CLOSE
        assert self.receive() is None
        return code, struct.unpack(">H", data[:2])[0]


def read_refusal(port, request):
    """Returns the status and the page of a request that is refused."""
    with Raw(port, request) as raw:
        head, _, page = raw.stream.read().partition(b"\r\n\r\n")
        assert b"nosniff" in head
        return int(head.split()[1]), page.decode()


# Origins.

LOCAL = ["http://localhost", "http://localhost:8000", "https://127.0.0.1:1", "http://[::1]:8080"]
FOREIGN = [
    "http://localhost.example.org",
    "http://example.org",
    "http://localhost@example.org",
    "http://127.0.0.1.example.org",
    "http://example.org#localhost",
    "http://example.org/localhost",
    "http://0x7f.1",
    "http://LOCALHOST:x",
    "null",
    "file://",
    "ftp://localhost",
    "localhost",
    "",
    "http://localhost http://example.org",
]


def opens(port, origin):
    with Raw(port, make_request(f"Origin: {origin}")) as raw:
        return raw.stream.readline().split()[1] == b"101"


@pytest.mark.parametrize("origin", LOCAL)
def test_pages_of_this_machine_can_connect(port, origin):
    assert opens(port, origin)


@pytest.mark.parametrize("origin", FOREIGN)
def test_pages_of_other_origins_are_refused_with_the_key(port, origin):
    status, page = read_refusal(port, make_request(f"Origin: {origin}"))
    assert status == 403
    assert "relaax-rlx-server.allowed_origins" in page
    assert not origin or origin == "null" or origin not in page


def test_two_origins_are_refused(port):
    request = make_request("Origin: http://localhost", "Origin: http://localhost")
    assert read_refusal(port, request)[0] == 403


def test_listed_origins_can_connect(backend):
    def prepare(server):
        server.allowed_origins = frozenset({"https://example.org", "null"})

    with serve_rlx(backend, prepare=prepare) as port:
        assert opens(port, "https://example.org")
        assert opens(port, "null")
        assert not opens(port, "http://example.org")
        assert not opens(port, "https://example.org:8443")
        assert not opens(port, "https://www.example.org")


# Openings.


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 426),
        (b"GET /../<script> HTTP/1.1\r\nHost: <b>\r\n\r\n", 426),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"HEAD / HTTP/1.1\r\n\r\n", 400),
        (b"GETTING\r\n\r\n", 400),
        (b"GET nothing\r\n\r\n", 400),
        (make_request(key=False), 400),
        (make_request(first="GET / HTTP/1.0"), 400),
        (make_request("Content-Length: 3"), 400),
        (make_request("Transfer-Encoding: chunked"), 400),
        (make_request(*["A: b"] * 32), 400),
        (make_request("Cookie: " + "c" * 8192), 400),
        (b"GET /" + b"a" * 9000, 400),
    ],
    ids=range(13),
)
def test_other_requests_get_a_fixed_page(port, request_, status):
    came, page = read_refusal(port, request_)
    assert came == status
    assert "<" not in page
    assert "WebSocket" in page


def test_a_request_that_does_not_end_is_ended(backend):
    with serve_rlx(backend, hello_timeout_sec=0.3) as port:
        status, _ = read_refusal(port, b"GET / HTTP/1.1\r\nHost: l")
        assert status == 503


def test_a_web_socket_without_a_hello_is_ended(backend):
    with serve_rlx(backend, hello_timeout_sec=0.3) as port, Raw(port) as raw:
        raw.send(PING)  # is not a message
        assert raw.receive() == (PONG, b"")
        assert raw.get_error() == ("UNAVAILABLE", 1001)


def test_a_full_server_says_so(backend):
    with serve_rlx(backend, max_clients=1) as port, Raw(port) as raw, Raw(port) as other:
        assert "ready" in raw.ask(HELLO)
        other.send(TEXT, HELLO)
        assert other.get_error() == ("OVERLOADED", 1013)


def test_an_opening_byte_by_byte(port):
    with Raw(port, b"") as raw:
        for byte in make_request() + make_frame(TEXT, HELLO) + make_frame(TEXT, ACT):
            raw.socket.sendall(bytes([byte]))
        head = b"".join(iter(raw.stream.readline, b"\r\n"))
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"Sec-WebSocket-Extensions" not in head
        assert "ready" in json.loads(raw.receive()[1])
        assert "action" in json.loads(raw.receive()[1])


def test_compression_is_not_used(port):
    with connect(f"ws://127.0.0.1:{port}", compression="deflate") as web:
        assert web.protocol.extensions == []
        web.send(HELLO, text=True)
        assert "ready" in json.loads(web.recv())


# Messages.


def test_the_first_message_decides_the_kind(port):
    for first, other in ((TEXT, BINARY), (BINARY, TEXT)):
        with Raw(port) as raw:
            raw.send(first, HELLO if first == TEXT else make_hello().SerializeToString())
            assert raw.receive()[0] == first
            raw.send(other, ACT)
            assert raw.get_error() == ("MALFORMED", 1008)


def test_fragments_with_pings_between_them_are_one_message(port):
    with Raw(port) as raw:
        raw.send(TEXT, HELLO[:5], fin=False)
        for index in range(5, len(HELLO)):
            raw.send(CONT, HELLO[index : index + 1], fin=False)
            raw.send(PING, b"p")
            assert raw.receive() == (PONG, b"p")
        raw.send(CONT)
        assert "ready" in json.loads(raw.receive()[1])


WRONG = {
    "not masked": make_frame(TEXT, HELLO, mask=False),
    "a length of 2^63": make_frame(BINARY, length=1 << 63),
    "a length of 2^62": make_frame(BINARY, length=1 << 62),
    "an unknown kind": make_frame(3),
    "reserved bits": make_frame(TEXT | 0x40, HELLO),
    "a continuation of nothing": make_frame(CONT, HELLO),
    "a long ping": make_frame(PING, b"p" * 126),
    "a ping in fragments": make_frame(PING, fin=False),
    "a message within a message": make_frame(TEXT, b"{", fin=False) + make_frame(TEXT, HELLO),
    "very many fragments": make_frame(TEXT, b"", fin=False) + make_frame(CONT, fin=False) * 2000,
    "very many pings": make_frame(PING) * 300,
    "text that is not text": make_frame(TEXT, b'{"hello": "\xff"}'),
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG.keys())
def test_wrong_frames_end_the_connection_alone(port, data):
    with Raw(port) as good, Raw(port) as raw:
        assert "ready" in good.ask(HELLO)
        raw.socket.sendall(data)
        with contextlib.suppress(ConnectionResetError):
            while raw.receive() is not None:
                continue
        assert "action" in good.ask(ACT)


def test_a_message_that_is_too_long_is_refused_by_its_announced_length(port):
    with Raw(port) as raw:
        assert "ready" in raw.ask(HELLO)
        raw.socket.sendall(make_frame(TEXT, length=1 << 20))
        assert raw.get_error()[0] == "MALFORMED"


def test_a_client_that_closes_is_gone(backend):
    servers = []
    with serve_rlx(backend, prepare=servers.append) as port, Raw(port) as raw:
        raw.ask(HELLO)
        raw.ask(ACT)
        raw.send(CLOSE, struct.pack(">H", 1000))
        assert raw.receive() == (CLOSE, struct.pack(">H", 1000))
        assert raw.receive() is None
        wait_until(lambda: not servers[0].connections, "the end of the connection")


def test_a_server_that_stops_says_goodbye(backend):
    servers = []
    with serve_rlx(backend, prepare=servers.append) as port, Raw(port) as raw:
        raw.ask(HELLO)
        stopping = asyncio.run_coroutine_threadsafe(servers[0].stop(), servers[0].loop)
        assert raw.get_error() == ("UNAVAILABLE", 1001)
        stopping.result(20)


def test_binary_messages_are_those_of_frames(port):
    with Door(port, "binary") as door:
        assert door.ask(make_hello()).WhichOneof("body") == "ready"
        assert door.ask(make_start()).WhichOneof("body") == "actions"
        error = door.ask(make_next(rewards=None)).error
        assert error.code == rlx_pb2.OUT_OF_ORDER
        with pytest.raises(ConnectionClosed):
            door.receive()


def test_a_page_of_another_origin_is_refused_by_a_library_too(port):
    with pytest.raises(InvalidStatus) as caught:
        connect(f"ws://127.0.0.1:{port}", origin="https://example.org").__enter__()
    assert caught.value.response.status_code == 403


def test_who_sends_many_pings_at_once_is_answered_later(backend):
    servers = []
    with serve_rlx(backend, prepare=servers.append) as port, Raw(port) as raw:
        raw.ask(HELLO)
        raw.socket.sendall(make_frame(PING, b"p") * 20 + make_frame(TEXT, ACT))
        (connection,) = servers[0].connections
        wait_until(lambda: connection._resting, "its pause")
        for _ in range(20):
            assert raw.receive() == (PONG, b"p")
        assert "action" in json.loads(raw.receive()[1])
        wait_until(lambda: not connection._resting, "the end of its pause")
        assert "action" in raw.ask(b'{"reward_and_act": {"reward": 1, "observation": [0, 1]}}')


def test_what_a_closed_connection_has_sent_is_not_kept(port):
    from relaax_like.rlx_server.carrier import Limit
    from relaax_like.rlx_server.frames import Frames
    from relaax_like.rlx_server.web_socket import WebSocket

    carrier = WebSocket(Frames(), ())
    for data in (make_request(), make_frame(TEXT, length=1 << 14)):
        view = carrier.get_buffer()
        view[: len(data)] = data
        carrier.add(len(data))
        assert list(carrier.split(Limit(1 << 20, ""))) == []
    assert not carrier.is_empty
    carrier.drop()
    assert carrier.is_empty
    assert not carrier._protocol.reader.buffer
