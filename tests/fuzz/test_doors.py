"""JSON and WebSocket at their parsers: a message, or an error that names what is wrong."""

# covers PE8, PE9

import base64
import json
import struct

import numpy as np
import pytest
from hypothesis import strategies as st
from support import fuzz

from relaax_like.rlx_server.carrier import Limit
from relaax_like.rlx_server.codec import ReadMessage
from relaax_like.rlx_server.frames import Frames
from relaax_like.rlx_server.greeting import Greeting
from relaax_like.rlx_server.json_codec import JsonCodec
from relaax_like.rlx_server.lines import Lines
from relaax_like.rlx_server.transition import ReceivedStep
from relaax_like.rlx_server.web_socket import WebSocket
from relaax_like.wire.errors import InvalidInputError, ProtocolError

pytestmark = pytest.mark.timeout(fuzz.TIMEOUT_SEC)
SHARE = 0.5 / 14
LIMIT = Limit(1 << 12, "a test")
SPACES = {
    "a": {"box": [2], "low": [0, None]},
    "b": {"discrete": 3, "start": 1},
    "c": {"box": [], "dtype": "uint8"},
    "d": {"multi_binary": [2]},
    "e": {"box": [1], "dtype": "int64"},
}
HELLO = {
    "hello": {"name": "w", "slots": 2, "observation": SPACES, "action": {"box": [1]}}
    | {"features": ["executed", "ping", "present", "step_id"]}
}
OBSERVATION = {
    "a": [[0.5, -1], [0, 1e3]],
    "b": [1, 3],
    "c": {"base64": base64.b64encode(b"\0\xff").decode()},
    "d": [[0, 1], [1, 1]],
    "e": {"integers": [["9007199254740993"], ["-1"]]},
}
STEPS = [
    {"act": {"observation": OBSERVATION, "present": [True, False], "step_id": 1}},
    {
        "reward_and_act": {"reward": [0.5, 1], "observation": OBSERVATION, "step_id": 2}
        | {"terminated": [True, False], "success": [True, None], "executed": [[1], [2.5]]}
    },
    {
        "reward_and_reset": {"reward": [[1, 2], [3, 4]], "truncated": [True, False], "step_id": 3}
        | {"final_observation": OBSERVATION}
    },
    {"scalars": [{"name": "a", "y": 1, "x": 2}]},
    {"ping": {}},
]
TEXTS = [json.dumps(message).encode() for message in (HELLO, *STEPS)]
PIECES = st.sampled_from(
    [b"{", b"}", b"[", b"]", b'"', b":", b",", b"1e400", b"-", b"null", b"\xff"]
)


@st.composite
def change(draw: st.DrawFn, texts: list[bytes]) -> bytes:
    """Puts pieces of JSON into a text, takes parts away, or repeats them."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(0, 3))):
        start, stop = sorted(draw(st.integers(0, len(text))) for _ in range(2))
        piece = draw(PIECES | st.just(text[start:stop] * 2))
        text = text[:start] + piece + text[stop if draw(st.booleans()) else start :]
    return text


def check_received(received: ReadMessage) -> None:
    assert received.kind in ("hello", "step", "scalars", "ping")
    if isinstance(received.content, ReceivedStep):
        arrays = [*(received.content.observations or {}).values()]
        if received.content.rewards is not None:
            arrays.append(received.content.rewards)
        assert all(len(array) == 2 and np.isfinite(array).all() for array in arrays)


def test_messages_of_json() -> None:
    def check(data: bytes, running: bool, greeted: bool) -> None:
        codec = JsonCodec()
        if greeted:
            codec.greet(Greeting(codec.read(TEXTS[0], False, lambda token: None).content, 4))
        try:
            received = codec.read(data, running, lambda token: None)
            if received.kind == "hello" and not greeted:
                Greeting(received.content, 4)
        except (ProtocolError, InvalidInputError):
            return
        check_received(received)

    data = change(TEXTS) | fuzz.mutations(TEXTS)
    fuzz.fuzz(check, SHARE, data=data, running=st.booleans(), greeted=st.booleans())


def feed(carrier: WebSocket | Lines, data: bytes) -> list[bytes]:
    """Gives a carrier all bytes, as they fit; returns its messages."""
    found = []
    while data:
        view = carrier.get_buffer()
        count = min(len(view), len(data))
        view[:count] = data[:count]
        carrier.add(count)
        data = data[count:]
        found += [bytes(body) for body in carrier.split(LIMIT) if body is not None]
        carrier.take_output()
        carrier.release()
        carrier.make_room(lambda nbytes: True)
    return found


def make_frame(opcode: int, data: bytes, fin: bool = True) -> bytes:
    length = bytes([0x80 | min(len(data), 126)])
    if len(data) > 125:
        length += struct.pack(">H", len(data))
    return bytes([opcode | (0x80 if fin else 0)]) + length + b"\0\0\0\0" + data


OPENING = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
OPENINGS = [OPENING + b"\r\n", OPENING + b"Origin: http://localhost:80\r\n\r\n"]
STREAMS = [
    make_frame(1, b"first") + make_frame(9, b"ping") + make_frame(1, b"x" * 300),
    make_frame(2, b"a", fin=False) + make_frame(0, b"b", fin=False) + make_frame(0, b"c"),
    make_frame(1, b"one") + make_frame(8, b"\x03\xe8"),
]


def test_openings_of_web_sockets() -> None:
    def check(data: bytes) -> None:
        carrier = WebSocket(Frames(), ())
        answer = b""
        try:
            feed(carrier, data)
        except ProtocolError as error:
            answer = carrier.end(error)
        assert answer[:9] in (b"", b"HTTP/1.1 ") or carrier.is_over
        assert carrier.is_empty or answer or len(data) <= 8192 + 4

    fuzz.fuzz(check, SHARE, data=fuzz.mutations(OPENINGS))


def test_frames_of_web_sockets() -> None:
    def check(data: bytes) -> None:
        carrier = WebSocket(Frames(), ())
        feed(carrier, OPENINGS[0])
        try:
            messages = feed(carrier, data)
        except ProtocolError as error:
            carrier.pack(b"{}")
            carrier.end(error)
            assert carrier.is_over
            return
        assert sum(map(len, messages)) <= len(data)

    fuzz.fuzz(check, SHARE, data=fuzz.mutations(STREAMS))


def test_lines() -> None:
    def check(data: bytes) -> None:
        try:
            found = feed(Lines(), data)
        except ProtocolError:
            assert max(map(len, data.split(b"\n"))) > LIMIT.nbytes
            return
        assert found == [line for line in data.split(b"\n")[:-1] if line.strip()]

    lines = st.binary(max_size=50) | st.just(b"a" * 3000) | st.just(b"\n") | st.just(b" \n")
    fuzz.fuzz(check, SHARE, data=st.lists(lines, max_size=8).map(b"".join))
