"""Convolutions over images `[B, height, width, channels]`; TensorFlow only.

They raise TypeError for arrays, so a model with convolutions acts in compiled form.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from relaax_like.nn.initializers import make_orthogonal
from relaax_like.nn.layers import ACTIVATIONS, Layer
from relaax_like.nn.lazy_tensorflow import tf
from relaax_like.nn.module import Module


class Conv2D(Layer):
    """A convolution with a square kernel: y = activation(x * W + b).

    Args:
      name: of the layer; its variables are `NAME.W [kernel, kernel, channels, filters]`, which
        is initialized orthogonally with gain sqrt(2) (Saxe et al. 2014), and `NAME.b`, with zeros.
      channels: length of the last axis of x.
      filters: length of the last axis of y.
      kernel: height and width of the kernel.
      stride: step of the kernel.
      seed: of the initial values.
      activation: a key of `ACTIVATIONS`.
      padding: VALID: the kernel stays inside the image; SAME: the image is padded with zeros, so
        that a stride of 1 keeps height and width.
    """

    W: tf.Variable
    b: tf.Variable

    def __init__(
        self,
        name: str,
        channels: int,
        filters: int,
        kernel: int,
        stride: int,
        *,
        seed: int,
        activation: str = "linear",
        padding: Literal["VALID", "SAME"] = "VALID",
    ):
        super().__init__()
        inputs = kernel * kernel * channels
        initial = 2**0.5 * make_orthogonal(inputs, filters, np.random.default_rng(seed))
        initial = initial.reshape(kernel, kernel, channels, filters).astype(np.float32)
        self._declare("W", f"{name}.W", initial)
        self._declare("b", f"{name}.b", np.zeros(filters, np.float32))
        self._stride = stride
        self._padding = padding
        self._activation = ACTIVATIONS[activation]

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Maps `[B, height, width, channels]` to `[B, height', width', filters]`, float32.

        Raises:
          TypeError: x is an array.
        """
        _refuse_arrays(x)
        return self._activation(tf.nn.conv2d(x, self.W, self._stride, self._padding) + self.b)


class ResidualSection(Module):
    """One of the three sections of the deep network of Espeholt et al. 2018, figure 3.

    A 3x3 convolution, 3x3 max-pooling with stride 2, then two residual blocks,
    x + conv(relu(conv(relu(x)))). Height and width are halved, rounded up.

    Args:
      name: of the section; its convolutions are `NAME.in` and `NAME.0.0` to `NAME.1.1`, each with
        variables `.W` and `.b`.
      channels: length of the last axis of x.
      filters: number of filters in each convolution.
      seeds: of the initial values; the next five are taken.
    """

    def __init__(self, name: str, channels: int, filters: int, seeds: Iterator[int]):
        super().__init__()

        def make_conv(part: str, inputs: int) -> Conv2D:
            seed = next(seeds)
            return Conv2D(f"{name}.{part}", inputs, filters, 3, 1, seed=seed, padding="SAME")

        self.first = make_conv("in", channels)
        self.blocks = [
            [make_conv(f"{block}.{number}", filters) for number in range(2)] for block in range(2)
        ]

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Maps `[B, height, width, channels]` to `[B, height / 2, width / 2, filters]`, float32.

        Halves are rounded up.

        Raises:
          TypeError: x is an array.
        """
        x = tf.nn.max_pool2d(self.first(x), 3, 2, "SAME")
        for one, other in self.blocks:
            x += other(tf.nn.relu(one(tf.nn.relu(x))))
        return x


def scale_image(x: tf.Tensor) -> tf.Tensor:
    """Maps uint8 to float32 in [0, 1]; leaves float32 unchanged.

    Raises:
      TypeError: x is an array.
    """
    _refuse_arrays(x)
    return tf.cast(x, tf.float32) / 255.0 if x.dtype == tf.uint8 else x


def _refuse_arrays(x: object) -> None:
    if isinstance(x, np.ndarray):
        raise TypeError(
            f"x: expected a tensor, got an array of shape {list(x.shape)}; convolutions do not run "
            "in NumPy: pass tf.constant(x)"
        )
