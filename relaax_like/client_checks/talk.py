"""A conversation with the client, judged by the session that a real server would have with it."""

import json
import logging
import time
from collections.abc import Callable

import numpy as np

from relaax_like.client.values import SpaceValues
from relaax_like.client_checks.checks import CHECKS, CLIENT_NAME, Fault, Setting, name_refusal
from relaax_like.client_checks.peer import Peer
from relaax_like.core.metrics import NullMetrics
from relaax_like.rlx_server.client_log import ClientLog
from relaax_like.rlx_server.codec import ReadMessage
from relaax_like.rlx_server.greeting import FEATURES, MASKS, STEP_ID, Greeting
from relaax_like.rlx_server.json_codec import JsonCodec
from relaax_like.rlx_server.protobuf_codec import ProtobufCodec
from relaax_like.rlx_server.session import Session
from relaax_like.rlx_server.slots import Decision, Slots
from relaax_like.rlx_server.transition import Arrays, ReceivedStep
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.errors import ProtocolError
from relaax_like.wire.framing import MAX_MESSAGE_BYTES
from relaax_like.wire.spaces import ACTION

# Called with the id of a check, whether the client passes it, and what was seen.
Note = Callable[[str, bool, str], None]
HELLO, PLAIN = "hello.in_time", "answers.plain"
# Features whose fields are decided, but which no server has.
_AGENTS, _SLOT_VERSIONS = "agents", "slot_versions"
LATER = frozenset((_AGENTS, _SLOT_VERSIONS))
_FLAGS = ("terminated", "truncated")
_MAX_SLOTS = 64
_PATIENCE_SEC = 10.0  # as the server's hello_timeout_sec
_SILENT = logging.Logger("check-client", logging.CRITICAL + 1)


