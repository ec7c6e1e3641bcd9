"""Layers with named variables and seeded initial values.

Each layer computes in TensorFlow for tensors and in NumPy for arrays, from the same code of a
model's `policy`: acting on a small network is an order of magnitude quicker in NumPy, where no call
has to enter the TensorFlow runtime. A test holds the two to the same numbers.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from relaax_like.nn import runtime  # noqa: F401 - settings, before anything is computed
from relaax_like.nn.initializers import INITIALIZERS, InitializerName

# A tf.Tensor, or an np.ndarray when the layer runs in NumPy.
Values = Any


def _relu(x: Values) -> Values:
    return np.maximum(x, 0) if isinstance(x, np.ndarray) else tf.nn.relu(x)


def _tanh(x: Values) -> Values:
    return np.tanh(x) if isinstance(x, np.ndarray) else tf.tanh(x)


def _identity(x: Values) -> Values:
    return x


ACTIVATIONS: Mapping[str, Callable[[Values], Values]] = {
    "relu": _relu,
    "tanh": _tanh,
    "linear": _identity,
}


def flatten(x: Values, width: int) -> Values:
    """Maps `[B, ...]` to `[B, width]`."""
    return x.reshape(-1, width) if isinstance(x, np.ndarray) else tf.reshape(x, [-1, width])


class Layer(tf.Module):
    """Base of layers that also run in NumPy.

    Attributes:
      arrays: variable's attribute -> its value as an array, `float32`; bound by the
        ComputationTask before the layer is called with arrays. Empty until then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arrays: dict[str, np.ndarray] = {}

    def get_variables(self) -> dict[str, tf.Variable]:
        """Returns the layer's own variables by attribute name."""
        return {k: v for k, v in vars(self).items() if isinstance(v, tf.Variable)}


class Dense(Layer):
    """y = activation(x W + b).

    Args:
      name: of the layer; its variables are `NAME.W` and `NAME.b`.
      inputs: length of the last axis of x.
      outputs: length of the last axis of y.
      seed: of the initial values.
      activation: a key of `ACTIVATIONS`.
      use_bias: whether there is a b; it begins at zero.
      initializer: of W, a key of `INITIALIZERS`.
      gain: W is multiplied by it.
    """

    def __init__(
        self,
        name: str,
        inputs: int,
        outputs: int,
        *,
        seed: int,
        activation: str = "linear",
        use_bias: bool = True,
        initializer: InitializerName = "glorot",
        gain: float = 1.0,
    ):
        super().__init__()
        initial = gain * INITIALIZERS[initializer](inputs, outputs, np.random.default_rng(seed))
        self.W = tf.Variable(initial.astype(np.float32), name=f"{name}.W")
        self.b = tf.Variable(np.zeros(outputs, np.float32), name=f"{name}.b") if use_bias else None
        self._activation = ACTIVATIONS[activation]

    def __call__(self, x: Values) -> Values:
        """Maps `[..., inputs]` to `[..., outputs]`, float32."""
        if isinstance(x, np.ndarray):
            y = x @ self.arrays["W"]
            if self.b is not None:
                y += self.arrays["b"]
        else:
            y = tf.matmul(x, self.W)
            if self.b is not None:
                y += self.b
        return self._activation(y)


class Parameter(Layer):
    """A variable that depends on no input, such as the log_std of a policy."""

    def __init__(self, name: str, initial: np.ndarray):
        super().__init__()
        self.variable = tf.Variable(initial, name=name)

    def __call__(self, like: Values) -> Values:
        """Returns the value: an array when `like` is one, else the variable."""
        return self.arrays["variable"] if isinstance(like, np.ndarray) else self.variable
