"""The environments of the hierarchical algorithm, with a Ctrl-C at an exact step."""

import os
import signal
from collections.abc import Mapping
from typing import Any

import numpy as np

from relaax_like.client.interactor import Transition
from relaax_like.wire import Box, Discrete

STOP_AT = "RELAAX_TEST_STOP_AT"


class CueSlots:
    """Episodes of 3 to 10 steps: a cue is shown, and each step the action that equals it gives 1.

    Any other gives -1. Every third episode is cut off.
    """

    observation_space = Box(dtype="float32", shape=(2,))
    action_space = Discrete(n=2)

    def __init__(self, slots: int, seed: int):
        self.slots = slots
        self._random = np.random.default_rng(seed)
        self._cues = np.zeros(slots, np.int64)
        self._left = np.zeros(slots, np.int64)

    def reset(self, mask: np.ndarray | None = None) -> np.ndarray:
        """Begins new episodes in the slots of the mask."""
        new = np.ones(self.slots, np.bool_) if mask is None else mask
        self._cues[new] = self._random.integers(2, size=int(new.sum()))
        self._left[new] = self._random.integers(3, 11, size=int(new.sum()))
        return self._observe()

    def step(self, actions: np.ndarray) -> Transition:
        """Rewards the actions."""
        rewards = np.where(actions == self._cues, 1.0, -1.0)
        self._left -= 1
        ended = self._left == 0
        truncated = ended & (self._random.random(self.slots) < 1 / 3)
        finals = self._observe()
        return Transition(
            observations=self.reset(ended),
            rewards=rewards,
            terminated=ended & ~truncated,
            truncated=truncated,
            final_observations=finals if ended.any() else None,
            success=np.where(rewards > 0, 1, 0).astype(np.int8),
        )

    def get_state(self) -> dict[str, Any]:
        """Returns all that decides what comes next."""
        return {
            "cues": self._cues.copy(),
            "left": self._left.copy(),
            "random": self._random.bit_generator.state,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from there."""
        self._cues, self._left = state["cues"].copy(), state["left"].copy()
        self._random.bit_generator.state = state["random"]

    def close(self) -> None:
        """Holds nothing."""

    def _observe(self) -> np.ndarray:
        return np.eye(2, dtype=np.float32)[self._cues]


class StoppingCueSlots(CueSlots):
    """Interrupts its process during a step; see `support.serial.train`."""

    def __init__(self, slots: int, seed: int):
        super().__init__(slots, seed)
        self._steps_left = int(os.environ.get(STOP_AT, 0))

    def step(self, actions: np.ndarray) -> Transition:
        """Rewards the actions; see `CueSlots`."""
        self._steps_left -= 1
        if not self._steps_left:
            signal.raise_signal(signal.SIGINT)
        return super().step(actions)


def make_slots(environment: Any, seed: int) -> StoppingCueSlots:
    """Makes the environments of one client or worker."""
    return StoppingCueSlots(environment.slots, seed % 2**32)
