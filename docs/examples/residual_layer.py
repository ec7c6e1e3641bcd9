"""A layer of your own that acts in NumPy and learns in TensorFlow (docs/algorithms.md)."""

import numpy as np
import tensorflow as tf

from relaax_like.nn import arrays
from relaax_like.nn.layers import Layer


class Residual(Layer):
    """y = x + gain * tanh(x W), with one gain for each number."""

    W: tf.Variable
    gain: tf.Variable

    def __init__(self, name: str, width: int, *, seed: int):
        super().__init__()
        initial = np.random.default_rng(seed).normal(scale=width**-0.5, size=(width, width))
        self._declare("W", f"{name}.W", initial.astype(np.float32))
        self._declare("gain", f"{name}.gain", np.zeros(width, np.float32))

    def __call__(self, x: arrays.Values) -> arrays.Values:
        """Maps `[..., width]` to `[..., width]`, float32."""
        if arrays.in_numpy(x):  # to act
            return x + self.arrays["gain"] * arrays.tanh(x @ self.arrays["W"])
        return x + self.gain * arrays.tanh(tf.matmul(x, self.W))  # to learn
