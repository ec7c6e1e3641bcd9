"""Layers with named variables and seeded initial values.

Each layer computes in TensorFlow for tensors and in NumPy for arrays, from the same code of a
model's `policy`: acting with a small network is an order of magnitude faster in NumPy, because no
call enters the TensorFlow runtime. A test verifies that both compute the same numbers. TensorFlow
is not even imported until a layer receives a tensor, or a tf.Variable is used.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from relaax_like.core.manifest import TRAINABLE
from relaax_like.nn.arrays import Values, sigmoid, softplus, tanh
from relaax_like.nn.initializers import INITIALIZERS, InitializerName
from relaax_like.nn.lazy_tensorflow import tf
from relaax_like.nn.module import AnyVariable, LayerVariable, Module, get_name, is_variable


def _relu(x: Values) -> Values:
    return np.maximum(x, 0) if isinstance(x, np.ndarray) else tf.nn.relu(x)


def _leaky_relu(x: Values) -> Values:
    return np.maximum(x, 0.01 * x) if isinstance(x, np.ndarray) else tf.nn.leaky_relu(x, 0.01)


def _elu(x: Values) -> Values:
    # exp(x) of large numbers would overflow.
    in_numpy = isinstance(x, np.ndarray)
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0))) if in_numpy else tf.nn.elu(x)


def _selu(x: Values) -> Values:
    if not isinstance(x, np.ndarray):
        return tf.nn.selu(x)
    return _SELU_SCALE * np.where(x > 0, x, _SELU_ALPHA * np.expm1(np.minimum(x, 0)))


def _gelu(x: Values) -> Values:
    if not isinstance(x, np.ndarray):
        return tf.nn.gelu(x, approximate=True)
    return 0.5 * x * (1 + np.tanh(_GELU_SCALE * (x + 0.044715 * (x * x * x))))


def _silu(x: Values) -> Values:
    return x * sigmoid(x) if isinstance(x, np.ndarray) else tf.nn.silu(x)


def _identity(x: Values) -> Values:
    return x


# Klambauer et al. 2017, https://arxiv.org/abs/1706.02515, equation 14.
_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772
_GELU_SCALE = math.sqrt(2 / math.pi)

_NORM_EPSILON = np.float32(1e-5)

# The names of `config.network.Activation`.
ACTIVATIONS: Mapping[str, Callable[[Values], Values]] = {
    "tanh": tanh,
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "selu": _selu,
    "gelu": _gelu,
    "silu": _silu,
    "swish": _silu,
    "sigmoid": sigmoid,
    "softplus": softplus,
    "linear": _identity,
}


def flatten(x: Values, width: int) -> Values:
    """Maps `[B, ...]` to `[B, width]`; in NumPy for arrays."""
    return x.reshape(-1, width) if isinstance(x, np.ndarray) else tf.reshape(x, [-1, width])


def merge_steps(x: tf.Tensor) -> tf.Tensor:
    """Merges the axes of steps and slots: `[T, k, ...]` to `[T * k, ...]`."""
    return tf.reshape(x, tf.concat([[-1], tf.shape(x)[2:]], 0))


def take(values: Values, index: Values) -> Values:
    """Picks one number of each row: `[..., n]` and `[...]` integers to `[...]`."""
    if isinstance(values, np.ndarray):
        return np.take_along_axis(values, index[..., None], -1)[..., 0]
    return tf.gather(values, index, axis=-1, batch_dims=len(index.shape))


def concatenate(parts: Sequence[Values]) -> Values:
    """Joins `[..., n_i]` on the last axis; in NumPy if all are arrays."""
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts, axis=-1)
    return tf.concat(parts, axis=-1)


def make_one_hot(x: Values, sizes: Sequence[int]) -> Values:
    """Makes a one-hot vector of each integer, and joins them; in NumPy for arrays.

    Args:
      x: `[..., d]` integers, counted from 0; integers out of range become zeros.
      sizes: number of values of each of the d integers.

    Returns:
      `[..., sum(sizes)] float32`.
    """
    parts, start = [], 0
    for size, group in itertools.groupby(sizes):  # one call for consecutive equal sizes
        stop = start + len(list(group))
        columns = x[..., start:stop]
        if isinstance(x, np.ndarray):
            part = (columns[..., None] == np.arange(size)).astype(np.float32)
            parts.append(part.reshape(*x.shape[:-1], size * (stop - start)))
        else:
            part = tf.one_hot(columns, size)
            leading = tf.shape(x)[:-1]
            parts.append(tf.reshape(part, tf.concat([leading, [size * (stop - start)]], 0)))
        start = stop
    return concatenate(parts)


class Layer(Module):
    """Base of layers that also run in NumPy.

        class Scale(Layer):
            gain: tf.Variable

            def __init__(self, name, width):
                super().__init__()
                self._declare("gain", f"{name}.gain", np.ones(width, np.float32))

            def __call__(self, x):
                return x * (self.arrays["gain"] if isinstance(x, np.ndarray) else self.gain)

    Attributes:
      arrays: attribute of a variable -> its value as an array; set by the actor before the layer is
        called with arrays. Empty until then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arrays: dict[str, np.ndarray] = {}
        self._declared: dict[str, LayerVariable] = {}

    def get_variables(self) -> dict[str, AnyVariable]:
        """Returns the layer's own variables by attribute name."""
        return {k: v for k, v in self.get_attributes().items() if is_variable(v)}

    def get_attributes(self) -> Mapping[str, Any]:
        """Returns the attributes in which to search for variables: those of `_declare` first."""
        attributes = {**self._declared, **vars(self)}
        del attributes["_declared"]
        return attributes

    def _declare(
        self, attribute: str, name: str, initial: np.ndarray, kind: str = TRAINABLE
    ) -> None:
        """Makes the attribute a variable; its tf.Variable is made when it is first read."""
        self._declared[attribute] = LayerVariable(name, initial, kind)

    if not TYPE_CHECKING:  # A type checker must find undeclared attributes.

        def __getattr__(self, attribute: str) -> tf.Variable:
            declared = vars(self).get("_declared", {})
            if attribute not in declared:
                raise AttributeError(f"{type(self).__name__} has no attribute {attribute!r}")
            return declared[attribute].tf_variable


