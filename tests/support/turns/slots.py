"""A game of two seats, `a` and `b`, that move in turns: a, b, b, a, b.

The observation is the number of the move, for both seats.

Rewards come with the move that `REWARDS` says, most of them with one of the other seat.
"""

from typing import Any

import numpy as np

from relaax_like.client.interactor import Transition
from relaax_like.wire.spaces import Discrete

AGENTS = ("a", "b")
TURNS = (0, 1, 1, 0, 1)  # the seat of each move
# For each move, what both seats get with it: in any case, and for the seat's last choice, if it was
# the better one.
REWARDS = (
    ((0.25, 7.0), (0, 0)),
    ((0, 0.5), (1, 0)),
    ((2, 0), (0, 0)),
    ((0, 0), (0, 1)),
    ((0, 0.125), (3, 0)),
)
BETTER = (1, 0, 0, 0, 0)  # choice of each move


class Turns:
    """The games of one client."""

    observation_space = Discrete(n=len(TURNS))
    action_space = Discrete(n=2)

    def __init__(self, games: int):
        self.slots = 2 * games
        self.agents = AGENTS * games
        self.games = [number for number in range(games) for _ in AGENTS]
        self._seats = np.arange(self.slots) % 2
        self._was_better = np.zeros(self.slots, np.bool_)
        self._move = 0

    @property
    def present(self) -> np.ndarray:
        """The seats that move."""
        return self._seats == TURNS[self._move]

    def reset(self, mask: Any = None) -> np.ndarray:
        """Begins all games."""
        self._move = 0
        return self._observe()

    def step(self, actions: Any) -> Transition:
        """Makes a move in each game; they end together."""
        moved = self.present
        better = np.asarray(actions) == BETTER[self._move]
        self._was_better = np.where(moved, better, self._was_better)
        always, bonus = (np.array(part)[self._seats] for part in REWARDS[self._move])
        self._move = (self._move + 1) % len(TURNS)
        return Transition(
            observations=self._observe(),
            rewards=always + bonus * self._was_better,
            terminated=np.full(self.slots, self._move == 0),
            truncated=np.zeros(self.slots, np.bool_),
        )

    def close(self) -> None:
        """Does nothing."""

    def _observe(self) -> np.ndarray:
        return np.full(self.slots, self._move)


def make_slots(environment: Any, seed: int) -> Turns:
    """Makes `slots` games."""
    return Turns(environment.slots)
