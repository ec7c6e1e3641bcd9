"""Greedy evaluation: the best actions of a snapshot's policy, in fresh episodes."""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.client.interactor import EnvironmentSlots, SlotEpisode
from relaax_like.config.models import Experiment
from relaax_like.launch.local import (
    LocalAgents,
    ask_environment,
    make_interactor,
    open_one_slot,
    open_slots,
)
from relaax_like.launch.policies import complete_policies, open_saved_host
from relaax_like.launch.saved_policy import LATEST, read_snapshot
from relaax_like.nn.settings import prepare_tensorflow
from relaax_like.parameter_server.snapshot_format import State
from relaax_like.runs.folders.video import FilmedSlots, draw_without_screen, validate_video

logger = logging.getLogger(__name__)

# After this long without an ended episode, a warning is logged.
_PATIENCE_SEC = 60.0


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """The result of an evaluation.

    Attributes:
      returns: [n] float64, one per episode.
      lengths: [n] int64, environment steps.
      global_t: training steps of the evaluated weights.
      version: of the weights.
      video: description of the video; "" without a video.
      success: [n] int8, 1 solved, 0 not solved, -1 not reported by the environment; None: not
        collected, because the environments were clients.
    """

    returns: np.ndarray
    lengths: np.ndarray
    global_t: int
    version: int
    video: str = ""
    success: np.ndarray | None = None

    @property
    def success_rate(self) -> float | None:
        """Share of solved episodes among those reported as solved or not; None: no such episode."""
        if self.success is None or not (told := self.success >= 0).any():
            return None
        return float((self.success[told] == 1).mean())

    @property
    def half_interval(self) -> float:
        """Half of the 95 % confidence interval of the mean return; NaN with one episode."""
        number = len(self.returns)
        if number < 2:
            return math.nan
        return float(1.96 * self.returns.std(ddof=1) / math.sqrt(number))


@dataclass(frozen=True, kw_only=True)
class Video:
    """A video to record: the file, and the number of episodes that it shows."""

    path: Path
    episodes: int = 1


def evaluate_policies(
    experiment: Experiment, episodes: int, version: str = LATEST, video: Video | None = None
) -> dict[str, EvaluationResult]:
    """Plays with snapshots of a run, of all its policies; a running training is not affected.

    Args:
      experiment: has the snapshots.
      episodes: number of episodes, or games, to play.
      version: of the snapshots; see `read_snapshot`.
      video: to record, in separate episodes before the counted episodes; None: no video.

    Returns:
      Policy -> the episodes of its agents; "" if the run has one policy.

    Raises:
      ConfigError: there is no environment, it cannot be filmed, the video cannot be written, the
        algorithm's folder cannot be loaded, or `version` is wrong.
      InvalidInputError: the environment returned a wrong value; or see `SavedPolicy`.
      ProtocolError: the algorithm cannot use the environment's spaces.
      SnapshotError: there is no usable snapshot.
      RelaaxError: the environment's code failed.
    """
    prepare_tensorflow(experiment, learns=False)
    if video is not None:
        validate_video(video.path)
        draw_without_screen()
    if experiment.policies:
        experiment = complete_policies(experiment)
        runs = {name: policy.experiment for name, policy in experiment.policies.items()}
    else:
        experiment, _ = ask_environment(experiment)
        runs = {"": experiment}
    states = {name: read_snapshot(run, version) for name, run in runs.items()}
    filmed = "" if video is None else _film(experiment, states, video)
    with open_slots(experiment, "eval") as slots:
        ended = _play(experiment, states, slots, episodes)
    return {
        name: EvaluationResult(
            returns=np.array([episode.score for episode in own]),
            lengths=np.array([episode.length for episode in own]),
            global_t=states[name].global_t,
            version=states[name].version,
            video=filmed,
            success=np.array([episode.success for episode in own], np.int8),
        )
        for name, own in ended.items()
        if own
    }


def _film(experiment: Experiment, states: Mapping[str, State], video: Video) -> str:
    """Records a video of one slot; returns a description of its content."""
    with (
        open_one_slot(experiment, "video", draw=True) as slots,
        FilmedSlots(slots, video.path) as filmed,
    ):
        ended = _play(experiment, states, filmed, video.episodes)
    scores = [f"{episode.score:g}" for own in ended.values() for episode in own]
    return (
        f"{filmed.path}: returns {', '.join(scores)}; {filmed.frames} frames at {filmed.fps:g} "
        "per second"
    )


