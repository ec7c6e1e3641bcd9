"""What clients of the first protocol version were answered is what they are answered now.

The recordings are in `tests/fixtures/wire`; its README.md says what can differ.
"""

# covers R13, R25

import json
import socket
from pathlib import Path

import pytest
from support.wire import (
    CLIENT,
    END,
    FOLDER,
    TUTORIAL,
    call,
    read_conversation,
    serve,
    serve_tutorial,
)

from relaax_like.v1 import rlx_pb2
from relaax_like.wire.framing import HEADER

CONVERSATIONS = sorted(FOLDER.glob("*.txt"))
MOST_MESSAGE_BYTES = 64 << 20


@pytest.mark.parametrize("path", CONVERSATIONS, ids=lambda path: path.stem)
def test_the_rlx_server_answers_as_recorded(path: Path, tmp_path: Path) -> None:
    conversation = read_conversation(path)
    longest = max(len(frame) - HEADER.size for _, frame in conversation.lines)
    with serve(conversation.server, tmp_path) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            stream = connection.makefile("rb")
            for number, (who, frame) in enumerate(conversation.lines):
                if who == CLIENT:
                    send(connection, frame)
                else:
                    check(read_frame(stream), frame, longest, f"{path.name}, frame {number + 1}")


def send(connection: socket.socket, frame: bytes) -> None:
    if frame == END:
        connection.shutdown(socket.SHUT_WR)
    else:
        connection.sendall(frame)


def read_frame(stream) -> bytes:
    """Reads a frame, with its length; END when the server has closed."""
    header = stream.read(HEADER.size)
    return END if header == END else header + stream.read(*HEADER.unpack(header))


def check(came: bytes, recorded: bytes, longest: int, where: str) -> None:
    if came == recorded:
        return
    assert END not in (came, recorded), f"{where}: the server closed, or did not"
    old = rlx_pb2.ServerMessage.FromString(recorded[HEADER.size :])
    new = rlx_pb2.ServerMessage.FromString(came[HEADER.size :])
    kind = old.WhichOneof("body")
    assert new.WhichOneof("body") == kind, where
    if kind == "ready":
        assert new.ready.session, where
        assert longest <= new.ready.max_message_bytes <= MOST_MESSAGE_BYTES, where
        for message in (old, new):
            message.ready.ClearField("session")
            message.ready.ClearField("max_message_bytes")
    elif kind == "error":
        assert new.error.message, where
        for message in (old, new):
            message.error.ClearField("message")
    else:
        assert came.hex() == recorded.hex(), where
    # Fields that the recorded protocol did not have are kept, and so show.
    assert new.SerializeToString() == old.SerializeToString(), f"{where}: {new}"


def test_the_tutorials_calls_are_answered_as_recorded(tmp_path: Path) -> None:
    with serve_tutorial(tmp_path) as channel:
        for number, recorded in enumerate(json.loads(TUTORIAL.read_text())):
            requests = [bytes.fromhex(request) for request in recorded["requests"]]
            answers, code = call(channel, recorded["method"], requests)
            came = {"code": code, "answers": [answer.hex() for answer in answers]}
            where = f"call {number + 1}, {recorded['method']}"
            assert came == {key: recorded[key] for key in came}, where


def test_each_error_of_a_client_was_recorded() -> None:
    codes = {
        rlx_pb2.ServerMessage.FromString(frame[HEADER.size :]).error.code
        for path in CONVERSATIONS
        for who, frame in read_conversation(path).lines
        if who != CLIENT and frame != END
    }
    assert codes >= {
        rlx_pb2.MALFORMED,
        rlx_pb2.VERSION_MISMATCH,
        rlx_pb2.SPACE_MISMATCH,
        rlx_pb2.INVALID_FIELD,
        rlx_pb2.OUT_OF_ORDER,
        rlx_pb2.UNAUTHENTICATED,
    }
