"""Scales rewards by the standard deviation of their discounted sums: RewardScale, scale_rewards."""

import numpy as np

from relaax_like.core.moments import Moments
from relaax_like.experience.rollout import ALIVE

# Added to the variance.
EPSILON = 1e-8
# Bound of scaled rewards.
CLIP = 10.0


class RewardScale:
    """Tracks the discounted sum R of each slot's rewards, which restarts at each episode.

    After each reward r, R = discount R + r.

        scale = RewardScale(discount=0.99)
        sums = scale.add(rewards, next_alive, keys)
        moments = moments.merge(Moments.of(sums.ravel()))
        rewards = scale_rewards(rewards, moments)

    Sums continue from one rollout of an agent to its next: a slot is identified by its index in the
    rollout. With one agent, as in one process, that is exact. Rollouts of several agents arrive in
    any order, so a rollout can continue the sum of another agent's slot. That hardly matters: only
    the mean and the variance of all sums are used.

    Attributes:
      sums: R of each slot, `[slots] float64`. They are not published: if a run resumes with new
        episodes, they restart, too.

    Args:
      discount: factor per step.
    """

    def __init__(self, discount: float):
        self.sums = np.zeros(0)
        self._discount = discount

    def add(
        self,
        rewards: np.ndarray,
        next_alive: np.ndarray,
        keys: np.ndarray,
        valid: np.ndarray | None = None,
    ) -> np.ndarray:
        """Adds the rewards of some rollouts.

        Args:
          rewards: `[T, columns]`.
          next_alive: `[T, columns]`: 1 continues, 0 terminated, -1 truncated.
          keys: `[columns, 2]`: ticket, and index of the column among those of its ticket.
          valid: `[T, columns] bool`, False in holes; None: no holes.

        Returns:
          R after each step, `[T, columns] float64`; in a hole, R before it, 0 after an end.
        """
        slots = int(keys[:, 1].max()) + 1
        self.sums = np.pad(self.sums, (0, max(0, slots - len(self.sums))))
        sums = np.empty(rewards.shape)
        for ticket in np.unique(keys[:, 0]):
            columns = np.flatnonzero(keys[:, 0] == ticket)
            running = self.sums[keys[columns, 1]]
            for t in range(len(rewards)):
                there = True if valid is None else valid[t, columns]
                added = self._discount * running + rewards[t, columns]
                sums[t, columns] = running = np.where(there, added, running)
                ended = (next_alive[t, columns] != ALIVE) & there
                running = np.where(ended, 0.0, running)
            self.sums[keys[columns, 1]] = running
        return sums


def scale_rewards(rewards: np.ndarray, moments: Moments) -> np.ndarray:
    """Returns clip(r / sqrt(var(R) + 1e-8), -10, 10), float32.

    Args:
      rewards: any shape.
      moments: of R, over at least one row.
    """
    deviation = np.sqrt(moments.m2 / moments.count + EPSILON)
    return np.clip(rewards / deviation, -CLIP, CLIP).astype(np.float32)
