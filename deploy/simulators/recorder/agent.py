"""The agent: random actions, and one line per observation."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.agent.agent import Agent as BaseAgent
from relaax_like.agent.agent import State
from relaax_like.core.roles import ParameterServerClient
from relaax_like.wire.spaces import ACTION, Box, Discrete, MultiBinary, MultiDiscrete, Space

from .config import ACTION_SPACES, Config


class Agent(BaseAgent):
    """Writes the same lines as `recorded.py` in the simulator's process."""

    def __init__(self, config: Config, parameter_server: ParameterServerClient):
        super().__init__(config, parameter_server)
        self._random = np.random.default_rng(config.seed)
        self._file = Path(config.record)
        self._left = config.max_global_step

    def act(self, state: State) -> Any:
        """Writes the first observation of an episode; returns an action."""
        self._write("reset", None, "", state)
        return self._draw_action() if self._left > 0 else None

    def reward_and_act(self, reward: float, state: State) -> Any:
        """Writes a step; returns the next action, or None when the budget is used up."""
        self._write("step", reward, "", state)
        return self._draw_action() if self._count() else None

    def reward_and_reset(
        self,
        reward: float,
        state: State | None = None,
        truncated: bool = False,
        success: bool | None = None,
    ) -> float | None:
        """Writes the last step of an episode."""
        self._write("step", reward, "truncated" if truncated else "terminated", state)
        return reward if self._count() else None

    def _count(self) -> bool:
        self._left = self.config.max_global_step - self.parameter_server.increment_global_t()
        return self._left > 0

    def _write(self, kind: str, reward: float | None, ending: str, state: State | None) -> None:
        row = [kind, None if reward is None else float(reward), ending, _sum_up(state)]
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def _draw_action(self) -> Any:
        drawn = {name: _draw(space, self._random) for name, space in ACTION_SPACES.items()}
        return drawn[ACTION] if list(drawn) == [ACTION] else drawn


def _sum_up(state: State | None) -> list[int] | None:
    """Returns a checksum of each leaf, in an order that does not depend on their names."""
    if state is None:
        return None
    leaves = state.values() if isinstance(state, Mapping) else [state]
    return sorted(zlib.crc32(np.asarray(leaf, np.float32).tobytes()) for leaf in leaves)


def _draw(space: Space, random: np.random.Generator) -> Any:
    if isinstance(space, Discrete):
        return space.start + int(random.integers(space.n))
    if isinstance(space, MultiDiscrete):
        starts = np.array(space.starts or [0] * len(space.n)).reshape(space.shape)
        return starts + random.integers(np.array(space.n).reshape(space.shape))
    if isinstance(space, MultiBinary):
        return random.integers(2, size=space.shape)
    assert isinstance(space, Box)
    low = np.maximum(-1 if space.low is None else space.low, -1e3)
    high = np.minimum(1 if space.high is None else space.high, 1e3)
    return random.uniform(low, high, space.shape).astype(space.dtype)
