"""Counts the episodes of k slots: returns and lengths."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class SlotEpisode:
    """An episode that ended: its slot, undiscounted sum of rewards and environment steps.

    A slot that was absent from the complete episode made 0 steps.
    """

    slot: int
    episode_return: float
    length: int


class EpisodeMeter:
    """Adds up the rewards and steps of each episode.

    Args:
      slots: k.
    """

    def __init__(self, slots: int):
        self._returns = np.zeros(slots)
        self._steps = 0
        self._began = np.zeros(slots, np.int64)  # steps before each episode

    @property
    def unfinished(self) -> tuple[int, int]:
        """Number of episodes with at least one step that have not ended, and their total steps."""
        lengths = self._steps - self._began
        return int((lengths > 0).sum()), int(lengths.sum())

    def get_state(self) -> dict[str, Any]:
        """Returns the returns and lengths of the unfinished episodes, each `[k]`."""
        return {"returns": self._returns.copy(), "lengths": self._steps - self._began}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resumes from what `get_state` returned."""
        self._returns[:] = state["returns"]
        self._began[:] = self._steps - state["lengths"]

    def add(
        self, rewards: np.ndarray, ended: np.ndarray | None, absent: np.ndarray | None = None
    ) -> tuple[SlotEpisode, ...]:
        """Adds the outcome of a step; returns the episodes that ended.

        Args:
          rewards: `[k, r]`.
          ended: `[k]` bool; None: all False.
          absent: `[k]` bool, slots that did not act in this step; None: all did.
        """
        self._returns += rewards[:, 0] if rewards.shape[1] == 1 else rewards.sum(axis=1)
        self._steps += 1
        if absent is not None:
            self._began[absent] += 1  # the step is not one of their episodes
        if ended is None:
            return ()
        slots = np.flatnonzero(ended)
        episodes = tuple(
            SlotEpisode(int(slot), float(self._returns[slot]), self._steps - int(self._began[slot]))
            for slot in slots
        )
        self._returns[slots] = 0.0
        self._began[slots] = self._steps
        return episodes
