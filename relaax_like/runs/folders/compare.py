"""The results of runs: final and best mean return, steps and seconds to a target, speed."""

from dataclasses import dataclass

import numpy as np

from relaax_like.metrics.curves import Curve
from relaax_like.metrics.names import EPISODE_REWARD, MEAN_RETURN, RETURN_EPISODES
from relaax_like.parameter_server.snapshots import read_latest
from relaax_like.parameter_server.statistics import DEFAULT_WINDOW
from relaax_like.runs.folders.plot import compute_running_mean
from relaax_like.runs.folders.runs import Run
from relaax_like.wire.errors import SnapshotError

# A run's newest numbers: environment steps, mean return, and number of episodes in it.
_Newest = tuple[int, float | None, int | None]


@dataclass(frozen=True, kw_only=True)
class RunResults:
    """The results of a run; numbers that are not known are None.

    Attributes:
      run: name of the run.
      seed: of the run.
      steps: environment steps so far.
      mean_return: of the last `episodes` training episodes.
      episodes: `learner.target_episodes` of the run, or all its episodes if they are fewer.
      best: largest mean return over `learner.target_episodes` episodes; None if fewer have ended.
      target_steps: environment steps until the mean return reached the target.
      target_sec: seconds from the start of the run until then.
      steps_per_sec: environment steps per second, from the first episodes on.
    """

    run: str
    seed: int
    steps: int
    mean_return: float | None
    episodes: int | None
    best: float | None
    target_steps: int | None
    target_sec: float | None
    steps_per_sec: float | None


def summarize_run(run: Run, target: float | None) -> RunResults:
    """Computes a run's numbers from its curves and its newest snapshot.

    Args:
      run: the run.
      target: a mean return; None: no target.
    """
    window = int(run.settings.get("learner.target_episodes") or DEFAULT_WINDOW)
    # The snapshot of an ended run is at least as new, and exact; curves have 32 bits.
    newest = max(_read_snapshot(run), _read_curves(run, window), key=lambda one: one[0])
    steps, mean_return, episodes = newest
    means = find_mean_returns(run, window)
    reached = []
    if target is not None:
        reached = np.flatnonzero(means.values >= target).tolist()
    return RunResults(
        run=run.name,
        seed=run.seed,
        steps=steps,
        mean_return=mean_return,
        episodes=episodes,
        best=float(means.values.max()) if len(means.values) else None,
        target_steps=int(means.steps[reached[0]]) if reached else None,
        target_sec=float(means.seconds[reached[0]]) if reached else None,
        steps_per_sec=_compute_speed(run),
    )


def find_mean_returns(run: Run, window: int) -> Curve:
    """Returns the mean return over complete windows of episodes; no points if there are none.

    Args:
      run: the run.
      window: number of episodes in the mean, the run's `learner.target_episodes`.
    """
    means, episodes = run.curves.get(MEAN_RETURN), run.curves.get(RETURN_EPISODES)
    if means is not None and episodes is not None:
        count = np.interp(means.steps, episodes.steps, episodes.values)
        return _select(means, means.values, np.flatnonzero(count >= window))
    rewards = run.curves.get(EPISODE_REWARD)
    if rewards is None:
        return Curve(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0))
    values = compute_running_mean(rewards.values, window)
    return _select(rewards, values, np.arange(window - 1, len(values)))


def _select(curve: Curve, values: np.ndarray, chosen: np.ndarray) -> Curve:
    return Curve(
        curve.steps[chosen], values[chosen], curve.wall_times[chosen], curve.seconds[chosen]
    )


def _read_snapshot(run: Run) -> _Newest:
    try:
        state = read_latest(run.checkpoint_dir)
    except SnapshotError:  # damaged, unreadable or of another version: only the curves remain
        state = None
    if state is None:
        return 0, None, None
    mean, episodes = state.statistics.get("mean_return"), state.statistics.get("return_episodes")
    return state.global_t, mean, episodes or None


def _read_curves(run: Run, window: int) -> _Newest:
    means, episodes = run.curves.get(MEAN_RETURN), run.curves.get(RETURN_EPISODES)
    if means is not None and episodes is not None:
        return int(means.steps[-1]), float(means.values[-1]), int(episodes.values[-1])
    rewards = run.curves.get(EPISODE_REWARD)
    if rewards is None:
        return 0, None, None
    newest = rewards.values[-window:]
    return int(rewards.steps[-1]), float(newest.mean()), len(newest)


def _compute_speed(run: Run) -> float | None:
    curve = run.curves.get(MEAN_RETURN) or run.curves.get(EPISODE_REWARD)
    if curve is None or curve.seconds[-1] <= curve.seconds[0]:
        return None
    return float((curve.steps[-1] - curve.steps[0]) / (curve.seconds[-1] - curve.seconds[0]))
