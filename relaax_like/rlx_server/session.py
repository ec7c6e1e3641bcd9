"""One client's conversation, independent of the transport that carries it."""

import enum
import functools
import itertools
import logging
import re
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
from google.protobuf.message import DecodeError

from relaax_like.core.metrics import Metrics
from relaax_like.core.prediction import Prediction, Request
from relaax_like.core.records import ServedClient
from relaax_like.rlx_server.answer_times import AnswerTimes
from relaax_like.rlx_server.client_log import MAX_TRACE_LENGTH, ClientLog, shorten
from relaax_like.rlx_server.episodes import EpisodeMeter, SlotEpisode
from relaax_like.rlx_server.points import MAX_POINTS, ClientPoints
from relaax_like.rlx_server.slot_agents import (
    EXECUTED,
    PRESENT,
    BatchAgents,
    Decision,
    PlainAgents,
    SlotAgents,
)
from relaax_like.rlx_server.step_reader import StepReader
from relaax_like.rlx_server.transition import Arrays, Transition, read_step
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.errors import (
    InvalidInputError,
    ProtocolError,
    RelaaxError,
    ServerUnavailableError,
)
from relaax_like.wire.fields import BYTES, has_more_fields, walk_fields, weigh
from relaax_like.wire.framing import PROTOCOL_VERSION
from relaax_like.wire.message_template import Layout
from relaax_like.wire.reports import Event
from relaax_like.wire.security import Role, Tokens, describe_missing_role
from relaax_like.wire.spaces import MAX_LEAVES, Spaces, messages_to_spaces, pack_arrays
from relaax_like.wire.versions import MAX_VERSIONS, validate_versions

logger = logging.getLogger(__name__)

# Optional parts of the protocol; see Hello.features.
PING, MAX_WAIT, STEP_ID, TIMINGS = "ping", "max_wait", "step_id", "timings"
VERSIONS = "versions"
HELLO_PING = "hello_ping"  # ends with Ready, which does not list it
# Decided but not built: the field that a step must not have yet -> its feature.
_LATER = {"masks": "masks", "final_masks": "masks"}
# Longest time for which a hello waits, if its client is pinged.
PREPARING_SEC = 600.0
FEATURES = frozenset({PING, MAX_WAIT, STEP_ID, TIMINGS, VERSIONS, PRESENT, EXECUTED})
_MAX_WAIT_MS = 60_000
_MAX_FEATURES = 32
_FEATURE_NAME = re.compile(r"[a-z0-9_]{1,50}")

_FIELDS = rlx_pb2.ClientMessage.DESCRIPTOR.fields_by_name
_FIELDS_BY_NUMBER = rlx_pb2.ClientMessage.DESCRIPTOR.fields_by_number
_HELLO, _STEP, _SCALARS = (_FIELDS[name].number for name in ("hello", "step", "scalars"))
_TOKEN = rlx_pb2.Hello.DESCRIPTOR.fields_by_name["token"].number
_TIMINGS = ("queue_us", "prediction_us", "total_us")
# Numbers of an answer that differ from one to the next.
_NUMBERS = frozenset({("actions", "step_id"), *(("actions", "timings", name) for name in _TIMINGS)})
_MAX_FIXED32 = (1 << 32) - 1
# A message has one body, and perhaps fields that a newer client adds.
_MAX_PARTS = 4
# Fields of a hello or a step other than its leaves.
_OTHER_FIELDS = _MAX_FEATURES + MAX_VERSIONS + 16
# Size of MAX_POINTS points with the longest names.
_MAX_SCALARS_BYTES = MAX_POINTS * 225
# The first byte of each point and of its name, so its count is an upper bound of the points.
_POINT_BYTE = b"\x0a"
# A longer hello or step is checked at all depths: besides array data, each of its fields can have
# _FIELD_WEIGHT bytes (a leaf with bounds and a long name has 1.2 KB), and all numbers n together
# _MORE_WEIGHT bytes more.
_LONG_MESSAGE_BYTES = 1 << 18
_FIELD_WEIGHT = 3 << 9
_MORE_WEIGHT = 1 << 19
_MIN_MESSAGE_BYTES = 4 << 20
_MAX_ERROR_FIELD_LENGTH = 300


