"""Environments whose observations have two leaves, and whose right action depends on both.

Signs-v0 and Bright-v0, registered when this module is imported. An action is right, and worth 1,
if it is 1 where the two leaves differ and 0 where they agree. Each leaf by itself tells nothing:
an agent that sees only one of them is right half of the time, whatever they do.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

STEPS = 10  # of an episode, which is then truncated: 10 is the best return, 5 that of chance


class Signs(gym.Env):
    """Two vectors; whether their first components have one sign. The second one is noise."""

    observation_space = spaces.Dict(
        {
            "left": spaces.Box(-1, 1, (2,), np.float32),
            "arm": spaces.Dict({"right": spaces.Box(-1, 1, (2,), np.float64)}),
        }
    )
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == self._right)
        self.steps += 1
        return self._draw(), reward, False, self.steps == STEPS, {}

    def _draw(self) -> Any:
        left, right = self.np_random.uniform(-1, 1, (2, 2))
        self._right = int((left[0] > 0) != (right[0] > 0))
        return {"left": left.astype(np.float32), "arm": {"right": right}}


class Bright(Signs):
    """An image of noise with a bright square in its left or right half, and a vector's sign."""

    observation_space = spaces.Dict(
        {"camera": spaces.Box(0, 255, (8, 8, 1), np.uint8), "sign": spaces.Box(-1, 1, (1,))}
    )

    def _draw(self) -> Any:
        is_right, is_positive = self.np_random.integers(2, size=2)
        self._right = int(is_right != is_positive)
        image = self.np_random.integers(100, size=(8, 8, 1), dtype=np.uint8)
        row, column = self.np_random.integers((6, 3))
        column += 4 * is_right
        image[row : row + 3, column : column + 2] = 255
        return {"camera": image, "sign": np.array([2.0 * is_positive - 1], np.float32)}


for _env in (Signs, Bright):
    gym.register(f"{_env.__name__}-v0", entry_point=_env, disable_env_checker=True)