class Dense(Layer):
    """A fully connected layer: y = activation(x W + b).

    Args:
      name: of the layer; its variables are `NAME.W` and `NAME.b`.
      inputs: length of the last axis of x.
      outputs: length of the last axis of y.
      seed: of the initial values.
      activation: a key of `ACTIVATIONS`.
      use_bias: whether the layer has a bias b, which is initialized to zero.
      initializer: of W, a key of `INITIALIZERS`.
      gain: factor of the initial W.
    """

    W: tf.Variable
    b: tf.Variable | None

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
        self._declare("W", f"{name}.W", initial.astype(np.float32))
        self._use_bias = use_bias
        if use_bias:
            self._declare("b", f"{name}.b", np.zeros(outputs, np.float32))
        else:
            self.b = None
        self._activation = ACTIVATIONS[activation]

    def __call__(self, x: Values) -> Values:
        """Maps `[..., inputs]` to `[..., outputs]`, float32."""
        if isinstance(x, np.ndarray):
            y = x @ self.arrays["W"]
            if self._use_bias:
                y += self.arrays["b"]
        else:
            _validate_width(x, self.W)
            y = _multiply(x, self.W)
            if self._use_bias:
                y += self.b
        return self._activation(y)

    def keep_unit_norm(self) -> Dense:
        """Scales the weights of each unit, a column of W, to the norm 1, now and after each step.

        For layers before a normalisation, which cancels the scale: so the effective learning rate
        does not fall while weights grow (Palenicek et al. 2025, https://arxiv.org/abs/2502.07523).
        Call it before the weights are used; returns the layer.
        """
        weights = self._declared["W"]
        scaled = weights.numpy() / np.linalg.norm(weights.numpy(), axis=0)
        self._declared["W"] = LayerVariable(weights.name, scaled, unit_norm=True)
        return self


def _multiply(x: tf.Tensor, weights: tf.Variable) -> tf.Tensor:
    """Returns x W, for any number of leading axes.

    As one product of matrices: the gradient of a batched one is first computed for each matrix, 20
    times as slowly.
    """
    if x.shape.rank is None or x.shape.rank <= 2:
        return tf.matmul(x, weights)
    inputs, outputs = weights.shape
    y = tf.matmul(tf.reshape(x, [-1, inputs]), weights)
    y = tf.reshape(y, tf.concat([tf.shape(x)[:-1], [outputs]], 0))
    return tf.ensure_shape(y, [*x.shape[:-1], outputs])


def _validate_width(x: tf.Tensor, weights: tf.Variable) -> None:
    """Checks that rows have as many numbers as a layer has inputs, if that is known.

    TensorFlow's own error would name neither the layer nor the cure.

    Raises:
      ValueError: the numbers differ.
    """
    inputs = weights.shape[0]
    width = x.shape[-1] if x.shape.rank else None
    if width is not None and width != inputs:
        name = get_name(weights).rpartition(".")[0]
        raise ValueError(
            f"layer {name} was built for {inputs} inputs, but receives {width} numbers; build the "
            f"network for {width} inputs, or correct what it is called with"
        )


