"""Networks as the YAML's section `network` lists their layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from relaax_like.config.network import (
    ConvConfig,
    ConvStackConfig,
    DenseConfig,
    NetworkConfig,
    RecurrentConfig,
)
from relaax_like.nn.convolution import Conv2D, ResidualSection, scale_image
from relaax_like.nn.layers import ACTIVATIONS, Dense, Values, flatten
from relaax_like.nn.lazy_tensorflow import tf
from relaax_like.nn.module import Module
from relaax_like.nn.recurrent import GRU, LSTM, Recurrent
from relaax_like.wire.errors import ConfigError

# Convolutions and units of the dense layer: Mnih et al. 2016, section 8, and 2015, Methods.
_STACKS = {
    "a3c": ([ConvConfig(16, 8, 4), ConvConfig(32, 4, 2)], 256),
    "nature": ([ConvConfig(32, 8, 4), ConvConfig(64, 4, 2), ConvConfig(64, 3, 1)], 512),
}


class Network(Module):
    """Layers one after another, of which one may be recurrent.

        network = make_network("policy", config, (84, 84, 4), 6, seed=1)
        y, states = network(x, states)  # one step, x [B, 84, 84, 4]
        y, all_states = network.unroll(x, states, begins)  # for learning, x [T, B, 84, 84, 4]

    Build it with `make_network`.

    Attributes:
      features: width of what goes into the last, linear layer, or comes out without one.
      state_size: width of the memory, 0 without a recurrent layer.
    """

    def __init__(self, name: str, layers: list[Callable[..., Values]], features: int):
        super().__init__(name=name)
        self.layers = tuple(layers)
        self.features = features
        self.state_size = sum(layer.state_size for layer in layers if isinstance(layer, Recurrent))

    def __call__(self, x: Values, state: Values | None) -> tuple[Values, Values | None]:
        """Takes one step: in NumPy for arrays, else in TensorFlow.

        Args:
          x: `[B, *input_shape] float32`; before a convolution also uint8, scaled to [0, 1].
          state: memory before it, `[B, state_size] float32`; None without a recurrent layer.

        Returns:
          `[B, outputs]`, or features `[B, features]`; and the memory after the step, or None.

        Raises:
          TypeError: x is an array, and the network has convolutions.
        """
        for layer in self.layers:
            if isinstance(layer, Recurrent):
                x, state = layer(x, state)
            else:
                x = layer(x)
        return x, state if self.state_size else None

    def unroll(
        self, x: tf.Tensor, state: tf.Tensor | None, begins: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Takes T steps; tensors only.

        Without a recurrent layer it is one pass over all T*B rows.

        Args:
          x: `[T, B, *input_shape]`, as in a call.
          state: memory before the first step, `[B, state_size] float32`, or None.
          begins: whether an episode begins at t, `[T, B]` of bool, or of numbers 0 and 1; there the
            memory before step t is zero.

        Returns:
          `[T, B, outputs]`, or features; and the memory after each step `[T, B, state_size]`, or
          None.
        """
        steps, batch = tf.unstack(tf.shape(x)[:2])
        states: tf.Tensor | None = None
        x = tf.reshape(x, [-1, *x.shape[2:]])
        for layer in self.layers:
            if isinstance(layer, Recurrent):
                sequences = tf.reshape(x, [steps, batch, x.shape[-1]])
                y, states = layer.unroll(sequences, state, begins)
                x = tf.reshape(y, [-1, layer.units])
            else:
                x = layer(x)
        return tf.reshape(x, [steps, batch, x.shape[-1]]), states


