"""Functions of arrays and of tensors: in NumPy for the one, in TensorFlow for the other.

Layers and distributions are written with them, so that one formula serves acting and learning.
Results for arrays have the type that tensors have: float32, or int64 for actions.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from relaax_like.nn.lazy_tensorflow import tf

# A tf.Tensor, or an np.ndarray if it is computed in NumPy.
Values = Any
_NUMPY = (np.ndarray, np.generic, int, float)


def in_numpy(x: Values) -> bool:
    """Returns whether NumPy computes with it: an array, or a number."""
    return isinstance(x, _NUMPY)


def exp(x: Values) -> Values:
    """Returns e^x."""
    return np.exp(x) if in_numpy(x) else tf.exp(x)


def log(x: Values) -> Values:
    """Returns the natural logarithm."""
    return np.log(x) if in_numpy(x) else tf.math.log(x)


def expm1(x: Values) -> Values:
    """Returns e^x - 1, exact near 0."""
    return np.expm1(x) if in_numpy(x) else tf.math.expm1(x)


def tanh(x: Values) -> Values:
    """Returns the hyperbolic tangent."""
    return np.tanh(x) if in_numpy(x) else tf.tanh(x)


def sigmoid(x: Values) -> Values:
    """Returns 1 / (1 + e^-x)."""
    # With tanh, because exp(-x) of numbers far below zero would overflow.
    return 0.5 + 0.5 * np.tanh(0.5 * x) if in_numpy(x) else tf.sigmoid(x)


def softplus(x: Values) -> Values:
    """Returns log(1 + e^x)."""
    return np.logaddexp(x, np.float32(0)) if in_numpy(x) else tf.nn.softplus(x)


def clip(x: Values, low: np.ndarray | float, high: np.ndarray | float) -> Values:
    """Returns the numbers inside of the bounds, the others moved to the nearest one."""
    # Half the time of np.clip for small batches.
    return np.minimum(np.maximum(x, low), high) if in_numpy(x) else tf.clip_by_value(x, low, high)


def where(condition: Values, x: Values, y: Values) -> Values:
    """Returns x where the condition is true, and y elsewhere."""
    return np.where(condition, x, y) if in_numpy(condition) else tf.where(condition, x, y)


def add_last(x: Values) -> Values:
    """Returns the sums over the last axis."""
    return np.add.reduce(x, axis=-1) if in_numpy(x) else tf.reduce_sum(x, axis=-1)


def find_largest(x: Values) -> Values:
    """Returns the index of the largest number on the last axis, int64."""
    return x.argmax(axis=-1) if in_numpy(x) else tf.argmax(x, axis=-1)


def to_float(x: Values) -> Values:
    """Converts numbers to float32."""
    return np.asarray(x, np.float32) if in_numpy(x) else tf.cast(x, tf.float32)


def to_int(x: Values) -> Values:
    """Converts booleans to int64."""
    return x.astype(np.int64) if in_numpy(x) else tf.cast(x, tf.int64)


def log_softmax(logits: Values) -> Values:
    """Returns the logarithms of the probabilities of the last axis."""
    if not in_numpy(logits):
        return tf.nn.log_softmax(logits)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def take_log_softmax(logits: Values, index: Values) -> Values:
    """Returns `log_softmax` of `[..., n]` at `[...]` integers, `[...]`."""
    if not in_numpy(logits):
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=index, logits=logits)
    first = np.arange(0, logits.size, logits.shape[-1]).reshape(logits.shape[:-1])
    # A third of the time of take_along_axis at small batches.
    chosen = logits.reshape(-1).take(first + index)
    largest = np.maximum.reduce(logits, axis=-1)
    sums = np.add.reduce(np.exp(logits - largest[..., None]), axis=-1)
    return chosen - largest - np.log(sums)


def mark_largest(x: Values) -> Values:
    """Returns 1 at the largest number of the last axis and 0 elsewhere, float32."""
    if in_numpy(x):
        return (x.argmax(axis=-1)[..., None] == np.arange(x.shape[-1])).astype(np.float32)
    return tf.one_hot(tf.argmax(x, axis=-1), x.shape[-1])


def equal_rows(x: Values, y: Values) -> Values:
    """Returns where all numbers of `[B, ...]` are equal, `[B] bool`."""
    axes = tuple(range(1, len(y.shape)))
    return np.all(x == y, axis=axes) if in_numpy(y) else tf.reduce_all(tf.equal(x, y), axis=axes)


def broadcast_to(x: Values, like: Values) -> Values:
    """Repeats numbers until they have the shape of others."""
    return np.broadcast_to(x, like.shape) if in_numpy(like) else tf.broadcast_to(x, tf.shape(like))


def pad_parts(x: Values, sizes: Sequence[int]) -> Values:
    """Maps `[..., sum(sizes)]` to `[..., m, max(sizes)]`; shorter parts end in minus infinity."""
    if in_numpy(x):
        exists = _find_existing(tuple(sizes))
        padded = np.full((*x.shape[:-1], *exists.shape), -np.inf, np.float32)
        padded[..., exists] = x
        return padded
    batch = [[0, 0]] * (len(x.shape) - 1)
    parts = [
        tf.pad(part, [*batch, [0, max(sizes) - size]], constant_values=-np.inf)
        for part, size in zip(tf.split(x, list(sizes), axis=-1), sizes, strict=True)
    ]
    return tf.stack(parts, axis=-2)


def mark_any(mask: Values) -> Values:
    """Maps `[..., n] bool` to the same shape: whether any of the n is True."""
    if in_numpy(mask):
        return np.broadcast_to(mask.any(-1, keepdims=True), mask.shape)
    return tf.broadcast_to(tf.reduce_any(mask, -1, keepdims=True), tf.shape(mask))


def split_last(x: Values, sizes: Sequence[int]) -> list[Values]:
    """Splits `[..., sum(sizes)]` on the last axis."""
    if in_numpy(x):
        return np.split(x, np.cumsum(sizes)[:-1], axis=-1)
    return tf.split(x, list(sizes), axis=-1)


def concatenate_last(parts: Sequence[Values]) -> Values:
    """Joins on the last axis."""
    return np.concatenate(parts, -1) if in_numpy(parts[0]) else tf.concat(parts, -1)


def draw_normal(random: Any, like: Values) -> Values:
    """Draws standard normal numbers of the shape of others.

    Args:
      random: an `np.random.Generator` for arrays, a `tf.random.Generator` for tensors.
      like: the others.
    """
    if in_numpy(like):
        return random.standard_normal(like.shape, np.float32)
    return random.normal(tf.shape(like))


def draw_uniform(random: Any, like: Values) -> Values:
    """Draws uniform numbers from 0 to 1 of the shape of others; see `draw_normal`."""
    return (
        random.random(like.shape, np.float32) if in_numpy(like) else random.uniform(tf.shape(like))
    )


def draw_log_exponential(random: Any, like: Values) -> Values:
    """Draws logarithms of exponential numbers of the shape of others; see `draw_normal`."""
    if not in_numpy(like):
        return tf.math.log(-tf.math.log(random.uniform(tf.shape(like), minval=1e-30)))
    noise = random.standard_exponential(like.shape, np.float32)
    # One draw in 16 million is exactly 0, with which any action would be chosen.
    noise += 2.0**-24
    return np.log(noise, out=noise)


@functools.lru_cache(maxsize=64)
def _find_existing(sizes: tuple[int, ...]) -> np.ndarray:
    """Returns which of `[m, max(sizes)]` numbers a part has."""
    return np.arange(max(sizes)) < np.array(sizes)[:, None]
