"""Experience: rollouts `[T, k, ...]`, classes that collect and store them, functions of them."""

from relaax_like.experience.buffer import Buffer
from relaax_like.experience.collector import Collector, DataHandler
from relaax_like.experience.rollout import Rollout, find_episodes, stack_history

__all__ = [
    "Buffer",
    "Collector",
    "DataHandler",
    "Rollout",
    "find_episodes",
    "stack_history",
]
