"""Normalizer: scales observations to mean 0 and standard deviation 1 by running statistics."""

from __future__ import annotations

import numpy as np

from relaax_like.core.manifest import STATISTIC
from relaax_like.nn.arrays import Values
from relaax_like.nn.layers import Layer
from relaax_like.nn.lazy_tensorflow import tf

EPSILON = 1e-8
# Normalised observations are clipped to this many standard deviations.
CLIP = 10.0


class Normalizer(Layer):
    """Normalises its input by running statistics.

        y = clip((x - mean) / sqrt(variance + 1e-8), -10, 10)

    variance = m2 / count; before any data, the variance is 1 and the mean 0.

    The variables of the layer are not trainable, but are part of the values of a run. The learner
    feeds them with the model's inputs if the plan requests it (`update_norm`, `prenormalize_steps`,
    `prenormalize`; a plan `Replay`, or no plan, always does); a plain agent calls `add_statistics`.
    Where agents push, the parameter server merges their statistics (count, mean and sum of squared
    deviations); elsewhere the learner does.

    Attributes:
      statistic: the argument `name`.

    Args:
      name: of the statistic, and of the model's input that feeds it ("return": the discounted
        returns); the variables are `NAME.count`, `NAME.mean` and `NAME.m2`.
      shape: of one observation.
    """

    count: tf.Variable
    mean: tf.Variable
    m2: tf.Variable

    def __init__(self, name: str, shape: tuple[int, ...]):
        super().__init__()
        self.statistic = name
        for part, part_shape in (("count", ()), ("mean", shape), ("m2", shape)):
            self._declare(part, f"{name}.{part}", np.zeros(part_shape), STATISTIC)
        self._bound: object = None
        self._shift: Values = None
        self._scale: Values = None

    def __call__(self, x: Values) -> Values:
        """Maps `[..., *shape]` to the same shape, float32."""
        if isinstance(x, np.ndarray):
            if self._bound is not self.arrays:
                self._bind()
            y = (x - self._shift) * self._scale
            return np.minimum(np.maximum(y, -CLIP, out=y), CLIP, out=y)
        variance = tf.where(self.count > 0, self.m2 / tf.maximum(self.count, 1.0), 1.0)
        scale = tf.cast(tf.math.rsqrt(variance + EPSILON), tf.float32)
        shifted = tf.cast(x, tf.float32) - tf.cast(self.mean, tf.float32)
        return tf.clip_by_value(shifted * scale, -CLIP, CLIP)

    def _bind(self) -> None:
        count, mean, m2 = (self.arrays[name] for name in ("count", "mean", "m2"))
        variance = m2 / count if count > 0 else np.ones_like(m2)
        self._shift = mean.astype(np.float32)
        self._scale = (1 / np.sqrt(variance + EPSILON)).astype(np.float32)
        self._bound = self.arrays
