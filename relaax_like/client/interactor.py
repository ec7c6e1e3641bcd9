"""The one loop that runs environments against an agent, over the network or in one process."""

import contextlib
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from relaax_like.client.outcome import validate_outcome
from relaax_like.client.values import SpaceValues, UserSpace, Values
from relaax_like.wire import tracing
from relaax_like.wire.agents import Games
from relaax_like.wire.errors import ConfigError, ServerUnavailableError
from relaax_like.wire.spaces import ACTION

logger = logging.getLogger(__name__)
# A limit is suspected when so many of the newest episodes ended terminated at the same length.
_NEWEST, _EQUAL, _MIN_LENGTH = 20, 10, 10
# A call of the environments that takes longer is reported, and again after each further interval.
_SLOW_SEC, _AGAIN_SEC, _POLL_SEC = 10.0, 30.0, 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Transition:
    """The result of one step of all slots.

    Attributes:
      observations: `[k, ...]`, or a dict of them. Where a slot's episode ended this is the next
        episode's first observation.
      rewards: `[k]` or `[k, r]` float.
      terminated: `[k]` bool: ended in a terminal state.
      truncated: `[k]` bool: cut off; never together with terminated.
      final_observations: `[k, ...]`: last observations of the slots that ended, other rows are
        undefined; None if no slot ended.
      success: `[k]` int8: 1 solved, 0 not solved, -1 unknown; None: unknown for all.
    """

    observations: Values
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_observations: Values | None = None
    success: np.ndarray | None = None


class EnvironmentSlots(Protocol):
    """A vector of environments that are stepped together.

    The caller owns the returned arrays. Optional: `partial_step(actions, mask) -> Transition`,
    which steps only the slots in `mask` and leaves the others unchanged.

    Also optional, so that a resumed serial run is bit-identical to an uninterrupted one:
    `get_state() -> dict`, of nested arrays and JSON types, or None if there is no state now; and
    `set_state(state)`, for slots made with the same arguments in another process, which raises
    InvalidInputError if they cannot resume from it: then their state is undefined until a reset.

    Optional, too: `simulator`, the class of the environments, whose packages' versions a run notes.

    Optional, if several agents play: `agents`, `games` and `kinds`, as of `RlxClient`, each None if
    it is not known; and `present`, `[k]` bool, the slots that take part in the next step, as known
    after each reset and step; None: all. Then `step` ignores the actions of the others. A slot that
    has ended is absent until the next game begins. It begins once all slots of the game have ended,
    in the same step, and a reset of one slot resets its game.

    Attributes:
      slots: environments, k.
      observation_space: a leaf, or a dict name -> leaf.
      action_space: the same for actions.
    """

    slots: int
    observation_space: UserSpace
    action_space: UserSpace

    def reset(self, mask: np.ndarray | None = None) -> Values:
        """Begins new episodes.

        Args:
          mask: `[k]` bool, the slots to reset; None: all.

        Returns:
          `[k, ...]` observations of all slots; unchanged for those not in `mask`.
        """

    def step(self, actions: Any) -> Transition:
        """Steps all slots; those whose episode ends are reset in the same call."""


class SteppingAgent(Protocol):
    """Acts for all slots: an `RlxClient`, or an agent in the same process.

    `step` takes the first arguments of `RlxClient.step`, and returns the same. An agent that can
    lose its server raises ServerUnavailableError and has `reconnect(error, stop) -> bool`, which
    returns whether to continue. An agent that can resume from a state has `go_on()`, which returns
    what the last `step` before the state would have returned.
    """

    @property
    def step(self) -> Callable[..., Any]:
        """Returns an object with `actions` (`[k, ...]`; None at the end) and `finished` (str)."""


