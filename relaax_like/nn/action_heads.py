"""Action heads: the network outputs for a leaf of the action space, and their distribution.

    outputs = num_parameters(space)
    distribution = make_policy(space, network(inputs))
    actions = distribution.sample(generator)  # stored for learning
    wire_actions = actions_to_wire(space, actions)  # sent to the environment

| space | distribution | parameters | actions of the distribution |
|---|---|---|---|
| Discrete | Categorical | n logits | `[B] int64`, 0 .. n - 1 |
| MultiDiscrete | MultiCategorical | sum(n) logits, component by component | `[B, m] int64` |
| MultiBinary | Bernoulli | d logits | `[B, d] int64` |
| Box | DiagonalGaussian | d means, then d log_stds unless separate | `[B, d] float32` |
| Box, `bounded` | TanhGaussian | the same, before squashing | `[B, d] float32`, in the box |

`make_epsilon_greedy`, `make_drawn_epsilon_greedy` and `make_noisy_policy` are for algorithms that
learn values of actions.

Distributions count from 0 and are flat. On the wire a Discrete action starts at `start`, and every
action has the space's shape and type: see `actions_to_wire`. The distribution's action is stored
and learned from.

Arrays are computed in NumPy, without importing TensorFlow; tensors in TensorFlow.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from relaax_like.nn import distributions
from relaax_like.nn.arrays import Values, in_numpy
from relaax_like.nn.lazy_tensorflow import tf
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.ndarray import DTYPES
from relaax_like.wire.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space


def num_parameters(space: Space, *, bounded: bool = False, separate_log_std: bool = False) -> int:
    """Returns the number of network outputs for a leaf of the action space.

    Args:
      space: the leaf.
      bounded: for a Box: squash actions into it. Otherwise a Gaussian draws any number, and
        `actions_to_wire` clips it to the box.
      separate_log_std: for a Box: log_std is not an output of the network but passed separately,
        as the `log_std` of `make_distribution` (usually a variable, the same in all states).

    Raises:
      InvalidInputError: the leaf has no components, or is a Box of integers or bool, or a `bounded`
        Box whose bounds are missing or, as float32, not ascending or without a finite difference.
    """
    if math.prod(space.shape) == 0:
        raise InvalidInputError(
            f"action space: {type(space).__name__} of shape {list(space.shape)} has no "
            "components; remove it from the action space",
            "shape",
        )
    if isinstance(space, Box):
        _validate_box(space, bounded)
    has_log_std = isinstance(space, Box) and not separate_log_std
    return count_outputs(space) * (2 if has_log_std else 1)


def count_outputs(space: Space) -> int:
    """Returns the number of logits of a leaf, or of means."""
    is_vector = isinstance(space, Box | MultiBinary)
    return math.prod(space.shape) if is_vector else sum(space.sizes)


def compute_means(space: Space, parameters: Any, *, bounded: bool = False) -> Any:
    """Returns the mean action of a leaf; see `PolicyHead.compute_means`.

    Args:
      space: the leaf.
      parameters: of its distribution, `[..., n] float32`, a tensor.
      bounded: as in `num_parameters`.
    """
    if isinstance(space, Box):
        return make_policy(space, parameters, bounded=bounded).mode()
    if isinstance(space, MultiBinary):
        return tf.sigmoid(parameters)
    parts = tf.split(parameters, list(space.sizes), axis=-1)
    return tf.concat([tf.nn.softmax(part) for part in parts], axis=-1)


def make_action_spec(space: Space) -> dict[str, Any]:
    """Returns `shape` and `dtype` of the distribution's actions, for `Model.get_action_specs`."""
    if isinstance(space, Discrete):
        return {"shape": [], "dtype": "int64"}
    dtype = "float32" if isinstance(space, Box) else "int64"
    return {"shape": [math.prod(space.shape)], "dtype": dtype}


