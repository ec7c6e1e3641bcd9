"""Networks with the layers listed in the `network` section of the YAML file."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, overload

import numpy as np

from relaax_like.config.network import (
    ConvConfig,
    ConvStackConfig,
    DenseConfig,
    LayerConfig,
    NetworkConfig,
    RecurrentConfig,
    begins_with_convolution,
)
from relaax_like.nn.arrays import Values
from relaax_like.nn.convolution import Conv2D, ResidualSection, scale_image
from relaax_like.nn.layers import ACTIVATIONS, Dense, concatenate, flatten
from relaax_like.nn.lazy_tensorflow import tf
from relaax_like.nn.module import Module
from relaax_like.nn.recurrent import GRU, LSTM, Recurrent
from relaax_like.wire.errors import ConfigError

# Convolutions and units of the dense layer: Mnih et al. 2016, section 8, and 2015, Methods.
_STACKS = {
    "a3c": ([ConvConfig(16, 8, 4), ConvConfig(32, 4, 2)], 256),
    "nature": ([ConvConfig(32, 8, 4), ConvConfig(64, 4, 2), ConvConfig(64, 3, 1)], 512),
}

_NOT_GIVEN = object()


class Branch(NamedTuple):
    """One of several inputs, and the layers applied to it before all are joined.

    Attributes:
      shape: of one observation.
      layers: none of which is recurrent.
    """

    shape: tuple[int, ...]
    layers: Sequence[LayerConfig] = ()


class Network(Module):
    """A sequence of layers, any of which can be recurrent.

        network = make_network("policy", config, (84, 84, 4), 6, seed=1)
        y, memory = network(x, memory)  # one step, x [B, 84, 84, 4]
        y, memories = network(x, memory, begins)  # for learning, x [T, B, 84, 84, 4]
        y = network(x)  # without a recurrent layer, x [..., 84, 84, 4]

    The memory of several recurrent layers is one array: that of the first layer, then that of the
    second, and so on.

    Build it with `make_network`.

    Attributes:
      features: width of the input of the last, linear layer, or of the output without one.
      layers: functions and modules, in order.
      state_size: width of the memory, 0 without a recurrent layer.
    """

    def __init__(
        self, name: str, layers: list[Callable[..., Values]], features: int, input_axes: int = 1
    ):
        super().__init__(name=name)
        self.layers = tuple(layers)
        self.features = features
        # Only numbers: layers in a second attribute would change the order of the variables.
        self._state_sizes = [layer.state_size for layer in layers if isinstance(layer, Recurrent)]
        self._is_stacked = len(self._state_sizes) > 1
        self.state_size = sum(self._state_sizes)
        self._input_axes = input_axes

    @overload
    def __call__(self, x: Values) -> Values: ...

    @overload
    def __call__(
        self, x: Values, memory: Values | None, begins: Values | None = None
    ) -> tuple[Values, Values | None]: ...

    def __call__(
        self, x: Values, memory: Values | object | None = _NOT_GIVEN, begins: Values | None = None
    ) -> Values | tuple[Values, Values | None]:
        """Computes one step for each row, or the steps of rollouts one after another.

        In NumPy for arrays, which have one leading axis; in TensorFlow for tensors.

        Args:
          x: `[..., *input_shape] float32`; before a convolution also uint8, scaled to [0, 1]. With
            branches, a mapping with one input for each.
          memory: before the step, `[..., state_size] float32`; with `begins`, before the first
            step, `[B, state_size]`. None without a recurrent layer.
          begins: whether an episode begins at t, `[T, B]` of bool, or of numbers 0 and 1; there the
            memory before step t is zero. x is then `[T, B, *input_shape]`, a tensor. None: each row
            is a separate step.

        Returns:
          `[..., outputs]`, or features `[..., features]`. If `memory` was passed (it can be None),
          also the memory after each step, `[..., state_size]`, or None.

        Raises:
          TypeError: x is an array, and the network has convolutions.
          ValueError: the network has a memory, and the argument `memory` was not passed.
        """
        if isinstance(x, np.ndarray) and memory is not _NOT_GIVEN:  # acting, without checks
            return self._step(x, memory)
        if memory is _NOT_GIVEN:
            if self.state_size:
                raise ValueError(
                    f"network {self.name} has a recurrent layer; pass its memory: "
                    "network(x, memory)"
                )
            return self._compute(x, None, begins)[0]
        return self._compute(x, memory, begins)

    def _compute(
        self, x: Values, memory: Values | None, begins: Values | None
    ) -> tuple[Values, Values | None]:
        first = next(iter(x.values())) if isinstance(x, Mapping) else x
        if isinstance(first, np.ndarray):
            return self._step(x, memory)
        axes = len(first.shape) - self._count_input_axes(x)
        if axes == 1 and begins is None:
            return self._step(x, memory)
        leading = tf.shape(first)[:axes]
        rows = tf.nest.map_structure(lambda part: tf.reshape(part, [-1, *part.shape[axes:]]), x)
        if begins is None:
            before = None if memory is None else tf.reshape(memory, [-1, self.state_size])
            y, after = self._step(rows, before)
        else:
            y, after = self._unroll(rows, memory, begins, leading)
        if after is not None:
            after = tf.reshape(after, tf.concat([leading, [self.state_size]], 0))
        return tf.reshape(y, tf.concat([leading, [y.shape[-1]]], 0)), after

    def _step(self, x: Values, memory: Values | None) -> tuple[Values, Values | None]:
        if not self.state_size:
            for layer in self.layers:
                x = layer(x)
            return x, None
        if self._is_stacked:
            return self._step_stacked(x, memory)
        for layer in self.layers:
            if isinstance(layer, Recurrent):
                x, memory = layer(x, memory)
            else:
                x = layer(x)
        return x, memory

    def _step_stacked(self, x: Values, memory: Values) -> tuple[Values, Values]:
        """Computes one step with several recurrent layers, each with its part of the memory."""
        start, after = 0, []
        for layer in self.layers:
            if isinstance(layer, Recurrent):
                end = start + layer.state_size
                x, state = layer(x, memory[:, start:end])
                after.append(state)
                start = end
            else:
                x = layer(x)
        return x, concatenate(after)

    def _unroll(
        self, x: Values, memory: tf.Tensor | None, begins: tf.Tensor, leading: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Computes T steps; only recurrent layers process them one by one."""
        parts = iter(tf.split(memory, self._state_sizes, -1) if self._is_stacked else [memory])
        states: list[tf.Tensor] = []
        for layer in self.layers:
            if isinstance(layer, Recurrent):
                sequences = tf.reshape(x, tf.concat([leading, [x.shape[-1]]], 0))
                y, after = layer.unroll(sequences, next(parts), begins)
                states.append(after)
                x = tf.reshape(y, [-1, layer.units])
            else:
                x = layer(x)
        if self._is_stacked:
            return x, tf.concat(states, -1)
        return x, states[0] if states else None

    def _count_input_axes(self, x: Values) -> int:
        if isinstance(x, Mapping):
            join = self.layers[0]
            assert isinstance(join, Join)
            return join.branches[next(iter(x))]._input_axes
        return self._input_axes


