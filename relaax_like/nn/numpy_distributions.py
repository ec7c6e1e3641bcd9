"""Distributions of actions in NumPy, for acting: those of `distributions`, without TensorFlow.

All but `Joint` are here, with the same names, parameters and results (the tests allow differences
of 1e-5), and the same layout: the last axis is one action's parameters, the axes before it are the
batch, `[B]` below.
Parameters are float32. Draws come from a `np.random.Generator` and differ from TensorFlow's.
"""

import abc
import functools
import math
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

LOG_2 = math.log(2.0)
LOG_2PI = math.log(2.0 * math.pi)

# Minimum distance of an action to a bound, relative to the box's width; |u| is then at most 8.
BOUND_MARGIN = 2.0**-23

# E[f(z)] for a standard normal z is about sum(f(points) * weights) for a smooth f: the trapezoidal
# rule, which converges faster here than Gauss-Hermite (poles of log(1 - tanh^2) at +-i pi/2).
QUADRATURE_POINTS = np.linspace(-5.0, 5.0, 20, dtype=np.float32)
QUADRATURE_WEIGHTS = np.exp(-0.5 * QUADRATURE_POINTS**2)
QUADRATURE_WEIGHTS /= QUADRATURE_WEIGHTS.sum()


class Distribution(abc.ABC):
    """What a policy returns for one action.

    distribution = Categorical(logits)  # [B, n]
    actions, log_probs = distribution.sample_with_log_prob(rng)
    """

    @abc.abstractmethod
    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Draws one action per row."""

    @abc.abstractmethod
    def mode(self) -> np.ndarray:
        """Returns the action to choose without exploration."""

    @abc.abstractmethod
    def log_prob(self, actions: np.ndarray) -> np.ndarray:
        """Returns log P(action) of each row, or its log density if continuous, `[B] float32`."""

    @abc.abstractmethod
    def entropy(self) -> np.ndarray:
        """Returns -E[log_prob(action)] of each row in nats, `[B] float32`."""

    @abc.abstractmethod
    def kl(self, other: Self) -> np.ndarray:
        """Returns KL(self || other) = E_self[log_prob(a) - other.log_prob(a)], `[B] float32`."""

    def get_parameters(self) -> dict[str, np.ndarray]:
        """Returns the parameters of `mode` by name, such as `logits: [B, n]`; {}: unknown."""
        return {}

    def sample_with_log_prob(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draws one action per row; returns the actions and their log-probabilities.

        The log-probability is that of the action as stored, so the learner computes the same.
        """
        actions = self.sample(rng)
        return actions, self.log_prob(actions)