@dataclass(frozen=True, kw_only=True)
class SlotEpisode:
    """An episode that ended, as the loop counted it.

    Attributes:
      slot: in which it ran.
      score: undiscounted sum of rewards.
      length: steps that the agent chose.
      truncated: whether it was cut off.
      success: 1 solved, 0 not solved, -1 unknown.
      agent: which played, if the environments have `agents`.
    """

    slot: int
    score: float
    length: int
    truncated: bool
    success: int = -1
    agent: str = ""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The counts and times of an `Interactor`, of all its runs together.

    Attributes:
      episodes: number of episodes that ended, or of games if the environments have `games`; those
        lost with a server are not counted.
      steps: number of steps that the agent chose, in all slots together.
      finished: not empty when training has ended: what ended it.
      losses: how many times the server was lost.
      environment_sec: seconds spent in steps of the environments, and in the resets that follow
        from them; without the first reset of each session.
      agent_sec: seconds spent waiting for actions.
    """

    episodes: int
    steps: int
    finished: str
    losses: int
    environment_sec: float
    agent_sec: float


class Interactor:
    """Steps environments with the actions of an agent until the run ends.

        with RlxClient(address, slots.observation_space, slots.action_space, slots=8) as client:
            summary = Interactor(slots, client, max_episode_steps=800).run()

    The run ends when the agent reports that training has finished, after `max_episodes` or
    `max_steps`, when `stop` is set, or once each slot has ended an episode after `end_episodes`. If
    the server is lost, the agent reconnects and all environments are reset.

    Slots that play one game (`games`) count together: a game has ended when all its slots have, and
    if the step limit cuts off one of them, it cuts off the game. An absent slot makes no step, and
    what ends without a step is not an episode.

    Attributes:
      episodes: ended so far; games, if the environments have `games`.
      steps: chosen by the agent so far, in all slots together.
      games: counts those of each slot; without `games`, each slot plays its own.

    Args:
      env_slots: the environments.
      agent: what acts in them.
      random_steps: number of random actions after each reset, before the agent takes over; the
        agent does not see them, and they are not counted. If one of them ends the episode, the
        rest follow in the next one.
      max_episode_steps: steps of the agent after which an episode is truncated; None: never.
      max_episodes: ends the run after this many episodes, or games.
      max_steps: ends the run after at least this many steps of all slots together.
      stop: ends the run after the step during which it was set.
      on_episode: called for each episode that ended.
      on_step: called after each step of the environments.
      seed: of the random actions.
      first: observations of all slots after a reset, as `reset_first` returns them; the run
        begins without another one. None: it begins with a reset.

    Raises:
      ConfigError: a number out of range, an action space that is not a `UserSpace`, or random
        actions for slots that play games together, or that cannot be stepped one by one.
    """

    def __init__(
        self,
        env_slots: EnvironmentSlots,
        agent: SteppingAgent,
        *,
        random_steps: int = 0,
        max_episode_steps: int | None = None,
        max_episodes: int | None = None,
        max_steps: int | None = None,
        stop: threading.Event | None = None,
        on_episode: Callable[[SlotEpisode], None] | None = None,
        on_step: Callable[[], None] | None = None,
        seed: int | None = None,
        first: Values | None = None,
    ) -> None:
        _validate_bounds(random_steps, max_episode_steps, max_episodes, max_steps)
        self._partial_step = getattr(env_slots, "partial_step", None)
        if random_steps:
            _validate_random_steps(random_steps, env_slots)
        self.episodes = 0
        self.steps = 0
        self._env_slots = env_slots
        self._agent = agent
        self._random_steps = random_steps
        self._max_episode_steps = max_episode_steps
        self._max_episodes = max_episodes
        self._max_steps = max_steps
        self._first = first
        self._stop = stop or threading.Event()
        games = getattr(env_slots, "games", None)
        self.games = Games(range(env_slots.slots) if games is None else games)
        self._has_games = games is not None
        self._names = getattr(env_slots, "agents", None) or [""] * env_slots.slots
        self._present = np.ones(env_slots.slots, np.bool_)  # slots that were asked to act
        self._ending: np.ndarray | None = None  # [k] bool: slots that still play to an end
        self._on_episode = on_episode
        self._on_step = on_step
        self._rng = np.random.default_rng(seed)
        self._actions = SpaceValues(env_slots.action_space, ACTION)
        self._scores = np.zeros(env_slots.slots)  # [k] float64
        self._lengths = np.zeros(env_slots.slots, np.int64)  # [k]
        self._ends: deque[int] = deque(maxlen=_NEWEST)  # lengths; 0: truncated
        self._called_at: float | None = None  # when the environments' running call began
        self._goes_on = False
        self._finished = ""
        self._losses = 0
        self._environment_sec = 0.0
        self._agent_sec = 0.0

    def run(self) -> RunSummary:
        """Runs until the end; see the class.

        Raises:
          ServerUnavailableError: the server is lost, and the agent cannot or will not reconnect.
          ConfigError, NotAllowedError: see `RlxClient.connect`, which reconnecting calls.
          ProtocolError: the server refused a message.
          InvalidInputError: the environments returned a wrong value.
          LateAnswerError: an answer did not come within the client's `answer_timeout_sec`.
          RelaaxError: the environments, an agent in this process, or its learner failed.
        """
        with _watching(self._env_slots, lambda: self._called_at):
            self._run_sessions()
        return self._summary()

    def _run_sessions(self) -> None:
        while not self._done():
            try:
                self._run_session()
            except ServerUnavailableError as error:
                self._losses += 1
                reconnect = getattr(self._agent, "reconnect", None)
                if reconnect is None:
                    raise
                if not reconnect(error, self._stop):
                    break

    def end_episodes(self) -> None:
        """Ends the run once each slot has ended its episode, or its game; from any thread."""
        self._ending = np.ones(len(self._lengths), np.bool_)

    def get_state(self) -> dict[str, Any]:
        """Returns the counts and the state of the random generator, after `run`."""
        return {
            "episodes": self.episodes,
            "steps": self.steps,
            "scores": self._scores.copy(),
            "lengths": self._lengths.copy(),
            "generator": dict(self._rng.bit_generator.state),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Makes the next `run` resume from here, without a reset.

        The caller must have restored the slots and the agent.
        """
        self.episodes, self.steps = int(state["episodes"]), int(state["steps"])
        self._scores[:] = state["scores"]
        self._lengths[:] = state["lengths"]
        self._rng.bit_generator.state = state["generator"]
        self._goes_on = True

    @property
    def busy_sec(self) -> float:
        """Seconds spent so far in environments and waiting for actions; from any thread."""
        return self._environment_sec + self._agent_sec

    def _summary(self) -> RunSummary:
        return RunSummary(
            episodes=self.episodes,
            steps=self.steps,
            finished=self._finished,
            losses=self._losses,
            environment_sec=self._environment_sec,
            agent_sec=self._agent_sec,
        )

    def _done(self) -> bool:
        return (
            self._stop.is_set()
            or bool(self._finished)
            or (self._ending is not None and not self._ending.any())
            or (self._max_episodes is not None and self.episodes >= self._max_episodes)
            or (self._max_steps is not None and self.steps >= self._max_steps)
        )

    def _run_session(self) -> None:
        """Runs from a reset, or from `set_state`, until the end or until the server is lost."""
        if self._goes_on:
            self._goes_on = False
            actions = self._take(self._agent.go_on())  # type: ignore[attr-defined]  # optional
        else:
            self._scores[:] = 0
            self._lengths[:] = 0
            self.games.begin()
            actions = self._ask(observations=self._begin(None))
        while not self._finished and not self._done():
            transition = self._advance(actions)
            # Counted before it is sent, so that the last transition of a run is sent, too.
            self._count(transition)
            if self._on_step is not None:
                self._on_step()
            actions = self._ask(
                transition.observations,
                transition.rewards,
                transition.terminated,
                transition.truncated,
                transition.final_observations,
                transition.success,
            )

    def _ask(self, observations: Any, *outcome: Any) -> Any:
        start = time.perf_counter()
        present = getattr(self._env_slots, "present", None)
        more = {} if present is None else {"present": present}
        self._present = (
            np.ones(len(self._lengths), np.bool_) if present is None else np.asarray(present)
        )
        result = self._agent.step(observations, *outcome, **more)
        self._agent_sec += time.perf_counter() - start
        return self._take(result)

    def _take(self, result: Any) -> Any:
        self._finished = result.finished
        return result.actions

    def _advance(self, actions: Any) -> Transition:
        """Steps all slots and applies the step limit and the random first actions."""
        start, mark = time.perf_counter(), tracing.begin()
        self._called_at = time.monotonic()
        transition = _validate_shapes(self._env_slots.step(actions), len(self._lengths))
        self._lengths += self._present
        ended = transition.terminated | transition.truncated
        over = (
            (self._lengths >= self._max_episode_steps) & ~ended if self._max_episode_steps else None
        )
        if over is not None and over.any():
            if self._has_games:
                over = self.games.join(over) & ~ended
            transition = self._truncate(transition, over)
            ended |= over
        if self._random_steps and ended.any():
            transition = replace(
                transition, observations=self._randomize(transition.observations, ended)
            )
        self._called_at = None
        self._environment_sec += time.perf_counter() - start
        tracing.end("environment step", mark)
        return transition

    def _truncate(self, transition: Transition, over: np.ndarray) -> Transition:
        """Truncates the slots in `over`: their observations become final, and they are reset."""
        final = transition.final_observations
        # A copy: the reset can change the arrays of environments that reuse them.
        final = _merge(
            over, transition.observations, transition.observations if final is None else final
        )
        return replace(
            transition,
            observations=self._env_slots.reset(over),
            truncated=transition.truncated | over,
            final_observations=final,
        )

    def _begin(self, mask: np.ndarray | None) -> Values:
        mark = tracing.begin()
        self._called_at = time.monotonic()
        first, self._first = self._first, None
        observations = self._env_slots.reset(mask) if first is None else first
        if self._random_steps:
            everyone = np.ones(self._env_slots.slots, np.bool_)
            observations = self._randomize(observations, everyone if mask is None else mask)
        self._called_at = None
        tracing.end("environment reset", mark)
        return observations

    def _randomize(self, observations: Values, mask: np.ndarray) -> Values:
        """Steps the slots in `mask` with random actions; returns the observations after that."""
        for _ in range(self._random_steps):
            actions = self._actions.sample(self._env_slots.slots, self._rng, observations)
            if self._partial_step is not None:
                observations = self._partial_step(actions, mask).observations
            else:
                observations = self._env_slots.step(actions).observations
        return observations

    def _count(self, transition: Transition) -> None:
        rewards = np.asarray(transition.rewards)
        self._scores += rewards if rewards.ndim == 1 else rewards.sum(axis=1)
        self.steps += int(self._present.sum())
        ended = transition.terminated | transition.truncated
        for slot in np.flatnonzero(ended).tolist():
            self._end_episode(slot, transition)
        if ended.any():
            before, ended = self.games.ended, self.games.add(ended)
            self.episodes += (self.games.ended - before) * self._has_games
        if self._ending is not None:
            self._ending &= ~ended

    def _end_episode(self, slot: int, transition: Transition) -> None:
        if not self._lengths[slot]:
            self._scores[slot] = 0
            return
        self.episodes += not self._has_games
        episode = SlotEpisode(
            slot=slot,
            score=float(self._scores[slot]),
            length=int(self._lengths[slot]),
            truncated=bool(transition.truncated[slot]),
            success=-1 if transition.success is None else int(transition.success[slot]),
            agent=self._names[slot],
        )
        if self.games.leaders[slot]:  # the other slots of a game end with it
            self._ends.append(0 if episode.truncated else episode.length)
        if episode.length >= _MIN_LENGTH and self._ends.count(episode.length) >= _EQUAL:
            _warn_of_limit(episode.length)
        self._scores[slot] = 0
        self._lengths[slot] = 0
        if self._on_episode is not None:
            self._on_episode(episode)