class Join(Module):
    """Passes each of several inputs through its branch, and joins the outputs by name.

    Args:
      branches: name -> its layers, none of which is recurrent.

    Attributes:
      branches: as the argument, sorted by name.
      features: width of the joined output.
    """

    def __init__(self, branches: Mapping[str, Network]):
        super().__init__()
        self.branches = dict(sorted(branches.items()))
        self.features = sum(branch.features for branch in branches.values())

    def __call__(self, x: Mapping[str, Values]) -> Values:
        """Maps name -> `[B, *shape]` to `[B, features]`; see `Network`."""
        return concatenate([branch(x[name]) for name, branch in self.branches.items()])


def make_network(
    name: str,
    config: NetworkConfig,
    input_shape: tuple[int, ...] | Mapping[str, Branch],
    outputs: int | None,
    *,
    seed: int,
    output_gain: float = 1.0,
) -> Network:
    """Builds a network with orthogonal weights.

    Those of dense and conv layers have gain sqrt(2), those of recurrent layers 1, and those of the
    last, linear layer `output_gain`.

    Args:
      name: of the network. Variables are `NAME.LAYER.W` and so on; LAYER is the index of a dense or
        conv layer in `config.layers`; `nature.0`, `nature.dense` and the like in a stack, and in
        impala's sections `impala.0.in`, `impala.0.0.0` to `impala.2.1.1`; `lstm` or `gru` (with U
        in addition to W; `lstm.2` or `gru.2`, with the index, from the second recurrent layer on);
        or `out`. Those of a branch are `NAME.BRANCH.LAYER.W` and so on.
      config: the layers.
      input_shape: of one observation, which is flattened unless a convolution comes first. Or the
        branches of several inputs, by name, which are joined before the layers of `config`.
      outputs: width of the last layer, which is linear; None: no such layer, for several heads
        that use the same features.
      seed: of the initial values.
      output_gain: of the last layer; with 0.01, the initial policy is close to uniform.

    Raises:
      ConfigError: a convolution does not fit the input.
    """
    seeds = itertools.count(seed)
    if isinstance(input_shape, Mapping):
        join = _make_join(name, input_shape, config.activation, seeds)
        builder = _Builder(name, (join.features,), seeds)
        builder.add(join)
    else:
        builder = _Builder(name, input_shape, seeds)
    builder.add_layers(config.layers, config.activation)
    return builder.build(outputs, output_gain)


