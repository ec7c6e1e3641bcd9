"""CartPole without rewards until a file appears: no run reaches its target before a test wants it.

GatedCartPole-v0 is registered when this module is imported; RELAAX_TEST_GATE names the file.
"""

import os
from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

GATE = "RELAAX_TEST_GATE"


class GatedCartPole(CartPoleEnv):
    """Rewards are 0 while the file does not exist."""

    def step(self, action: Any) -> tuple[Any, ...]:
        observation, reward, *ends = super().step(action)
        return observation, reward if os.path.exists(os.environ[GATE]) else 0.0, *ends


gym.register(
    "GatedCartPole-v0", entry_point=GatedCartPole, max_episode_steps=200, disable_env_checker=True
)
