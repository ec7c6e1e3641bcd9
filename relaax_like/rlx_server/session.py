"""One client's conversation, independent of the transport that carries it."""

import enum
import logging
import time
import traceback
from collections.abc import Callable, Sequence

import numpy as np

from relaax_like.core.metrics import Metrics
from relaax_like.core.prediction import Prediction, Request
from relaax_like.core.records import ServedClient
from relaax_like.rlx_server.answer_times import AnswerTimes
from relaax_like.rlx_server.client_log import MAX_TRACE_LENGTH, ClientLog, shorten
from relaax_like.rlx_server.codec import TIMING_FIELDS, Body, Codec
from relaax_like.rlx_server.greeting import (
    AGENTS,
    PING,
    SLOT_VERSIONS,
    STEP_ID,
    TIMINGS,
    Greeting,
)
from relaax_like.rlx_server.points import ClientPoints, GatheredMetric
from relaax_like.rlx_server.protobuf_codec import ProtobufCodec
from relaax_like.rlx_server.slots import Decision, Slots
from relaax_like.rlx_server.transition import EndedEpisode, ReceivedStep
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.agents import Games
from relaax_like.wire.errors import (
    InvalidInputError,
    ProtocolError,
    RelaaxError,
    ServerUnavailableError,
)
from relaax_like.wire.framing import PROTOCOL_VERSION
from relaax_like.wire.reports import Event
from relaax_like.wire.security import Role, Tokens, describe_missing_role
from relaax_like.wire.spaces import pack_arrays

logger = logging.getLogger(__name__)

# Longest time for which a hello waits, if its client is pinged.
PREPARING_SEC = 600.0
_MAX_FIXED32 = (1 << 32) - 1
_MAX_ERROR_FIELD_LENGTH = 300


class Awaited(enum.Enum):
    """Returned by `Session.receive` and `Session.answer` if a prediction is needed first."""

    PREDICTION = enum.auto()