def _make_join(
    name: str, branches: Mapping[str, Branch], activation: str, seeds: Iterator[int]
) -> Join:
    networks = {}
    for part, branch in sorted(branches.items()):
        builder = _Builder(f"{name}.{part}", branch.shape, seeds)
        builder.add_layers(branch.layers, activation)
        networks[part] = builder.build(None)
    return Join(networks)


class _Builder:
    """Adds layers, and tracks the output shape of the last one."""

    def __init__(self, name: str, input_shape: tuple[int, ...], seeds: Iterator[int]):
        self._name = name
        self._shape = input_shape  # without the batch axis
        self._input_axes = len(input_shape)
        self._seeds = seeds
        self._layers: list[Callable[..., Values]] = []
        self._is_recurrent = False

    def add(self, layer: Callable[..., Values]) -> None:
        self._layers.append(layer)

    def add_layers(self, layers: Sequence[LayerConfig], activation: str) -> None:
        if begins_with_convolution(layers):
            self.add(scale_image)
        for index, layer in enumerate(layers):
            match layer:
                case DenseConfig(units):
                    self.add_dense(str(index), units, activation)
                case ConvConfig():
                    self.add_conv(str(index), layer, activation)
                case ConvStackConfig("impala"):
                    self.add_impala()
                case ConvStackConfig(stack):
                    convolutions, units = _STACKS[stack]
                    for number, convolution in enumerate(convolutions):
                        self.add_conv(f"{stack}.{number}", convolution, "relu")
                    self.add_dense(f"{stack}.dense", units, "relu")
                case RecurrentConfig():
                    self.add_recurrent(index, layer)

    def add_dense(self, part: str, units: int, activation: str) -> None:
        gain = 2**0.5
        self._add_dense(part, units, next(self._seeds), activation, gain)

    def add_conv(self, part: str, config: ConvConfig, activation: str) -> None:
        height, width, channels = self._get_image(part)
        if config.kernel > min(height, width):
            raise ConfigError(
                f"network {self._name}: layer {part} has a kernel of {config.kernel}, but its "
                f"input is only {height}x{width}; list conv layers with smaller kernels or strides "
                "in network.layers (or in the layers of the observation), or use a larger image"
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

    def add_recurrent(self, index: int, config: RecurrentConfig) -> None:
        self._flatten()
        make = {"lstm": LSTM, "gru": GRU}[config.cell]
        name = f"{self._name}.{config.cell}"
        if self._is_recurrent:
            name += f".{index}"
        self._layers.append(make(name, self._shape[0], config.units, seed=next(self._seeds)))
        self._shape = (config.units,)
        self._is_recurrent = True

    def build(self, outputs: int | None, output_gain: float = 1.0) -> Network:
        self._flatten()
        features = self._shape[0]
        if outputs is not None:
            # One seed is skipped, so that results published with a seed stay the same.
            self._add_dense("out", outputs, next(self._seeds) + 1, "linear", output_gain)
        return Network(self._name, self._layers, features, self._input_axes)

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
                f"network {self._name}: layer {part} is a convolution, but its input has shape "
                f"{list(self._shape)}, expected an image [height, width, channels]; use dense "
                "layers in network.layers"
            )
        height, width, channels = self._shape
        return height, width, channels
