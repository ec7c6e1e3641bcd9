"""BatchNorm: batch normalisation whose moving statistics are buffers of the model."""

from __future__ import annotations

from typing import Any

import numpy as np

from relaax_like.core.manifest import BUFFER
from relaax_like.nn.arrays import Values
from relaax_like.nn.layers import Layer
from relaax_like.nn.lazy_tensorflow import tf
from relaax_like.nn.module import get_name

EPSILON = 1e-5


class Norming:
    """One forward pass of a training: layers normalise by its moments, and note their buffers.

        norming = Norming(batch.find_shares())
        values = self.model.critic(batch.inputs, norming)
        return Losses(costs, updates=norming.updates)

    Two batches in one pass, so that they share the moments: `tf.stack([x, next_x], -2)`.

    Attributes:
      shares: `[...]`, what each row counts in a mean; see `Batch.find_shares`.
      updates: buffer -> new value, for `Losses`; the newest one of a layer that was called twice.

    Args:
      shares: the attribute.
    """

    def __init__(self, shares: tf.Tensor):
        self.shares = shares
        self.updates: dict[str, tf.Tensor] = {}


class BatchNorm(Layer):
    """Normalises each feature over a batch in training, and by moving statistics elsewhere.

        y = gain (x - mean) / sqrt(variance + 1e-5) + shift

    Source: Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167, algorithms 1 and 2. With each
    optimizer step, a moving statistic moves by `rate` of its distance to the batch's; the variance
    is that of the batch itself, divided by n and not by n - 1. The batch must not consist of a
    single row, of which the variance is 0.

    Args:
      name: of the layer; its variables are `NAME.gain` and `NAME.shift`, and the buffers
        `NAME.mean` and `NAME.variance`.
      width: number of features, length of the last axis.
      rate: above 0 and at most 1.
    """

    gain: tf.Variable
    shift: tf.Variable
    mean: tf.Variable
    variance: tf.Variable

    def __init__(self, name: str, width: int, rate: float = 0.01):
        super().__init__()
        self._rate = rate
        self._declare("gain", f"{name}.gain", np.ones(width, np.float32))
        self._declare("shift", f"{name}.shift", np.zeros(width, np.float32))
        self._declare("mean", f"{name}.mean", np.zeros(width, np.float32), BUFFER)
        self._declare("variance", f"{name}.variance", np.ones(width, np.float32), BUFFER)
        self._bound: object = None
        self._factor: Values = None
        self._offset: Values = None

    def __call__(self, x: Values, norming: Norming | None = None) -> Values:
        """Maps `[..., width]` to the same shape, float32.

        Args:
          x: the features.
          norming: of the training; None: the moving statistics are used.
        """
        if isinstance(x, np.ndarray):
            if self._bound is not self.arrays:
                self._bind()
            return x * self._factor + self._offset
        gain, shift = self.gain.read_value(), self.shift.read_value()
        if norming is None:
            factor = tf.math.rsqrt(self.variance + EPSILON) * gain
            return (x - self.mean) * factor + shift
        y, *moments = tf.custom_gradient(_normalize)(
            x, spread_shares(norming.shares, x), gain, shift
        )
        for old, new in zip((self.mean, self.variance), moments, strict=True):
            moved = old + self._rate * (tf.stop_gradient(new) - old)
            norming.updates[get_name(old)] = moved
        return y

    def _bind(self) -> None:
        arrays = self.arrays
        self._factor = arrays["gain"] / np.sqrt(arrays["variance"] + np.float32(EPSILON))
        self._offset = arrays["shift"] - arrays["mean"] * self._factor
        self._bound = arrays


def spread_shares(shares: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Returns the share of each row of `x`, `[..., *axes, n]`, as `[..., 1 for each axis, 1]`.

    Args:
      shares: `[...]`, with the sum 1, or 0; rows of the same one share it equally.
      x: the rows.
    """
    leading = len(shares.shape)
    rows = tf.reduce_prod(tf.shape(x)[leading:-1])
    shape = tf.concat([tf.shape(shares), tf.ones([len(x.shape) - leading], tf.int32)], 0)
    return tf.reshape(shares / tf.cast(rows, tf.float32), shape)


def compute_moments(x: tf.Tensor, shares: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and variance of each feature, `[n]` each.

    Args:
      x: `[..., n]`.
      shares: what each row counts, for example of `spread_shares`.
    """
    mean = _sum_rows(shares * x)
    return mean, _sum_rows(shares * (x - mean) ** 2)


def _sum_rows(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(x, list(range(len(x.shape) - 1)))


def _normalize(x: tf.Tensor, shares: tf.Tensor, gain: tf.Tensor, shift: tf.Tensor) -> Any:
    """Returns what a batch norm makes of `x`, and the moments, for `tf.custom_gradient`.

    The moments have no gradient. It is differentiated by hand, because it then passes over the
    rows twice and not seven times, which is where the time goes. With
    z = (x - mean) / sqrt(variance + epsilon) and dy the gradient of y:

        d shift = sum(dy),  d gain = sum(dy z)
        dx = gain / sqrt(variance + epsilon) (dy - share (d shift + z d gain))
    """
    mean, variance = compute_moments(x, shares)
    inverse = tf.math.rsqrt(variance + EPSILON)
    factor = inverse * gain
    centered = x - mean

    def differentiate(dy: tf.Tensor, *_: Any) -> tuple[tf.Tensor, None, tf.Tensor, tf.Tensor]:
        d_shift, d_gain = _sum_rows(dy), _sum_rows(dy * centered) * inverse
        dx = factor * (dy - shares * (d_shift + centered * (inverse * d_gain)))
        return dx, None, d_gain, d_shift

    return (centered * factor + shift, mean, variance), differentiate
