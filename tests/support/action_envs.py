"""An environment whose action is a Dict with a Tuple in it, of four kinds of leaves.

Levers-v0 is registered when this module is imported. In each step, each of the four leaves gives up
to 1/4 if it fits the observation; see `Levers.rate`.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

STEPS = 10  # of an episode, which is then truncated: 10 is the best return
# As `algorithm.actions` has it.
ACTIONS = (
    "{move: {num: 2}, arm/aim: {size: 1, log_std_init: -0.7}, arm/grip/0: {binary: 2}, "
    "arm/grip/1: {num: [2, 3]}}"
)


class Levers(gym.Env):
    """Five numbers in -1 .. 1 are seen, and say what to do."""

    observation_space = spaces.Box(-1, 1, (5,), np.float32)
    action_space = spaces.Dict(
        {
            "move": spaces.Discrete(2, start=3),
            "arm": spaces.Dict(
                {
                    "aim": spaces.Box(-1, 1, (1,), np.float32),
                    "grip": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3]))),
                }
            ),
        }
    )

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        reward = sum(self.rate(self._seen, action).values()) / 4
        self.steps += 1
        return self._draw(), reward, False, self.steps == STEPS, {}

    @staticmethod
    def rate(seen: np.ndarray, action: Any) -> dict[str, float]:
        """Returns how well each leaf fits what was seen, 0 to 1 each."""
        arm = action["arm"]
        switches, gears = arm["grip"]
        return {
            "move": float(action["move"] == 3 + (seen[0] > 0)),
            "aim": 1 - min(1.0, abs(float(arm["aim"][0]) - float(seen[1]))),
            "switches": float(np.mean(switches == (seen[2:4] > 0))),
            "gears": float(np.mean(gears == [seen[4] > 0, 2 * (seen[4] > 0)])),
        }

    def _draw(self) -> np.ndarray:
        self._seen = self.np_random.uniform(-1, 1, 5).astype(np.float32)
        return self._seen


class OneLever(Levers):
    """The same, of which the agent moves one only."""

    action_space = spaces.Dict({"move": spaces.Discrete(3)})


for _env in (Levers, OneLever):
    gym.register(f"{_env.__name__}-v0", entry_point=_env, disable_env_checker=True)