class Greeting:
    """A checked hello.

    Attributes:
      client_name: chosen by the client.
      slots: k.
      observation_spaces: leaf -> space.
      action_spaces: leaf -> space.
      exploit: choose the best actions; learn nothing.
      features: features of the protocol that both client and server support.
      wants_pings: whether the client expects pings before `Ready`.
      max_wait_sec: longest time from a step to its answer; None: no limit.
      versions: package -> version of the client's simulator, as it says; not to be relied on.

    Args:
      hello: as received; nothing in it is trusted.
      max_slots: maximum number of slots of one client.

    Raises:
      ProtocolError: VERSION_MISMATCH: the protocol version is not supported.
      InvalidInputError: another field is wrong; the error names it.
    """

    def __init__(self, hello: rlx_pb2.Hello, max_slots: int):
        if hello.protocol_version != PROTOCOL_VERSION:
            raise ProtocolError(
                f"protocol version {hello.protocol_version} is not supported, only "
                f"{PROTOCOL_VERSION}; update the client or the server",
                "VERSION_MISMATCH",
                "protocol_version",
            )
        if not (1 <= len(hello.client_name) <= 100 and hello.client_name.isprintable()):
            raise InvalidInputError(
                f"client_name: {hello.client_name[:60]!r}, expected 1 to 100 printable characters",
                "client_name",
            )
        if not 1 <= hello.slots <= max_slots:
            raise InvalidInputError(
                f"slots: {hello.slots}, expected 1 to {max_slots} "
                "(relaax-rlx-server.max_slots_per_client)",
                "slots",
            )
        if hello.mode not in (rlx_pb2.TRAIN, rlx_pb2.EXPLOIT):
            raise InvalidInputError(f"mode: {hello.mode}, expected TRAIN or EXPLOIT", "mode")
        self.client_name = hello.client_name
        self.slots = hello.slots
        self.observation_spaces: Spaces = messages_to_spaces(
            hello.observation_spaces, "observation_spaces", hello.slots
        )
        self.action_spaces: Spaces = messages_to_spaces(
            hello.action_spaces, "action_spaces", hello.slots
        )
        self.exploit = hello.mode == rlx_pb2.EXPLOIT
        features = _read_features(hello)
        self.features = FEATURES.intersection(features)
        self.wants_pings = HELLO_PING in features
        self.max_wait_sec = _read_max_wait(hello, MAX_WAIT in self.features)
        self.versions = validate_versions(hello.versions if VERSIONS in self.features else {})

    def count_step_bytes(self) -> int:
        """Returns an upper bound of the length of a valid step with one reward per slot."""
        slots = self.slots
        observations, actions = (
            sum(
                (space.count_bytes(slots) or 0) + len(name) + 10 * len(space.shape) + 64
                for name, space in spaces.items()
            )
            for spaces in (self.observation_spaces, self.action_spaces)
        )
        # Observations and final observations, and what was carried out; rewards of float64 and
        # five flags per slot.
        executed = actions if EXECUTED in self.features else 0
        return 2 * observations + executed + 16 * slots + 256


def _read_features(hello: rlx_pb2.Hello) -> list[str]:
    names = list(hello.features[: _MAX_FEATURES + 1])
    if (
        len(names) > _MAX_FEATURES
        or names != sorted(set(names))
        or not all(_FEATURE_NAME.fullmatch(name) for name in names)
    ):
        raise InvalidInputError(
            f"features: {len(hello.features)} names, first {[name[:50] for name in names[:4]]}, "
            f"expected at most {_MAX_FEATURES}, sorted, unique, of 1 to 50 characters a-z 0-9 _",
            "features",
        )
    return names


def _read_max_wait(hello: rlx_pb2.Hello, is_on: bool) -> float | None:
    if not is_on and hello.max_wait_ms:
        raise InvalidInputError(
            f"max_wait_ms: {hello.max_wait_ms}, but features does not list {MAX_WAIT}; add it",
            "max_wait_ms",
        )
    if is_on and not 1 <= hello.max_wait_ms <= _MAX_WAIT_MS:
        raise InvalidInputError(
            f"max_wait_ms: {hello.max_wait_ms}, expected 1 to {_MAX_WAIT_MS} with the feature "
            f"{MAX_WAIT}",
            "max_wait_ms",
        )
    return hello.max_wait_ms / 1e3 if is_on else None


