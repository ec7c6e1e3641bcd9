"""MaskedCartPole-v1: CartPole-v1 without its velocities, which a policy must infer from memory.

The observation is `[cart position, pole angle] float32`. Feed-forward policies keep the pole up for
forty to fifty steps, recurrent ones for all 500; see docs/benchmarks.md.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

NAME = "MaskedCartPole-v1"
_SHOWN = [0, 2]


class MaskedCartPole(gym.ObservationWrapper):
    """Shows positions only."""

    metadata = CartPoleEnv.metadata

    def __init__(self, **env_args: Any) -> None:
        """Accepts the arguments of CartPole."""
        env = CartPoleEnv(**env_args)
        super().__init__(env)
        box = env.observation_space
        assert isinstance(box, gym.spaces.Box)
        self.observation_space = gym.spaces.Box(box.low[_SHOWN], box.high[_SHOWN], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Returns the positions."""
        return observation[_SHOWN]


def register() -> None:
    """Registers the environment with gymnasium. Idempotent."""
    if NAME not in gym.registry:
        gym.register(NAME, entry_point=MaskedCartPole, max_episode_steps=500)
