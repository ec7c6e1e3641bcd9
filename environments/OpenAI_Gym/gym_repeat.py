"""Action repeat: one action of the agent is several steps of the environment."""

from typing import Any

import gymnasium as gym

from .gym_slots import read_reward


class ActionRepeat(gym.Wrapper):
    """Repeats each action, adds up the rewards, and stops at the episode's end.

    The agent sees the observation after the last repeat. For the caller of the wrapper, one action
    is one step; a time limit inside the wrapper counts the environment's own steps.
    """

    def __init__(self, env: gym.Env, actrep: int) -> None:
        """Wraps an environment.

        Args:
          env: the environment; closed with the wrapper.
          actrep: steps per action.
        """
        super().__init__(env)
        self._actrep = actrep
        if fps := env.metadata.get("render_fps"):
            # One frame is drawn per action, so the window still runs in the environment's own time.
            self.metadata = {**env.metadata, "render_fps": fps / actrep}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Steps up to `actrep` times; returns the last step's result with the rewards summed."""
        total = 0.0
        for _ in range(self._actrep):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += read_reward(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info