class Pending(enum.Enum):
    """Returned by `Session.receive` and `Session.answer` if a prediction is needed first."""

    PREDICTION = enum.auto()


PENDING = Pending.PREDICTION


class Session:
    """Answers one client's messages. Not thread-safe: one message at a time.

    With plain agents `receive` returns the answer; it can block, and so can the hello. With batch-
    native agents a step returns PENDING, and the owner continues, when `ready`, with:

        answer = session.answer(prediction_for(session.request()))

    Times are monotonic seconds.

    Args:
      name: of the session, for logs.
      is_preparing: whether a client that expects pings has sent its hello.
      make_agents: builds the agents for a greeting; see `AgentHost.make_slot_agents`, also for the
        errors, of which the client is notified.
      metrics: records latencies.
      max_slots: maximum number of slots of one client.
      max_message_bytes: upper bound of a session's limit, which follows from its spaces.
      score_lines: log one line per episode.
      time_limit_sec: after this time the client is disconnected at its next episode end; None:
        never.
      tokens: the hello must contain one of them; None: no token is needed.
      exploit: all clients get the best actions, as if each had requested EXPLOIT mode.

    Attributes:
      finished: whether the client was notified that the training has ended.
      max_message_bytes: longest message that is read; 0 before the hello has been accepted.
      name: of the session, for logs.
      admit: called when the hello is valid, before agents are made; can raise ProtocolError. Set by
        the owner before the first message, like `log`, `report`, `on_episodes` and `get_end`.
      log: receives the lines about the client.
      points: curve points of the newest message; the owner stores them gradually.
      report: called with an event and the client's name when it has joined, made its first step, or
        left.
      on_training: called with an accepted hello of a client that trains, before it is answered.
      on_episodes: called with the episodes that ended in a step, before the step is answered.
      get_end: called with each answer; unless it returns "", the session ends as at the end of
        training: the client gets this text instead of actions.
      times: how long its steps have waited for their answers.
      last_message: description of the newest message.

    `receive`, `request` and `answer` raise ProtocolError if the client made a mistake, or the
    server cannot continue with it. The session is then over; `error_to_bytes` makes the message
    for the client. `close` raises what the `close` of its agents raises.
    """

    def __init__(
        self,
        name: str,
        make_agents: Callable[[Greeting], SlotAgents],
        metrics: Metrics,
        *,
        max_slots: int,
        max_message_bytes: int,
        score_lines: bool = False,
        time_limit_sec: float | None = None,
        tokens: Tokens | None = None,
        exploit: bool = False,
    ):
        self.name = name
        self.finished = False
        self.max_message_bytes = 0
        self.admit: Callable[[], None] = lambda: None
        self.log = ClientLog(logger)
        self.points = ClientPoints(metrics)
        self.report: Callable[[Event, str], None] = lambda event, client: None
        self.on_training: Callable[[Greeting], None] = lambda greeting: None
        self.on_episodes: Callable[[Sequence[SlotEpisode]], None] = lambda episodes: None
        self.get_end: Callable[[], str] = lambda: ""
        self.last_message = "nothing"
        self._has_stepped = False
        self._make_agents = make_agents
        self._metrics = _SafeMetrics(metrics, self._log_recorder_failure)
        self._max_slots = max_slots
        self._message_bytes_limit = max_message_bytes
        self._score_lines = score_lines
        self._tokens = tokens
        self._exploit = exploit
        self._time_limit_sec = time_limit_sec
        self._began = time.monotonic()
        self._greeting: Greeting | None = None
        self.is_preparing = False
        self._reader: StepReader | None = None
        self._agents: SlotAgents | None = None
        self._batch_agents: BatchAgents | None = None  # the same agents, if batch-native
        self._running = False
        self._episodes = 0
        self._meter = EpisodeMeter(0)
        self.times = AnswerTimes(self._metrics, None, time.monotonic())
        self._success = MeanMetric(self._metrics, "success")
        self._transition: Transition | None = None
        # Of the newest answer.
        self._packed_version = -1
        self._packed_names: frozenset[str] = frozenset()
        self._layout: Layout | None = None
        self._step_id = 0
        self._has_numbers = False  # of steps
        self._absent: np.ndarray | None = None  # from the newest step
        self._unsupported: Mapping[str, str] = {}
        self._received_at = self._answered_at = 0.0
        # Of the newest prediction: when it began, and how long it took.
        self._predicted_at, self._prediction_sec = 0.0, 0.0

    @property
    def slots(self) -> int:
        """The client's slots; 0 before the hello has been accepted."""
        return self._greeting.slots if self._greeting else 0

    @property
    def greeted(self) -> bool:
        """Whether the hello has been answered."""
        return self._greeting is not None

    @property
    def blocking(self) -> bool:
        """Whether `receive` can block."""
        return self._batch_agents is None

    @property
    def ready(self) -> bool:
        """Whether a pending step can be answered now."""
        agents = self._batch_agents  # `close` can remove them meanwhile
        return agents is not None and agents.ready

    def has_feature(self, name: str) -> bool:
        """Returns whether client and server have agreed on an optional part of the protocol."""
        return self._greeting is not None and name in self._greeting.features

    @property
    def client_name(self) -> str:
        """The client's name; before the hello, the session's name."""
        return self._greeting.client_name if self._greeting else self.name

    @property
    def max_wait_sec(self) -> float | None:
        """Longest time from a step to its answer; None: no limit."""
        return self.times.limit_sec

    def receive(
        self, body: bytes | memoryview, received_at: float | None = None
    ) -> bytes | Pending | None:
        """Processes one message; returns the answer, PENDING, or None if it needs no answer.

        Args:
          body: the message.
          received_at: when its last byte arrived; None: now.

        Raises:
          ProtocolError: see the class.
        """
        self._received_at = time.monotonic() if received_at is None else received_at
        try:
            if self._reader is not None and self._running:
                transition = self._reader.read(body)
                if transition is not None:
                    return self._take(transition)
            self.points.dropped = 0
            self._validate_outline(body)
            if self._tokens is not None and self._greeting is None:
                self._validate_token(body)
            message = _parse(body)
            kind = message.WhichOneof("body")
            self.last_message = str(kind)
            if kind == "hello":
                return self._greet(message.hello)
            if kind is None:
                raise ProtocolError(
                    "received an empty message, or one of an unknown kind, expected hello, step, "
                    "scalars or ping; update the client or the server",
                    "MALFORMED",
                )
            if self._greeting is None:
                raise ProtocolError(
                    f"received {kind} before hello; send hello as the first message", "OUT_OF_ORDER"
                )
            if kind == "step":
                return self._step(message.step, body)
            if kind == "scalars":
                if self._greeting.exploit:
                    self.points.ignore(message.scalars.scalars)
                else:
                    self.points.take(message.scalars.scalars, self.client_name, self.log)
            elif PING not in self._greeting.features:
                raise ProtocolError(
                    "received ping, but Ready.features does not list it; list ping in the hello's "
                    "features",
                    "OUT_OF_ORDER",
                    "ping",
                )
            return None
        except ProtocolError:
            raise
        except Exception as error:
            raise self._translate(error) from error

    def request(self) -> Request | None:
        """Returns the rows of the pending step that need actions; None if it needs no actions.

        Raises:
          ProtocolError: see the class.
        """
        assert self._batch_agents is not None
        try:
            return self._batch_agents.request()
        except ProtocolError:
            raise
        except Exception as error:
            raise self._translate(error) from error

    def answer(
        self, prediction: Prediction | None, began: float = 0.0, ended: float = 0.0
    ) -> bytes | Pending:
        """Answers the pending step with the prediction for `request`.

        Args:
          prediction: None if `request` returned None.
          began: when the prediction began, in monotonic seconds.
          ended: when it ended.

        Returns:
          The answer; PENDING if the agent has another request first.

        Raises:
          ProtocolError: see the class.
        """
        assert self._batch_agents is not None
        self._predicted_at, self._prediction_sec = began, ended - began
        try:
            decision = self._batch_agents.decide(prediction)
            return PENDING if decision is None else self._answer(decision)
        except ProtocolError:
            raise
        except Exception as error:
            raise self._translate(error) from error

    def describe_wait(self) -> str:
        """Describes what the answer to the newest message waits for."""
        if self._greeting is None:
            return "its agents to be built"
        agents = self._batch_agents
        if agents is None:
            return "its agent's own code"
        return "a prediction" if agents.ready else "the learner, with a rollout of this client"

    def describe(self, stall: str = "") -> ServedClient:
        """Returns the status of a greeted client.

        Args:
          stall: see `Connection.describe_stall`.
        """
        assert self._greeting is not None
        times, agents = self.times, self._batch_agents
        found = times.find_percentiles(0.5, 0.99)
        p50, p99 = (None, None) if found is None else (1e3 * seconds for seconds in found)
        return ServedClient(
            name=self.client_name,
            session=self.name,
            slots=self.slots,
            answers=times.answers,
            p50_ms=p50,
            p99_ms=p99,
            max_wait_ms=int(1e3 * (times.limit_sec or 0.0)),
            late=times.late,
            discarded_steps=0 if agents is None else agents.discarded_steps,
            stall=stall,
            versions=self._greeting.versions,
        )

    def close(self) -> None:
        """Discards unfinished episodes and closes the agents. Idempotent."""
        agents, batched = self._agents, self._batch_agents
        self._agents = self._batch_agents = None
        if agents is None:
            return
        try:
            self._note_left(0 if batched is None else batched.unfinished_steps)
            self.points.close()
        finally:  # even if a report fails
            agents.close()

    def _note_left(self, not_learned_from: int) -> None:
        self.report(Event.LEFT, self.client_name)
        unfinished, steps = self._meter.unfinished
        if self.finished:
            unfinished = 0
        if unfinished:
            self.log.write(
                logging.INFO,
                "%s: left in the middle of %d episode(s) of %d steps, which have no return; "
                "%d steps of unfinished rollouts are not learned from",
                self.client_name,
                unfinished,
                steps,
                not_learned_from,
            )
            self._metrics.scalar("discarded episodes", unfinished)
        else:
            self.log.write(logging.INFO, "%s: left", self.client_name)

    def _log_recorder_failure(self) -> None:
        self.log.write(
            logging.ERROR,
            "%s: a curve point of its session could not be recorded, and is lost",
            self.client_name,
            trace=shorten(traceback.format_exc(), MAX_TRACE_LENGTH),
        )

    def _translate(self, error: Exception) -> ProtocolError:
        if isinstance(error, InvalidInputError):
            return ProtocolError(str(error), "INVALID_FIELD", error.field)
        if isinstance(error, ServerUnavailableError):
            return ProtocolError(str(error), "UNAVAILABLE")
        trace = "".join(traceback.format_exception(error))
        self.log.write(
            logging.ERROR,
            "%s: its agent failed; this session ends, others continue",
            self.name,
            trace=shorten(trace, MAX_TRACE_LENGTH),
        )
        what = str(error) if isinstance(error, RelaaxError) else repr(error)
        return ProtocolError(f"the agent failed: {what}; see the rlx server's log", "AGENT_FAILED")

    def _greet(self, hello: rlx_pb2.Hello) -> bytes:
        if self._greeting is not None:
            raise ProtocolError(
                "received a second hello, expected one per connection; reconnect to send another",
                "OUT_OF_ORDER",
                "hello",
            )
        greeting = Greeting(hello, self._max_slots)
        greeting.exploit = greeting.exploit or self._exploit
        self.admit()
        self.is_preparing = greeting.wants_pings
        agents = self._agents = self._make_agents(greeting)
        self._batch_agents = agents if isinstance(agents, BatchAgents) else None
        later = dict.fromkeys(_LATER.values(), "this server does not support it yet")
        self._unsupported = {**agents.unsupported, **later}
        greeting.features = greeting.features.difference(self._unsupported)
        self._greeting = greeting
        if not greeting.exploit:
            self.on_training(greeting)
        self._has_numbers = STEP_ID in greeting.features
        self.times = AnswerTimes(self._metrics, greeting.max_wait_sec, time.monotonic())
        self.report(Event.JOINED, greeting.client_name)
        self.max_message_bytes = min(
            max(2 * greeting.count_step_bytes(), _MIN_MESSAGE_BYTES), self._message_bytes_limit
        )
        self._reader = StepReader(
            greeting.observation_spaces, greeting.action_spaces, greeting.slots
        )
        self._meter = EpisodeMeter(greeting.slots)
        self.log.write(
            logging.INFO,
            "%s is %s: %d slot(s)%s",
            self.name,
            greeting.client_name,
            greeting.slots,
            ", exploit" if greeting.exploit else "",
        )
        ready = rlx_pb2.Ready(
            protocol_version=PROTOCOL_VERSION,
            session=self.name,
            max_message_bytes=self.max_message_bytes,
            features=sorted(greeting.features),
        )
        return rlx_pb2.ServerMessage(ready=ready).SerializeToString()

    def _validate_token(self, body: bytes | memoryview) -> None:
        """Refuses a hello without a valid token before it is parsed, which costs more."""
        assert self._tokens is not None
        token = _find_token(body)
        if token is None:
            return  # not a hello
        missing = describe_missing_role(self._tokens, token, Role.ENVIRONMENT)
        if missing:
            raise ProtocolError(missing, "UNAUTHENTICATED", "token")

    def _step(self, step: rlx_pb2.Step, body: bytes | memoryview) -> bytes | Pending:
        assert self._greeting is not None
        assert self._reader is not None
        greeting = self._greeting
        if step.HasField("present"):
            self._validate_feature(PRESENT, "present")
        if step.executed or step.HasField("overridden"):
            self._validate_feature(EXECUTED, "executed" if step.executed else "overridden")
        for field, feature in _LATER.items():
            if getattr(step, field):
                self._validate_feature(feature, field)
        transition = read_step(
            step,
            greeting.observation_spaces,
            greeting.action_spaces,
            greeting.slots,
            self._running,
        )
        if transition.rewards is not None:
            self._reader.remember(body, transition)
        return self._take(transition)

    def _take(self, transition: Transition) -> bytes | Pending:
        assert self._greeting is not None
        greeting = self._greeting
        self.last_message = "step"
        if transition.step_id or self._has_numbers:
            self._take_step_id(transition.step_id)
        if transition.rewards is not None:
            if not self._has_stepped:
                self._has_stepped = True
                self.report(Event.STEPPED, greeting.client_name)
            episodes = self._meter.add(transition.rewards, transition.ended, self._absent)
            if episodes:
                self.on_episodes(episodes)
                transition = transition._replace(episodes=episodes)
                if transition.success is not None and not greeting.exploit:
                    self._note_success(episodes, transition.success)
        self._transition = transition
        self._absent = transition.absent
        if self._batch_agents is not None:
            self._batch_agents.observe(transition)
            return PENDING
        agents = cast(PlainAgents, self._agents)
        return self._answer(agents.step(transition))

    def _answer(self, decision: Decision) -> bytes:
        assert self._transition is not None
        if not decision.finished and (end := self.get_end()):
            decision = decision._replace(actions=None, finished=end)
        self._running = decision.actions is not None
        self.finished = bool(decision.finished)
        # Computed once, so that the client receives the same times that are counted.
        self._answered_at = now = time.monotonic()
        if decision.actions and not decision.finished and not self._transition.episodes:
            answer = self._pack_actions(decision.actions, decision.version)
        else:
            answer = self._pack_answer(decision)
        self.times.add(now - self._received_at, now)
        return answer

    def _validate_feature(self, name: str, field: str) -> None:
        if not self.has_feature(name):
            reason = f"the hello did not request it; list {name} in the hello's features"
            if name in self._unsupported:
                reason = f"{self._unsupported[name]}; send steps without {field}"
            raise ProtocolError(
                f"received {field}, but Ready.features does not list {name}: {reason}",
                "OUT_OF_ORDER",
                field,
            )

    def _take_step_id(self, step_id: int) -> None:
        self._validate_feature(STEP_ID, "step_id")
        if step_id <= self._step_id:
            raise InvalidInputError(
                f"step_id: {step_id}, expected more than {self._step_id}, the previous step's (0 "
                "before the first step)",
                "step_id",
            )
        self._step_id = step_id

    def _pack_actions(self, actions: Arrays, version: int) -> bytes:
        """Returns an answer with only actions, as most are."""
        if version != self._packed_version or actions.keys() != self._packed_names:
            assert self._greeting is not None
            # All answers to a session have the same dtypes and shapes.
            self._packed_version, self._packed_names = version, frozenset(actions)
            signature = tuple((name, array.dtype, array.shape) for name, array in actions.items())
            self._layout = _make_actions_layout(version, signature, self._greeting.features)
        assert self._layout is not None
        spans = self._layout.spans
        if len(spans) == len(actions):
            return self._layout.fill([actions[span.path[-1]].tobytes() for span in spans])
        numbers = {"step_id": self._step_id.to_bytes(8, "little")}
        for name, number in self._find_timings().items():
            numbers[name] = number.to_bytes(4, "little")
        return self._layout.fill(
            [
                numbers[span.path[-1]]
                if span.path in _NUMBERS
                else actions[span.path[-1]].tobytes()
                for span in spans
            ]
        )

    def _find_timings(self) -> dict[str, int]:
        """Returns the fields of `Timings`, of the current answer."""
        now, received = self._answered_at, self._received_at
        began = self._predicted_at if self._prediction_sec else now
        times = (began - received, self._prediction_sec, now - received)
        return {
            name: min(max(int(seconds * 1e6), 0), _MAX_FIXED32)
            for name, seconds in zip(_TIMINGS, times, strict=True)
        }

    def _pack_answer(self, decision: Decision) -> bytes:
        assert self._transition is not None
        reply = rlx_pb2.ServerMessage()
        actions = reply.actions
        actions.version = decision.version
        actions.finished = decision.finished
        actions.step_id = self._step_id
        if self.has_feature(TIMINGS):
            for name, number in self._find_timings().items():
                setattr(actions.timings, name, number)
        if decision.actions is not None:
            pack_arrays(decision.actions, actions.actions)
        for episode in self._transition.episodes:
            actions.episodes.add(
                slot=episode.slot, score=episode.episode_return, length=episode.length
            )
            self._log_episode(episode)
        if self._transition.episodes and not decision.finished:
            self._check_time_limit()
        return reply.SerializeToString()

    def _note_success(self, episodes: Sequence[SlotEpisode], success: np.ndarray) -> None:
        for episode in episodes:
            # It is known, and the slot was not absent from the complete episode.
            if success[episode.slot] >= 0 and episode.length:
                self._success.add(float(success[episode.slot]))

    def _log_episode(self, episode: SlotEpisode) -> None:
        self._episodes += 1
        if self._score_lines:
            self.log.write(
                logging.INFO,
                "%s slot %d: episode %d, score %g, %d steps",
                self.client_name,
                episode.slot,
                self._episodes,
                episode.episode_return,
                episode.length,
                budget=f"{self.client_name} slot {episode.slot}",
            )

    def _check_time_limit(self) -> None:
        limit = self._time_limit_sec
        if limit is not None and time.monotonic() > self._began + limit:
            raise ProtocolError(
                f"this session has reached its time limit of {limit:g} s "
                "(relaax-rlx-server.session_timeout_sec); reconnect, possibly to another server",
                "UNAVAILABLE",
            )

    def _validate_outline(self, body: bytes | memoryview) -> None:
        """Scans the fields; refuses what would cost more to parse than any valid message."""
        try:
            for count, part in enumerate(walk_fields(body, 0, len(body)), 1):
                number, kind, start, stop = part
                if count > _MAX_PARTS:
                    raise InvalidInputError(
                        f"the message has more than {_MAX_PARTS} parts, expected one body; send "
                        "several messages"
                    )
                if kind != BYTES:
                    continue
                if number in (_HELLO, _STEP):
                    self._validate_leaves(body, number, start, stop)
                elif number == _SCALARS:
                    _validate_points(body, start, stop)
        except InvalidInputError:
            raise
        except ValueError:  # the parser accepts groups, and would continue after them
            raise _describe_malformed(body) from None

    def _validate_leaves(
        self, body: bytes | memoryview, number: int, start: int, stop: int
    ) -> None:
        greeting = self._greeting
        leaves = MAX_LEAVES if greeting is None else len(greeting.observation_spaces)
        limit = 2 * leaves + _OTHER_FIELDS
        if greeting is not None and EXECUTED in greeting.features:
            limit += len(greeting.action_spaces)
        fields = sum(1 for _ in itertools.islice(walk_fields(body, start, stop), limit + 1))
        if fields > limit:
            raise InvalidInputError(
                f"the message has more than {limit} fields, expected at most {leaves} "
                f"{'leaf' if leaves == 1 else 'leaves'} in each of its parts"
            )
        if stop - start > _LONG_MESSAGE_BYTES:
            descriptor = _FIELDS_BY_NUMBER[number].message_type
            most = fields * _FIELD_WEIGHT + _MORE_WEIGHT
            if weigh(body, descriptor, start, stop, most) > most:
                raise InvalidInputError(
                    f"the message of {len(body)} bytes has too much overhead besides array "
                    f"data; expected at most about {most} bytes of names, shapes and the like"
                )


