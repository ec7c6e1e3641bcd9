"""Games that several slots play together."""

from collections.abc import Sequence

import numpy as np


class Games:
    """Counts the ends of games: a game has ended when all of its slots have, since it began.

    Attributes:
      ended: number of games that have ended.
      rounds: `[k]` int64, how many games of each slot have ended.
      leaders: `[k]` bool, the first slot of each game.

    Args:
      numbers: of each slot's game, k; slots with equal numbers play one game.
    """

    def __init__(self, numbers: Sequence[int] | np.ndarray):
        _, first, self._games = np.unique(numbers, return_index=True, return_inverse=True)
        self.ended = 0
        self.rounds = np.zeros(len(self._games), np.int64)
        self.leaders = np.zeros(len(self._games), np.bool_)
        self.leaders[first] = True
        self._over = np.zeros(len(self._games), np.bool_)

    def add(self, ended: np.ndarray) -> np.ndarray:
        """Notes the slots that have ended, `[k]` bool; returns those of complete games."""
        self._over |= ended
        complete = ~np.isin(self._games, self._games[~self._over])
        self.ended += int((complete & self.leaders).sum())
        self.rounds += complete
        self._over &= ~complete
        return complete

    def join(self, slots: np.ndarray) -> np.ndarray:
        """Returns all slots of the games of these slots, `[k]` bool, that have not ended yet."""
        return np.isin(self._games, self._games[slots]) & ~self._over

    def begin(self) -> None:
        """Notes that all games begin again."""
        self._over[:] = False
