"""A server that answers as recorded, in the carrier and codec that the client has chosen."""

import json
import socket
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relaax_like.client_checks.peer import Peer
from relaax_like.core.metrics import NullMetrics
from relaax_like.rlx_server.codec import Codec
from relaax_like.rlx_server.greeting import Greeting
from relaax_like.rlx_server.json_codec import JsonCodec
from relaax_like.rlx_server.protobuf_codec import ProtobufCodec
from relaax_like.rlx_server.session import Session
from relaax_like.rlx_server.slots import Decision, Slots
from relaax_like.rlx_server.transition import ReceivedStep
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.errors import ProtocolError
from relaax_like.wire.framing import HEADER, MAX_MESSAGE_BYTES
from relaax_like.wire.ndarray import message_to_ndarray
from support.doors import message_to_json
from support.wire import CLIENT, Conversation

_WAIT_SEC = 20.0


class Recorded(Slots):
    """Reads what a client says, and gives the actions that were recorded.

    Attributes:
      hello: that came, without features.
      steps: that came.
    """

    unsupported: Mapping[str, str] = {}

    def __init__(self, codec: Codec, answers: Sequence[rlx_pb2.ServerMessage]):
        self.hello = rlx_pb2.Hello()
        self.steps: list[ReceivedStep] = []
        self._answers = deque(one.actions for one in answers if one.HasField("actions"))
        limits: dict[str, Any] = {"max_slots": 64, "max_message_bytes": MAX_MESSAGE_BYTES}
        self.session = Session("recorded", self._meet, NullMetrics(), **limits)
        self.session.codec = codec

    def receive(self, body: bytes) -> bytes:
        """Returns the answer to a message."""
        if not self.session.greeted:
            kind, self.hello = self.session.codec.read(body, False, lambda token: None)
            assert kind == "hello"
            self.hello.ClearField("features")
        answer = self.session.receive(body)
        assert isinstance(answer, bytes)
        return answer

    def step(self, transition: ReceivedStep) -> Decision:
        """See `Slots`."""
        self.steps.append(transition)
        answer = self._answers.popleft()
        actions = {name: message_to_ndarray(array, name) for name, array in answer.actions.items()}
        return Decision(actions or None, answer.finished, answer.version)

    def close(self) -> None:
        """See `Slots`."""

    def _meet(self, greeting: Greeting) -> Slots:
        super().__init__(greeting.slots)
        return self


class ReplayServer:
    """Plays the server of a recorded conversation with one client. A context manager.

    Attributes:
      address: where it listens.
      sent: what the client said when it was recorded, without points of curves.
      answers: what it was answered.
      is_text: whether the client has sent JSON.
    """

    def __init__(self, conversation: Conversation):
        self.sent: list[rlx_pb2.ClientMessage] = []
        self.answers: list[rlx_pb2.ServerMessage] = []
        for who, frame in conversation.lines:
            if who == CLIENT and frame:
                message = rlx_pb2.ClientMessage.FromString(frame[HEADER.size :])
                self.sent += [] if message.HasField("scalars") else [message]
            elif frame:
                self.answers.append(rlx_pb2.ServerMessage.FromString(frame[HEADER.size :]))
        self.is_text = False
        self._seen: Recorded | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_WAIT_SEC)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "ReplayServer":
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._thread.join(2 * _WAIT_SEC)
        self._listener.close()

    def _serve(self) -> None:
        peer = Peer(self._listener.accept()[0], lambda: None)
        try:
            for recorded in self.answers:
                body = peer.receive(_WAIT_SEC)
                if self._seen is None:
                    self.is_text = peer.is_text
                    codec = JsonCodec() if self.is_text else ProtobufCodec()
                    self._seen = Recorded(codec, self.answers)
                answer = self._seen.receive(body)
                if recorded.HasField("error"):
                    error = recorded.error
                    code = rlx_pb2.ErrorCode.Name(error.code)
                    refusal = ProtocolError(error.message, code, error.field)
                    answer = self._seen.session.write_error(refusal)
                peer.send(answer)
            peer.end()
        finally:
            peer.close()

    def check_said(self) -> None:
        """Compares what the client has said with what was recorded; waits for its end."""
        self._thread.join(2 * _WAIT_SEC)
        assert self._seen is not None
        wanted = Recorded(ProtobufCodec(), self.answers)
        for message, _ in zip(self.sent, self.answers, strict=True):
            wanted.receive(message.SerializeToString())
        assert _write(self._seen.hello) == _write(wanted.hello)
        assert [_spell(one) for one in self._seen.steps] == [_spell(one) for one in wanted.steps]


def _write(hello: rlx_pb2.Hello) -> Any:
    # Bounds of a box can have any dtype.
    return json.loads(message_to_json(rlx_pb2.ClientMessage(hello=hello)))


def _spell(value: Any) -> Any:
    """Returns a value without arrays, to compare."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tolist()
    if isinstance(value, Mapping):
        return {name: _spell(one) for name, one in value.items()}
    if isinstance(value, ReceivedStep):
        return _spell(value._asdict())
    return value
