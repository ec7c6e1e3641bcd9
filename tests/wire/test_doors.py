"""The same conversations through each door: the same actions, counts and errors."""

# covers X13, PE8

from pathlib import Path

import numpy as np
import pytest
from support.doors import DOORS, Door, json_to_message, message_to_json
from support.wire import CLIENT, END, FOLDER, read_conversation, serve

from relaax_like.v1 import rlx_pb2
from relaax_like.wire.framing import HEADER

# Messages that JSON cannot say, or says by its text alone.
ONLY_PROTOBUF = {
    "error-nan",
    "error-no-rewards",
    "error-rewards",
    "error-rewards-first",
    "error-mode",
    "error-shape",
    "c-wrong-shape",
    "python-wrong-shape",
}
CONVERSATIONS = [
    (path, door)
    for path in sorted(FOLDER.glob("*.txt"))
    for door in DOORS[1:]
    if path.stem not in ("error-not-a-message", "error-too-long")
    and (door == "binary" or path.stem not in ONLY_PROTOBUF)
]


def read_message(frame: bytes) -> rlx_pb2.ClientMessage:
    return rlx_pb2.ClientMessage.FromString(frame[HEADER.size :])


@pytest.mark.parametrize(
    ("path", "door"), CONVERSATIONS, ids=[f"{path.stem}-{door}" for path, door in CONVERSATIONS]
)
def test_the_answers_are_those_of_frames(path: Path, door: str, tmp_path: Path) -> None:
    conversation = read_conversation(path)
    sent = [read_message(frame) for who, frame in conversation.lines if who == CLIENT and frame]
    hello = next((m.hello for m in sent if m.HasField("hello")), rlx_pb2.Hello())
    actions = {name: space.dtype for name, space in hello.action_spaces.items()}
    with serve(conversation.server, tmp_path) as port, Door(port, door, actions) as client:
        for who, frame in conversation.lines:
            if frame == END:
                continue
            if who == CLIENT:
                client.send(read_message(frame))
            else:
                came = client.receive()
                recorded = rlx_pb2.ServerMessage.FromString(frame[HEADER.size :])
                check(came, recorded, client.is_json)


def check(came: rlx_pb2.ServerMessage, recorded: rlx_pb2.ServerMessage, is_json: bool) -> None:
    kind = recorded.WhichOneof("body")
    assert came.WhichOneof("body") == kind
    if kind == "error":
        assert came.error.code == recorded.error.code
        assert is_json or came.error.field == recorded.error.field
    elif kind == "ready":
        assert came.ready.features == recorded.ready.features
    else:
        assert came == recorded


def test_a_message_is_the_same_after_json_and_back() -> None:
    """The helper itself: what it reads is what was written."""
    answer = rlx_pb2.ServerMessage()
    answer.actions.version = 3
    answer.actions.episodes.add(slot=1, score=0.1, length=7)
    text = b'{"version": 3, "episodes": [{"slot": 1, "score": 0.1, "length": 7}]}'
    assert json_to_message(text, {"action": "int64"}) == answer
    assert message_to_json(rlx_pb2.ClientMessage(ping=rlx_pb2.Ping())) == b'{"ping": {}}'
    assert np.float32(np.float64(np.float32(0.1))) == np.float32(0.1)