PENDING = Awaited.PREDICTION


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

    Attributes:
      greeted: whether the hello has been accepted.
      finished: whether the client was notified that the training has ended.
      max_message_bytes: longest message that is read; 0 before the hello has been accepted.
      name: of the session, for logs.
      codec: reads and writes its messages. Set by the owner before the first message, if it is not
        protobuf.
      admit: called when the hello is valid, before agents are made; can raise ProtocolError. Set by
        the owner before the first message, like `exploit`, `log`, `report`, `on_episodes` and
        `get_end`.
      exploit: whether all clients get the best actions, as if each had requested EXPLOIT mode.
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
    server cannot continue with it. The session is then over; `write_error` makes the message for
    the client. `close` raises what the `close` of its agents raises.
    """

    def __init__(
        self,
        name: str,
        make_agents: Callable[[Greeting], Slots],
        metrics: Metrics,
        *,
        max_slots: int,
        max_message_bytes: int,
        score_lines: bool = False,
        time_limit_sec: float | None = None,
        tokens: Tokens | None = None,
    ):
        self.name = name
        self.greeted = False
        self.finished = False
        self.max_message_bytes = 0
        self.codec: Codec = ProtobufCodec()
        self.admit: Callable[[], None] = lambda: None
        self.log = ClientLog(logger)
        self.points = ClientPoints(metrics)
        self.report: Callable[[Event, str], None] = lambda event, client: None
        self.on_training: Callable[[Greeting], None] = lambda greeting: None
        self.on_episodes: Callable[[Sequence[EndedEpisode]], None] = lambda episodes: None
        self.get_end: Callable[[], str] = lambda: ""
        self.last_message = "nothing"
        self._has_stepped = False
        self._make_agents = make_agents
        self._metrics = _SafeMetrics(metrics, self._log_recorder_failure)
        self._max_slots = max_slots
        self._message_bytes_limit = max_message_bytes
        self._score_lines = score_lines
        self._tokens = tokens
        self.exploit = False
        self._time_limit_sec = time_limit_sec
        self._began = time.monotonic()
        self._greeting: Greeting | None = None
        self._games = Games(())
        self.is_preparing = False
        self._slots: Slots | None = None
        self._running = False
        self._episodes = 0
        self.times = AnswerTimes(self._metrics, None, time.monotonic())
        self._success = GatheredMetric(self._metrics, "success", is_mean=True)
        self._transition: ReceivedStep | None = None
        self._step_id = 0
        self._has_numbers = False  # of steps
        self._received_at = self._answered_at = 0.0
        # Of the newest prediction: when it began, and how long it took.
        self._predicted_at, self._prediction_sec = 0.0, 0.0

    @property
    def slots(self) -> int:
        """The client's slots; 0 before the hello has been accepted."""
        return self._greeting.slots if self._greeting else 0

    @property
    def blocking(self) -> bool:
        """Whether `receive` can block."""
        return self._slots is None or self._slots.blocking

    @property
    def ready(self) -> bool:
        """Whether a pending step can be answered now."""
        slots = self._slots  # `close` can remove them meanwhile
        return slots is not None and slots.ready

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

    def receive(self, body: Body, received_at: float | None = None) -> bytes | Awaited | None:
        """Processes one message; returns the answer, PENDING, or None if it needs no answer.

        Args:
          body: the message.
          received_at: when its last byte arrived; None: now.

        Raises:
          ProtocolError: see the class.
        """
        self._received_at = time.monotonic() if received_at is None else received_at
        try:
            self.points.dropped = 0
            kind, content = self.codec.read(body, self._running, self._validate_token)
            self.last_message = kind
            if kind == "hello":
                return self._greet(content)
            if self._greeting is None:
                raise ProtocolError(
                    f"received {kind} before hello; send hello as the first message", "OUT_OF_ORDER"
                )
            if kind == "step":
                return self._step(content)
            if kind == "scalars":
                if self._greeting.exploit:
                    self.points.ignore(content.scalars)
                else:
                    self.points.take(content.scalars, self.client_name, self.log)
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
        assert self._slots is not None
        try:
            return self._slots.request()
        except ProtocolError:
            raise
        except Exception as error:
            raise self._translate(error) from error

    def answer(
        self, prediction: Prediction | None, began: float = 0.0, ended: float = 0.0
    ) -> bytes | Awaited:
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
        self._predicted_at, self._prediction_sec = began, ended - began
        try:
            assert self._slots is not None
            decision = self._slots.decide(prediction)
            return PENDING if decision is None else self._answer(decision)
        except ProtocolError:
            raise
        except Exception as error:
            raise self._translate(error) from error

    def write_error(self, error: ProtocolError) -> bytes:
        """Returns the message that reports an error to the client."""
        return self.codec.write_error(
            rlx_pb2.Error(
                code=error.code,
                message=shorten(str(error)),
                field=shorten(error.field, _MAX_ERROR_FIELD_LENGTH),
            )
        )

    def describe_wait(self) -> str:
        """Describes what the answer to the newest message waits for."""
        if self._greeting is None:
            return "its agents to be built"
        slots = self._slots
        if slots is None or slots.blocking:
            return "its agent's own code"
        return "a prediction" if slots.ready else "the learner, with a rollout of this client"

    def describe(self, stall: str = "") -> ServedClient:
        """Returns the status of a greeted client.

        Args:
          stall: see `Connection.describe_stall`.
        """
        assert self._greeting is not None
        times, slots = self.times, self._slots
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
            discarded_steps=0 if slots is None else slots.discarded_steps,
            stall=stall,
            versions=self._greeting.versions,
            games=self._games.ended if self._greeting.games else 0,
        )

    def close(self) -> None:
        """Discards unfinished episodes and closes the agents. Idempotent."""
        slots, self._slots = self._slots, None
        if slots is None:
            return
        try:
            self._note_left(slots)
            self.points.close()
        finally:  # even if a report fails
            slots.close()

    def _note_left(self, slots: Slots) -> None:
        self.report(Event.LEFT, self.client_name)
        unfinished, steps = slots.unfinished_episodes
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
                slots.unfinished_steps,
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
        greeting.exploit = greeting.exploit or self.exploit
        self.admit()
        self.is_preparing = greeting.wants_pings
        self._slots = self._make_agents(greeting)
        greeting.withdraw(self._slots.unsupported)
        self._greeting = greeting
        self._games = Games(greeting.games or range(greeting.slots))
        self.greeted = True
        if not greeting.exploit:
            self.on_training(greeting)
        self._has_numbers = STEP_ID in greeting.features
        self.times = AnswerTimes(self._metrics, greeting.max_wait_sec, time.monotonic())
        self.report(Event.JOINED, greeting.client_name)
        self.max_message_bytes = min(self.codec.greet(greeting), self._message_bytes_limit)
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
            policies=self._slots.policies if AGENTS in greeting.features else (),
        )
        return self.codec.write_ready(ready)

    def _validate_token(self, token: str) -> None:
        """Refuses a hello without a valid token."""
        if self._tokens is None:
            return
        missing = describe_missing_role(self._tokens, token, Role.ENVIRONMENT)
        if missing:
            raise ProtocolError(missing, "UNAUTHENTICATED", "token")

    def _step(self, transition: ReceivedStep) -> bytes | Awaited:
        assert self._greeting is not None
        assert self._slots is not None
        if transition.step_id or self._has_numbers:
            self._take_step_id(transition.step_id)
        if not self._has_stepped and transition.rewards is not None:
            self._has_stepped = True
            self.report(Event.STEPPED, self._greeting.client_name)
        self._transition = transition = self._slots.count(transition)
        if transition.ended is not None:
            self._games.add(transition.ended)
        if transition.episodes:
            self.on_episodes(transition.episodes)
            if transition.success is not None and not self._greeting.exploit:
                self._note_success(transition.episodes, transition.success)
        self._slots.observe(transition)
        if not self._slots.blocking:
            return PENDING
        decision = self._slots.decide(None)
        assert decision is not None, "there are no requests"
        return self._answer(decision)

    def _answer(self, decision: Decision) -> bytes:
        assert self._transition is not None
        assert self._greeting is not None
        if not decision.finished and (end := self.get_end()):
            decision = decision._replace(actions=None, finished=end)
        self._running = decision.actions is not None
        self.finished = bool(decision.finished)
        # Computed once, so that the client receives the same times that are counted.
        self._answered_at = now = time.monotonic()
        has_more = self._transition.episodes or SLOT_VERSIONS in self._greeting.features
        if decision.actions and not decision.finished and not has_more:
            timings = self._find_timings() if TIMINGS in self._greeting.features else {}
            answer = self.codec.write_actions(
                decision.actions, decision.version, self._step_id, timings
            )
        else:
            answer = self._write_answer(decision)
        self.times.add(now - self._received_at, now)
        return answer

    def _take_step_id(self, step_id: int) -> None:
        assert self._greeting is not None
        self._greeting.require(STEP_ID, "step_id")
        if step_id <= self._step_id:
            raise InvalidInputError(
                f"step_id: {step_id}, expected more than {self._step_id}, the previous step's (0 "
                "before the first step)"
            )
        self._step_id = step_id

    def _find_timings(self) -> dict[str, int]:
        """Returns the fields of `Timings`, of the current answer."""
        now, received = self._answered_at, self._received_at
        began = self._predicted_at if self._prediction_sec else now
        times = (began - received, self._prediction_sec, now - received)
        return {
            name: min(max(int(seconds * 1e6), 0), _MAX_FIXED32)
            for name, seconds in zip(TIMING_FIELDS, times, strict=True)
        }

    def _write_answer(self, decision: Decision) -> bytes:
        assert self._transition is not None
        actions = rlx_pb2.Actions(
            version=decision.version, finished=decision.finished, step_id=self._step_id
        )
        if self.has_feature(TIMINGS):
            for name, number in self._find_timings().items():
                setattr(actions.timings, name, number)
        if decision.actions is not None:
            pack_arrays(decision.actions, actions.actions)
            if self.has_feature(SLOT_VERSIONS):
                versions = decision.versions
                same = [decision.version] * self.slots
                actions.versions.extend(same if versions is None else map(int, versions))
        for episode in self._transition.episodes:
            actions.episodes.add(
                slot=episode.slot, score=episode.episode_return, length=episode.length
            )
            self._log_episode(episode)
        if self._transition.episodes and not decision.finished:
            self._check_time_limit()
        return self.codec.write_answer(actions)

    def _note_success(self, episodes: Sequence[EndedEpisode], success: np.ndarray) -> None:
        for episode in episodes:
            # It is known, and the slot was not absent from the complete episode.
            if success[episode.slot] >= 0 and episode.length:
                self._success.add(float(success[episode.slot]))

    def _log_episode(self, episode: EndedEpisode) -> None:
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