def make_policy(
    space: Space, parameters: Values, log_std: Values | None = None, *, bounded: bool = False
) -> distributions.Distribution:
    """Returns the distribution of a leaf's actions: in NumPy for arrays, in TensorFlow for tensors.

    Arrays are not checked, because acting calls it at every step; call `num_parameters` before.

    Args:
      space: the leaf.
      parameters: the network's outputs, `[B, n] float32`, n as `num_parameters` returns it.
      log_std: for a Box, if it is not among the outputs: `[d]` or `[B, d] float32`.
      bounded: as in `num_parameters`.

    Raises:
      InvalidInputError: for tensors: see `num_parameters`; or the last axis of `parameters` has
        another length.
    """
    if not in_numpy(parameters):
        want = num_parameters(space, bounded=bounded, separate_log_std=log_std is not None)
        if parameters.shape[-1] != want:
            raise InvalidInputError(
                f"parameters: last axis of length {parameters.shape[-1]}, expected {want} for a "
                f"{type(space).__name__} of shape {list(space.shape)}; build the network with "
                "num_parameters(...) outputs"
            )
    if isinstance(space, Discrete):
        return distributions.Categorical(parameters)
    if isinstance(space, MultiDiscrete):
        return distributions.MultiCategorical(parameters, space.n)
    if isinstance(space, MultiBinary):
        return distributions.Bernoulli(parameters)
    assert isinstance(space, Box)
    if log_std is None:
        half = parameters.shape[-1] // 2
        parameters, log_std = parameters[..., :half], parameters[..., half:]
    if not bounded:
        return distributions.DiagonalGaussian(parameters, log_std)
    return distributions.TanhGaussian(parameters, log_std, *_get_bounds(space))


def make_epsilon_greedy(values: Values, epsilon: Values) -> distributions.EpsilonGreedy:
    """Returns the epsilon-greedy policy: a random action with probability epsilon, else the best.

    Args:
      values: `[..., n] float32`, the value of each action; an array or a tensor.
      epsilon: `[...]` or `[]`, 0 to 1.
    """
    return distributions.EpsilonGreedy(values, epsilon)


def make_drawn_epsilon_greedy(means: Any, draw: Callable[[Any], Any], epsilon: Any) -> Any:
    """Returns an epsilon-greedy policy whose values are random, as those of a noisy network.

    Its `mode` is the best action of the means.

    Args:
      means: `[..., n] float32`, the mean value of each action; an array or a tensor.
      draw: draws values, `[..., n]`, with the generator that is passed to it: a NumPy generator for
        arrays, a TensorFlow generator for tensors.
      epsilon: `[...]` or `[]`, 0 to 1.
    """
    return distributions.DrawnEpsilonGreedy(means, draw, epsilon)


def squash_to_box(space: Box, outputs: Any) -> Any:
    """Returns low + (high - low) (tanh(outputs) + 1) / 2, in the box.

    Args:
      space: a Box with finite bounds.
      outputs: `[..., d] float32`; an array or a tensor.
    """
    return distributions.squash(outputs, *_get_bounds(space))


def make_noisy_policy(space: Box, actions: Any, noise: Any) -> Any:
    """Returns the policy that adds Gaussian noise to actions and clips the sum to the box.

    Its `mode` is the action without noise.

    Args:
      space: a Box with finite bounds.
      actions: `[B, d] float32`, in the box; an array or a tensor.
      noise: `[B]`, standard deviations of the noise, of actions scaled to [-1, 1]; more than 0.
    """
    low, high = _get_bounds(space)
    std = noise[..., None] * (0.5 * (high - low))
    return distributions.ClippedGaussian(actions, std, low, high)