def _play(
    experiment: Experiment, states: Mapping[str, State], slots: EnvironmentSlots, episodes: int
) -> dict[str, list[SlotEpisode]]:
    """Returns the episodes of each policy."""
    with (
        open_saved_host(experiment, states) as host,
        contextlib.closing(LocalAgents(slots, host, exploit=True)) as agents,
    ):
        games = len(set(getattr(slots, "games", None) or range(slots.slots)))
        ended = play_greedy(experiment, slots, agents, episodes * slots.slots // games)
        policies = agents.policies or [""] * slots.slots
        return {
            name: [episode for episode in ended if policies[episode.slot] == name]
            for name in dict.fromkeys(policies)
        }


def play_greedy(
    experiment: Experiment,
    slots: EnvironmentSlots,
    agents: LocalAgents,
    episodes: int,
    is_stopping: Callable[[], bool] = lambda: False,
) -> list[SlotEpisode]:
    """Plays fresh episodes with agents that exploit.

    Each slot plays the same number of episodes: the first episodes to end, of all slots together,
    would be short ones. Warns once of each slot that has not ended an episode for a minute.

    Args:
      experiment: defines the random first actions and the step limit.
      slots: environments, which are reset first.
      agents: of the slots.
      episodes: number to play; if it is not a multiple of the slots, a few more are played and
        left out.
      is_stopping: returns whether to end before that; asked after each step.

    Returns:
      The episodes: the first one of each slot, then the next one of each slot, and so on.

    Raises:
      InvalidInputError: an environment returned a wrong value.
      ConfigError: the environment's settings cannot be used; see `Interactor`.
      RelaaxError, Exception: an agent or the environment failed; see `LocalAgents.step`.
    """
    each = -(-episodes // slots.slots)
    played: list[list[SlotEpisode]] = [[] for _ in range(slots.slots)]
    done = threading.Event()
    patience = Patience(slots.slots)

    def count(episode: SlotEpisode) -> None:
        patience.begin(episode.slot)
        if len(played[episode.slot]) < each:
            played[episode.slot].append(episode)

    def check() -> None:
        patience.check()
        # Not of the slots: agents of a game can stay away.
        if is_stopping() or (loop.games.rounds >= each).all():
            done.set()

    loop = make_interactor(experiment, slots, agents, on_episode=count, on_step=check, stop=done)
    loop.run()
    rounds = [own[number] for number in range(each) for own in played if number < len(own)]
    return rounds[:episodes]


class Patience:
    """Warns once of each slot that has not ended an episode for a long time.

    Args:
      slots: their number.
      client: name of the client that plays them; "": this process plays.
    """

    def __init__(self, slots: int, client: str = "") -> None:
        self._of = f" of {client}" if client else ""
        now = time.monotonic()
        self._since = np.full(slots, now)
        self._check_at = now + _PATIENCE_SEC

    def begin(self, slot: int) -> None:
        """Restarts the time of a slot, because its episode has ended."""
        self._since[slot] = max(self._since[slot], time.monotonic())  # inf: it has been named

    def check(self) -> None:
        """Warns if it is time; call it after each step of the environments."""
        now = time.monotonic()
        if now < self._check_at:
            return
        self._check_at = now + 1.0
        late = np.flatnonzero(now - self._since > _PATIENCE_SEC)
        if len(late):
            self._since[late] = np.inf
            logger.warning(
                "no episode of slot %s%s has ended for %g s; if the policy never ends one, set "
                "environment.max_episode_steps, the number of steps after which an episode is cut "
                "off",
                *(", ".join(map(str, late)), self._of, _PATIENCE_SEC),
            )


def format_evaluation(evaluation: EvaluationResult) -> str:
    """Returns one line: mean, its 95 % confidence interval, range, episodes, length and weights.

    The interval is left out with one episode. If the environment reports success, the line has the
    share of solved episodes.
    """
    returns, half = evaluation.returns, evaluation.half_interval
    interval = "" if math.isnan(half) else f" +- {half:.2f} (95 % confidence interval of the mean)"
    rate = evaluation.success_rate
    solved = "" if rate is None else f", success rate {rate:.2f}"
    return (
        f"mean return {returns.mean():.2f}{interval}, min {returns.min():g}, max "
        f"{returns.max():g}, {len(returns)} greedy episodes, mean length "
        f"{evaluation.lengths.mean():.1f}{solved}; weights of step {evaluation.global_t:,}, "
        f"version {evaluation.version:,}"
    )


def format_evaluations(results: Mapping[str, EvaluationResult]) -> Iterator[str]:
    """Yields a line for each policy, after its name, and one for the video."""
    for name, found in results.items():
        yield f"{name}: " * bool(name) + format_evaluation(found)
    if found.video:
        yield found.video


def evaluation_to_dict(evaluation: EvaluationResult) -> dict[str, Any]:
    """Returns an evaluation as JSON types.

    `interval` is None if there is only one episode, `success_rate` if no episode is known to be
    solved or not.
    """
    returns = evaluation.returns
    mean, half = float(returns.mean()), evaluation.half_interval
    return {
        "mean": mean,
        "interval": None if math.isnan(half) else [mean - half, mean + half],
        "min": float(returns.min()),
        "max": float(returns.max()),
        "episodes": len(returns),
        "mean_length": float(evaluation.lengths.mean()),
        "success_rate": evaluation.success_rate,
        "step": evaluation.global_t,
        "version": evaluation.version,
    }
