"""The client of an rlx server: three verbs for one environment, `step` for many at once."""

import contextlib
import os
import random
import socket
import threading
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from relaax_like.client.argument_types import (
    FLAG,
    FUNCTION,
    INTEGER,
    NUMBER,
    TEXT,
    validate_type,
)
from relaax_like.client.arrays import validate_array
from relaax_like.client.connection import MAX_WAIT_SEC, Connection
from relaax_like.client.fast_path import ActionsReader, pack_step
from relaax_like.client.outcome import validate_flags, validate_outcome, validate_success
from relaax_like.client.scalars import ScalarBuffer
from relaax_like.client.user_spaces import make_space_values
from relaax_like.client.values import UserSpace, Values
from relaax_like.v1 import rlx_pb2
from relaax_like.wire import tracing
from relaax_like.wire.agents import validate_agents
from relaax_like.wire.closing import Closing
from relaax_like.wire.errors import (
    ConfigError,
    InvalidInputError,
    ProtocolError,
    RelaaxError,
    ServerUnavailableError,
)
from relaax_like.wire.framing import MAX_MESSAGE_BYTES, PROTOCOL_VERSION
from relaax_like.wire.security import ClientSecurity
from relaax_like.wire.spaces import (
    ACTION,
    MASK,
    OBSERVATION,
    space_to_message,
    split_masks,
    unpack_arrays,
)
from relaax_like.wire.versions import validate_versions

if TYPE_CHECKING:
    import gymnasium as gym


T = TypeVar("T")
Arrays = dict[str, np.ndarray]
# Of the observations, final observations and actions carried out: leaf -> [k, ...].
Leaves = dict[str, Mapping[str, np.ndarray]]


class OutOfOrderError(RelaaxError, RuntimeError):
    """A verb was called at the wrong time, or the session does not support it. Nothing was sent."""


class LateAnswerError(RelaaxError, TimeoutError):
    """The server has not answered within `answer_timeout_sec`.

    The session continues. If the step had observations, do what is safe, and pass it as `executed`
    to the next step, or reconnect if `features` lacks `executed`. If it had none, begin the next
    episode. The late answer is dropped; its episodes are in the result of a later step.
    """


# Optional parts of the protocol: those that each session has if the server can, and those that one
# with a time limit needs.
_FEATURES = ("executed", "hello_ping", "ping", "present")
_LIMITED_FEATURES = ("max_wait", "step_id", "timings")
_OUTCOME = ("rewards", "terminated", "truncated")
_MAX_WAIT_MS = 60_000
_PING = rlx_pb2.ClientMessage(ping=rlx_pb2.Ping()).SerializeToString()
# Most bytes of a message around its points.
_FRAME_BYTES = 8
# Before the second attempt to connect.
_FIRST_SLEEP_SEC = 0.25
# Of that sleep; more would overflow a float.
_MAX_DOUBLINGS = 60


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How to wait for an unavailable server.

    Consecutive attempts to connect start with short sleeps, as the server might just be starting:
    0.25 s at most, doubled each time, until the bounds below apply.

    Attributes:
      min_sleep_sec: shortest sleep before an attempt.
      max_sleep_sec: longest; each sleep is drawn at random between the two, so that many clients do
        not reconnect at the same moment.
      max_attempts: give up after this many; None: never.
      quiet_sec: a client that has not reached its server yet reports a single line for this long,
        as the two are often started together; after that it reports each attempt.

    Raises:
      ConfigError: an attribute has a wrong type, a sleep is negative or above 1e9,
        `min_sleep_sec` is above `max_sleep_sec`, or `max_attempts` is below 1.
    """

    min_sleep_sec: float = 1.0
    max_sleep_sec: float = 10.0
    max_attempts: int | None = None
    quiet_sec: float = 30.0

    def __post_init__(self) -> None:
        for name in ("min_sleep_sec", "max_sleep_sec", "quiet_sec"):
            validate_type(f"retry: {name}", getattr(self, name), NUMBER)
        if self.max_attempts is not None:
            validate_type("retry: max_attempts", self.max_attempts, INTEGER)
        if not 0 <= self.min_sleep_sec <= self.max_sleep_sec <= MAX_WAIT_SEC:
            raise ConfigError(
                f"retry (--retry-sleep): min_sleep_sec is {self.min_sleep_sec} and max_sleep_sec "
                f"is {self.max_sleep_sec}, expected 0 <= min_sleep_sec <= max_sleep_sec <= 1e9"
            )
        if self.max_attempts is not None and self.max_attempts < 1:
            raise ConfigError(
                f"retry: max_attempts is {self.max_attempts}, expected 1 or more, or None for no "
                "limit"
            )


@dataclass(frozen=True, kw_only=True)
class EpisodeResult:
    """An episode that ended, as the server counted it.

    Attributes:
      slot: the environment it ended in.
      score: undiscounted sum of rewards.
      length: environment steps.
    """

    slot: int
    score: float
    length: int


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Parts of the time from a complete step to its answer, at the server, in microseconds.

    Attributes:
      queue_us: until the prediction began.
      prediction_us: the prediction, of all clients that were answered together.
      total_us: all of it.
    """

    queue_us: int
    prediction_us: int
    total_us: int


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """The answer to one `step`.

    Attributes:
      actions: `[k, ...]` in the action space's dtype, or a dict of them, or nested as a Gymnasium
        space is; None when the step had no observations, or when training has finished.
      episodes: episodes that ended in this step, or in earlier steps whose late answers were
        dropped.
      finished: not empty when training has ended: what ended it.
      version: of the weights that chose the actions; 0 when training has finished.
      timings: of a client with `max_wait_ms`, while the training continues; else None.
    """

    actions: Values | None
    episodes: tuple[EpisodeResult, ...] = ()
    finished: str = ""
    version: int = 0
    timings: Timings | None = None