class Deterministic(Distribution):
    """Always the same action, `mean: [B, ...]`, with one batch axis."""

    def __init__(self, mean: np.ndarray):
        self.mean = mean

    def get_parameters(self) -> dict[str, np.ndarray]:
        """See `Distribution`."""
        return {"mean": self.mean}

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Returns the mean."""
        return self.mean

    def mode(self) -> np.ndarray:
        """Returns the mean."""
        return self.mean

    def log_prob(self, actions: np.ndarray) -> np.ndarray:
        """Returns 0 where the action is the mean and minus infinity elsewhere."""
        same = (actions == self.mean).reshape(len(self.mean), -1).all(axis=1)
        return np.where(same, np.float32(0.0), np.float32(-np.inf))

    def entropy(self) -> np.ndarray:
        """Returns 0."""
        return np.zeros(len(self.mean), np.float32)

    def kl(self, other: Self) -> np.ndarray:
        """Returns 0 where both have the same action and infinity elsewhere."""
        return -other.log_prob(self.mean)


class Categorical(Distribution):
    """One of n actions; `logits: [B, n] float32`, not normalised. Actions are `[B] int64`.

    A logit of minus infinity is an action that cannot be chosen: it is never drawn and adds nothing
    to entropy and KL. At least one logit of each row must be finite.
    """

    def __init__(self, logits: np.ndarray):
        self.logits = logits

    def get_parameters(self) -> dict[str, np.ndarray]:
        """See `Distribution`."""
        return {"logits": self.logits}

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Draws with the Gumbel-max trick: argmax(logits - log(e)), e exponential (Gumbel 1954)."""
        noise = rng.standard_exponential(self.logits.shape, np.float32)
        # One draw in 16 million is exactly 0, with which any action would be chosen.
        noise += 2.0**-24
        return (self.logits - np.log(noise, out=noise)).argmax(axis=-1)

    def sample_with_log_prob(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draws by inverting the cumulative probabilities, for logits `[B, n]`.

        Action and log-probability need the same exponentials, which are computed only once.
        """
        logits = self.logits
        if logits.ndim != 2:
            return super().sample_with_log_prob(rng)
        weights = np.exp(logits - np.maximum.reduce(logits, axis=-1, keepdims=True))
        sums = np.add.accumulate(weights, axis=-1, dtype=np.float64)
        totals = sums[:, -1:]
        actions = (sums > rng.random(totals.shape) * totals).argmax(axis=-1)
        chosen = weights[np.arange(len(actions)), actions]
        return actions, np.log(chosen / totals[:, 0]).astype(np.float32)

    def mode(self) -> np.ndarray:
        """Returns the action of the largest logit."""
        return self.logits.argmax(axis=-1)

    def log_prob(self, actions: np.ndarray) -> np.ndarray:
        """Returns logits[action] - logsumexp(logits), `[B] float32`."""
        logits = self.logits
        first = np.arange(0, logits.size, logits.shape[-1]).reshape(logits.shape[:-1])
        # A third of the time of take_along_axis at small batches.
        chosen = logits.reshape(-1).take(first + actions)
        largest = np.maximum.reduce(logits, axis=-1)
        sums = np.add.reduce(np.exp(logits - largest[..., None]), axis=-1)
        return chosen - largest - np.log(sums)

    def entropy(self) -> np.ndarray:
        """Returns -sum_i p_i log p_i."""
        log_probs = _log_softmax(self.logits)
        probs = np.exp(log_probs)
        return -(probs * np.where(probs > 0, log_probs, 0)).sum(axis=-1)

    def kl(self, other: Self) -> np.ndarray:
        """Returns sum_i p_i (log p_i - log q_i); infinite if an action is impossible in other."""
        log_probs, other_log_probs = _log_softmax(self.logits), _log_softmax(other.logits)
        probs = np.exp(log_probs)
        ratios = np.where(probs > 0, log_probs, 0) - np.where(probs > 0, other_log_probs, 0)
        return (probs * ratios).sum(axis=-1)


class EpsilonGreedy(Categorical):
    """The action of the largest value, or with probability epsilon a uniformly random one.

    Args:
      values: `[B, n] float32`, finite; the value of each action.
      epsilon: `[B]` or `[]`, 0 to 1.
    """

    def __init__(self, values: np.ndarray, epsilon: np.ndarray | float):
        self.values = values
        actions = values.shape[-1]
        epsilon = np.asarray(epsilon, np.float32)[..., None]
        best = values.argmax(axis=-1)[..., None] == np.arange(actions)
        with np.errstate(divide="ignore"):  # an action that cannot be chosen
            logits = np.log(epsilon / actions + (1 - epsilon) * best)
        # A NaN is never the largest value, but its log-probabilities are NaN.
        super().__init__((logits + 0.0 * values).astype(np.float32))

    def get_parameters(self) -> dict[str, np.ndarray]:
        """See `Distribution`."""
        return {"values": self.values}

    def mode(self) -> np.ndarray:
        """Returns the action of the largest value."""
        return self.values.argmax(axis=-1)


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
        means: np.ndarray,
        draw: Callable[[np.random.Generator], np.ndarray],
        epsilon: np.ndarray | float,
    ):
        super().__init__(means, epsilon)
        self._draw = draw
        self._epsilon = epsilon

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Draws values, then an action."""
        return self.sample_with_log_prob(rng)[0]

    def sample_with_log_prob(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draws values, then an action, whose log-probability is the one given these values."""
        return EpsilonGreedy(self._draw(rng), self._epsilon).sample_with_log_prob(rng)


class MultiCategorical(Distribution):
    """Several discrete components at once, independent of each other given the parameters.

    Args:
      logits: `[B, sum(n)] float32`, those of component 0, then of component 1, and so on.
      n: number of choices of each of the m components. Actions are `[B, m] int64`.
    """

    def __init__(self, logits: np.ndarray, n: Sequence[int]):
        self.logits = logits
        # One Categorical [B, m, max(n)]: choices that a component does not have are impossible.
        exists = _make_mask(tuple(n))
        padded = np.full((*logits.shape[:-1], *exists.shape), -np.inf, np.float32)
        padded[..., exists] = logits
        self._components = Categorical(padded)

    def get_parameters(self) -> dict[str, np.ndarray]:
        """See `Distribution`."""
        return {"logits": self.logits}

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Draws each component, `[B, m] int64`."""
        return self._components.sample(rng)

    def mode(self) -> np.ndarray:
        """Returns the most likely choice of each component, `[B, m] int64`."""
        return self._components.mode()

    def log_prob(self, actions: np.ndarray) -> np.ndarray:
        """Returns the sum of the components' log-probabilities."""
        return self._components.log_prob(actions).sum(axis=-1)

    def entropy(self) -> np.ndarray:
        """Returns the sum of the components' entropies."""
        return self._components.entropy().sum(axis=-1)

    def kl(self, other: Self) -> np.ndarray:
        """Returns the sum of the components' KL divergences."""
        return self._components.kl(other._components).sum(axis=-1)


class Bernoulli(Distribution):
    """d switches, on with probability sigmoid(logit); `logits: [B, d] float32`, finite.

    Actions are `[B, d] int64`, 0 or 1.
    """

    def __init__(self, logits: np.ndarray):
        self.logits = logits

    def get_parameters(self) -> dict[str, np.ndarray]:
        """See `Distribution`."""
        return {"logits": self.logits}

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Draws each switch: on where a uniform draw is below sigmoid(logit)."""
        return (rng.random(self.logits.shape, np.float32) < _sigmoid(self.logits)).astype(np.int64)

    def mode(self) -> np.ndarray:
        """Returns the more likely position of each switch; off if both are equally likely."""
        return (self.logits > 0).astype(np.int64)

    def log_prob(self, actions: np.ndarray) -> np.ndarray:
        """Returns sum_i (a_i log p_i + (1 - a_i) log(1 - p_i)), `[B] float32`."""
        signs = 1 - 2 * actions.astype(np.float32)
        return -np.add.reduce(_softplus(signs * self.logits), axis=-1)

    def entropy(self) -> np.ndarray:
        """Returns -sum_i (p_i log p_i + (1 - p_i) log(1 - p_i))."""
        logits = self.logits
        each = _sigmoid(logits) * _softplus(-logits) + _sigmoid(-logits) * _softplus(logits)
        return each.sum(axis=-1)

    def kl(self, other: Self) -> np.ndarray:
        """Returns sum_i (p_i log(p_i / q_i) + (1 - p_i) log((1 - p_i) / (1 - q_i)))."""
        p, q = self.logits, other.logits
        on = _sigmoid(p) * (_softplus(-q) - _softplus(-p))
        off = _sigmoid(-p) * (_softplus(q) - _softplus(p))
        return (on + off).sum(axis=-1)


class DiagonalGaussian(Distribution):
    """Independent normal components.

    Args:
      mean: `[B, d] float32`.
      log_std: logarithm of the standard deviation, `[d]` (the same for all rows) or `[B, d]`.
    """

    def __init__(self, mean: np.ndarray, log_std: np.ndarray):
        self.mean = mean
        self.log_std = log_std

    def get_parameters(self) -> dict[str, np.ndarray]:
        """See `Distribution`."""
        return {"mean": self.mean}

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Draws mean + std * standard normal, `[B, d] float32`."""
        noise = rng.standard_normal(self.mean.shape, np.float32)
        noise *= np.exp(self.log_std)
        noise += self.mean
        return noise

    def mode(self) -> np.ndarray:
        """Returns the mean."""
        return self.mean

    def log_prob(self, actions: np.ndarray) -> np.ndarray:
        """Returns -sum_i (((a_i - mean_i) / std_i)^2 / 2 + log std_i + log(2 pi) / 2)."""
        scaled = (actions - self.mean) * np.exp(-self.log_std)
        scaled *= scaled
        scaled *= 0.5
        scaled += self.log_std
        return -0.5 * LOG_2PI * scaled.shape[-1] - np.add.reduce(scaled, axis=-1)

    def entropy(self) -> np.ndarray:
        """Returns sum_i (log std_i + (1 + log(2 pi)) / 2), which can be negative."""
        each = np.broadcast_to(self.log_std, self.mean.shape) + 0.5 * (1 + LOG_2PI)
        return each.sum(axis=-1)

    def kl(self, other: Self) -> np.ndarray:
        """Returns sum_i (log(s'_i / s_i) + (s_i^2 + (mean_i - mean'_i)^2) / (2 s'_i^2) - 1 / 2).

        s is the standard deviation; s' and mean' are those of `other`.
        """
        log_ratio = 2 * (self.log_std - other.log_std)
        shift = (self.mean - other.mean) * np.exp(-other.log_std)
        return 0.5 * (np.expm1(log_ratio) - log_ratio + shift**2).sum(axis=-1)


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
        mean: np.ndarray,
        std: np.ndarray,
        low: float | np.ndarray = -1.0,
        high: float | np.ndarray = 1.0,
    ):
        super().__init__(mean, np.log(std))
        self._low = np.asarray(low, np.float32)
        self._high = np.asarray(high, np.float32)

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Draws mean + std * standard normal and clips it, `[B, d] float32`."""
        return _clip(super().sample(rng), self._low, self._high)


class TanhGaussian(Distribution):
    """Normal components squashed into a box: a = low + (high - low) (tanh(u) + 1) / 2.

    See `distributions.TanhGaussian` for why `log_prob` is exact near the bounds.

    Args:
      mean: of u, before squashing, `[B, d] float32`.
      log_std: of u, `[d]` or `[B, d]`.
      low: finite, scalar or `[d]`.
      high: finite and above low, scalar or `[d]`.
    """

    def __init__(
        self,
        mean: np.ndarray,
        log_std: np.ndarray,
        low: float | np.ndarray = -1.0,
        high: float | np.ndarray = 1.0,
    ):
        self._base = DiagonalGaussian(mean, log_std)
        self._low = np.asarray(low, np.float32)
        self._high = np.asarray(high, np.float32)
        self._width = self._high - self._low

    def get_parameters(self) -> dict[str, np.ndarray]:
        """See `Distribution`."""
        return {"mean": self._base.mean}

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Draws u and squashes it, `[B, d] float32`."""
        return self._squash(self._base.sample(rng))

    def mode(self) -> np.ndarray:
        """Returns the squashed mean, which is the median, not the maximum of the density."""
        return self._squash(self._base.mean)

    def log_prob(self, actions: np.ndarray) -> np.ndarray:
        """Returns log N(u; mean, std) - sum_i log(da_i / du_i), finite on the bounds.

        da/du = (high - low) / 2 (1 - tanh(u)^2) = 2 (a - low) (high - a) / (high - low). An action
        outside the box counts as one on the nearest bound.
        """
        width = self._width
        margin = width * BOUND_MARGIN
        above = np.log(_clip(actions - self._low, margin, width))
        below = np.log(_clip(self._high - actions, margin, width))
        log_slopes = above + below - (np.log(width) - LOG_2)
        return self._base.log_prob(0.5 * (above - below)) - np.add.reduce(log_slopes, axis=-1)

    def entropy(self) -> np.ndarray:
        """Returns the entropy of u plus sum_i E[log(da_i / du_i)], the latter over fixed points.

        The error is below 2e-4 per component for standard deviations up to 2, and below 3e-3 up
        to 3.
        """
        mean, std = self._base.mean[..., None], np.exp(self._base.log_std)[..., None]
        points = mean + std * QUADRATURE_POINTS
        log_slopes = 2 * (LOG_2 - points - _softplus(-2 * points))
        expected = (log_slopes * QUADRATURE_WEIGHTS).sum(axis=-1) + np.log(self._width / 2)
        return self._base.entropy() + expected.sum(axis=-1)

    def kl(self, other: Self) -> np.ndarray:
        """Returns the KL of the two u: squashing both into the same box does not change it."""
        return self._base.kl(other._base)

    def _squash(self, u: np.ndarray) -> np.ndarray:
        return squash(u, self._low, self._high)


def squash(u: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Returns low + (high - low) (tanh(u) + 1) / 2, in the box, for `u: [..., d] float32`."""
    # Rounding can exceed the box; the sum of large bounds could exceed float32.
    middle, half = 0.5 * low + 0.5 * high, 0.5 * (high - low)
    return _clip(middle + half * np.tanh(u), low, high)


@functools.lru_cache(maxsize=64)
def _make_mask(n: tuple[int, ...]) -> np.ndarray:
    """Returns which of the `[m, max(n)]` choices exist."""
    return np.arange(max(n)) < np.array(n)[:, None]


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    # With tanh, because exp(-x) overflows.
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, np.float32(0))


def _clip(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    # Half the time of np.clip for small batches.
    return np.minimum(np.maximum(x, low), high)
