"""Minibatches: selects the rows or slots of a batch for an update."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relaax_like.algorithm.parts import Parts, flatten
from relaax_like.config.plan import Unit
from relaax_like.nn.layers import merge_steps
from relaax_like.nn.runtime import tf
from relaax_like.wire.errors import InvalidInputError


@dataclass(frozen=True)
class Cut:
    """How minibatches are taken from the flat list of a batch's tensors.

    Attributes:
      axes: axis of each tensor along which it is split.
      rows: whether tensors `[T, k, ...]` are first reshaped to `[T * k, ...]`.
    """

    axes: tuple[int, ...]
    rows: bool

    def flatten(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns tensors that can be split along `axes`."""
        if not self.rows:
            return list(tensors)
        return [merge_steps(tensor) for tensor in tensors]

    def count(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the number of rows or slots of flattened tensors."""
        return tf.shape(tensors[0])[self.axes[0]]

    def take(self, tensors: Sequence[tf.Tensor], chosen: tf.Tensor) -> list[tf.Tensor]:
        """Returns the chosen rows or slots of flattened tensors."""
        if self._is_all(tensors[0], chosen):
            return list(tensors)
        return [tf.gather(t, chosen, axis=a) for t, a in zip(tensors, self.axes, strict=True)]

    def put(self, rows: tf.Tensor, chosen: tf.Tensor, results: tf.Tensor) -> tf.Tensor:
        """Returns `rows`, of the complete batch, with the results of the chosen rows or slots."""
        if self._is_all(rows, chosen):
            return results
        if self.axes[0] == 0:
            return tf.tensor_scatter_nd_update(rows, chosen[:, None], results)
        transposed = tf.transpose(results)
        return tf.transpose(
            tf.tensor_scatter_nd_update(tf.transpose(rows), chosen[:, None], transposed)
        )

    def _is_all(self, tensor: tf.Tensor, chosen: tf.Tensor) -> bool:
        """Returns whether a minibatch has all rows, which then stay in order."""
        length = tensor.shape[self.axes[0]]
        return length is not None and length == chosen.shape[0]

    def put_array(self, rows: np.ndarray, chosen: np.ndarray, results: np.ndarray) -> None:
        """Writes the results of the chosen rows or slots to `rows`, of the complete batch."""
        if len(chosen) == (rows.size if self.rows else rows.shape[self.axes[0]]):
            rows[:] = results.reshape(rows.shape)
        elif self.rows:
            rows.reshape(-1)[chosen] = results
        elif self.axes[0] == 0:
            rows[chosen] = results
        else:
            rows[:, chosen] = results

    def shape_of_minibatch(self, spec: tf.TensorSpec, index: int, minibatch: int) -> tf.TensorSpec:
        """Returns the specification of tensor number `index` in a minibatch."""
        shape = spec.shape.as_list()[1 if self.rows else 0 :]
        shape[self.axes[index]] = minibatch
        return tf.TensorSpec(shape, spec.dtype)


def plan_cut(batch: Parts, leading_axes: int, minibatch_of: Unit) -> Cut:
    """Returns how minibatches are taken from a batch.

    Args:
      batch: the tensors, by part and name.
      leading_axes: 1 for a batch `[B, ...]`, 2 for rollouts `[T, k, ...]`.
      minibatch_of: "steps" or "rollouts".

    Raises:
      InvalidInputError: the batch cannot be split in this way.
    """
    if minibatch_of == "rollouts" and leading_axes < 2:
        raise InvalidInputError(
            'minibatch_of: "rollouts", but the batch has no time axis; expected rollouts '
            '[T, k, ...], or "steps"',
            "minibatch_of",
        )
    if minibatch_of == "steps" and leading_axes > 1 and (batch["states"] or batch["next_states"]):
        raise InvalidInputError(
            'minibatch_of: "steps", but the memory of a rollout [T, k, ...] is only known at its '
            'start; use "rollouts"',
            "minibatch_of",
        )
    along = {"steps": 0, "rollouts": 1}[minibatch_of]
    memory = ("states", "next_states")
    axes = [0 if part in memory else along for part, tensors in batch.items() for _ in tensors]
    return Cut(tuple(axes), rows=minibatch_of == "steps" and leading_axes > 1)


def validate_lengths(batch: Parts, cut: Cut, minibatch: int) -> int:
    """Checks the lengths, which XLA's gather does not check; returns the number of rows or slots.

    Raises:
      InvalidInputError: lengths are inconsistent, or the minibatch is below 1 or larger than the
        batch.
    """
    names = [f"{part}[{name}]" for part, tensors in batch.items() for name in tensors]
    sizes = [
        tuple(tensor.shape[:2] if cut.rows else tensor.shape[axis : axis + 1])
        for tensor, axis in zip(flatten(batch), cut.axes, strict=True)
    ]
    for name, size in zip(names, sizes, strict=True):
        if size != sizes[0]:
            what = "steps and slots" if cut.rows else "rows or slots"
            raise InvalidInputError(
                f"{name}: {list(size)} {what}, expected {list(sizes[0])} like {names[0]}", name
            )
    length = math.prod(sizes[0])
    if not 1 <= minibatch <= length:
        raise InvalidInputError(
            f"minibatch: {minibatch}, expected 1 to {length} (the size of the batch); in a plan it "
            "is batch_size",
            "minibatch",
        )
    return length


def validate_count(count: int, minibatch: int, length: int) -> None:
    """Checks from how many rows or slots of a batch minibatches are drawn.

    Args:
      count: number of rows or slots from which they are drawn.
      minibatch: rows or slots of a minibatch.
      length: rows or slots of the batch.

    Raises:
      InvalidInputError: `count` is less than a minibatch, or more than the batch.
    """
    if not minibatch <= count <= length:
        raise InvalidInputError(
            f"count: {count}, expected {minibatch} (one minibatch) to {length} (the batch)",
            "count",
        )


def validate_epochs(epochs: int) -> None:
    """Checks a number of epochs.

    Raises:
      InvalidInputError: the number is below 1.
    """
    if epochs < 1:
        raise InvalidInputError(f"epochs: {epochs}, expected 1 or more", "epochs")


def validate_multiple(length: int, minibatch: int) -> None:
    """Checks that a batch consists of complete minibatches.

    Args:
      length: rows or sequences of the batch.
      minibatch: rows or sequences of a minibatch.

    Raises:
      InvalidInputError: the length is not a multiple of `minibatch`.
    """
    if length % minibatch:
        raise InvalidInputError(
            f"minibatch: {minibatch}, but the batch has {length} rows or sequences, expected a "
            "multiple of minibatch",
            "minibatch",
        )


def shuffle(length: tf.Tensor, seed: tf.Tensor, first: tf.Tensor | None = None) -> tf.Tensor:
    """Returns 0 .. length - 1 in a random order that the arguments determine, `[length] int32`.

    Sorts by random keys, because XLA does not support TensorFlow's stateless shuffle.

    Args:
      length: number of elements.
      seed: two numbers.
      first: `[length] bool`, those that come before the others; None: no such order.
    """
    keys = tf.random.stateless_uniform([length], seed, None, None, tf.int32, alg="philox")
    if first is not None:
        keys = tf.where(first, keys, tf.int32.max)
    return tf.argsort(keys, stable=True)