class RlxClient(Closing):
    """One connection to an rlx server, driving one or several environment slots.

    Connects when made. Each verb blocks until the server has answered, or for `answer_timeout_sec`
    at most; if neither an answer nor a sign of life arrives within `timeout_sec`, the session ends.
    Not thread-safe, except `ping`. Close it, or use it as a context manager.

        with RlxClient("localhost:7001", observation_space, action_space) as client:
            action = client.act(state)                                # first step of an episode
            while action is not None:                                 # None: training has finished
                state, reward, terminated = environment.step(action)
                if terminated:
                    client.reward_and_reset(reward)                   # returns the episode's score
                    action = client.act(environment.reset())
                else:
                    action = client.reward_and_act(reward, state)

    Attributes:
      finished: not empty when training has ended: what ended it. From then on the verbs return None
        without asking the server.
      slots: environments that are stepped together, k.
      name: shown in the server's log and score lines.
      session: the server's name for this session.
      features: optional parts of the protocol that are on in this session.
      late_answers: number of answers that were dropped because they arrived after
        `answer_timeout_sec`.

    Args:
      address: "host:port" of the rlx server.
      observation_space: a leaf, a dict name -> leaf, or a Gymnasium space, whose values are
        then nested as it is. In a dict, `mask:ACTION` is the mask of a leaf of discrete actions,
        `[..., n] bool`, see `relaax_like.wire.spaces.make_masks`; it is sent as such, so that only
        legal choices are made.
      action_space: the same for actions.
      slots: environments that are stepped together, k.
      name: 1 to 100 printable characters; default: host name and process id.
      exploit: choose the best actions with the newest weights; learn nothing.
      token: secret, if the server requires one; short for `ClientSecurity(token=...)`.
      security: token and certificates; None: no token and no TLS. Files are read again for
        each connection.
      timeout_sec: longest wait for an answer, or for a sign that the server is still alive.
      connect_timeout_sec: longest wait for the TCP connection.
      max_wait_ms: the server answers each step within this time, 1 to 60 000, even while its
        learner is busy; None: an answer can wait for the learner.
      answer_timeout_sec: longest wait of a verb for its answer, after which it raises
        LateAnswerError; needs `max_wait_ms`. None: `timeout_sec`, after which the session ends.
      versions: package -> version of the simulator, which the run notes; see
        `relaax_like.client.find_versions`. None: not said.
      agents: the agent that plays in each slot, one name per slot, 1 to 100 printable characters.
        A server that does not know agents takes all slots for environments of their own. None: not
        said.
      games: the game of each slot; slots with equal numbers play one game. Needs `agents`. None:
        each slot is a game of its own.
      kinds: the kind of each slot, where their spaces differ: 1 to 60 letters, digits and `_-.`.
        The spaces are then dicts: the leaves KIND, KIND/name, and `mask:` before either, belong to
        the slots of that kind, and their rows of other slots can be any valid values. Needs
        `agents`. None: each slot has all leaves.
      retry: how `reconnect` waits. When given, the first connection is retried the same way.
      report: called with each line about waiting and reconnecting; default: prints it to
        stdout.

    Raises:
      ConfigError: an argument is wrong, or a file that `security` names or the folder in
        RELAAX_TRACE cannot be used.
      InvalidInputError: a Gymnasium space has a leaf that the protocol does not allow, or the
        hello is too long.
      ServerUnavailableError: no server answers there, or it is full or not ready (only without
        `retry`, or after its last attempt).
      NotAllowedError: the server does not accept the token, or a certificate is not accepted.
      ProtocolError: the server refused the hello, does not support `max_wait_ms`, masks or `kinds`,
        or is not an rlx server.
    """

    def __init__(
        self,
        address: str,
        observation_space: "UserSpace | gym.Space",
        action_space: "UserSpace | gym.Space",
        *,
        slots: int = 1,
        name: str | None = None,
        exploit: bool = False,
        token: str = "",
        security: ClientSecurity | None = None,
        timeout_sec: float = 60.0,
        connect_timeout_sec: float = 10.0,
        max_wait_ms: int | None = None,
        answer_timeout_sec: float | None = None,
        versions: Mapping[str, str] | None = None,
        agents: Sequence[str] | None = None,
        games: Sequence[int] | None = None,
        kinds: Sequence[str] | None = None,
        retry: Retry | None = None,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self.finished = self.session = ""
        self.features: frozenset[str] = frozenset()
        self.late_answers = 0
        self._connection: Connection | None = None
        self._closed = False
        self._observations = make_space_values(observation_space, OBSERVATION)
        self._actions = make_space_values(action_space, ACTION)
        self.slots = _validate_slots(slots)
        self.name = _validate_name(name)
        self._address = address
        validate_type("exploit", exploit, FLAG)
        self._security = _make_security(token, security)
        _validate_limits(max_wait_ms, answer_timeout_sec)
        self._max_wait_ms = max_wait_ms
        self._answer_timeout_sec = None if answer_timeout_sec is None else float(answer_timeout_sec)
        self._hello = self._make_hello(exploit, validate_versions(versions or {}))
        self._add_agents(agents, games, kinds)
        self._timeout_sec, self._connect_timeout_sec = timeout_sec, connect_timeout_sec
        self._retry = _validate_optional("retry", retry, Retry) or Retry()
        self._report = _validate_optional("report", report, FUNCTION) or _print_line
        # Until then it waits for its first connection without a line for each attempt.
        self._quiet_until = time.monotonic() + self._retry.quiet_sec
        self._scalars = ScalarBuffer()
        self._reader = ActionsReader(self._actions.spaces, slots)
        self._talking = threading.RLock()  # held while something is sent or awaited
        self._forget_session()
        tracing.start_from_environment("environment", self.name)
        (self.connect if retry is None else self.connect_with_retry)()

    def _make_hello(self, exploit: bool, versions: Mapping[str, str]) -> rlx_pb2.Hello:
        features = {*_FEATURES, *(["versions"] if versions else [])}
        self._has_masks = bool(split_masks(self._observations.spaces)[1])
        features |= {"masks"} if self._has_masks else set()
        if self._max_wait_ms is not None:
            features.update(_LIMITED_FEATURES)
        hello = rlx_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            client_name=self.name,
            slots=self.slots,
            mode=rlx_pb2.EXPLOIT if exploit else rlx_pb2.TRAIN,
            features=sorted(features),
            max_wait_ms=self._max_wait_ms or 0,
            versions=versions,
        )
        for values, into in (
            (self._observations, hello.observation_spaces),
            (self._actions, hello.action_spaces),
        ):
            for leaf, space in split_masks(values.spaces)[0].items():
                into[leaf].CopyFrom(space_to_message(space))
        return hello

    def _add_agents(self, *given: Any) -> None:
        """Adds agents, games and kinds to the hello, if they are given."""
        leaves = {*self._observations.spaces}, {*self._actions.spaces}
        if named := validate_agents(self.slots, leaves, *given):
            self._hello.MergeFrom(rlx_pb2.Hello(**named))
            self._hello.features[:] = sorted({*self._hello.features, "agents"})

    def __del__(self) -> None:
        if getattr(self, "_connection", None) is not None:
            warnings.warn(
                f"RlxClient {self.name!r} was not closed; use `with` or close()",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )
            self._drop_connection()

    def close(self) -> None:
        """Sends buffered scalars if the connection is open, and closes it. Idempotent.

        Scalars that cannot be sent are lost, as are those that are still buffered when the training
        has finished. The server discards an unfinished episode.
        """
        self._closed = True
        connection = self._connection
        if connection is not None and not connection.closed and not self.finished:
            with contextlib.suppress(RelaaxError):
                self._flush_scalars(connection, force=True)
        self._drop_connection()

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        self._forget_session()
        if connection is not None:
            connection.close()

    def _forget_session(self) -> None:
        # True: the server waits for the rewards of the actions that it gave.
        self._rewards_due = False
        self._step_id = 0
        # Whether the last actions were late; then the next step must have `executed`.
        self._is_unanswered = False
        # Episodes of answers that were dropped.
        self._late_episodes: tuple[EpisodeResult, ...] = ()
        # How many of the last result's episodes are such late ones; they are its first.
        self._num_late = 0
        # When the last answer came; 0: not traced, or what follows is not the environment's time.
        self._answered = 0

    # Connecting.

    def connect(self) -> None:
        """Connects, without retrying. Drops an open connection; the next step begins an episode.

        Raises:
          ConfigError: the address or a timeout is wrong, or a file that `security` names cannot be
            used.
          InvalidInputError: the hello is too long.
          ServerUnavailableError: no server answers there, or it is full or not ready.
          NotAllowedError: client or server does not trust the other.
          ProtocolError: the server refused the hello, does not support `max_wait_ms`, masks or
            `kinds`, or is not an rlx server.
        """
        self._drop_connection()
        self._closed = False
        self._hello.token = self._security.read_token()
        connection = Connection(
            self._address,
            connect_timeout_sec=self._connect_timeout_sec,
            timeout_sec=self._timeout_sec,
            tls=self._security.tls,
        )
        try:
            connection.send(rlx_pb2.ClientMessage(hello=self._hello))
            answer = connection.receive()
            if answer.WhichOneof("body") != "ready":
                raise ProtocolError(
                    f"{self._address} replied to the hello with {answer.WhichOneof('body')!r}, "
                    "expected 'ready'; update the client or the server"
                )
            self._validate_ready(answer.ready.features)
        except BaseException:
            connection.close()
            raise
        if answer.ready.max_message_bytes:
            connection.max_send_bytes = min(answer.ready.max_message_bytes, MAX_MESSAGE_BYTES)
        self.session = answer.ready.session
        self.features = frozenset(answer.ready.features)
        self._connection = connection
        self._quiet_until = 0.0

    def _validate_ready(self, features: Collection[str]) -> None:
        """Refuses a server that lacks a feature without which the environment cannot be played."""
        missing = {*_LIMITED_FEATURES}.intersection(self._hello.features).difference(features)
        if missing:
            raise ProtocolError(
                f"max_wait_ms: the server at {self._address} does not support "
                f"{', '.join(sorted(missing))}; update the server, or connect without max_wait_ms"
            )
        if self._has_masks and "masks" not in features:
            raise ProtocolError(
                f"masks: the environment says which actions are legal, but the run at "
                f"{self._address} does not take that: it was begun without masks, or its agents "
                "cannot use them; begin another run, or play without (environment.masks: off)"
            )
        if self._hello.kinds and "agents" not in features:
            raise ProtocolError(
                f"kinds: the run at {self._address} cannot take agents with different spaces "
                f"({', '.join(sorted(set(self._hello.kinds)))!s:.200}); give it policies, one for "
                "each of them, or update the server"
            )

    def ping(self) -> None:
        """Tells the server that the environment is alive while its next step takes a long time.

        The server disconnects a client that sends nothing for `idle_timeout_sec` (600 by default).
        Thread-safe: a simulator whose step takes longer calls this from another thread. Does
        nothing while a verb is talking to the server, while there is no connection, or if the
        server does not support pings. A lost connection is reported by the next step.
        """
        if not self._talking.acquire(blocking=False):
            return
        try:
            connection = self._connection  # `close`, in another thread, can remove it meanwhile
            if connection is not None and "ping" in self.features:
                with contextlib.suppress(RelaaxError):
                    connection.send_bytes(_PING)
        finally:
            self._talking.release()

    def connect_with_retry(self, stop: threading.Event | None = None) -> bool:
        """Connects; while the server is unavailable, sleeps for a random time and retries.

        Args:
          stop: when it is set, the client soon gives up.

        Returns:
          Whether it is connected; False only after `stop`.

        Raises:
          ServerUnavailableError: after the last of `retry.max_attempts`.
          ConfigError, InvalidInputError, NotAllowedError, ProtocolError: see `connect`; another
            attempt would not help.
        """
        attempt = 1
        while True:
            try:
                self.connect()
                return True
            except ServerUnavailableError as error:
                if attempt == self._retry.max_attempts:
                    raise
                if attempt == 1 and self._is_quiet:
                    self._report(f"waiting for the rlx server at {self._address}")
                at_most_sec = _FIRST_SLEEP_SEC * 2 ** min(attempt - 1, _MAX_DOUBLINGS)
                if not self._sleep_before_retry(error, stop, at_most_sec):
                    return False
            attempt += 1

    def reconnect(
        self, error: Exception | None = None, stop: threading.Event | None = None
    ) -> bool:
        """Connects again after the connection was lost: sleeps for a random time, then retries.

        The unfinished episodes are lost: reset all environments and begin with `act`, or with a
        `step` of observations only.

        Args:
          error: what happened, for the progress line.
          stop: when it is set, the client soon gives up.

        Returns and raises the same as `connect_with_retry`.
        """
        self._drop_connection()
        if not self._sleep_before_retry(error, stop):
            return False
        if self.connect_with_retry(stop):
            self._report(f"reconnected to {self._address}")
            return True
        return False

    def _sleep_before_retry(
        self,
        error: Exception | None,
        stop: threading.Event | None,
        at_most_sec: float = float("inf"),
    ) -> bool:
        seconds = float(random.uniform(self._retry.min_sleep_sec, self._retry.max_sleep_sec))
        if seconds > at_most_sec:
            seconds = at_most_sec * random.uniform(0.5, 1.0)
        if not self._is_quiet:
            why = error or f"the connection to {self._address} was lost"
            self._report(f"{why}; retrying in {seconds:.1f} s")
        with tracing.span("wait for the server"):
            if stop is None:
                time.sleep(seconds)
                return True
            return not stop.wait(seconds)

    @property
    def _is_quiet(self) -> bool:
        return time.monotonic() < self._quiet_until

    # The three verbs of one environment.

    def act(self, state: Any) -> Any:
        """Asks for the first action of an episode.

        Args:
          state: observation without a slot axis (a dict of leaves if the space is a dict).

        Returns:
          The action without a slot axis: an int for Discrete, otherwise an array; a dict of these,
          or nested, as the space is. None when training has finished.

        Raises:
          OutOfOrderError: the last action's reward is due, or the client is closed or has several
            slots. Nothing was sent.
          InvalidInputError: the state does not fit its space, or the message is longer than the
            server accepts. Nothing was sent.
          LateAnswerError: no answer came within `answer_timeout_sec`; the session continues.
          ServerUnavailableError: the server was lost; call `reconnect()` and begin a new episode.
          ProtocolError: the server refused the message, or its answer is not valid.
        """
        mark = self._mark_call()
        self._validate_single_slot("act")
        if self._rewards_due:
            raise OutOfOrderError(
                "act() starts an episode, but the last action has no reward yet; call "
                "reward_and_act(reward, state), or reward_and_reset(reward) to end the "
                f"episode{self._describe_late()}"
            )
        leaves: Leaves = {"observations": self._observations.row_to_leaves(state, "state")}
        return self._read_action(self._exchange({}, leaves, mark))

    def reward_and_act(self, reward: Any, state: Any, executed: Any = None) -> Any:
        """Reports the last action's reward and asks for the next action.

        Args:
          reward: a number, or `[r]` if the server's model takes several rewards.
          state: the observation after the last action.
          executed: what was carried out, if something other than the policy decided, such as a
            human or a safety controller; None: the last action.

        Returns:
          The next action, as from `act`; None when training has finished.

        Raises:
          OutOfOrderError: no action precedes the reward, the last step was not answered in time and
            `executed` is None, the agents cannot use `executed`, or the client is closed or has
            several slots. Nothing was sent.
          InvalidInputError: the reward, the state or `executed` is wrong, or the message is longer
            than the server accepts. Nothing was sent.
          LateAnswerError, ServerUnavailableError, ProtocolError: see `act`.
        """
        mark = self._mark_call()
        arrays = self._validate_reward("reward_and_act", reward, False, False)
        self._validate_told(executed)
        leaves: Leaves = {"observations": self._observations.row_to_leaves(state, "state")}
        self._read_executed_row(executed, arrays, leaves)
        return self._read_action(self._exchange(arrays, leaves, mark))

    def reward_and_reset(
        self,
        reward: Any,
        state: Any = None,
        truncated: bool = False,
        success: bool | None = None,
        executed: Any = None,
    ) -> float | None:
        """Reports the episode's last reward and ends the episode. Continue with `act`.

        Args:
          reward: a number, or `[r]`.
          state: the final observation. Required if truncated: the return that would have followed
            is estimated from it. Also required with `algorithm.hindsight` of the server, for the
            goal that was achieved with the last step.
          truncated: True when the episode was cut off (a time limit), False when it terminated.
          success: whether the problem was solved, if the environment reports it.
          executed: as in `reward_and_act`.

        Returns:
          The episode's score, or None when training has finished.

        Raises the same as `reward_and_act`; InvalidInputError also if truncated without a state.
        """
        mark = self._mark_call()
        if truncated and state is None and not self.finished:
            raise InvalidInputError(
                "state: missing, but reward_and_reset(truncated=True) needs the final observation "
                "of the episode; pass it as state"
            )
        arrays = self._validate_reward("reward_and_reset", reward, not truncated, truncated)
        leaves: Leaves = {}
        if success is not None:
            arrays["success"] = validate_success([success], 1)
        if state is not None:
            leaves["final_observations"] = self._observations.row_to_leaves(state, "state")
        self._read_executed_row(executed, arrays, leaves)
        self._validate_told(executed)
        result = self._exchange(arrays, leaves, mark)
        if self.finished:
            return None
        if len(result.episodes) == self._num_late:
            raise self._fail(
                "received no score for the episode that reward_and_reset() ended, expected one; "
                "update the client or the server"
            )
        return result.episodes[-1].score

    def _validate_single_slot(self, verb: str) -> None:
        if self.slots != 1:
            raise OutOfOrderError(
                f"{verb}() is for one slot, but this client has {self.slots}; use step()"
            )

    def _read_action(self, result: StepResult) -> Any:
        return None if result.actions is None else self._actions.first_row(result.actions)

    def _validate_reward(
        self, verb: str, reward: Any, terminated: bool, truncated: bool
    ) -> dict[str, np.ndarray]:
        self._validate_single_slot(verb)
        self._validate_rewards_due(verb)
        ends = np.array([terminated]), np.array([truncated])
        array = validate_array(reward, "reward", ("r",))
        if array.dtype.kind not in "biuf" or array.ndim > 1:
            raise InvalidInputError(
                f"reward: expected a number, or several of shape [r], got {array.tolist()!s:.100}"
            )
        try:
            outcome = validate_outcome(1, array[None], *ends)
        except InvalidInputError as error:
            if error.field != "rewards":
                raise
            raise InvalidInputError(
                f"reward: {array.tolist()!s:.100}, expected a finite number, or several"
            ) from None
        return dict(zip(_OUTCOME, outcome, strict=True))

    def _validate_rewards_due(self, verb: str) -> None:
        if not self._rewards_due and not self.finished:
            self._open_connection()  # if it is lost, this error says so
            how = (
                "act(state), or with step(observations)"
                if self.slots == 1
                else "step(observations)"
            )
            raise OutOfOrderError(
                f"{verb}: no action precedes this reward; start the episode with {how}"
            )

    # All slots at once.

    def step(
        self,
        observations: Any = None,
        rewards: Any = None,
        terminated: Any = None,
        truncated: Any = None,
        final_observations: Any = None,
        success: Any = None,
        *,
        present: Any = None,
        executed: Any = None,
        overridden: Any = None,
    ) -> StepResult:
        """Reports what happened in all slots since the last answer; requests the next actions.

        Arrays have the slot axis first. Observations and `executed` are arrays if the space is one
        leaf, dicts of arrays if it is a dict of leaves, and nested as a Gymnasium space is. The
        first step after connecting, or after a step without observations, has observations (and
        `present`) only; any other has rewards too.

        Args:
          observations: `[k, ...]`. Where a slot's episode has just ended, this is the next
            episode's first. None: every slot has ended and no new episode has begun yet.
          rewards: `[k]` or `[k, r]`, finite.
          terminated: `[k]` bool: ended in a terminal state. Default: none.
          truncated: `[k]` bool: cut off, never together with terminated. Default: none.
          final_observations: `[k, ...]`: last observations of the slots that ended; other rows are
            ignored. Required if a slot was truncated, and, with `algorithm.hindsight` of the
            server, if one was terminated.
          success: `[k]` int8: 1 solved, 0 not solved, -1 unknown. Default: all unknown.
          present: `[k]` bool: slots that take part in this step. In the others, observations and
            actions are meaningless, and the next reward counts for their last action. Default: all.
          executed: `[k, ...]`, what was carried out instead of the last actions. Default: the
            last actions.
          overridden: `[k]` bool: slots where something other than the policy decided; only with
            `executed`. Default: where `executed` differs from the last actions.

        Returns:
          The next actions; see `StepResult`.

        Raises:
          OutOfOrderError: the first step has rewards, or a later one has none; the last step was
            not answered in time and `executed` is None; the agents cannot use `present` or
            `executed`; or the client is closed. Nothing was sent.
          InvalidInputError: an array is missing or does not fit, or the message is longer than the
            server accepts. Nothing was sent.
          LateAnswerError: no answer came within `answer_timeout_sec`; the session continues.
          ServerUnavailableError: the server was lost; call `reconnect()` and reset all
            environments.
          ProtocolError: the server refused the message, or its answer is not valid.
        """
        if self.finished:
            return StepResult(actions=None, finished=self.finished)
        mark = self._mark_call()
        arrays, leaves = self._read_rest(present, executed, overridden)
        if rewards is not None:
            self._validate_rewards_due("step with rewards")
            self._validate_told(executed)
            outcome = validate_outcome(self.slots, rewards, terminated, truncated)
            arrays |= zip(_OUTCOME, outcome, strict=True)
            self._read_ends(arrays, leaves, final_observations, success)
        else:
            self._validate_first(
                terminated, truncated, final_observations, success, executed, overridden
            )
        if observations is not None:
            leaves["observations"] = self._observations.to_leaves(
                observations, self.slots, "observations"
            )
        elif rewards is None:
            raise InvalidInputError(
                "observations: None, but a step without rewards begins new episodes; pass the "
                "first observations of all slots"
            )
        elif not (ended := arrays["terminated"] | arrays["truncated"]).all():
            raise InvalidInputError(
                f"observations: None, but the episode of slot {int(ended.argmin())} continues; "
                "pass the next observations of all slots",
            )
        return self._exchange(arrays, leaves, mark)

    def _validate_first(self, *outcome: Any) -> None:
        if self._rewards_due or any(part is not None for part in outcome):
            raise OutOfOrderError(
                "step without rewards is only allowed as the first step after connecting, or "
                "after a step without observations, and then takes only observations and present; "
                "otherwise call step(observations, rewards, terminated, truncated)"
                f"{self._describe_late()}"
            )

    def _read_ends(
        self, arrays: Arrays, leaves: Leaves, final_observations: Any, success: Any
    ) -> None:
        """Adds what the episodes that have ended leave."""
        truncated = arrays["truncated"]
        if final_observations is not None:
            leaves["final_observations"] = self._observations.to_leaves(
                final_observations,
                self.slots,
                "final_observations",
                arrays["terminated"] | truncated,
            )
        elif truncated.any():
            raise InvalidInputError(
                f"final_observations: missing, but slot {int(truncated.argmax())} was "
                "truncated; pass the last observation of the truncated episode",
            )
        if success is not None:
            arrays["success"] = validate_success(success, self.slots)

    # Talking to the server.

    def _mark_call(self) -> int:
        """Ends the span of the environment's own time; returns the time, for `_exchange`."""
        answered, self._answered = self._answered, 0
        return tracing.end("environment", answered) or tracing.begin()

    def _read_rest(self, present: Any, executed: Any, overridden: Any) -> tuple[Arrays, Leaves]:
        """Returns the flags that were given, and the leaves of what was carried out."""
        arrays: Arrays = {}
        leaves: Leaves = {}
        if present is not None:
            self._validate_feature("present", "present")
            arrays["present"] = validate_flags(present, self.slots, "present")
        if executed is not None:
            self._validate_feature("executed", "executed")
            leaves["executed"] = self._actions.to_leaves(executed, self.slots, "executed")
        if overridden is not None:
            self._validate_feature("executed", "overridden")
            arrays["overridden"] = validate_flags(overridden, self.slots, "overridden")
            if executed is None:
                raise InvalidInputError(
                    "overridden: given without executed; pass the actions that were carried out as "
                    "executed, too"
                )
        return arrays, leaves

    def _read_executed_row(self, executed: Any, arrays: Arrays, leaves: Leaves) -> None:
        """Adds what was carried out in the only slot, whose action was then overridden."""
        if executed is not None:
            self._validate_feature("executed", "executed")
            leaves["executed"] = self._actions.row_to_leaves(executed, "executed")
            arrays["overridden"] = np.ones(1, np.bool_)

    def _validate_feature(self, feature: str, name: str) -> None:
        if self._connection is not None and feature not in self.features:
            raise OutOfOrderError(
                f"{name}: the agents of the server at {self._address} cannot use it "
                f"(RlxClient.features lacks {feature}); do not pass it"
            )

    def _validate_told(self, executed: Any) -> None:
        if self._is_unanswered and executed is None:
            cure = (
                "pass what was carried out instead"
                if "executed" in self.features
                else "call reconnect() and begin new episodes, because the server cannot use it"
            )
            raise OutOfOrderError(
                f"executed: missing, but the last step was not answered in time; {cure}"
            )

    def _describe_late(self) -> str:
        """Returns what a step with rewards also needs after a late answer; "" otherwise."""
        if not self._is_unanswered:
            return ""
        if "executed" in self.features:
            return ", with executed, because the last step was not answered in time"
        return "; but the last step was not answered in time, so call reconnect() first"

    def _number_step(self) -> int:
        """Returns the next step's number; 0 if the steps of this session have no numbers."""
        if self._max_wait_ms is not None:
            self._step_id += 1
        return self._step_id

    def _exchange(self, arrays: Arrays, leaves: Leaves, mark: int) -> StepResult:
        """Sends a step, waits for its answer and measures the time between.

        Args:
          arrays, leaves: see `pack_step`.
          mark: when encoding it began.
        """
        if self._has_masks:
            for field, masks in (("observations", "masks"), ("final_observations", "final_masks")):
                if field in leaves:
                    leaves[field], found = split_masks(leaves[field])
                    leaves[masks] = {name.removeprefix(MASK): x for name, x in found.items()}
        step = pack_step(arrays, leaves, self._number_step())
        with self._talking:
            return self._exchange_alone(step, "observations" in leaves, mark)

    def _exchange_alone(self, step: bytes, asks: bool, mark: int) -> StepResult:
        if self.finished:
            return StepResult(actions=None, finished=self.finished)
        connection = self._open_connection()
        mark = tracing.end("encode", mark)
        start = time.perf_counter()
        try:
            connection.send_bytes(step)
            self._is_unanswered = False
            mark = tracing.end("send", mark)
        except InvalidInputError:
            raise  # too long: nothing was sent, the session continues
        except BaseException:
            self._drop_connection()
            raise
        result = None
        while result is None:
            body = self._receive(connection, asks, start)
            result = self._read_answer(connection, body, asks)
        latency_sec = time.perf_counter() - start
        mark = tracing.end("wait for actions", mark)
        if asks and not result.finished:
            self._measure(connection, latency_sec)
        self._answered = tracing.end("decode", mark)
        return result

    def _receive(self, connection: Connection, asks: bool, start: float) -> bytes:
        """Waits for a message.

        Raises:
          LateAnswerError: it did not come within `answer_timeout_sec`; the session continues.
          ServerUnavailableError, NotAllowedError, ProtocolError: see `Connection.receive`.
        """
        limit = self._answer_timeout_sec
        try:
            if limit is None:
                return connection.receive_bytes()
            body = connection.receive_within(limit - (time.perf_counter() - start))
        except BaseException:
            self._drop_connection()
            raise
        if body is None:
            self._rewards_due = self._is_unanswered = asks
            if not asks:
                cure = "begin the next episode"
            elif "executed" in self.features:
                cure = "do what is safe and pass it as executed to the next step"
            else:  # the server would refuse it
                cure = "do what is safe, call reconnect() and begin new episodes"
            raise LateAnswerError(
                f"{self._address}: no answer to step {self._step_id} within {limit:g} s; {cure}"
            )
        return body

    def _open_connection(self) -> Connection:
        if self._connection is not None and self._connection.closed:  # lost, by a ping or by points
            self._drop_connection()
        if self._connection is None:
            if self._closed:
                raise OutOfOrderError(
                    "this client is closed; call connect(), or create a new client"
                )
            raise ServerUnavailableError(
                f"the connection to {self._address} is lost; call reconnect() and start new "
                "episodes"
            )
        return self._connection

    def _read_answer(self, connection: Connection, body: bytes, asked: bool) -> StepResult | None:
        """Returns the answer to the newest step; None: it answers an earlier step."""
        try:
            leaves = self._reader.read(body) if asked else None
        except InvalidInputError as error:
            raise self._fail_actions(error) from None
        if leaves is not None:
            numbers = self._reader.numbers
            if self._step_id and self._is_late(numbers["step_id"]):
                return None
            self._rewards_due = True
            return StepResult(
                actions=self._actions.from_leaves(leaves),
                episodes=self._take_late_episodes(),
                version=self._reader.version,
                timings=_make_timings(numbers) if self._step_id else None,
            )
        try:
            answer = connection.parse(body)
        except BaseException:
            self._drop_connection()
            raise
        if answer.WhichOneof("body") != "actions":
            raise self._fail(
                f"received {answer.WhichOneof('body')!r} in reply to a step, expected 'actions'; "
                "update the client or the server"
            )
        message = answer.actions
        if not message.finished and self._step_id and self._is_late(message.step_id):
            self._late_episodes += _read_episodes(message)
            return None
        result = self._unpack_actions(message, asked)
        if result.actions is not None and not message.episodes:
            self._reader.remember(body, result.version)
        return result

    def _is_late(self, step_id: int) -> bool:
        """Whether this is the answer to an earlier step.

        Raises:
          ProtocolError: it answers a step that has not been sent.
        """
        if not 0 < step_id <= self._step_id:
            raise self._fail(
                f"received an answer to step {step_id}, expected 1 to {self._step_id}; update the "
                "client or the server"
            )
        self.late_answers += step_id < self._step_id
        return step_id < self._step_id

    def _take_late_episodes(self) -> tuple[EpisodeResult, ...]:
        episodes, self._late_episodes = self._late_episodes, ()
        self._num_late = len(episodes)
        return episodes

    def _unpack_actions(self, message: rlx_pb2.Actions, asked: bool) -> StepResult:
        episodes = self._take_late_episodes() + _read_episodes(message)
        if message.finished:
            self.finished = message.finished
            self._drop_connection()
            return StepResult(actions=None, episodes=episodes, finished=message.finished)
        self._rewards_due = asked
        timings = None
        if message.HasField("timings"):
            timings = _make_timings(
                {field.name: number for field, number in message.timings.ListFields()}
            )
        if not asked:
            return StepResult(
                actions=None, episodes=episodes, version=message.version, timings=timings
            )
        try:
            leaves = unpack_arrays(message.actions, self._actions.spaces, self.slots, "actions")
        except InvalidInputError as error:
            raise self._fail_actions(error) from None
        actions = self._actions.from_leaves(leaves)
        return StepResult(
            actions=actions, episodes=episodes, version=message.version, timings=timings
        )

    def _fail(self, what: str) -> ProtocolError:
        self._drop_connection()
        return ProtocolError(f"{self._address}: {what}")

    def _fail_actions(self, error: InvalidInputError) -> ProtocolError:
        return self._fail(f"received invalid actions: {error}; update the client or the server")

    # Metrics.

    def scalar(self, name: str, y: float, x: float | None = None) -> None:
        """Records one point of a curve for TensorBoard.

        Points are buffered, and sent with the steps about once per second, or sooner when 1000 are
        waiting; the server does not acknowledge them. Points that were not sent are lost when the
        process dies, and while the server is away only the newest 10 000 are kept.

        Args:
          name: of the curve, 1 to 200 characters; the server drops points whose name is not
            printable.
          y: a finite number.
          x: position on the x axis; default: the newest `global_t`.

        Raises:
          InvalidInputError: a name of another length, or a number that is not finite.
          NotAllowedError, ProtocolError: 1000 points were to be sent, but the server had closed the
            connection with an Error.
        """
        self._scalars.append(name, y, x)
        if self._scalars.full and self._connection is not None:
            self._flush_scalars(self._connection)

    def _measure(self, connection: Connection, latency_sec: float) -> None:
        self._scalars.measure(latency_sec)
        if self._scalars.due:
            self._flush_scalars(connection)

    def _flush_scalars(self, connection: Connection, force: bool = False) -> None:
        """Sends all buffered points; with `force`, the latency measured so far, too.

        A lost connection is reported by the next step, with the cure.
        """
        if force:
            self._scalars.end_interval()
        with self._talking, contextlib.suppress(ServerUnavailableError):
            for request in self._scalars.take(connection.max_send_bytes - _FRAME_BYTES):
                connection.send(rlx_pb2.ClientMessage(scalars=request))


