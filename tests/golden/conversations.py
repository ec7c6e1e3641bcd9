"""Conversations with an rlx server over each of its carriers: see test_bytes.py.

The agent of `support.rlx` chooses action 0, 1, 2, 0 and so on.
"""

import base64
import contextlib
import re
import socket
from collections.abc import Sequence
from typing import Any

import numpy as np
from support.bridge import make_backend
from support.rlx import array, make_hello, make_next, make_start, make_step, serve_rlx

from relaax_like.v1 import rlx_pb2
from relaax_like.wire.framing import HEADER, pack_frame

_TEXT, _BINARY, _CLOSE, _PING = 1, 2, 8, 9
_END = b""
_DATE = re.compile(rb"Date: [^\r]+")
_UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + base64.b64encode(bytes(16)) + b"\r\n\r\n"
)


def _make_start(step_id: int) -> rlx_pb2.ClientMessage:
    start = make_start()
    start.step.step_id = step_id
    return start


# Each message with the number of messages that answer it.
_MESSAGES: Sequence[tuple[rlx_pb2.ClientMessage, int]] = (
    (make_hello(client_name="golden", features=["ping", "present", "step_id"]), 1),
    (_make_start(1), 1),
    (make_next(step_id=2), 1),
    (rlx_pb2.ClientMessage(ping=rlx_pb2.Ping()), 0),
    (
        make_step(  # the end of an episode
            rewards=array([2.0]),
            terminated=array([True], "bool"),
            truncated=array([False], "bool"),
            step_id=3,
        ),
        1,
    ),
    (_make_start(4), 1),
    (make_next(step_id=5, rewards=array([np.nan])), 1),
)
_TEXTS: Sequence[tuple[bytes, int]] = (
    (
        b'{"hello": {"name": "golden", "observation": {"box": [2]}, "action": {"discrete": 3}, '
        b'"features": ["ping", "step_id"]}}',
        1,
    ),
    (b'{"act": {"observation": [0, 1], "step_id": 1}}', 1),
    (b'{"reward_and_act": {"reward": 1, "observation": [0, 0.5], "step_id": 2}}', 1),
    (b'{"ping": {}}', 0),
    (b'{"reward_and_reset": {"reward": 2, "step_id": 3}}', 1),
    (b'{"act": {"observation": [0, 1], "step_id": 4}}', 1),
    (b'{"reward_and_act": {"reward": 1, "observation": [0], "step_id": 5}}', 1),
)


def _pack_web_socket(opcode: int, data: bytes, mask: bytes = b"\1\2\3\4") -> bytes:
    head = bytes([0x80 | opcode, 0x80 | min(len(data), 126)])
    if len(data) >= 126:
        head += len(data).to_bytes(2, "big")
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))


CONVERSATIONS: dict[str, Sequence[tuple[bytes, int]]] = {
    "frames": [(pack_frame(one.SerializeToString()), n) for one, n in _MESSAGES],
    "lines": [(text + b"\n", n) for text, n in _TEXTS],
    "web socket, text": [
        (_UPGRADE, 1),
        *((_pack_web_socket(_TEXT, text), n) for text, n in _TEXTS[:3]),
        (_pack_web_socket(_PING, b"hi"), 1),
        *((_pack_web_socket(_TEXT, text), n + (text is _TEXTS[-1][0])) for text, n in _TEXTS[4:]),
    ],
    "web socket, binary": [
        (_UPGRADE, 1),
        *((_pack_web_socket(_BINARY, one.SerializeToString()), n) for one, n in _MESSAGES[:-1]),
        (_pack_web_socket(_CLOSE, (1000).to_bytes(2, "big")), 1),
    ],
    "a page": [(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 1)],
}


def play(name: str) -> list[str]:
    """Returns the lines of a conversation: who sent (> the client), and the bytes."""
    lines = []
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(serve_rlx(stack.enter_context(make_backend())))
        peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
        stream = stack.enter_context(peer.makefile("rb"))
        for message, answers in CONVERSATIONS[name]:
            peer.sendall(message)
            lines.append(f"{name} > {message.hex()}")
            for _ in range(answers):
                answer = _DATE.sub(b"Date: then", _read(name, stream))
                lines.append(f"{name} < {answer.hex()}")
        assert stream.read() == _END, "the server says more"
    return lines


def _read(name: str, stream: Any) -> bytes:
    """Reads one message of the server, with all that surrounds it."""
    if name == "frames":
        head = stream.read(HEADER.size)
        return head + stream.read(*HEADER.unpack(head))
    if name == "lines":
        return stream.readline()
    if name == "a page":
        return stream.read()
    head = stream.read(2)
    if head == b"HT":  # the answer to the upgrade
        return head + b"".join(iter(stream.readline, b"\r\n")) + b"\r\n"
    length = head[1] & 0x7F
    if length == 126:
        more = stream.read(2)
        head, length = head + more, int.from_bytes(more, "big")
    return head + stream.read(length)