class NoisyDense(Layer):
    """A dense layer, y = x W + b, with noise in W and b whose size is learned.

        noise = layer.draw_noise(random, x)
        y = layer(x, noise)
        means = layer(x)

    The noise is factorised: W + S_W * f(e) f(e')^T and b + S_b * f(e'), f(e) = sign(e) sqrt(|e|).
    Source: Fortunato et al. 2018, https://arxiv.org/abs/1706.10295, equations 9 to 11 and section
    3.2. Each row has noise of its own.

    Args:
      name: of the layer; its variables are `NAME.W`, `NAME.b`, `NAME.W_noise` and `NAME.b_noise`.
      inputs: length of the last axis of x.
      outputs: length of the last axis of y.
      seed: of the initial values.
    """

    W: tf.Variable
    b: tf.Variable
    W_noise: tf.Variable
    b_noise: tf.Variable

    def __init__(self, name: str, inputs: int, outputs: int, *, seed: int):
        super().__init__()
        random, bound = np.random.default_rng(seed), 1 / math.sqrt(inputs)
        size = np.float32(0.5 * bound)
        weights = random.uniform(-bound, bound, (inputs, outputs)).astype(np.float32)
        self._declare("W", f"{name}.W", weights)
        self._declare("b", f"{name}.b", random.uniform(-bound, bound, outputs).astype(np.float32))
        self._declare("W_noise", f"{name}.W_noise", np.full((inputs, outputs), size))
        self._declare("b_noise", f"{name}.b_noise", np.full(outputs, size))
        self._sizes = (inputs, outputs)

    def draw_noise(self, random: Any, x: Values) -> tuple[Values, Values]:
        """Draws f(e) and f(e'), `[..., inputs]` and `[..., outputs]`.

        Args:
          random: an `np.random.Generator` for arrays; `Algorithm.random` or a
            `tf.random.Generator` for tensors.
          x: the inputs, `[..., inputs]`.
        """
        if isinstance(x, np.ndarray):
            draws = [
                random.standard_normal((*x.shape[:-1], size), np.float32) for size in self._sizes
            ]
            return tuple(np.sign(e) * np.sqrt(np.abs(e)) for e in draws)
        leading = tf.shape(x)[:-1]
        draws = [random.normal(tf.concat([leading, [size]], 0)) for size in self._sizes]
        return tuple(tf.sign(e) * tf.sqrt(tf.abs(e)) for e in draws)

    def __call__(self, x: Values, noise: tuple[Values, Values] | None = None) -> Values:
        """Maps `[..., inputs]` to `[..., outputs]`, float32; without noise, the means."""
        if isinstance(x, np.ndarray):
            y = x @ self.arrays["W"] + self.arrays["b"]
            if noise is not None:
                y += (x * noise[0] @ self.arrays["W_noise"] + self.arrays["b_noise"]) * noise[1]
            return y
        _validate_width(x, self.W)
        y = tf.matmul(x, self.W) + self.b
        if noise is None:
            return y
        return y + (tf.matmul(x * noise[0], self.W_noise) + self.b_noise) * noise[1]


class LayerNorm(Layer):
    """Layer normalisation, over the last axis of x.

        y = gain (x - mean) / sqrt(variance + 1e-5) + shift

    Source: Ba et al. 2016, https://arxiv.org/abs/1607.06450, equation 4.

    Args:
      name: of the layer; its variables are `NAME.gain` and `NAME.shift`.
      width: length of the last axis.
    """

    gain: tf.Variable
    shift: tf.Variable

    def __init__(self, name: str, width: int):
        super().__init__()
        self._declare("gain", f"{name}.gain", np.ones(width, np.float32))
        self._declare("shift", f"{name}.shift", np.zeros(width, np.float32))

    def __call__(self, x: Values) -> Values:
        """Maps `[..., width]` to the same shape, float32."""
        if isinstance(x, np.ndarray):
            centered = x - x.mean(-1, keepdims=True)
            deviation = np.sqrt((centered**2).mean(-1, keepdims=True) + _NORM_EPSILON)
            return centered / deviation * self.arrays["gain"] + self.arrays["shift"]
        centered = x - tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(centered**2, -1, keepdims=True)
        return centered * tf.math.rsqrt(variance + _NORM_EPSILON) * self.gain + self.shift


class Parameter(Layer):
    """A variable that does not depend on an input, such as the log_std of a policy.

    Args:
      name: of the variable.
      initial: the initial value.
      kind: "trainable"; "buffer": set to what `Losses.updates` has after each optimizer step of its
        variable group; or "constant": never changed.
    """

    variable: tf.Variable

    def __init__(self, name: str, initial: np.ndarray, kind: str = TRAINABLE):
        super().__init__()
        self._declare("variable", name, initial, kind)

    def __call__(self, like: Values) -> Values:
        """Returns the value: an array if `like` is one, otherwise the variable."""
        return self.arrays["variable"] if isinstance(like, np.ndarray) else self.variable


class Constant:
    """Numbers that do not depend on an input and are not learned; replaces a `Parameter`.

    Args:
      value: the numbers, converted to float32.
    """

    def __init__(self, value: np.ndarray):
        self._value = np.asarray(value, np.float32)

    def __call__(self, like: Values) -> Values:
        """Returns the numbers: an array if `like` is one, otherwise a tensor."""
        return self._value if isinstance(like, np.ndarray) else tf.constant(self._value)
