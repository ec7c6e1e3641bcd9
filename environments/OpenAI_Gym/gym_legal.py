"""Masks of legal actions, from where environments have them: `info`, or a Dict observation."""

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from relaax_like.wire import ConfigError, InvalidInputError
from relaax_like.wire.spaces import ACTION, MASK

from .gym_slots import FAILURES

AUTO, OFF = "auto", "off"
USUAL = "action_mask"
_LEAF = f"{MASK}{ACTION}"


def add_masks(env: gym.Env, where: str, seed: int | None) -> tuple[gym.Env, Any]:
    """Returns an environment whose observations have the mask of legal actions as a leaf.

    Only of one Discrete or MultiDiscrete action; without a mask, the environment is unchanged.

    Args:
      env: the environment.
      where: name of a leaf of its Dict observation, or of an entry of `info`; `auto`:
        `action_mask`, if there is one; `off`: nowhere.
      seed: of the first reset.

    Returns:
      The environment; and the result of a reset with this seed, which was needed to see `info`.
      None: there was none.

    Raises:
      ConfigError: neither has the name; or the action is not discrete.
    """
    name = USUAL if where == AUTO else where
    if isinstance(env.action_space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        if where == OFF:
            return env, None
        observation = env.observation_space
        if isinstance(observation, gym.spaces.Dict) and name in observation.spaces:
            return LegalActions(env, name, in_info=False), None
        try:
            first = env.reset(seed=seed)
        except FAILURES:  # which the first reset of the run reports
            return env, None
        if isinstance(first, tuple) and len(first) == 2:
            # The array can be that of other environments, too, which are reset before it is read.
            first = copy.deepcopy(first[0]), first[1]
        if isinstance(first, tuple) and len(first) == 2 and name in first[1]:
            env = LegalActions(env, name, in_info=True)
            first = env.add(*first)
        elif where != AUTO:
            raise ConfigError(
                f"masks (--masks): neither the observation nor info has {where!r:.60} after the "
                "first reset; correct the name"
            )
        return env, first
    if where not in (AUTO, OFF):
        raise ConfigError(
            f"masks (--masks): {where!r:.60}, but the action is {env.action_space!s:.100}, "
            "expected Discrete or MultiDiscrete; remove the setting"
        )
    return env, None


class LegalActions(gym.Wrapper):
    """Moves the mask of legal actions into a leaf of its own.

    Args:
      env: the environment.
      name: of the mask.
      in_info: whether it is in `info`; otherwise in the Dict observation.
    """

    def __init__(self, env: gym.Env, name: str, in_info: bool):
        super().__init__(env)
        self._name, self._in_info = name, in_info
        action: Any = env.action_space
        is_one = isinstance(action, gym.spaces.Discrete)
        self._choices = int(action.n if is_one else action.nvec.sum())
        whole = env.observation_space
        self._is_dict = isinstance(whole, gym.spaces.Dict)
        leaves: dict[str, Any] = {"observation": whole}
        if isinstance(whole, gym.spaces.Dict):
            leaves = {key: leaf for key, leaf in whole.spaces.items() if in_info or key != name}
        mask = gym.spaces.MultiBinary(self._choices)
        self.observation_space = gym.spaces.Dict({**leaves, _LEAF: mask})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """See Gymnasium."""
        return self.add(*self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> Any:
        """See Gymnasium."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._move(observation, info), reward, terminated, truncated, info

    def add(self, observation: Any, info: Mapping[str, Any]) -> Any:
        """Adds the mask to what a reset of the environment has returned.

        Raises:
          InvalidInputError: it is missing, or has another number of flags.
        """
        return self._move(observation, info), info

    def _move(self, observation: Any, info: Mapping[str, Any]) -> dict[str, Any]:
        source = info if self._in_info else observation
        if self._name not in source:
            raise InvalidInputError(
                f"{self._name}: missing, although the first reset had it; return it in each step"
            )
        leaves = dict(observation) if self._is_dict else {"observation": observation}
        if not self._in_info:
            del leaves[self._name]
        mask = read_mask(source[self._name], self._name, self._choices)
        return {**leaves, _LEAF: mask}


def read_mask(found: Any, name: str, choices: int) -> np.ndarray:
    """Returns a mask `[choices]` bool, of an array or a tuple of one for each component.

    Raises:
      InvalidInputError: it has another number of flags.
    """
    parts = found if isinstance(found, tuple | list) else [found]
    mask = np.concatenate([np.asarray(part).reshape(-1) for part in parts]).astype(np.bool_)
    if len(mask) != choices:
        raise InvalidInputError(
            f"{name}: {len(mask)} flags, expected {choices}, one for each choice of the action"
        )
    return mask
