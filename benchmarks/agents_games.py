"""A walk on a line, as a game of several agents and as an environment of one.

Both do the same for each agent: it moves by its action, sees its place and three more numbers, and
loses its distance from the middle. An episode has 200 steps.
"""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from pettingzoo import ParallelEnv

LENGTH = 200
_SEEN = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
_ACTS = gym.spaces.Discrete(3)


class _Walker:
    """One agent."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self.begin()

    def begin(self) -> np.ndarray:
        self._place, self._steps = self._random.normal(), 0
        return self._see()

    def move(self, action: int) -> tuple[np.ndarray, float, bool]:
        self._place += (action - 1) * 0.1
        self._steps += 1
        return self._see(), -abs(self._place), self._steps == LENGTH

    def _see(self) -> np.ndarray:
        return np.array([self._place, self._place**2, self._steps / LENGTH, 1.0], np.float32)


class Walk(gym.Env):
    """One walker."""

    observation_space, action_space = _SEEN, _ACTS

    def __init__(self) -> None:
        self._walker = _Walker()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        """Begins an episode."""
        super().reset(seed=seed)
        return self._walker.begin(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Moves."""
        seen, reward, is_over = self._walker.move(int(action))
        return seen, reward, False, is_over, {}


class Walks(ParallelEnv):
    """Several walkers in one game."""

    metadata: ClassVar[dict[str, Any]] = {"name": "walks"}

    def __init__(self, agents: int = 16) -> None:
        self.possible_agents = [f"walker_{number}" for number in range(agents)]
        self._walkers = {agent: _Walker() for agent in self.possible_agents}

    def observation_space(self, agent: str) -> gym.Space:
        """Four numbers."""
        return _SEEN

    def action_space(self, agent: str) -> gym.Space:
        """Back, stay, ahead."""
        return _ACTS

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        """Begins a game."""
        self.agents = list(self.possible_agents)
        return {name: one.begin() for name, one in self._walkers.items()}, {
            name: {} for name in self.agents
        }

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        """Moves all."""
        moved = {name: self._walkers[name].move(int(acts)) for name, acts in actions.items()}
        seen, rewards, over = (
            {name: one[part] for name, one in moved.items()} for part in range(3)
        )
        self.agents = [name for name in self.agents if not over[name]]
        return seen, rewards, dict.fromkeys(moved, False), over, {name: {} for name in moved}


def parallel_env(agents: int = 16) -> Walks:
    """Makes a game."""
    return Walks(agents)


gym.register("Walk-v0", Walk)
