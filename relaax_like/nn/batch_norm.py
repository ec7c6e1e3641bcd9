"""BatchNorm: batch normalisation whose moving statistics are buffers of the model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from relaax_like.core.manifest import BUFFER
from relaax_like.nn.arrays import Values
from relaax_like.nn.layers import Layer
from relaax_like.nn.lazy_tensorflow import tf
from relaax_like.nn.module import get_name

EPSILON = 1e-5


class Norming:
    """One forward pass of a training: layers normalise by its moments, and note their buffers.

        norming = Norming(batch.moments)
        values = self.model.critic(batch.inputs, norming)
        return Losses(costs, updates=norming.updates)

    Two batches in one pass, so that they share the moments: `tf.stack([x, next_x], -2)`.

    Attributes:
      updates: buffer -> new value, for `Losses`; the newest one of a layer that was called twice.

    Args:
      moments: returns mean and variance of each feature, `[n]` each, for `[..., n]`; see
        `Batch.moments`.
    """

    def __init__(self, moments: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]):
        self.moments = moments
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
        if norming is None:
            mean, variance = self.mean.read_value(), self.variance.read_value()
        else:
            mean, variance = norming.moments(x)
            for old, new in ((self.mean, mean), (self.variance, variance)):
                moved = old + self._rate * (tf.stop_gradient(new) - old)
                norming.updates[get_name(old)] = moved
        return (x - mean) * tf.math.rsqrt(variance + EPSILON) * self.gain + self.shift

    def _bind(self) -> None:
        arrays = self.arrays
        self._factor = arrays["gain"] / np.sqrt(arrays["variance"] + np.float32(EPSILON))
        self._offset = arrays["shift"] - arrays["mean"] * self._factor
        self._bound = arrays