def get_agents(env_slots: EnvironmentSlots) -> dict[str, Any]:
    """Returns what environments say of their agents: arguments of `RlxClient`."""
    return {name: getattr(env_slots, name, None) for name in ("agents", "games", "kinds")}


def reset_first(env_slots: EnvironmentSlots) -> Values:
    """Resets all slots before there is an agent, and so finds what is wrong with them.

    Returns:
      Observations, for `Interactor(first=...)`.

    Raises:
      RelaaxError: an environment failed, or returned a wrong value.
    """
    began = time.monotonic()
    with _watching(env_slots, lambda: began):
        return env_slots.reset(None)


@contextlib.contextmanager
def _watching(
    env_slots: EnvironmentSlots, get_called_at: Callable[[], float | None]
) -> Iterator[None]:
    """Reports calls of the environments that take long.

    Args:
      env_slots: the environments.
      get_called_at: returns when their running call began; None: there is none.
    """
    done = threading.Event()

    def watch() -> None:
        began, due_sec = None, _SLOW_SEC
        while not done.wait(_POLL_SEC):
            called_at = get_called_at()
            if called_at != began:
                began, due_sec = called_at, _SLOW_SEC
            if began is not None and time.monotonic() - began >= due_sec:
                where = getattr(env_slots, "where", "all slots")
                elapsed = time.monotonic() - began
                logger.warning("waiting for the environment for %.0f s: %s", elapsed, where)
                due_sec = elapsed + _AGAIN_SEC

    watcher = threading.Thread(target=watch, name="watcher", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


@functools.cache  # once
def _warn_of_limit(length: int) -> None:
    logger.warning(
        "%d of the newest %d episodes terminated after exactly %d steps: if %d is a limit, set "
        "max_episode_steps: %d; then it is a truncation with a real last observation",
        *(_EQUAL, _NEWEST, length, length, length - 1),
    )


def _validate_shapes(transition: Transition, slots: int) -> Transition:
    """Checks what is counted before the agent checks the rest: shapes, and kind of the rewards.

    Returns:
      The transition; with arrays instead of lists.

    Raises:
      InvalidInputError: rewards are not numbers, or an array does not have one row per slot.
    """
    outcome = transition.rewards, transition.terminated, transition.truncated
    rewards, *ends = (getattr(value, "shape", ()) for value in outcome)
    is_wrong = rewards[:1] != (slots,) or len(rewards) > 2 or ends != [(slots,), (slots,)]
    if is_wrong or np.asarray(transition.rewards).dtype.kind not in "biuf":
        rewards, terminated, truncated = validate_outcome(slots, *outcome)
        return replace(transition, rewards=rewards, terminated=terminated, truncated=truncated)
    return transition


def _merge(mask: np.ndarray, chosen: Values, other: Values) -> Values:
    """Takes the rows of `chosen` where `mask` is True, and those of `other` elsewhere."""
    if isinstance(chosen, dict) and isinstance(other, dict):
        return {name: _merge_leaf(mask, chosen[name], other[name]) for name in chosen}
    return _merge_leaf(mask, np.asarray(chosen), np.asarray(other))


def _merge_leaf(mask: np.ndarray, chosen: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.where(mask.reshape(-1, *[1] * (chosen.ndim - 1)), chosen, other)


def _validate_random_steps(random_steps: int, env_slots: EnvironmentSlots) -> None:
    """Refuses random actions for environments in which single slots cannot take them."""
    if any(getattr(env_slots, name, None) is not None for name in ("games", "present")):
        raise ConfigError(
            f"random_steps: {random_steps}, but several agents play each game, which cannot begin "
            "with random actions of one of them; set random_steps to 0"
        )
    if env_slots.slots > 1 and getattr(env_slots, "partial_step", None) is None:
        raise ConfigError(
            f"random_steps: {random_steps}, but these {env_slots.slots} environments can only be "
            "stepped together, so a single one cannot take random actions after its reset; set "
            "random_steps to 0 or slots to 1, or give the environments a method partial_step (see "
            "EnvironmentSlots)"
        )


def _validate_bounds(
    random_steps: int,
    max_episode_steps: int | None,
    max_episodes: int | None,
    max_steps: int | None,
) -> None:
    if random_steps < 0:
        raise ConfigError(f"random_steps: {random_steps}, expected 0 or more random actions")
    for name, value in (
        ("max_episode_steps", max_episode_steps),
        ("max_episodes", max_episodes),
        ("max_steps", max_steps),
    ):
        if value is not None and value < 1:
            raise ConfigError(f"{name}: {value}, expected 1 or more, or None for no limit")
