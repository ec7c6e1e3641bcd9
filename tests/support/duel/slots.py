"""Games of two sides with different spaces: `cat_0`, `cat_1` see two numbers, `mouse` three.

A game has `length` steps. A cat gets 1 for the action 0, and the mouse what its action is.
"""

from typing import Any

import numpy as np

from relaax_like.client.interactor import Transition
from relaax_like.wire.spaces import Box, Discrete

AGENTS = ("cat_0", "cat_1", "mouse")


class Duels:
    """The games of one client."""

    def __init__(self, games: int, length: int = 4):
        self.slots = games * len(AGENTS)
        self.agents = AGENTS * games
        self.games = [number for number in range(games) for _ in AGENTS]
        self.kinds = [name.partition("_")[0] for name in self.agents]
        self.observation_space = {
            "cat": Box(dtype="float32", shape=(2,)),
            "mouse": Box(dtype="float32", shape=(3,)),
        }
        self.action_space = {"cat": Discrete(n=2), "mouse": Discrete(n=3)}
        self._is_cat = np.array([kind == "cat" for kind in self.kinds])
        self._length, self._steps = length, 0

    def reset(self, mask: Any = None) -> dict[str, np.ndarray]:
        """Begins all games."""
        self._steps = 0
        return self._observe()

    def step(self, actions: Any) -> Transition:
        """Steps all games; they end together."""
        self._steps += 1
        is_over = self._steps == self._length
        rewards = np.where(self._is_cat, actions["cat"] == 0, actions["mouse"]).astype(np.float64)
        before = self._observe()
        self._steps %= self._length
        return Transition(
            observations=self._observe(),
            rewards=rewards,
            terminated=np.full(self.slots, is_over),
            truncated=np.zeros(self.slots, np.bool_),
            final_observations=before if is_over else None,
        )

    def close(self) -> None:
        """Does nothing."""

    def _observe(self) -> dict[str, np.ndarray]:
        return {
            name: np.full((self.slots, *space.shape), self._steps, np.float32)
            for name, space in self.observation_space.items()
        }


def make_slots(environment: Any, seed: int) -> Duels:
    """Makes `slots` games."""
    return Duels(environment.slots)
