"""Questions 0, 1 and 2, whose answers are 1, 2 and 0; an episode asks nine times."""

from typing import Any

import numpy as np

from relaax_like.client.interactor import Transition
from relaax_like.wire.spaces import Box, Discrete

STEPS, SLOTS = 9, 4
ONE_HOT = np.eye(3, dtype=np.float32)


class AskingSlots:
    """Args: tells: whether the answers are among the observations."""

    slots = SLOTS
    action_space = Discrete(n=3)

    def __init__(self, tells: bool = True) -> None:
        box = Box(dtype="float32", shape=(3,))
        self._names = ("question", "answer") if tells else ("question",)
        self.observation_space = dict.fromkeys(self._names, box)
        self._asked = np.zeros(SLOTS, np.int64)

    def reset(self, mask: np.ndarray | None = None) -> dict[str, np.ndarray]:
        self._asked[np.ones(SLOTS, np.bool_) if mask is None else mask] = 0
        return self._observe()

    def step(self, actions: Any) -> Transition:
        right = np.asarray(actions) == (self._asked + 1) % 3
        self._asked += 1
        ended = self._asked == STEPS
        finals = self._observe() if ended.any() else None
        return Transition(
            observations=self.reset(ended),
            rewards=right.astype(np.float32),
            terminated=np.zeros(SLOTS, np.bool_),
            truncated=ended,
            final_observations=finals,
        )

    def close(self) -> None:
        pass

    def _observe(self) -> dict[str, np.ndarray]:
        seen = {"question": ONE_HOT[self._asked % 3], "answer": ONE_HOT[(self._asked + 1) % 3]}
        return {name: seen[name] for name in self._names}


def make_slots(environment: Any, seed: int) -> AskingSlots:
    return AskingSlots()
