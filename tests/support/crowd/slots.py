"""A game of 64 agents of two colours, which join, pause and leave by a fixed schedule.

It also counts what a parameter server should have counted, by colour.
"""

from typing import Any

import numpy as np

from relaax_like.client.interactor import Transition
from relaax_like.wire.spaces import Box, Discrete

AGENTS = 64
STEPS = 16  # of a game
COLOURS = ("blue", "red")
_NUMBERS = np.arange(AGENTS)
# Columns of what is counted.
ENV_STEPS, EPISODES, RETURNS = range(3)


class Crowd:
    """The game of one client.

    Attributes:
      counts: for each time that all was reset, that is each session: colour -> environment steps,
        episodes, sum of their returns.
    """

    slots = AGENTS
    agents = tuple(f"{COLOURS[number % 2]}_{number}" for number in range(AGENTS))
    games = (0,) * AGENTS
    observation_space = Box(dtype="float32", shape=(2,))
    action_space = Discrete(n=3)

    def __init__(self) -> None:
        self.counts: list[dict[str, np.ndarray]] = []
        self._game = -1

    @property
    def present(self) -> np.ndarray:
        """Who has joined, not left, and does not pause."""
        pauses = (self._now + _NUMBERS) % 5 == 3
        is_in = (self._joins <= self._now) & (self._now < self._leaves)
        return self._plays & is_in & ~pauses

    def reset(self, mask: Any = None) -> np.ndarray:
        """Begins another game."""
        self.counts.append({colour: np.zeros(3) for colour in COLOURS})
        self._begin()
        return self._observe()

    def step(self, actions: Any) -> Transition:
        """Takes a step; the next game begins once all have ended this one."""
        open_ones = self._now < self._leaves
        rewards = np.where(open_ones, (31 * _NUMBERS + 7 * self._now + 3 * self._game) % 16 / 4, 0)
        self._returns += rewards
        self._lengths += self.present
        self._add(ENV_STEPS, self.present)
        self._now += 1
        ended = self._now == self._leaves
        has_played = ended & (self._lengths > 0)
        self._add(EPISODES, has_played)
        self._add(RETURNS, np.where(has_played, self._returns, 0))
        finals = self._observe()
        if self._now == STEPS:
            self._begin()
        truncated = ended & (_NUMBERS % 3 == 0)
        return Transition(
            observations=self._observe(),
            rewards=rewards,
            terminated=ended & ~truncated,
            truncated=truncated,
            final_observations=finals if ended.any() else None,
        )

    def close(self) -> None:
        """Does nothing."""

    def count(self, colour: str) -> np.ndarray:
        """Returns the numbers of all sessions together."""
        return np.sum([session[colour] for session in self.counts], axis=0)

    def _begin(self) -> None:
        self._game += 1
        self._now = 0
        self._joins = (7 * _NUMBERS + self._game) % 8
        self._leaves = self._joins + 1 + (5 * _NUMBERS + 3 * self._game) % (STEPS - self._joins)
        # Four agents stay away from each game, and end with it.
        self._plays = (_NUMBERS + self._game) % 16 != 15
        self._leaves[~self._plays] = STEPS
        self._returns, self._lengths = np.zeros((2, AGENTS))

    def _add(self, column: int, numbers: np.ndarray) -> None:
        for place, colour in enumerate(COLOURS):
            self.counts[-1][colour][column] += numbers[place::2].sum()

    def _observe(self) -> np.ndarray:
        now = np.full(AGENTS, self._now / STEPS)
        return np.stack([now, _NUMBERS / AGENTS], axis=1).astype(np.float32)