def make_network(
    name: str,
    config: NetworkConfig,
    input_shape: tuple[int, ...],
    outputs: int | None,
    *,
    seed: int,
    output_gain: float = 1.0,
) -> Network:
    """Builds a network with orthogonal weights, of gain sqrt(2) before an activation.

    Args:
      name: of the network. Variables are `NAME.LAYER.W` and so on; LAYER is the index of a dense or
        conv layer in `config.layers`, `nature.0` or `nature.dense` in a stack, `lstm`, `gru` (with
        U beside W) or `out`.
      config: its layers.
      input_shape: of one observation. Where no convolution comes first it is flattened.
      outputs: width of the last layer, which is linear; None: no such layer, for several heads
        that use the same features.
      seed: of the initial values.
      output_gain: of the last layer; 0.01 makes a policy begin close to uniform.

    Raises:
      ConfigError: a convolution does not fit the input.
    """
    builder = _Builder(name, config, input_shape, seed)
    for index, layer in enumerate(config.layers):
        match layer:
            case DenseConfig(units):
                builder.add_dense(str(index), units, config.activation)
            case ConvConfig():
                builder.add_conv(str(index), layer, config.activation)
            case ConvStackConfig("impala"):
                builder.add_impala()
            case ConvStackConfig(stack):
                convolutions, units = _STACKS[stack]
                for number, convolution in enumerate(convolutions):
                    builder.add_conv(f"{stack}.{number}", convolution, "relu")
                builder.add_dense(f"{stack}.dense", units, "relu")
            case RecurrentConfig():
                builder.add_recurrent(layer)
    return builder.build(outputs, output_gain)


class _Builder:
    """Adds layer to layer, and knows the shape of what comes out of the last one."""

    def __init__(self, name: str, config: NetworkConfig, input_shape: tuple[int, ...], seed: int):
        self._name = name
        self._shape = input_shape  # without the batch axis
        self._seeds = itertools.count(seed)
        self._layers: list[Callable[..., Values]] = []
        if config.begins_with_convolution:
            self._layers.append(scale_image)

    def add_dense(self, part: str, units: int, activation: str) -> None:
        gain = 2**0.5
        self._add_dense(part, units, next(self._seeds), activation, gain)

    def add_conv(self, part: str, config: ConvConfig, activation: str) -> None:
        height, width, channels = self._get_image(part)
        if config.kernel > min(height, width):
            raise ConfigError(
                f"network {self._name}: layer {part} has a kernel of {config.kernel} and gets "
                f"{height}x{width}; make kernels or strides smaller, or the image larger"
            )
        self._layers.append(
            Conv2D(
                f"{self._name}.{part}",
                channels,
                config.filters,
                config.kernel,
                config.stride,
                seed=next(self._seeds),
                activation=activation,
            )
        )
        sizes = ((size - config.kernel) // config.stride + 1 for size in (height, width))
        self._shape = (*sizes, config.filters)

    def add_impala(self) -> None:
        for number, filters in enumerate((16, 32, 32)):
            part = f"impala.{number}"
            height, width, channels = self._get_image(part)
            section = ResidualSection(f"{self._name}.{part}", channels, filters, self._seeds)
            self._layers.append(section)
            self._shape = ((height + 1) // 2, (width + 1) // 2, filters)
        self._layers.append(ACTIVATIONS["relu"])
        self.add_dense("impala.dense", 256, "relu")

    def add_recurrent(self, config: RecurrentConfig) -> None:
        self._flatten()
        make = {"lstm": LSTM, "gru": GRU}[config.cell]
        name = f"{self._name}.{config.cell}"
        self._layers.append(make(name, self._shape[0], config.units, seed=next(self._seeds)))
        self._shape = (config.units,)

    def build(self, outputs: int | None, output_gain: float) -> Network:
        self._flatten()
        features = self._shape[0]
        if outputs is not None:
            # One seed is left out, as ever: results that were published with a seed stay the same.
            self._add_dense("out", outputs, next(self._seeds) + 1, "linear", output_gain)
        return Network(self._name, self._layers, features)

    def _add_dense(self, part: str, units: int, seed: int, activation: str, gain: float) -> None:
        self._flatten()
        self._layers.append(
            Dense(
                f"{self._name}.{part}",
                self._shape[0],
                units,
                seed=seed,
                activation=activation,
                initializer="orthogonal",
                gain=gain,
            )
        )
        self._shape = (units,)

    def _flatten(self) -> None:
        if len(self._shape) != 1:
            width = math.prod(self._shape)
            self._layers.append(lambda x: flatten(x, width))
            self._shape = (width,)

    def _get_image(self, part: str) -> tuple[int, int, int]:
        if len(self._shape) != 3:
            raise ConfigError(
                f"network {self._name}: layer {part} is a convolution and gets the shape "
                f"{list(self._shape)}, expected an image [height, width, channels]; use dense "
                "layers"
            )
        height, width, channels = self._shape
        return height, width, channels