class _SafeMetrics(Metrics):
    """Records points; an error of the recorder loses the point, and ends no session.

    Args:
      metrics: the recorder.
      on_error: called for each point that is lost, within the `except` block.
    """

    def __init__(self, metrics: Metrics, on_error: Callable[[], None]):
        self._metrics = metrics
        self._on_error = on_error

    def scalar(self, name: str, y: float, x: float | None = None) -> None:
        """See `Metrics`; raises nothing."""
        try:
            self._metrics.scalar(name, y, x)
        except Exception:
            self._on_error()


class MeanMetric:
    """Sends the mean of many measurements about once a second: a point per step is too many."""

    def __init__(self, metrics: Metrics, name: str, interval_sec: float = 1.0):
        self._metrics = metrics
        self._name = name
        self._interval_sec = interval_sec
        self._sum = 0.0
        self._count = 0
        self._next = time.monotonic() + interval_sec

    def add(self, value: float) -> None:
        """Adds one measurement."""
        self._sum += value
        self._count += 1
        if time.monotonic() >= self._next:
            self._metrics.scalar(self._name, self._sum / self._count)
            self._sum, self._count = 0.0, 0
            self._next = time.monotonic() + self._interval_sec


def error_to_bytes(error: ProtocolError) -> bytes:
    """Makes the message that reports an error to a client."""
    message = rlx_pb2.Error(
        code=error.code,
        message=shorten(str(error)),
        field=shorten(error.field, _MAX_ERROR_FIELD_LENGTH),
    )
    return rlx_pb2.ServerMessage(error=message).SerializeToString()


