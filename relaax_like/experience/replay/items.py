"""Items: what minibatches consist of, made of rows when they are sampled."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from relaax_like.experience.replay.kernels import (
    TERMINATED,
    find_sequences,
    find_transitions,
    load_kernel,
)
from relaax_like.experience.replay.storage import Storage

Arrays = Mapping[str, np.ndarray]


class TransitionBatch(NamedTuple):
    """U minibatches of B transitions. The arrays belong to the reader.

    Attributes:
      observations: name -> [U, B, ...]; those with a history in the storage are joined with
        earlier ones on the last axis.
      actions: name -> [U, B, ...].
      returns: [U, B, r] float32, the sum over i < steps of discount^i times the reward of step i.
      discounts: [U, B] float32, the factor of the value of `next_observations`: discount^steps, and
        0 after a termination.
      next_observations: name -> [U, B, ...], after the last of the steps.
      steps: [U, B] int64, number of rewards that were added up: n or fewer.
      log_prob: [U, B] float32, of the actions under the policy that acted.
      extras: name -> [U, B, ...], of the first step.
      ids: [U, B] int64, of the items; see `Table.update_priorities`. Below 0: an item of the prior,
        see `Table.mix`.
      weights: [U, B] float32, 1 unless the selector prefers some items.
      versions: [U, B] int64, of the values that acted in the first step.
      ages: [U, B] int64, number of rows that were inserted after the first step.
      keys: [U, B, 3] int64, of the first step: agent, episode, step; see `Rollout.starts`.
    """

    observations: Arrays
    actions: Arrays
    returns: np.ndarray
    discounts: np.ndarray
    next_observations: Arrays
    steps: np.ndarray
    log_prob: np.ndarray
    extras: Arrays
    ids: np.ndarray
    weights: np.ndarray
    versions: np.ndarray
    ages: np.ndarray
    keys: np.ndarray


class SequenceBatch(NamedTuple):
    """U minibatches of B sequences of L steps each. The arrays belong to the reader.

    A sequence never crosses the end of an episode, or a gap: for each step that is present, the
    observation after step t is row t + 1 of `observations`. After the end of a shorter sequence,
    where `present` is False, arrays contain any finite numbers. The network's memory is empty at
    the first row.

    Attributes:
      observations: name -> [U, L + 1, B, ...]; see `TransitionBatch`.
      actions: name -> [U, L, B, ...].
      rewards: [U, L, B, r] float32.
      discounts: [U, L, B] float32, the factor of the value of the next observation.
      continues: [U, L, B] bool, whether the next row is another step of the sequence.
      present: [U, L, B] bool, whether the sequence has this step; False: padding.
      valid: [U, L, B] bool, whether to learn from the step: present, and not part of the burn-in.
      begins: [U, L, B] bool, whether an episode begins with this step.
      log_prob: [U, L, B] float32; see `TransitionBatch`.
      extras: name -> [U, L, B, ...].
      ids: [U, B] int64, of the items.
      weights: [U, B] float32; see `TransitionBatch`.
      versions: [U, B] int64, of the values that acted in the first valid step.
      ages: [U, B] int64, number of rows that were inserted after the first valid step.
      keys: [U, B, 3] int64, of the first valid step: agent, episode, step.
    """

    observations: Arrays
    actions: Arrays
    rewards: np.ndarray
    discounts: np.ndarray
    continues: np.ndarray
    present: np.ndarray
    valid: np.ndarray
    begins: np.ndarray
    log_prob: np.ndarray
    extras: Arrays
    ids: np.ndarray
    weights: np.ndarray
    versions: np.ndarray
    ages: np.ndarray
    keys: np.ndarray


Minibatches = TransitionBatch | SequenceBatch


class Transitions:
    """Makes each step an item, with the n rewards from it on and the observation after them.

    Fewer rewards are added up where an episode ends, or where the next step is missing: after a
    termination the discount is 0; after a truncation, or before a gap, the value of the last
    observation stands for the rest. An item is complete once the observation after its n-th step is
    there, or its episode has ended or is cut by a gap.

    Source: n-step returns, Sutton and Barto 2018, equation 7.1; truncation, Pardo et al. 2018,
    https://arxiv.org/abs/1712.00378, section 3.1.

    Attributes:
      n_step: as the argument.
      discount: as the argument.

    Args:
      n_step: number of rewards that are added up (n), 1 or more.
      discount: per step, 0 to 1.
    """

    def __init__(self, n_step: int = 1, discount: float = 0.99):
        self.n_step = n_step
        self.discount = discount
        self._find = load_kernel(find_transitions)

    @property
    def rule(self) -> tuple[int, int]:
        """Which rows are items, and when they are complete; see `Storage.start`.

        Each step is an item, complete once n - 1 more steps follow, or its chain has ended.
        """
        return self.n_step - 1, 1

    def have_rewards(self, storage: Storage, ids: np.ndarray) -> np.ndarray:
        """Returns whether the first step of each item has a reward that is not 0, `[n] bool`."""
        return _have_rewards(storage, ids)

    def gather(
        self,
        storage: Storage,
        drawn: np.ndarray,
        weights: np.ndarray,
        random: np.random.Generator,
    ) -> TransitionBatch:
        """Returns the arrays of the drawn items, whose rows must still be in the storage.

        Args:
          storage: holds the rows.
          drawn: `[U, B] int64`, ids from a selector.
          weights: `[U, B] float32`, importance weights from the selector.
          random: source of random numbers, for kinds of items that are changed at random.

        Raises:
          Exception: an error of a user's function; see `Hindsight.gather`.
        """
        shape, ids = drawn.shape, drawn.reshape(-1)
        size = ids.size
        rows, tokens, places, steps, versions = np.empty((5, size), np.int64)
        discounts, log_prob = np.empty((2, size), np.float32)
        returns = np.empty((size, storage.rewards.shape[1]), np.float32)
        keys = np.empty((size, 3), np.int64)
        self._find(
            *(ids, self.n_step, self.discount, storage.capacity, storage.links),
            *(storage.rewards, storage.log_prob, rows, tokens, places, keys),
            *(returns, discounts, steps, log_prob, versions),
        )
        return TransitionBatch(
            observations=storage.take_observations(ids, shape, rows),
            actions=storage.take(storage.actions, rows, shape),
            returns=returns.reshape(*shape, -1),
            discounts=discounts.reshape(shape),
            next_observations=storage.take_observations(tokens, shape, places),
            steps=steps.reshape(shape),
            log_prob=log_prob.reshape(shape),
            extras=storage.take(storage.extras, rows, shape),
            ids=drawn,
            weights=weights,
            versions=versions.reshape(shape),
            ages=storage.next_id - 1 - drawn,
            keys=keys.reshape(*shape, 3),
        )


class Sequences:
    """Makes each `steps - burn_in`-th step of a chain an item: the sequence of steps from there on.

    Up to `burn_in` steps before it come first; they fill the network's memory and are not valid.
    Where the chain begins, or older rows were evicted, there are fewer of them, so that each step
    is valid in exactly one sequence, the first steps of an episode included. (In Kapturowski et al.
    2019, section 2.3, these only ever fill the memory.) At the end of an episode, or before a gap,
    a sequence is shorter.

    With a history of observations, steps of the burn-in whose earlier observations were evicted
    show the oldest one that was not evicted instead.

    Source: burn-in, Kapturowski et al. 2019, https://openreview.net/forum?id=r1lyTjAqYX, section 3.

    Attributes:
      steps, burn_in, discount: as the arguments.

    Args:
      steps: L, including the burn-in.
      burn_in: number of these that only fill the network's memory.
      discount: per step, 0 to 1.
    """

    def __init__(self, steps: int, burn_in: int = 0, discount: float = 0.99):
        self.discount = discount
        self.steps = steps
        self.burn_in = burn_in
        self._find = load_kernel(find_sequences)

    @property
    def rule(self) -> tuple[int, int]:
        """See `Transitions`: complete once the rest of the sequence follows, or the chain ended."""
        learned = self.steps - self.burn_in
        return learned - 1, learned

    def have_rewards(self, storage: Storage, ids: np.ndarray) -> np.ndarray:
        """Returns whether the last step of each item has a reward that is not 0, `[n] bool`."""
        tokens, before, learned = self._list_rows(storage, ids)
        last = tokens[before + learned - 1, np.arange(ids.size)]
        return _have_rewards(storage, last)

    def gather(
        self,
        storage: Storage,
        drawn: np.ndarray,
        weights: np.ndarray,
        random: np.random.Generator,
    ) -> SequenceBatch:
        """Returns the arrays of the drawn items; see `Transitions`."""
        # In the order [L, U, B]; turned at the end.
        shape, ids = drawn.shape, drawn.reshape(-1)
        tokens, before, learned = self._list_rows(storage, ids)
        steps = np.arange(self.steps)[:, None]
        present = steps < before + learned  # [L, N]
        rows = np.where(present, tokens[:-1], ids) % storage.capacity
        states = storage.read_states(rows)
        has_value = present & (states != TERMINATED)
        discounts = np.where(has_value, self.discount, 0.0).astype(np.float32)

        def turn(array: np.ndarray) -> np.ndarray:
            array = array.reshape(array.shape[0], *shape, *array.shape[2:])
            return np.ascontiguousarray(np.moveaxis(array, 1, 0))

        def take(arrays: Arrays) -> dict[str, np.ndarray]:
            return {name: turn(array.take(rows, 0)) for name, array in arrays.items()}

        first = ids % storage.capacity
        observations = storage.take_observations(tokens.reshape(-1), tokens.shape)
        return SequenceBatch(
            observations={name: turn(array) for name, array in observations.items()},
            actions=take(storage.actions),
            rewards=turn(storage.rewards.take(rows, 0)),
            discounts=turn(discounts),
            continues=turn(steps < before + learned - 1),
            present=turn(present),
            valid=turn(present & (steps >= before)),
            begins=turn(present & (storage.keys[rows, 2] == 0)),
            log_prob=turn(storage.log_prob.take(rows)),
            extras=take(storage.extras),
            ids=drawn,
            weights=weights,
            versions=storage.versions.take(first).reshape(shape),
            ages=storage.next_id - 1 - drawn,
            keys=storage.keys.take(first, 0).reshape(*shape, 3),
        )

    def _list_rows(
        self, storage: Storage, ids: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns what `find_sequences` writes: `tokens`, and the two of `counts`."""
        tokens = np.empty((self.steps + 1, ids.size), np.int64)
        counts = np.empty((2, ids.size), np.int64)
        self._find(
            *(ids, self.steps, self.burn_in, storage.oldest_id, storage.capacity),
            *(storage.links, tokens, counts),
        )
        return tokens, *counts


# What minibatches consist of.
Items = Transitions | Sequences


def _have_rewards(storage: Storage, ids: np.ndarray) -> np.ndarray:
    """Returns whether rows have a reward that is not 0, `[n] bool`."""
    return np.any(storage.rewards.take(ids % storage.capacity, 0) != 0, axis=1)
