"""Hindsight: transitions with goals that were achieved in the same episode."""

from collections.abc import Callable, Mapping

import numpy as np

from relaax_like.experience.replay.items import TransitionBatch, Transitions
from relaax_like.experience.replay.kernels import (
    EPISODE_GOAL,
    FINAL_GOAL,
    FUTURE_GOAL,
    find_goals,
    load_kernel,
)
from relaax_like.experience.replay.storage import Storage
from relaax_like.wire.errors import ConfigError

STRATEGIES: Mapping[str, int] = {
    "future": FUTURE_GOAL,
    "final": FINAL_GOAL,
    "episode": EPISODE_GOAL,
}
# Achieved and desired goals, both [N, ...] -> rewards, [N] float32, and whether the episode ends
# there, [N] bool.
ComputeRewards = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


class Hindsight(Transitions):
    """Makes each step an item, which gets another goal with probability k / (k + 1) when drawn.

    The new goal is what was achieved after a step of the same episode, among the steps that are in
    the table without a gap: the drawn step or a later one (`future`), the last one so far
    (`final`), or any (`episode`). It replaces the desired goal in the observations, and reward and
    discount are computed from it. The table itself keeps the original steps.

    Source: hindsight experience replay, Andrychowicz et al. 2017,
    https://arxiv.org/abs/1707.01495: algorithm 1, and the strategies of section 4.5.

    Args:
      compute_rewards: returns rewards and episode ends for achieved and desired goals; called for
        the items whose goal is changed, if any. Its rewards replace those of the environment,
        which must have one reward.
      achieved: name of the observation that says which goal has been achieved.
      desired: name of the observation that says which goal is desired.
      strategy: key in `STRATEGIES`, which chooses the step whose achieved goal is taken.
      goals: k, 1 or more; on average, k of k + 1 drawn steps get another goal.
      discount: per step, 0 to 1.
    """

    def __init__(
        self,
        compute_rewards: ComputeRewards,
        achieved: str = "achieved_goal",
        desired: str = "desired_goal",
        strategy: str = "future",
        goals: int = 4,
        discount: float = 0.99,
    ):
        super().__init__(1, discount)
        self._compute_rewards = compute_rewards
        self._achieved = achieved
        self._desired = desired
        self._strategy = STRATEGIES[strategy]
        self._share = goals / (goals + 1)
        self._find_goals = load_kernel(find_goals)

    def gather(
        self,
        storage: Storage,
        drawn: np.ndarray,
        weights: np.ndarray,
        random: np.random.Generator,
    ) -> TransitionBatch:
        """Returns the arrays of the drawn items; see `Transitions`.

        Raises:
          ConfigError: `compute_rewards` does not return two arrays `[N]`.
          KeyError: there is no observation `achieved` or `desired`.
          Exception: an error of `compute_rewards`.
        """
        batch = super().gather(storage, drawn, weights, random)
        ids = drawn.reshape(-1)
        changed = np.flatnonzero(random.random(ids.size) < self._share)
        if not len(changed):
            return batch
        places = np.empty(len(changed), np.int64)
        self._find_goals(
            *(ids[changed], random.random(len(changed)), self._strategy, storage.oldest_id),
            *(storage.capacity, storage.links, places),
        )
        goals = storage.observations[self._achieved].take(places, 0)
        following = batch.next_observations[self._achieved]
        achieved = following.reshape(-1, *following.shape[2:])[changed]
        computed = self._compute_rewards(achieved, goals)
        try:
            rewards, ended = computed
        except (TypeError, ValueError) as error:
            is_several = isinstance(computed, tuple | list)
            number = f" with {len(computed)} elements" if is_several else ""
            raise ConfigError(
                "compute_rewards did not return two arrays, but a value of type "
                f"{type(computed).__name__}{number}; return two: rewards, and whether the episode "
                "ends there"
            ) from error
        _validate(rewards, len(changed), "rewards")
        _validate(ended, len(changed), "ends of episodes")
        for observations in (batch.observations, batch.next_observations):
            desired = observations[self._desired]
            desired.reshape(-1, *desired.shape[2:])[changed] = goals
        batch.returns.reshape(ids.size, -1)[changed, 0] = rewards
        batch.discounts.reshape(-1)[changed] = np.where(ended, 0.0, self.discount)
        return batch


def make_sparse_rewards(tolerance: float, ends: bool) -> ComputeRewards:
    """Returns a function that computes rewards: 0 within a distance of the goal, -1 elsewhere.

    Args:
      tolerance: largest Euclidean distance at which a goal counts as achieved.
      ends: whether the environment terminates an episode when it achieves the goal.
    """

    def compute(achieved: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        apart = np.asarray(achieved, np.float32) - np.asarray(desired, np.float32)
        distance = np.linalg.norm(apart.reshape(len(apart), -1), axis=1)
        reached = distance <= tolerance
        return np.where(reached, 0.0, -1.0).astype(np.float32), reached & ends

    return compute


def _validate(array: np.ndarray, length: int, what: str) -> None:
    if np.shape(array) != (length,):
        raise ConfigError(
            f"compute_rewards returned {what} of shape {list(np.shape(array))}, expected "
            f"[{length}], one element for each pair of goals"
        )
    if np.asarray(array).dtype.kind not in "fiub":
        raise ConfigError(
            f"compute_rewards returned {what} of dtype {np.asarray(array).dtype}, expected numbers"
        )
