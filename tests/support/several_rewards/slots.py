"""Action 0 is fast and costs much, action 1 is slow and costs little; episodes have 10 steps.

The sum of all rewards is 3.5 for action 0 and 1 for action 1; so is the speed alone the greater for
action 0. Only speed minus costs is the greater for action 1: -1.5 and 0.
"""

from typing import Any

import numpy as np

from relaax_like.client.interactor import Transition
from relaax_like.wire.spaces import Box, Discrete

# Speed, and two costs, of each action.
REWARDS = np.array([[1.0, 0.5, 2.0], [0.5, 0.5, 0.0]])
STEPS = 10


class PayingSlots:
    slots = 4
    observation_space = Box(dtype="float32", shape=(1,))
    action_space = Discrete(n=2)

    def __init__(self) -> None:
        self._left = np.full(4, STEPS)

    def reset(self, mask: np.ndarray | None = None) -> np.ndarray:
        self._left[np.ones(4, np.bool_) if mask is None else mask] = STEPS
        return np.ones((4, 1), np.float32)

    def step(self, actions: Any) -> Transition:
        self._left -= 1
        ended = self._left == 0
        return Transition(
            observations=self.reset(ended),
            rewards=REWARDS[np.asarray(actions)],
            terminated=ended,
            truncated=np.zeros(4, np.bool_),
            final_observations=np.ones((4, 1), np.float32) if ended.any() else None,
        )

    def close(self) -> None:
        pass


def make_slots(environment: Any, seed: int) -> PayingSlots:
    return PayingSlots()