def actions_to_wire(space: Space, actions: np.ndarray) -> np.ndarray:
    """Converts a distribution's actions to those of the environment.

    Discrete actions start at `start`; those of a Box are clipped to it.

    Args:
      space: the leaf.
      actions: `[B]` (Discrete) or `[B, d]`, as drawn from the distribution.

    Returns:
      `[B, *space.shape]` of the space's dtype.
    """
    dtype = DTYPES[space.dtype]
    if isinstance(space, Discrete):
        return (actions + space.start).astype(dtype, copy=False)  # the sum is new
    actions = actions.reshape(len(actions), *space.shape).astype(dtype)
    if isinstance(space, Box):
        # After the cast: a float32 action can exceed a bound in float64 by a rounding error.
        if space.low is not None:
            np.maximum(actions, space.low, out=actions, casting="same_kind")
        if space.high is not None:
            np.minimum(actions, space.high, out=actions, casting="same_kind")
    return actions


def fit_actions(space: Space, actions: Any) -> Any:
    """Gives actions the space's shape and bounds, in the distribution's dtype, counted from 0.

    Args:
      space: the leaf.
      actions: `[B]` (Discrete) or `[B, d]`, arrays or tensors.

    Raises:
      InvalidInputError: actions of such a space cannot be exported.
    """
    if isinstance(space, Discrete):
        return actions
    if not isinstance(space, Box | MultiDiscrete | MultiBinary):
        raise InvalidInputError(
            f"action space: actions of {space.describe()} cannot be exported yet", "action"
        )
    module: Any = np if isinstance(actions, np.ndarray) else tf
    actions = module.reshape(actions, [-1, *space.shape])
    if isinstance(space, Box):
        for bound, limit in ((space.low, module.maximum), (space.high, module.minimum)):
            if bound is not None and np.isfinite(bound).any():
                with np.errstate(over="ignore"):
                    actions = limit(actions, np.nan_to_num(bound.astype(np.float32)))
    return actions


def actions_from_wire(space: Space, actions: np.ndarray) -> np.ndarray:
    """Converts an environment's actions to those of a distribution; see `actions_to_wire`.

    Args:
      space: the leaf.
      actions: `[B, *space.shape]` of the space's dtype.

    Returns:
      `[B]` (Discrete) or `[B, d]`, int64 or float32.
    """
    if isinstance(space, Discrete):
        return actions.astype(np.int64) - space.start
    dtype = np.float32 if isinstance(space, Box) else np.int64
    return actions.reshape(len(actions), -1).astype(dtype)


def _get_bounds(space: Box) -> tuple[np.ndarray, np.ndarray]:
    assert space.low is not None
    assert space.high is not None
    return space.low.reshape(-1), space.high.reshape(-1)


def _validate_box(space: Box, bounded: bool) -> None:
    shape = list(space.shape)
    if np.dtype(DTYPES[space.dtype]).kind not in "fV":
        raise InvalidInputError(
            f"action space: Box of {space.dtype}, expected a floating-point dtype; declare "
            "integers as Discrete or MultiDiscrete, and bool as MultiBinary",
            "dtype",
        )
    if not bounded:
        return
    if space.low is None or space.high is None:
        raise InvalidInputError(
            f"action space: Box of shape {shape} cannot be squashed, because "
            f"{_name_missing(space)} missing; set both in the space, or pass bounded=False",
            "low",
        )
    with np.errstate(over="ignore"):
        width = space.high.astype(np.float32) - space.low.astype(np.float32)
    wrong = np.flatnonzero(~(np.isfinite(width) & (width > 0)))
    if len(wrong):
        low, high = space.low.ravel()[wrong[0]], space.high.ravel()[wrong[0]]
        raise InvalidInputError(
            f"action space: Box of shape {shape} with low {low} and high {high} in component "
            f"{wrong[0]}: expected low < high in every component, and a finite difference, as "
            "float32; correct the bounds, or pass bounded=False",
            "low",
        )


def _name_missing(space: Box) -> str:
    bounds = {"low": space.low, "high": space.high}
    missing = [name for name, bound in bounds.items() if bound is None]
    return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'}"
