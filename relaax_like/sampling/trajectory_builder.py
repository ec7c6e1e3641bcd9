"""TrajectoryBuilder: collects the trajectories of k slots, each with its own start."""

from collections.abc import Mapping

import numpy as np

Arrays = Mapping[str, np.ndarray]
_FEWEST = 64


class TrajectoryBuilder:
    """Stores steps until their trajectory is complete.

        builder = TrajectoryBuilder(slots=8)
        builder.put("inputs", inputs)       # [k, ...] each, any number of parts
        builder.put("rewards", {"reward": rewards})
        builder.next_step()
        parts = builder.take(slot=3)        # [L, ...] each

    All slots have room for trajectories of the same length, which is doubled when it is used up.

    Attributes:
      lengths: `[k] int64`, number of complete steps of each slot.

    Args:
      slots: k.
    """

    def __init__(self, slots: int):
        self._slots = np.arange(slots)
        self.lengths = np.zeros(slots, np.int64)
        self._parts: dict[str, dict[str, np.ndarray]] = {}  # [k, room, ...]
        self._room = _FEWEST

    def put(self, part: str, arrays: Arrays) -> None:
        """Writes a part of the current step, name -> `[k, ...]`."""
        kept = self._parts.get(part)
        if kept is None:
            shape = (len(self._slots), self._room)
            kept = {n: np.empty((*shape, *a.shape[1:]), a.dtype) for n, a in arrays.items()}
            self._parts[part] = kept
        for name, array in kept.items():
            array[self._slots, self.lengths] = arrays[name]

    def next_step(self) -> None:
        """Ends the current step."""
        self.lengths += 1
        if self.lengths.max() == self._room:
            self._room *= 2
            for arrays in self._parts.values():
                for name, array in arrays.items():
                    arrays[name] = np.concatenate([array, np.empty_like(array)], axis=1)

    def take(self, slot: int) -> dict[str, dict[str, np.ndarray]]:
        """Removes and returns a slot's trajectory: part -> name -> `[L, ...]`, copies."""
        length = self.lengths[slot]
        self.lengths[slot] = 0
        return {
            part: {name: array[slot, :length].copy() for name, array in arrays.items()}
            for part, arrays in self._parts.items()
        }
