"""Atari games in ale-py's own vectorised form, with the frames as the last axis.

    slots = make_slots("ALE/Pong-v5", 8)    # observations [8, 84, 84, 1] uint8

The preprocessing of DQN (Mnih et al. 2015, "Methods", "Preprocessing") is done in C++: grey,
84 x 84, pixelwise maximum of the last two of four frames, up to 30 idle steps at the start, rewards
reduced to their sign. Arguments of `ale_py.AtariVectorEnv` change any of this.

Observations are single frames, a quarter of what would be sent otherwise;
`algorithm.observation_history: 4` stacks them in the agent and the learner.
"""

import importlib
import sys
from typing import Any

import gymnasium as gym
import numpy as np

from relaax_like.extras import describe_missing
from relaax_like.wire import ConfigError

NAMESPACE = "ALE/"
_DEFAULTS: dict[str, Any] = {"autoreset_mode": "SameStep", "stack_num": 1, "frameskip": 4}
_GAME_FPS = 60
# Size of a pixel in a video: the side of a square.
_ZOOM = 4


# Gymnasium 0.29 has no such class, and no vectorised games.
_Wrapper: Any = getattr(gym.vector, "VectorWrapper", object)


class FramesLast(_Wrapper):
    """Moves the frames to the last axis, as networks read them.

    `[k, frames, height, width]` becomes `[k, height, width, frames]`.
    """

    def __init__(self, env: gym.vector.VectorEnv, frameskip: int) -> None:
        """Wraps environments whose observations are stacked grey images.

        Args:
          env: the environment; `close` closes it, too.
          frameskip: frames of the game per step, for `render_fps`.
        """
        super().__init__(env)
        box = env.single_observation_space
        assert isinstance(box, gym.spaces.Box)
        self.single_observation_space = gym.spaces.Box(
            0, 255, (*box.shape[1:], box.shape[0]), np.uint8
        )
        self.observation_space = gym.vector.utils.batch_space(
            self.single_observation_space, env.num_envs
        )
        self.metadata = {**env.metadata, "render_fps": _GAME_FPS / frameskip}
        self._newest: np.ndarray | None = None

    def reset(self, **options: Any) -> Any:
        """Begins new episodes."""
        observations, infos = self.env.reset(**options)
        self._newest = np.moveaxis(observations, 1, -1)
        return self._newest, infos

    def step(self, actions: Any) -> Any:
        """Steps all games."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        self._newest = np.moveaxis(observations, 1, -1)
        if "final_obs" in infos:
            infos["final_obs"] = np.moveaxis(infos["final_obs"], 1, -1)
        return self._newest, rewards, terminated, truncated, infos

    @property
    def render_mode(self) -> str:
        """The kind of result of `render`."""
        return "rgb_array"

    def render(self) -> tuple[np.ndarray, ...]:
        """Returns slot 0's newest observation as an image, `[height, width, 3]` uint8, in a tuple.

        The tuple is empty before the first reset.
        """
        if self._newest is None:
            return ()
        frame = self._newest[0, :, :, -1].repeat(_ZOOM, axis=0).repeat(_ZOOM, axis=1)
        return (np.broadcast_to(frame[:, :, None], (*frame.shape, 3)),)


def is_atari(name: str) -> bool:
    """Returns whether a name begins with `ALE/`, as those of Atari games do."""
    return name.startswith(NAMESPACE)


def register() -> None:
    """Registers the games with `gymnasium.make`.

    Raises:
      ConfigError: their package is not installed, or cannot be imported.
    """
    try:
        games = importlib.import_module("ale_py")
    except ImportError as error:
        missing = describe_missing(error.name) if isinstance(error, ModuleNotFoundError) else None
        line = missing or (
            f"ale_py cannot be imported ({error!s:.200}); reinstall ale-py for {sys.executable}"
        )
        raise ConfigError(f"Atari games: {line}") from None
    gym.register_envs(games)


def make(name: str, slots: int, env_args: dict[str, Any]) -> gym.vector.VectorEnv:
    """Makes one vector environment of `slots` games.

    Args:
      name: `ALE/GAME-v5`.
      slots: number of games.
      env_args: arguments of `ale_py.AtariVectorEnv`; they replace the defaults of this module.
    """
    arguments = _DEFAULTS | env_args
    env = gym.make_vec(name, num_envs=slots, vectorization_mode="vector_entry_point", **arguments)
    return FramesLast(env, arguments["frameskip"])
