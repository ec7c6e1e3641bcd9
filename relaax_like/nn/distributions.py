"""Distributions of actions, in TensorFlow; all but `Joint` are also in `numpy_distributions`.

The last axis is one action's parameters; the axes before it are the batch: `[B]` below represents
any batch axes, such as `[T, k]`. `log_prob`, `entropy` and `kl` sum over the components of an
action and return `[B] float32`. Everything compiles with XLA; these three have a gradient with
respect to the parameters, except those of `Deterministic` and of the epsilon-greedy policies.

Actions count from zero and are flat: `action_heads` converts them to and from the wire format.
"""

import abc
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import numpy as np

from relaax_like.nn.numpy_distributions import (
    BOUND_MARGIN,
    LOG_2,
    LOG_2PI,
    QUADRATURE_POINTS,
    QUADRATURE_WEIGHTS,
)
from relaax_like.nn.runtime import tf


class Distribution(abc.ABC):
    """What a policy returns for one action.

    distributions, states = model.policy(inputs, states)
    actions = distributions["action"].sample(generator)
    ...
    log_probs = distributions["action"].log_prob(actions)
    cost = -tf.reduce_mean(log_probs * advantages)
    cost -= entropy_coefficient * tf.reduce_mean(distributions["action"].entropy())
    """

    @abc.abstractmethod
    def sample(self, generator: tf.random.Generator) -> tf.Tensor:
        """Draws one action per row."""

    @abc.abstractmethod
    def mode(self) -> tf.Tensor:
        """Returns the action to choose without exploration."""

    @abc.abstractmethod
    def log_prob(self, actions: tf.Tensor) -> tf.Tensor:
        """Returns log P(action) of each row, or its log density if continuous, `[B] float32`."""

    @abc.abstractmethod
    def entropy(self) -> tf.Tensor:
        """Returns -E[log_prob(action)] of each row in nats, `[B] float32`."""

    @abc.abstractmethod
    def kl(self, other: Self) -> tf.Tensor:
        """Returns KL(self || other) = E_self[log_prob(a) - other.log_prob(a)], `[B] float32`."""

    def get_parameters(self) -> dict[str, tf.Tensor]:
        """Returns the parameters of `mode` by name, such as `logits: [B, n]`; {}: unknown."""
        return {}

    def sample_with_log_prob(self, generator: tf.random.Generator) -> tuple[tf.Tensor, tf.Tensor]:
        """Draws one action per row; returns the actions and their log-probabilities.

        For costs that are differentiated with respect to both. `TanhGaussian` computes the
        log-probability from the draw, before the action is rounded.
        """
        actions = self.sample(generator)
        return actions, self.log_prob(actions)


class Deterministic(Distribution):
    """Always the same action, `mean: [B, ...]`, with one batch axis."""

    def __init__(self, mean: tf.Tensor):
        self.mean = mean

    def get_parameters(self) -> dict[str, tf.Tensor]:
        """See `Distribution`."""
        return {"mean": self.mean}

    def sample(self, generator: tf.random.Generator) -> tf.Tensor:
        """Returns the mean."""
        return self.mean

    def mode(self) -> tf.Tensor:
        """Returns the mean."""
        return self.mean

    def log_prob(self, actions: tf.Tensor) -> tf.Tensor:
        """Returns 0 where the action is the mean and minus infinity elsewhere."""
        same = tf.reduce_all(tf.equal(actions, self.mean), axis=tuple(range(1, len(actions.shape))))
        return tf.where(same, 0.0, -float("inf"))

    def entropy(self) -> tf.Tensor:
        """Returns 0."""
        return tf.zeros(tf.shape(self.mean)[:1])

    def kl(self, other: Self) -> tf.Tensor:
        """Returns 0 where both have the same action and infinity elsewhere."""
        return -other.log_prob(self.mean)


