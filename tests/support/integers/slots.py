"""Environments whose observations and actions are integers that begin elsewhere than at 0."""

from typing import Any

import numpy as np

from relaax_like.client.interactor import Transition
from relaax_like.wire import Discrete, MultiDiscrete

_STEPS = 4


class IntegerSlots:
    """Episodes of 4 steps; the action that is 10 less than the observation gives 1."""

    observation_space: Any = Discrete(n=5, start=10)
    action_space: Any = Discrete(n=5)

    def __init__(self, slots: int, seed: int):
        self.slots = slots
        self._random = np.random.default_rng(seed)
        self._number = np.zeros(slots, np.int64)
        self._steps = 0

    def reset(self, mask: np.ndarray | None = None) -> Any:
        """Begins new episodes in the slots of the mask."""
        return self._draw()

    def step(self, actions: Any) -> Transition:
        """Rewards the actions; all episodes end together."""
        rewards = self._reward(actions)
        self._steps += 1
        over = np.full(self.slots, self._steps % _STEPS == 0)
        observations = self._draw()
        return Transition(
            observations=observations,
            rewards=rewards,
            terminated=over,
            truncated=np.zeros(self.slots, np.bool_),
            final_observations=observations if over.any() else None,
        )

    def close(self) -> None:
        """Nothing is open."""

    def _draw(self) -> Any:
        self._number = self._random.integers(5, size=self.slots)
        return self._number + 10

    def _reward(self, actions: Any) -> np.ndarray:
        return (actions == self._number).astype(np.float64)


class SeveralSlots(IntegerSlots):
    """The same number as two digits, beside switches that say nothing; one choice of two counts."""

    observation_space: Any = {  # noqa: RUF012
        "digits": MultiDiscrete(n=(2, 3), shape=(2,)),
        "noise": Discrete(n=3, start=-1),
    }
    action_space: Any = MultiDiscrete(n=(5, 2), shape=(2,))

    def _draw(self) -> Any:
        super()._draw()
        digits = np.stack([self._number // 3, self._number % 3], axis=1)
        return {"digits": digits, "noise": self._random.integers(-1, 2, size=self.slots)}

    def _reward(self, actions: Any) -> np.ndarray:
        return super()._reward(actions[:, 0])


def make_slots(environment: Any, seed: int) -> IntegerSlots:
    """Makes the environments that `env` names: one, or several."""
    kind = SeveralSlots if environment.env == "several" else IntegerSlots
    return kind(environment.slots, seed)
