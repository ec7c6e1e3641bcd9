"""BanditSlots: a problem for any spaces, for the check that an algorithm learns."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from relaax_like.client.interactor import Transition
from relaax_like.wire.spaces import Box, Space

# Steps of an episode; the maximum reward of each is 1.
EPISODE_STEPS = 10


class BanditSlots:
    """A contextual bandit for any spaces: the observation determines which action is rewarded.

    A context, 0 or 1, is drawn for each step and slot. All numbers of an observation are low or
    high accordingly. The best action is the first or the last choice; of a Box, one quarter or
    three quarters of the range in each component. Rewards are from 0 to 1. If the observation is
    ignored, their mean is at most 0.5 (0.75 for a Box, 1 for a single choice or number). An episode
    has ten steps.

    Args:
      observation_space: a space, or nested ones.
      action_space: a space, or several by name.
      slots: number of slots.
      seed: of the contexts.
    """

    def __init__(
        self,
        observation_space: Mapping[str, Space] | Space,
        action_space: Mapping[str, Space] | Space,
        slots: int,
        seed: int,
    ):
        self.observation_space: Any = observation_space
        self.action_space: Any = action_space
        self.slots = slots
        self._random = np.random.default_rng(seed)
        self._contexts = self._draw()
        self._steps = np.zeros(slots, np.int64)

    def reset(self, mask: np.ndarray | None = None) -> Any:
        """Draws new contexts for all slots; see `EnvironmentSlots`."""
        chosen = np.ones(self.slots, np.bool_) if mask is None else mask
        self._steps[chosen] = 0
        self._contexts = self._draw()
        return self._observe()

    def step(self, actions: Any) -> Transition:
        """Rewards the actions that match the contexts."""
        rewards = self._rate(self.action_space, actions)
        self._steps += 1
        ended = self._steps == EPISODE_STEPS
        self._contexts = self._draw()
        final = self._observe() if ended.any() else None
        self._steps[ended] = 0
        return Transition(
            observations=self._observe(),
            rewards=rewards,
            terminated=ended,
            truncated=np.zeros(self.slots, np.bool_),
            final_observations=final,
        )

    def close(self) -> None:
        """Does nothing."""

    def _draw(self) -> np.ndarray:
        return self._random.integers(2, size=self.slots)

    def _observe(self) -> Any:
        return _map_spaces(self.observation_space, lambda space: _show(space, self._contexts))

    def _rate(self, space: Any, actions: Any) -> np.ndarray:
        if isinstance(space, Mapping):
            parts = [self._rate(own, actions[name]) for name, own in space.items()]
            return np.mean(parts, 0)
        actions = np.asarray(actions)
        contexts = self._contexts.reshape(-1, *[1] * (actions.ndim - 1))
        if not isinstance(space, Box):
            wanted = np.where(contexts, *_find_ends(space)[::-1])
            return (actions == wanted).reshape(self.slots, -1).mean(axis=1)
        low, high = _find_range(space)
        width = high - low
        places = (actions - low) / np.where(width > 0, width, 1.0)  # 0 and 1 are the ends
        distances = np.abs(np.clip(places, -0.25, 1.25) - np.where(contexts, 0.75, 0.25))
        distances = np.where(width > 0, distances, 0.0)  # any number is the only one of the range
        return 1.0 - distances.reshape(self.slots, -1).mean(axis=1)


def _find_ends(space: Space) -> tuple[Any, Any]:
    """Returns the smallest and the largest values of a space of integers."""
    low = getattr(space, "start", 0)
    return low, low + np.reshape(space.sizes, space.shape) - 1


def _find_range(space: Box) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bounds; a range that lacks one is 2 wide, and -1 to 1 if it lacks both."""
    low = np.asarray(-np.inf if space.low is None else space.low, np.float64)
    high = np.asarray(np.inf if space.high is None else space.high, np.float64)
    low = np.where(np.isfinite(low), low, np.where(np.isfinite(high), high - 2, -1))
    return low, np.where(np.isfinite(high), high, low + 2)


def _map_spaces(space: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(space, Mapping):
        return {name: _map_spaces(own, function) for name, own in space.items()}
    return function(space)


def _show(space: Any, contexts: np.ndarray) -> np.ndarray:
    """Returns a context as an observation, `[k, ...]`."""
    low: Any = -1.0
    high: Any = 1.0
    if not isinstance(space, Box):
        low, high = _find_ends(space)
    elif np.issubdtype(space.dtype, np.integer):
        low, high = 0, min(255, np.iinfo(space.dtype).max)
    numbers = np.where(contexts.reshape(-1, *[1] * len(space.shape)), high, low)
    return np.broadcast_to(numbers, (len(contexts), *space.shape)).astype(space.dtype)
