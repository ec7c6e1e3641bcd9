"""Environments that say what happened: [slot, episode, step, last action]; the reward is the step.

Slot 0's episodes terminate after 3 steps, those of slot 1 are cut off after 5. The observations are
always in the same array.
"""

from typing import Any

import numpy as np

from relaax_like.client.interactor import Transition
from relaax_like.wire.spaces import Box, Discrete

LENGTHS = np.array([3, 5])


class CountingSlots:
    """Two of them."""

    slots = 2
    observation_space = Box(dtype="float32", shape=(4,))
    action_space = Discrete(n=2)

    def __init__(self) -> None:
        self._now = np.zeros((2, 4), np.float32)
        self._now[:, 0] = [0, 1]
        self._now[:, 1] = -1

    def reset(self, mask: np.ndarray | None = None) -> np.ndarray:
        mask = np.ones(2, np.bool_) if mask is None else mask
        self._now[mask, 1] += 1
        self._now[mask, 2:] = 0
        return self._now

    def step(self, actions: Any) -> Transition:
        self._now[:, 2] += 1
        self._now[:, 3] = actions
        final, rewards = self._now.copy(), self._now[:, 2].copy()
        ended = rewards >= LENGTHS
        return Transition(
            observations=self.reset(ended),
            rewards=rewards,
            terminated=ended & (LENGTHS == 3),
            truncated=ended & (LENGTHS == 5),
            final_observations=final if ended.any() else None,
        )

    def close(self) -> None:
        pass


def make_slots(environment: Any, seed: int) -> CountingSlots:
    return CountingSlots()
