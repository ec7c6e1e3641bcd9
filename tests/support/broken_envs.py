"""An environment that gives a wrong value in a step of its first episode, if its seed is odd.

Broken-v0 is registered when this module is imported; its argument `wrong` names the value.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

STEPS = 20  # of an episode
AT = 5  # the step with the wrong value

REWARDS: dict[str, Any] = {
    "NaN reward": np.nan,
    "huge reward": 1e18,
    "text as reward": "much",
    "two rewards": [1.0, 2.0],
}
OBSERVATIONS: dict[str, Any] = {
    "NaN": np.array([0, 0, np.nan, 0], np.float32),
    "huge observation": np.array([0, 0, 0, 3e38], np.float32),
    "short observation": np.zeros(3, np.float32),
    "text as observation": np.array(["a", "b", "c", "d"]),
}


class Broken(gym.Env):
    """CartPole's spaces; each action is worth 1."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, wrong: str = "", render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.wrong = wrong
        self.is_broken = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.is_broken = seed is not None and seed % 2 == 1
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        reward, observation = 1.0, self._draw()
        if self.is_broken and self.steps == AT:
            reward = REWARDS.get(self.wrong, reward)
            observation = OBSERVATIONS.get(self.wrong, observation)
        return observation, reward, self.steps == STEPS, False, {}

    def _draw(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 4).astype(np.float32)


gym.register("Broken-v0", Broken, disable_env_checker=True)