@functools.lru_cache(maxsize=256)
def _make_actions_layout(
    version: int,
    signature: tuple[tuple[str, np.dtype, tuple[int, ...]], ...],
    features: frozenset[str],
) -> Layout:
    """Returns the layout of answers with actions of these names, dtypes and shapes."""
    reply = rlx_pb2.ServerMessage()
    reply.actions.version = version
    if STEP_ID in features:
        reply.actions.step_id = 1
    if TIMINGS in features:
        for name in _TIMINGS:
            setattr(reply.actions.timings, name, 0)
    pack_arrays({name: np.zeros(s, dtype) for name, dtype, s in signature}, reply.actions.actions)
    descriptor = rlx_pb2.ServerMessage.DESCRIPTOR
    return Layout(reply.SerializeToString(), descriptor, numbers=_NUMBERS)


def _validate_points(body: bytes | memoryview, start: int, stop: int) -> None:
    if stop - start > _MAX_SCALARS_BYTES:
        came = (
            f"{stop - start} bytes, expected at most {_MAX_SCALARS_BYTES}; send fewer points per "
            "message, or shorter names"
        )
    # Counts bytes first: for valid messages that is nearly always enough.
    elif bytes(body[start:stop]).count(_POINT_BYTE) > 4 * MAX_POINTS and has_more_fields(
        body, start, stop, 2 * MAX_POINTS
    ):
        came = f"more than {2 * MAX_POINTS} points; send at most {MAX_POINTS} points per message"
    else:
        return
    raise InvalidInputError(f"scalars: {came}", "scalars")


def _find_token(body: bytes | memoryview) -> str | None:
    """Returns the token of a serialised hello, "" if it has none; None: it is not a hello."""
    token = None
    for number, kind, start, stop in walk_fields(body, 0, len(body)):
        if number == _HELLO and kind == BYTES:
            token = token or ""
            for inner, inner_kind, begin, end in walk_fields(body, start, stop):
                if inner == _TOKEN and inner_kind == BYTES:
                    token = bytes(body[begin:end]).decode(errors="replace")  # the last one counts
    return token


def _parse(body: bytes | memoryview) -> rlx_pb2.ClientMessage:
    try:
        # Accepts any buffer, although its stub does not say so; avoids a copy.
        return rlx_pb2.ClientMessage.FromString(body)  # type: ignore[arg-type]
    except DecodeError:
        raise _describe_malformed(body) from None


def _describe_malformed(body: bytes | memoryview) -> ProtocolError:
    return ProtocolError(
        f"received {len(body)} bytes that are not an rlx protocol message; check that the peer is "
        "an rlx client, and update the client or the server",
        "MALFORMED",
    )
