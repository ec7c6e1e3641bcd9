"""SumTree: numbers at positions, drawn in proportion to their size."""

import numpy as np

from relaax_like.experience.replay.kernels import (
    find_leaves,
    load_kernel,
    set_leaves,
)


class SumTree:
    """Stores numbers in a binary tree of sums and maxima, to draw in proportion to them.

        tree = SumTree(1_000_000)
        tree.set(np.array([3, 5]), np.array([1.0, 2.0]))
        positions = tree.find(np.array([0.5, 2.5]))  # 3, 5

    If a number changes, each node above it is computed from its two children again, so the sums
    never drift: they depend on the current numbers alone. A batch costs O(n log capacity).

    Attributes:
      nodes: [2 * size, 2] float64, sum and largest; size is the capacity, rounded up to a power of
        two; node 1 is the root, node i has the children 2 i and 2 i + 1, and position p is node
        size + p.
    """

    def __init__(self, capacity: int):
        """Starts with zeros.

        Args:
          capacity: number of positions.
        """
        size = 1
        while size < capacity:
            size *= 2
        self._size = size
        self.nodes = np.zeros((2 * size, 2))
        self._set = load_kernel(set_leaves)
        self._find = load_kernel(find_leaves)

    @property
    def total(self) -> float:
        """Sum of all numbers."""
        return float(self.nodes[1, 0])

    @property
    def largest(self) -> float:
        """The largest number."""
        return float(self.nodes[1, 1])

    def set(self, positions: np.ndarray, numbers: np.ndarray) -> None:
        """Replaces numbers; if a position occurs twice, the last number counts.

        Args:
          positions: [n] int64.
          numbers: [n] float64, not negative.
        """
        self._set(positions, numbers, self.nodes)

    def find(self, masses: np.ndarray) -> np.ndarray:
        """Returns the positions where the running sum of the numbers first exceeds each mass.

        A position whose number is 0 is never returned, unless all numbers are 0.

        Args:
          masses: [n] float64, from 0 to `total`.
        """
        positions = np.empty(masses.size, np.int64)
        self._find(masses, self.nodes, positions)
        return positions

    def get(self, positions: np.ndarray) -> np.ndarray:
        """Returns the numbers at positions `[n]`."""
        return self.nodes[self._size + positions, 0]

    def get_leaves(self) -> np.ndarray:
        """Returns the numbers at all positions, `[size]` float64, a view."""
        return self.nodes[self._size :, 0]

    def set_leaves(self, numbers: np.ndarray) -> None:
        """Replaces all numbers, `[n]`, from the first position on; the rest become 0."""
        self.nodes[:] = 0.0
        self.nodes[self._size : self._size + len(numbers)] = numbers[:, None]
        first = self._size
        while first > 1:
            below = self.nodes[first : 2 * first].reshape(-1, 2, 2)
            first //= 2
            self.nodes[first : 2 * first, 0] = below[:, 0, 0] + below[:, 1, 0]
            self.nodes[first : 2 * first, 1] = below[:, :, 1].max(1)
