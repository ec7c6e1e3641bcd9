"""A CartPole that can say how it looks in a mirror: MirroredCartPole-v0."""

import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv


class MirroredCartPole(CartPoleEnv):
    """All four numbers change their sign; left and right change places."""

    def get_observation_mirror_indices(self) -> list[float]:
        """Returns one number for each component of an observation."""
        return [-0.1, -1, -2, -3]

    def get_action_mirror_indices(self) -> list[float]:
        """Returns one number for each choice."""
        return [1, 0.1]


gym.register("MirroredCartPole-v0", entry_point=MirroredCartPole, max_episode_steps=500)
