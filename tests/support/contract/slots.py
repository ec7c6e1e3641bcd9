"""Four slots whose observations count on, in episodes of ten steps."""

from typing import Any

import numpy as np

from relaax_like.client.interactor import Transition
from relaax_like.wire import Box, Discrete

SLOTS, EPISODE_STEPS = 4, 10
REWARDS = np.ones(SLOTS)
REWARDS = np.tile([1.0, 0.5, 0.25], (SLOTS, 1))  # if several rewards


class CountingSlots:
    slots = SLOTS
    observation_space = Box(dtype="float32", shape=(1,))
    action_space = Discrete(n=8)

    def __init__(self) -> None:
        self._steps = np.zeros(SLOTS, np.int64)

    def reset(self, mask: np.ndarray | None = None) -> np.ndarray:
        self._steps[np.ones(SLOTS, np.bool_) if mask is None else mask] = 0
        return self._observe()

    def step(self, actions: Any) -> Transition:
        self._steps += 1
        ended = self._steps == EPISODE_STEPS
        final = self._observe() if ended.any() else None
        return Transition(
            observations=self.reset(ended),
            rewards=REWARDS,
            terminated=ended,
            truncated=np.zeros(SLOTS, np.bool_),
            final_observations=final,
        )

    def close(self) -> None:
        pass

    def _observe(self) -> np.ndarray:
        return self._steps[:, None].astype(np.float32)


def make_slots(environment: Any, seed: int) -> CountingSlots:
    return CountingSlots()
