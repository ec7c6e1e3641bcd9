"""CartPole with small rewards until a file appears: no run reaches its target before it is wanted.

Policies learn the same meanwhile: without rewards, the first gradient after a thousand zeros would
make Adam's largest steps, now and then to a policy that never recovers.

GatedCartPole-v0 is registered when this module is imported; RELAAX_TEST_GATE names the file.
"""

import os
from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

GATE = "RELAAX_TEST_GATE"


class GatedCartPole(CartPoleEnv):
    """Rewards are 0.1 while the file does not exist: returns of 20 at most."""

    def step(self, action: Any) -> tuple[Any, ...]:
        observation, reward, *ends = super().step(action)
        scale = 1.0 if os.path.exists(os.environ[GATE]) else 0.1
        return observation, scale * float(reward), *ends


gym.register(
    "GatedCartPole-v0", entry_point=GatedCartPole, max_episode_steps=200, disable_env_checker=True
)
