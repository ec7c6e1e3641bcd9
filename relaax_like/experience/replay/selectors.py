"""Selectors: choose the items that minibatches are made of."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from relaax_like.experience.replay.kernels import (
    add_members,
    load_kernel,
    remove_members,
)
from relaax_like.experience.replay.sum_tree import SumTree
from relaax_like.wire.errors import InvalidInputError

# Added to the size of errors, so that an item whose error is 0 can be drawn.
_EPSILON = 0.01
# What beta rises by with each minibatch.
_INCREMENT = 0.001


class Uniform:
    """Draws each item with the same probability, with replacement.

    It knows the items of a table by their ids. Not thread-safe.

    Attributes:
      bytes_per_row: memory that the selector needs for each row of the table.
    """

    bytes_per_row = 16

    @property
    def can_draw(self) -> bool:
        """Whether there is something to draw."""
        return self._count > 0

    def start(self, capacity: int) -> None:
        """Removes all items, and makes room for a table of `capacity` rows.

        At most one item begins with each row.
        """
        self._members = np.zeros(capacity, np.int64)  # ids; the first `_count`
        self._index = np.zeros(capacity, np.int64)  # position of an id -> its place there
        self._count = 0
        self._add = load_kernel(add_members)
        self._remove = load_kernel(remove_members)

    def insert(self, ids: np.ndarray) -> None:
        """Adds items, `[n] int64`."""
        self._add(ids, self._count, self._members, self._index)
        self._count += len(ids)

    def remove(self, ids: np.ndarray) -> None:
        """Removes items, `[n] int64`, that were inserted."""
        self._remove(ids, self._count, self._members, self._index)
        self._count -= len(ids)

    def draw(
        self, minibatches: int, batch_size: int, random: np.random.Generator, done: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws minibatches; call it only if `can_draw`.

        Args:
          minibatches: U.
          batch_size: B.
          random: source of the draws.
          done: number of minibatches that the run has drawn before.

        Returns:
          Ids, `[U, B] int64`, and weights, `[U, B] float32`.
        """
        places = random.integers(0, self._count, minibatches * batch_size)
        weights = np.empty((minibatches, batch_size), np.float32)
        weights.fill(1.0)
        return self._members.take(places).reshape(minibatches, batch_size), weights

    def choose(self, number: int, random: np.random.Generator) -> np.ndarray:
        """Returns ids, `[number] int64`: different ones, unless there are fewer items."""
        is_short = self._count < number
        return self._members[random.choice(self._count, number, replace=is_short, shuffle=False)]

    def update(self, ids: np.ndarray, errors: np.ndarray) -> int:
        """Ignores the errors, and returns 0: there are no priorities."""
        return 0

    def get_state(self) -> dict[str, Any]:
        """Returns all that is needed to continue bit-identically. Arrays can be views."""
        return {"members": self._members[: self._count]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned; call it after `start`.

        Raises:
          KeyError, TypeError, ValueError: the state is incomplete or damaged.
        """
        self._count = 0
        self.insert(np.ascontiguousarray(state["members"], np.int64))


class Prioritized:
    """Draws items in proportion to priorities: `P(i) = p_i^alpha / sum of p_k^alpha`.

    Source: Schaul et al. 2016, https://arxiv.org/abs/1511.05952: equation 1, with the proportional
    variant `p_i = |error_i| + epsilon` of section 3.3; importance weights `(N P(i))^-beta`, divided
    by the largest of the minibatch, section 3.4; one draw from each of B equal segments of the sum,
    appendix B.2.1. New items get the largest priority in the table, or 1 if it is empty.

    All minibatches of one call of `draw` are drawn with the priorities at its start.

    Args:
      alpha: exponent of the priorities, 0 to 1; 0: all items are equally likely.
      beta: exponent of the weights in the first minibatch, 0 to 1, which increases by 0.001 per
        minibatch up to 1.
    """

    # A number of the table's ids; nodes with two numbers, up to 4 of them per row.
    bytes_per_row = 8 + 64

    def __init__(self, alpha: float = 0.6, beta: float = 0.4):
        self._alpha = alpha
        self._beta = beta

    @property
    def can_draw(self) -> bool:
        """See `Uniform`."""
        return self._count > 0

    @property
    def total(self) -> float:
        """Sum of `p_k^alpha` over all items."""
        return self._tree.total

    def start(self, capacity: int) -> None:
        """See `Uniform`."""
        self._tree = SumTree(capacity)
        self._ids = np.full(capacity, -1)  # at each position
        self._count = 0

    def insert(self, ids: np.ndarray) -> None:
        """See `Uniform`."""
        if not len(ids):
            return
        positions = ids % len(self._ids)
        priorities = np.empty(len(ids))
        priorities.fill(self._tree.largest or 1.0)
        self._tree.set(positions, priorities)
        self._ids[positions] = ids
        self._count += len(ids)

    def remove(self, ids: np.ndarray) -> None:
        """See `Uniform`."""
        if not len(ids):
            return
        positions = ids % len(self._ids)
        self._tree.set(positions, np.zeros(len(ids)))
        self._ids[positions] = -1
        self._count -= len(ids)

    def draw(
        self, minibatches: int, batch_size: int, random: np.random.Generator, done: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `Uniform`."""
        total = self._tree.total
        segments = np.arange(batch_size) + random.random((minibatches, batch_size))
        positions = self._tree.find((segments * (total / batch_size)).reshape(-1))
        probabilities = (self._tree.get(positions) / total).reshape(minibatches, batch_size)
        betas = np.minimum(1.0, self._beta + _INCREMENT * (done + np.arange(minibatches)))
        weights = (self._count * probabilities) ** -betas[:, None]
        weights /= weights.max(1, keepdims=True)
        return self._ids[positions].reshape(minibatches, batch_size), weights.astype(np.float32)

    def update(self, ids: np.ndarray, errors: np.ndarray) -> int:
        """Sets the priorities of items from their errors, such as value errors.

        Args:
          ids: `[n] int64`.
          errors: `[n] float64`.

        Returns:
          Number of errors that were ignored, because their items were removed after they had been
          drawn.

        Raises:
          InvalidInputError: an error is not finite; nothing was changed.
        """
        if not np.isfinite(errors).all():
            place = int(np.flatnonzero(~np.isfinite(errors))[0])
            raise InvalidInputError(
                f"replay: errors[{place}] of item {ids[place]} is {errors[place]} (in an "
                "algorithm: Losses.rows['priority']), expected a finite number; lower the "
                "learning rate, or clip gradients",
                "errors",
            )
        positions = ids % len(self._ids)
        there = self._ids[positions] == ids
        priorities = (np.abs(errors[there]) + _EPSILON) ** self._alpha
        self._tree.set(positions[there], priorities)
        return int(len(ids) - np.count_nonzero(there))

    def get_state(self) -> dict[str, Any]:
        """See `Uniform`."""
        leaves = self._tree.get_leaves()[: len(self._ids)]
        return {"ids": self._ids, "leaves": leaves}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """See `Uniform`."""
        self._ids[:] = state["ids"]
        self._tree.set_leaves(np.asarray(state["leaves"]))
        self._count = int(np.count_nonzero(self._ids >= 0))

    def get_priorities(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the items, `[n] int64`, and their priorities to the power of alpha, `[n]`."""
        positions = np.flatnonzero(self._ids >= 0)
        return self._ids[positions], self._tree.get(positions)

    def set_priorities(self, ids: np.ndarray, priorities: np.ndarray) -> None:
        """Restores priorities that `get_priorities` returned; all items must be in the table."""
        self._tree.set(ids % len(self._ids), np.ascontiguousarray(priorities, np.float64))


class Balanced:
    """Draws half of each minibatch from the items with a reward, and half from the others.

    A half consists of different items, or is drawn with replacement if there are fewer of its kind.
    Which items have a reward, the table knows; see `Items`.

    Source: the skewed draw of Jaderberg et al. 2017, https://arxiv.org/abs/1611.05397, section 3.2,
    with exactly half of a minibatch instead of a chance of one half.
    """

    bytes_per_row = 2 * Uniform.bytes_per_row + 1

    @property
    def can_draw(self) -> bool:
        """Whether there are items of both kinds."""
        return self._rewarded.can_draw and self._others.can_draw

    def start(self, capacity: int) -> None:
        """See `Uniform`."""
        self._rewarded, self._others = Uniform(), Uniform()
        self._has_reward = np.zeros(capacity, np.bool_)  # of the item at each position
        for kind in (self._rewarded, self._others):
            kind.start(capacity)

    def insert(self, ids: np.ndarray, has_reward: np.ndarray) -> None:
        """Adds items, `[n] int64`, and whether they have a reward, `[n] bool`."""
        self._has_reward[ids % len(self._has_reward)] = has_reward
        self._rewarded.insert(ids[has_reward])
        self._others.insert(ids[~has_reward])

    def remove(self, ids: np.ndarray) -> None:
        """See `Uniform`."""
        has_reward = self._has_reward[ids % len(self._has_reward)]
        self._rewarded.remove(ids[has_reward])
        self._others.remove(ids[~has_reward])

    def draw(
        self, minibatches: int, batch_size: int, random: np.random.Generator, done: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `Uniform`; the items with a reward come first. All weights are 1."""
        half = batch_size // 2
        drawn = [
            (self._rewarded.choose(half, random), self._others.choose(half, random))
            for _ in range(minibatches)
        ]
        weights = np.ones((minibatches, batch_size), np.float32)
        return np.array(drawn).reshape(minibatches, batch_size), weights

    def update(self, ids: np.ndarray, errors: np.ndarray) -> int:
        """See `Uniform`."""
        return 0

    def get_state(self) -> dict[str, Any]:
        """See `Uniform`."""
        return {"rewarded": self._rewarded.get_state(), "others": self._others.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """See `Uniform`."""
        self._rewarded.set_state(state["rewarded"])
        self._others.set_state(state["others"])
        rewarded = np.asarray(state["rewarded"]["members"], np.int64)
        self._has_reward[rewarded % len(self._has_reward)] = True


# Chooses the items of a table.
Selector = Uniform | Prioritized | Balanced