def _read_episodes(message: rlx_pb2.Actions) -> tuple[EpisodeResult, ...]:
    return tuple(
        EpisodeResult(slot=end.slot, score=end.score, length=end.length) for end in message.episodes
    )


def _make_timings(numbers: Mapping[str, int]) -> Timings:
    return Timings(
        queue_us=numbers.get("queue_us", 0),
        prediction_us=numbers.get("prediction_us", 0),
        total_us=numbers.get("total_us", 0),
    )


def _validate_optional(name: str, value: T, kind: str | type) -> T:
    if value is not None:
        validate_type(name, value, kind)
    return value


def _make_security(token: str, security: ClientSecurity | None) -> ClientSecurity:
    validate_type("token", token, TEXT, is_secret=True)
    if _validate_optional("security", security, ClientSecurity) is not None and token:
        raise ConfigError(
            "token and security are both set, expected one of them; pass the token in security, "
            "as ClientSecurity(token=...)"
        )
    return security or ClientSecurity(token=token)


def _validate_limits(max_wait_ms: int | None, answer_timeout_sec: float | None) -> None:
    if max_wait_ms is not None:
        validate_type("max_wait_ms", max_wait_ms, INTEGER)
        if not 1 <= max_wait_ms <= _MAX_WAIT_MS:
            raise ConfigError(
                f"max_wait_ms: {max_wait_ms}, expected 1 to {_MAX_WAIT_MS}, or None for no limit"
            )
    if answer_timeout_sec is None:
        return
    if max_wait_ms is None:
        raise ConfigError(
            f"answer_timeout_sec: {answer_timeout_sec}, but max_wait_ms is not set; set both"
        )
    validate_type("answer_timeout_sec", answer_timeout_sec, NUMBER)
    if not 0 < answer_timeout_sec <= MAX_WAIT_SEC:
        raise ConfigError(
            f"answer_timeout_sec: {answer_timeout_sec}, expected more than 0, and at most 1e9"
        )


def _print_line(line: str) -> None:
    print(line, flush=True)


def _validate_slots(slots: int) -> int:
    validate_type("slots", slots, INTEGER)
    if not 1 <= slots < 2**32:  # a field of the hello
        raise ConfigError(f"slots: {slots}, expected 1 to {2**32 - 1}")
    return slots


def _validate_name(given: str | None) -> str:
    name = _validate_optional("name", given, TEXT) or f"{socket.gethostname()[:80]}-{os.getpid()}"
    if not (1 <= len(name) <= 100 and name.isprintable()):
        raise ConfigError(f"name: {name[:120]!r}, expected 1 to 100 printable characters")
    return name
