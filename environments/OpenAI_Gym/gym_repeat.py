"""Action repeat: one action of the agent is several steps of the environment."""

from typing import Any

import gymnasium as gym
import numpy as np

from .gym_slots import read_step


class ActionRepeat(gym.Wrapper):
    """Repeats each action, adds up the rewards, and stops at the episode's end.

    The agent sees the observation after the last repeat. For the caller of the wrapper, one action
    is one step; a time limit inside the wrapper counts the environment's own steps.
    """

    def __init__(self, env: gym.Env, action_repeat: int) -> None:
        """Wraps an environment.

        Args:
          env: the environment; `close` closes it, too.
          action_repeat: steps per action.
        """
        super().__init__(env)
        self._action_repeat = action_repeat
        if fps := env.metadata.get("render_fps"):
            # A frame is drawn per action: the window keeps the pace of the environment's own time.
            self.metadata = {**env.metadata, "render_fps": fps / action_repeat}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        """Steps up to `action_repeat` times; returns the last step, with the sum of rewards.

        Raises:
          InvalidInputError: the environment returned a wrong value.
        """
        total = np.zeros(1)
        for _ in range(self._action_repeat):
            result = read_step(self.env.step(action))
            observation, rewards, terminated, truncated, info = result
            total = total + rewards
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info
