"""CartPole no faster than a simulator, for clients that play while a test waits for something else.

PacedCartPole-v0 is registered when this module is imported.
"""

import time
from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

_STEP_SEC = 0.002


class PacedCartPole(CartPoleEnv):
    """At most some hundred steps a second."""

    def step(self, action: Any) -> tuple[Any, ...]:
        time.sleep(_STEP_SEC)
        return super().step(action)


gym.register(
    "PacedCartPole-v0", entry_point=PacedCartPole, max_episode_steps=200, disable_env_checker=True
)