class Joint(Distribution):
    """Several actions at once, independent of each other given the parameters.

    Actions are by name, like `parts`; log-probabilities, entropies and KL divergences are summed.

    Attributes:
      parts: name -> distribution of that action; the argument.
    """

    def __init__(self, parts: Mapping[str, Distribution]):
        self.parts = dict(parts)

    def sample(self, generator: tf.random.Generator) -> dict[str, tf.Tensor]:
        """Draws one action per row and name."""
        return {name: part.sample(generator) for name, part in self.parts.items()}

    def mode(self) -> dict[str, tf.Tensor]:
        """Returns the action of each name to choose without exploration."""
        return {name: part.mode() for name, part in self.parts.items()}

    def log_prob(self, actions: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns the sum of the log-probabilities of all actions; ignores other names."""
        return _add([part.log_prob(actions[name]) for name, part in self.parts.items()])

    def entropy(self) -> tf.Tensor:
        """Returns the sum of the entropies."""
        return _add([part.entropy() for part in self.parts.values()])

    def kl(self, other: Self) -> tf.Tensor:
        """Returns the sum of the KL divergences."""
        return _add([part.kl(other.parts[name]) for name, part in self.parts.items()])


class Categorical(Distribution):
    """One of n actions; `logits: [B, n] float32`, not normalised. Actions are `[B] int64`.

    A logit of minus infinity is an action that cannot be chosen: it is never drawn and adds nothing
    to entropy and KL, nor to their gradients. At least one logit of each row must be finite.
    """

    def __init__(self, logits: tf.Tensor):
        self.logits = logits

    def get_parameters(self) -> dict[str, tf.Tensor]:
        """See `Distribution`."""
        return {"logits": self.logits}

    def sample(self, generator: tf.random.Generator) -> tf.Tensor:
        """Draws with the Gumbel-max trick: argmax(logits - log(-log(u))) (Gumbel 1954)."""
        uniform = generator.uniform(tf.shape(self.logits), minval=1e-30)
        return tf.argmax(self.logits - tf.math.log(-tf.math.log(uniform)), axis=-1)

    def mode(self) -> tf.Tensor:
        """Returns the action of the largest logit."""
        return tf.argmax(self.logits, axis=-1)

    def log_prob(self, actions: tf.Tensor) -> tf.Tensor:
        """Returns logits[action] - logsumexp(logits), `[B] float32`."""
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=actions, logits=self.logits)

    def entropy(self) -> tf.Tensor:
        """Returns -sum_i p_i log p_i."""
        log_probs = tf.nn.log_softmax(self.logits)
        probs = tf.exp(log_probs)
        return -tf.reduce_sum(probs * _zero_where_impossible(log_probs, probs), axis=-1)

    def kl(self, other: Self) -> tf.Tensor:
        """Returns sum_i p_i (log p_i - log q_i); infinite if an action is impossible in other."""
        log_probs = tf.nn.log_softmax(self.logits)
        probs = tf.exp(log_probs)
        ratios = _zero_where_impossible(log_probs, probs) - _zero_where_impossible(
            tf.nn.log_softmax(other.logits), probs
        )
        return tf.reduce_sum(probs * ratios, axis=-1)


class EpsilonGreedy(Categorical):
    """The action of the largest value, or with probability epsilon a uniformly random one.

    Args:
      values: `[B, n] float32`, finite; the value of each action.
      epsilon: `[B]` or `[]`, 0 to 1.
    """

    def __init__(self, values: tf.Tensor, epsilon: tf.Tensor):
        self.values = values
        actions = values.shape[-1]
        epsilon = tf.convert_to_tensor(epsilon, tf.float32)[..., None]
        best = tf.one_hot(tf.argmax(values, axis=-1), actions)
        # A NaN is never the largest value, but its log-probabilities are NaN.
        super().__init__(tf.math.log(epsilon / actions + (1.0 - epsilon) * best) + 0.0 * values)

    def get_parameters(self) -> dict[str, tf.Tensor]:
        """See `Distribution`."""
        return {"values": self.values}

    def mode(self) -> tf.Tensor:
        """Returns the action of the largest value."""
        return tf.argmax(self.values, axis=-1)


class DrawnEpsilonGreedy(EpsilonGreedy):
    """An epsilon-greedy policy with random values; `mode` is the best action of their means.

    `log_prob`, `entropy` and `kl` are those of the epsilon-greedy policy of the means.

    Args:
      means: `[B, n] float32`, finite; the mean value of each action.
      draw: draws values, `[B, n]`, with the generator that is passed to it.
      epsilon: `[B]` or `[]`, 0 to 1.
    """

    def __init__(
        self,
        means: tf.Tensor,
        draw: Callable[[tf.random.Generator], tf.Tensor],
        epsilon: tf.Tensor,
    ):
        super().__init__(means, epsilon)
        self._draw = draw
        self._epsilon = epsilon

    def sample(self, generator: tf.random.Generator) -> tf.Tensor:
        """Draws values, then an action."""
        return self.sample_with_log_prob(generator)[0]

    def sample_with_log_prob(self, generator: tf.random.Generator) -> tuple[tf.Tensor, tf.Tensor]:
        """Draws values, then an action, whose log-probability is the one given these values."""
        return EpsilonGreedy(self._draw(generator), self._epsilon).sample_with_log_prob(generator)


class MultiCategorical(Distribution):
    """Several discrete components at once, independent of each other given the parameters.

    Args:
      logits: `[B, sum(n)] float32`, those of component 0, then of component 1, and so on.
      n: number of choices of each of the m components. Actions are `[B, m] int64`.
    """

    def __init__(self, logits: tf.Tensor, n: Sequence[int]):
        self.logits = logits
        # One Categorical [B, m, max(n)]: choices that a component does not have are impossible.
        batch = [[0, 0]] * (len(logits.shape) - 1)
        padded = [
            tf.pad(part, [*batch, [0, max(n) - size]], constant_values=-math.inf)
            for part, size in zip(tf.split(logits, list(n), axis=-1), n, strict=True)
        ]
        self._components = Categorical(tf.stack(padded, axis=-2))

    def get_parameters(self) -> dict[str, tf.Tensor]:
        """See `Distribution`."""
        return {"logits": self.logits}

    def sample(self, generator: tf.random.Generator) -> tf.Tensor:
        """Draws each component, `[B, m] int64`."""
        return self._components.sample(generator)

    def mode(self) -> tf.Tensor:
        """Returns the most likely choice of each component, `[B, m] int64`."""
        return self._components.mode()

    def log_prob(self, actions: tf.Tensor) -> tf.Tensor:
        """Returns the sum of the components' log-probabilities."""
        return tf.reduce_sum(self._components.log_prob(actions), axis=-1)

    def entropy(self) -> tf.Tensor:
        """Returns the sum of the components' entropies."""
        return tf.reduce_sum(self._components.entropy(), axis=-1)

    def kl(self, other: Self) -> tf.Tensor:
        """Returns the sum of the components' KL divergences."""
        return tf.reduce_sum(self._components.kl(other._components), axis=-1)


class Bernoulli(Distribution):
    """d switches, on with probability sigmoid(logit); `logits: [B, d] float32`, finite.

    Actions are `[B, d] int64`, 0 or 1.
    """

    def __init__(self, logits: tf.Tensor):
        self.logits = logits

    def get_parameters(self) -> dict[str, tf.Tensor]:
        """See `Distribution`."""
        return {"logits": self.logits}

    def sample(self, generator: tf.random.Generator) -> tf.Tensor:
        """Draws each switch: on where a uniform draw is below sigmoid(logit)."""
        uniform = generator.uniform(tf.shape(self.logits))
        return tf.cast(uniform < tf.sigmoid(self.logits), tf.int64)

    def mode(self) -> tf.Tensor:
        """Returns the more likely position of each switch; off if both are equally likely."""
        return tf.cast(self.logits > 0, tf.int64)

    def log_prob(self, actions: tf.Tensor) -> tf.Tensor:
        """Returns sum_i (a_i log p_i + (1 - a_i) log(1 - p_i)), `[B] float32`."""
        signs = 1.0 - 2.0 * tf.cast(actions, tf.float32)
        return -tf.reduce_sum(tf.nn.softplus(signs * self.logits), axis=-1)

    def entropy(self) -> tf.Tensor:
        """Returns -sum_i (p_i log p_i + (1 - p_i) log(1 - p_i))."""
        on, off = tf.sigmoid(self.logits), tf.sigmoid(-self.logits)
        each = on * tf.nn.softplus(-self.logits) + off * tf.nn.softplus(self.logits)
        return tf.reduce_sum(each, axis=-1)

    def kl(self, other: Self) -> tf.Tensor:
        """Returns sum_i (p_i log(p_i / q_i) + (1 - p_i) log((1 - p_i) / (1 - q_i)))."""
        p, q = self.logits, other.logits
        on = tf.sigmoid(p) * (tf.nn.softplus(-q) - tf.nn.softplus(-p))
        off = tf.sigmoid(-p) * (tf.nn.softplus(q) - tf.nn.softplus(p))
        return tf.reduce_sum(on + off, axis=-1)


class DiagonalGaussian(Distribution):
    """Independent normal components.

    Args:
      mean: `[B, d] float32`.
      log_std: logarithm of the standard deviation, `[d]` (the same for all rows) or `[B, d]`.
    """

    def __init__(self, mean: tf.Tensor, log_std: tf.Tensor):
        self.mean = mean
        self.log_std = tf.broadcast_to(log_std, tf.shape(mean))

    def get_parameters(self) -> dict[str, tf.Tensor]:
        """See `Distribution`."""
        return {"mean": self.mean}

    def sample(self, generator: tf.random.Generator) -> tf.Tensor:
        """Draws mean + std * standard normal, `[B, d] float32`, differentiable in mean and std."""
        return self.mean + tf.exp(self.log_std) * generator.normal(tf.shape(self.mean))

    def mode(self) -> tf.Tensor:
        """Returns the mean."""
        return self.mean

    def log_prob(self, actions: tf.Tensor) -> tf.Tensor:
        """Returns -sum_i (((a_i - mean_i) / std_i)^2 / 2 + log std_i + log(2 pi) / 2)."""
        scaled = (actions - self.mean) * tf.exp(-self.log_std)
        return -tf.reduce_sum(0.5 * scaled**2 + self.log_std + 0.5 * LOG_2PI, axis=-1)

    def entropy(self) -> tf.Tensor:
        """Returns sum_i (log std_i + (1 + log(2 pi)) / 2), which can be negative."""
        return tf.reduce_sum(self.log_std + 0.5 * (1.0 + LOG_2PI), axis=-1)

    def kl(self, other: Self) -> tf.Tensor:
        """Returns sum_i (log(s'_i / s_i) + (s_i^2 + (mean_i - mean'_i)^2) / (2 s'_i^2) - 1 / 2).

        s is the standard deviation; s' and mean' are those of `other`.
        """
        log_ratio = 2.0 * (self.log_std - other.log_std)
        shift = (self.mean - other.mean) * tf.exp(-other.log_std)
        # expm1, because the two policies usually hardly differ.
        return 0.5 * tf.reduce_sum(tf.math.expm1(log_ratio) - log_ratio + shift**2, axis=-1)


class ClippedGaussian(DiagonalGaussian):
    """An action with Gaussian noise, clipped to a box, as DDPG and TD3 explore.

    `mode` is the action itself. `log_prob`, `entropy` and `kl` are of the noise before clipping.

    Args:
      mean: the action, `[B, d] float32`, in the box.
      std: standard deviation of the noise, `[d]` or `[B, d]`, more than 0.
      low: finite, scalar or `[d]`.
      high: finite and above low, scalar or `[d]`.
    """

    def __init__(
        self,
        mean: tf.Tensor,
        std: tf.Tensor,
        low: float | np.ndarray = -1.0,
        high: float | np.ndarray = 1.0,
    ):
        super().__init__(mean, tf.math.log(std))
        self._low = np.asarray(low, np.float32)
        self._high = np.asarray(high, np.float32)

    def sample(self, generator: tf.random.Generator) -> tf.Tensor:
        """Draws mean + std * standard normal and clips it, `[B, d] float32`."""
        return tf.clip_by_value(super().sample(generator), self._low, self._high)


class TanhGaussian(Distribution):
    """Normal components squashed into a box: a = low + (high - low) (tanh(u) + 1) / 2.

    `log_prob` computes u from the action's distances to both bounds, which are exact in floating
    point, instead of with the inverse of tanh, which is inexact near the bounds:
    u = (log(a - low) - log(high - a)) / 2. A distance counts as at least `BOUND_MARGIN` of the
    width, so that an action on a bound, which can result from rounding, is very unlikely but not
    impossible.

    Args:
      mean: of u, before squashing, `[B, d] float32`.
      log_std: of u, `[d]` or `[B, d]`.
      low: finite, scalar or `[d]`.
      high: finite and above low, scalar or `[d]`.
    """

    def __init__(
        self,
        mean: tf.Tensor,
        log_std: tf.Tensor,
        low: float | np.ndarray = -1.0,
        high: float | np.ndarray = 1.0,
    ):
        self._base = DiagonalGaussian(mean, log_std)
        self._low = np.asarray(low, np.float32)
        self._high = np.asarray(high, np.float32)
        self._width = self._high - self._low

    def get_parameters(self) -> dict[str, tf.Tensor]:
        """See `Distribution`."""
        return {"mean": self._base.mean}

    def sample(self, generator: tf.random.Generator) -> tf.Tensor:
        """Draws u and squashes it, `[B, d] float32`, differentiable in mean and log_std."""
        return self._squash(self._base.sample(generator))

    def sample_with_log_prob(self, generator: tf.random.Generator) -> tuple[tf.Tensor, tf.Tensor]:
        """Draws u and squashes it; the log-probability is computed from u itself.

        Where tanh(u) is rounded to 1, `log_prob` of the action would be that of another u: with a
        mean of 20 and a deviation of 0.1, -7 000 instead of 40.
        """
        u = self._base.sample(generator)
        log_slopes = 2.0 * (LOG_2 - u - tf.nn.softplus(-2.0 * u)) + np.log(0.5 * self._width)
        log_prob = self._base.log_prob(u) - tf.reduce_sum(log_slopes, axis=-1)
        return self._squash(u), log_prob

    def mode(self) -> tf.Tensor:
        """Returns the squashed mean, which is the median, not the maximum of the density."""
        return self._squash(self._base.mean)

    def log_prob(self, actions: tf.Tensor) -> tf.Tensor:
        """Returns log N(u; mean, std) - sum_i log(da_i / du_i), finite on the bounds.

        da/du = (high - low) / 2 (1 - tanh(u)^2) = 2 (a - low) (high - a) / (high - low). An action
        outside the box counts as one on the nearest bound.
        """
        margin = BOUND_MARGIN * self._width
        above = tf.math.log(tf.clip_by_value(actions - self._low, margin, self._width))
        below = tf.math.log(tf.clip_by_value(self._high - actions, margin, self._width))
        log_slopes = LOG_2 + above + below - np.log(self._width)
        return self._base.log_prob(0.5 * (above - below)) - tf.reduce_sum(log_slopes, axis=-1)

    def entropy(self) -> tf.Tensor:
        """Returns the entropy of u plus sum_i E[log(da_i / du_i)].

        The expectation has no closed form. It is computed as a sum over 20 fixed points of u, so it
        is deterministic and has a smooth gradient; its error is below 2e-4 per component for
        standard deviations up to 2, and below 3e-3 up to 3.
        """
        points = self._base.mean[..., None] + tf.exp(self._base.log_std)[..., None] * (
            QUADRATURE_POINTS
        )
        log_slopes = 2.0 * (LOG_2 - points - tf.nn.softplus(-2.0 * points))
        expected = tf.reduce_sum(log_slopes * QUADRATURE_WEIGHTS, axis=-1)
        expected += np.log(0.5 * self._width)
        return self._base.entropy() + tf.reduce_sum(expected, axis=-1)

    def kl(self, other: Self) -> tf.Tensor:
        """Returns the KL of the two u: squashing both into the same box does not change it."""
        return self._base.kl(other._base)

    def _squash(self, u: tf.Tensor) -> tf.Tensor:
        return squash(u, self._low, self._high)


def squash(u: tf.Tensor, low: np.ndarray, high: np.ndarray) -> tf.Tensor:
    """Returns low + (high - low) (tanh(u) + 1) / 2, in the box, for `u: [..., d] float32`."""
    # Rounding can exceed the box; the sum of large bounds could exceed float32.
    middle, half = 0.5 * low + 0.5 * high, 0.5 * (high - low)
    return tf.clip_by_value(middle + half * tf.tanh(u), low, high)


def _add(terms: Sequence[tf.Tensor]) -> tf.Tensor:
    return functools.reduce(operator.add, terms)


def _zero_where_impossible(log_probs: tf.Tensor, probs: tf.Tensor) -> tf.Tensor:
    """Makes 0 times minus infinity 0, before the product, after which the gradient would be NaN."""
    return tf.where(probs > 0, log_probs, 0.0)
