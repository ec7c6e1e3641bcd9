"""Minibatches: selects the rows or slots of a batch for an update."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from relaax_like.algorithm.parts import MASK, Parts, flatten
from relaax_like.config.plan import Unit
from relaax_like.learn.draw import Draw
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

    def shape_of_minibatch(self, spec: tf.TensorSpec, index: int, batch_size: int) -> tf.TensorSpec:
        """Returns the specification of tensor number `index` in a minibatch."""
        shape = spec.shape.as_list()[1 if self.rows else 0 :]
        shape[self.axes[index]] = batch_size
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
            '[T, k, ...], or "steps"'
        )
    if minibatch_of == "steps" and leading_axes > 1 and (batch["states"] or batch["next_states"]):
        raise InvalidInputError(
            'minibatch_of: "steps", but the memory of a rollout [T, k, ...] is only known at its '
            'start; use "rollouts"'
        )
    along = {"steps": 0, "rollouts": 1}[minibatch_of]
    memory = ("states", "next_states")
    axes = [0 if part in memory else along for part, tensors in batch.items() for _ in tensors]
    return Cut(tuple(axes), rows=minibatch_of == "steps" and leading_axes > 1)


def validate_lengths(batch: Parts, cut: Cut, batch_size: int) -> int:
    """Checks the lengths, which XLA's gather does not check; returns the number of rows or slots.

    Raises:
      InvalidInputError: lengths are inconsistent, or `batch_size` is below 1 or larger than
        the batch.
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
                f"{name}: {list(size)} {what}, expected {list(sizes[0])} like {names[0]}"
            )
    length = math.prod(sizes[0])
    if not 1 <= batch_size <= length:
        raise InvalidInputError(
            f"batch_size: {batch_size}, expected 1 to {length} (the size of the batch)"
        )
    return length


def fit_draw(draw: Draw | None, batch: Parts, leading_axes: int) -> tuple[Draw, Cut, int]:
    """Checks how minibatches are to be drawn from a batch.

    Args:
      draw: None: all of the batch is one minibatch.
      batch: the tensors, by part and name.
      leading_axes: see `plan_cut`.

    Returns:
      The complete draw; how its minibatches are taken; and the number of rows or slots.

    Raises:
      InvalidInputError: the batch cannot be split in this way, its lengths are inconsistent, or a
        number is out of range.
    """
    if draw is None:
        draw = Draw(minibatch_of="steps" if leading_axes == 1 else "rollouts")
    cut = plan_cut(batch, leading_axes, draw.minibatch_of)
    length = validate_lengths(batch, cut, draw.batch_size or 1)
    batch_size = draw.batch_size or length
    count = length if draw.count is None else draw.count
    if draw.epochs < 1:
        raise InvalidInputError(f"epochs: {draw.epochs}, expected 1 or more")
    if draw.seed is None and length % batch_size:
        raise InvalidInputError(
            f"batch_size: {batch_size}, but the batch has {length} rows or sequences, expected a "
            "multiple of batch_size"
        )
    if not batch_size <= count <= length:
        raise InvalidInputError(
            f"count: {count}, expected {batch_size} (one minibatch) to {length} (the batch)"
        )
    return replace(draw, batch_size=batch_size, count=count), cut, length


def find_first(batch: Parts, minibatch_of: Unit, length: Any, count: Any) -> tf.Tensor:
    """Returns the rows or slots from which minibatches are drawn, `[length] bool`."""
    mask = batch.get("extras", {}).get(MASK)
    if mask is not None and minibatch_of == "steps":
        return tf.reshape(mask, [-1]) > 0
    return tf.range(length) < count


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