class Talk(Slots):
    """Plays the server, with agents that choose at random.

    Attributes:
      peer: the client's connection.
      hello: of the client, as received.
      greeting: the checked hello; None: it has not come yet.
      features: that Ready lists.
      is_text: whether the messages are JSON.
      session: of the server.
      steps: the actions that were given before each step, and what was received.
      body: the newest message.
      repeat: a message that must not be sent again.
      finish: unless it is "", the next answer ends the training, for this reason.
      version: of the weights, for the next answers.

    Args:
      peer: the client's connection.
      note: called with each check that the client passes or fails.
      has_features: whether the server supports all features, or none.
      setting: of the whole check.

    Its methods raise a Fault if the client does not do what is expected, or sends what a server
    refuses.
    """

    def __init__(self, peer: Peer, note: Note, has_features: bool, setting: Setting):
        self.peer = peer
        self.hello = rlx_pb2.Hello()
        self.greeting: Greeting | None = None
        self.features: frozenset[str] = frozenset()
        self.is_text = False
        self.steps: list[tuple[Arrays | None, ReceivedStep]] = []
        self.body = self.repeat = b""
        self.finish = ""
        self.version = 1
        self.unsupported = {} if has_features else dict.fromkeys(FEATURES, "it has no features")
        self._note = note
        self._setting = setting
        self._given: Arrays | None = None
        self._random = np.random.default_rng()
        self.session = Session(
            "check-client",
            self._meet,
            NullMetrics(),
            max_slots=_MAX_SLOTS,
            max_message_bytes=MAX_MESSAGE_BYTES,
        )
        self.session.log = ClientLog(_SILENT)

    def _meet(self, greeting: Greeting) -> Slots:
        super().__init__(greeting.slots)
        self.greeting = greeting
        if not self.unsupported:
            later = frozenset() if self.is_text else LATER.intersection(self.hello.features)
            greeting.features = self.features = greeting.features | later
        return self

    def step(self, transition: ReceivedStep) -> Decision:
        """See `Slots`."""
        self.steps.append((self._given, transition))
        self._given = None
        if transition.observations is not None and not self.finish:
            assert self.greeting is not None
            values, slots = SpaceValues(self.greeting.action_spaces, ACTION), self.greeting.slots
            drawn = values.sample(slots, self._random, transition.observations)
            self._given = values.to_leaves(drawn, slots, ACTION)
        return Decision(self._given, self.finish, self.version)

    def close(self) -> None:
        """See `Slots`."""

    def hear(self, expect: str = PLAIN) -> bytes:
        """Waits for the next message that needs an answer; returns the answer, not sent yet.

        Args:
          expect: the check that the client passes then, and else fails.
        """
        answer = None
        while answer is None:
            try:
                answer = self._receive(_PATIENCE_SEC, expect)
            except TimeoutError:
                raise Fault(expect, f"no message within {_PATIENCE_SEC:g} s") from None
        self._note(expect, True, "")
        if self.is_text:
            return answer
        message = rlx_pb2.ServerMessage.FromString(answer)
        if _SLOT_VERSIONS in self.features and message.HasField("actions"):
            message.actions.versions.extend([self.version] * self.hello.slots)
        return message.SerializeToString(deterministic=True)  # maps are sorted by name

    def exchange(self, body: bytes, expect: str = PLAIN) -> bytes:
        """Sends a message and waits for the next one; see `hear`."""
        self.peer.send(body)
        return self.hear(expect)

    def send_error(self, code: str, field: str = "") -> None:
        """Sends an error, and then nothing more."""
        text = f"{code.lower()}: sent by relaax check-client; see what the client does"
        self.peer.send(self.session.write_error(ProtocolError(text, code, field)))
        self.peer.end()

    def read(self, body: bytes) -> ReadMessage:
        """Reads a message; its kind is "-" if a server refuses it."""
        try:
            return self.session.codec.read(body, self._given is not None, lambda token: None)
        except Exception:  # whatever it is, the session refuses the message
            return ReadMessage("-")

    def listen(self, seconds: float, ahead: str, lost: str) -> None:
        """Waits while the client must wait, too.

        Args:
          seconds: how long.
          ahead: the check that fails if the client sends a step.
          lost: the check that fails if it leaves, or sends no valid message.
        """
        end = time.monotonic() + seconds
        while STEP_ID not in self.features:  # else it can send ahead
            try:
                answer = self._receive(end - time.monotonic(), lost)
            except TimeoutError:
                return
            if answer is not None:
                raise Fault(ahead, "a step arrived before the answer to the last message was sent")
        time.sleep(seconds)

    def _receive(self, seconds: float, expect: str) -> bytes | None:
        """Judges the next message; returns the answer, None if it needs none."""
        body = self._read(seconds, expect)
        kind, content = self.read(body)
        if kind == "hello" and self.greeting is None:
            self._inspect_hello(content, body)
        try:
            answer = self.session.receive(body)
        except ProtocolError as error:
            name = name_refusal(error)
            # It can be a consequence of what the server has just done.
            is_usual = expect == PLAIN or expect.startswith(("hello.", "order."))
            if not is_usual and name in ("frames.body", "frames.message", "order.first_step"):
                name = expect
            raise Fault(name, f"{error.code}: {error}") from None
        assert answer is None or isinstance(answer, bytes)
        accepted = {kind}
        if kind == "hello":
            accepted |= {f"hello.{field.name}" for field, _ in content.ListFields()}
        elif kind == "step":
            # An array cannot be compared.
            accepted |= {
                f"step.{name}"
                for name, value in content._asdict().items()
                if isinstance(value, np.ndarray) or value
            }
            accepted |= {"truncated"} if np.any(content.truncated) else set()
            self._inspect_step(content, body)
        elif kind == "scalars":
            dropped = self.session.points.dropped
            self._note("points.valid", not dropped, f"{dropped} points were dropped")
        for check in CHECKS.values():
            if check.when in accepted:
                self._note(check.id, True, "")
        return answer

    def _read(self, seconds: float, expect: str) -> bytes:
        try:
            body = self.peer.receive(seconds)
        except EOFError:
            raise Fault(expect, "the client closed the connection") from None
        except ProtocolError as error:
            raise Fault("frames.carrier", str(error)) from None
        if self.greeting is None:
            self.is_text = self.peer.is_text
            self.session.codec = JsonCodec() if self.is_text else ProtobufCodec()
        elif len(body) > self.session.max_message_bytes:
            raise Fault("limits.message", f"{len(body)} bytes")
        if self.repeat and body == self.repeat:
            raise Fault("reconnect.no_repeat", "the first step repeats the last one")
        self.body = body
        return body

    def _inspect_hello(self, hello: rlx_pb2.Hello, body: bytes) -> None:
        self.hello = hello
        if self._setting.program:
            is_given = hello.client_name == CLIENT_NAME
            self._note("hello.given_name", is_given, hello.client_name[:100])
        if token := self._setting.token:
            is_sent = hello.token == token
            self._note("hello.token", is_sent, "another token, or none")
            is_elsewhere = body.count(token.encode()) > is_sent
            self._note("hello.no_secret", not is_elsewhere, "another field contains the token")
        agents, games, slots = hello.agents, hello.games, hello.slots
        if agents or games or hello.kinds or _AGENTS in hello.features:
            counts = {len(games), len(hello.kinds)} <= {0, slots}
            fits = len(agents) == slots and counts and _AGENTS in hello.features
            names = all(1 <= len(name) <= 100 and name.isprintable() for name in agents)
            seen = f"{len(agents)} agents, {len(games)} games, {slots} slots"
            self._note("hello.agents", fits and names, seen)

    def _inspect_step(self, transition: ReceivedStep, body: bytes) -> None:
        """Checks what a session does not, or not yet."""
        if transition.ended is None and MASKS not in self.features:
            return
        if self.is_text:
            (sent,) = json.loads(body).values()
            flags = [np.ravel(sent.get(name, False)) for name in _FLAGS]
            has_masks = not {"mask", "final_mask"}.isdisjoint(sent)
        else:
            step = rlx_pb2.ClientMessage.FromString(body).step
            flags = [np.frombuffer(getattr(step, name).data, np.uint8) for name in _FLAGS]
            has_masks = bool(step.masks or step.final_masks)
        if has_masks:
            self._note("features.masks", True, "")
        if np.any(flags[0] & flags[1]):
            self._note("ends.one_flag", False, "terminated and truncated are set in one slot")
