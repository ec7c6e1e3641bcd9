"""A zero-sum game of one step: `row` and `column` choose at the same time, and see nothing.

The column player gets the negative of what the row player gets. `environment.args.file` names
the file to which the number of choices of action 0 in each step is written: `[steps, 2]`.
"""

from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.client.interactor import Transition
from relaax_like.wire.spaces import Box, Discrete

PAYOFF = np.array([[3.0, -1.0], [-1.0, 1.0 / 3.0]])  # of the row player
AGENTS = ("row", "column")


class MatrixGames:
    """The games of one client."""

    observation_space = Box(dtype="float32", shape=(1,))
    action_space = Discrete(n=2)

    def __init__(self, games: int, file: Path):
        self.slots = 2 * games
        self.agents = AGENTS * games
        self.games = [number for number in range(games) for _ in AGENTS]
        self._choices: list[np.ndarray] = []
        self._file = file

    def reset(self, mask: Any = None) -> np.ndarray:
        """Begins all games."""
        return np.ones((self.slots, 1), np.float32)

    def step(self, actions: Any) -> Transition:
        """Plays all games."""
        pairs = np.asarray(actions).reshape(-1, 2)
        self._choices.append((pairs == 0).sum(axis=0))
        payoffs = PAYOFF[pairs[:, 0], pairs[:, 1]]
        return Transition(
            observations=self.reset(),
            rewards=np.stack([payoffs, -payoffs], axis=1).reshape(-1),
            terminated=np.ones(self.slots, np.bool_),
            truncated=np.zeros(self.slots, np.bool_),
        )

    def close(self) -> None:
        """Writes the choices."""
        np.save(self._file, np.array(self._choices))


def make_slots(environment: Any, seed: int) -> MatrixGames:
    """Makes `slots` games."""
    return MatrixGames(environment.slots, Path(environment.args["file"]))
