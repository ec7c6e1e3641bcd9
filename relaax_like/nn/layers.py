"""Layers with named variables and seeded initial values."""

from collections.abc import Callable

import tensorflow as tf


class Dense(tf.Module):
    """y = activation(x W + b); W after Glorot & Bengio 2010, uniform (Xavier), b zero.

    Args:
      name: of the layer; its variables are `NAME.W` and `NAME.b`.
      inputs: length of the last axis of x.
      outputs: length of the last axis of y.
      seed: of the initial values.
      activation: applied element by element; None for none.
      use_bias: whether there is a b.
    """

    def __init__(
        self,
        name: str,
        inputs: int,
        outputs: int,
        *,
        seed: int,
        activation: Callable[[tf.Tensor], tf.Tensor] | None = None,
        use_bias: bool = True,
    ):
        super().__init__(name=name)
        limit = (6.0 / (inputs + outputs)) ** 0.5
        # XLA and threefry seeds are 32 bit pairs.
        pair = [seed & 0x7FFFFFFF, (seed >> 31) & 0x7FFFFFFF]
        initial = tf.random.stateless_uniform([inputs, outputs], pair, -limit, limit)
        self.W = tf.Variable(initial, name=f"{name}.W")
        self.b = tf.Variable(tf.zeros([outputs]), name=f"{name}.b") if use_bias else None
        self._activation = activation

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Maps `[..., inputs]` to `[..., outputs]`, float32."""
        y = tf.matmul(x, self.W)
        if self.b is not None:
            y += self.b
        return y if self._activation is None else self._activation(y)
