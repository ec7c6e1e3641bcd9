"""Distributions of actions, in TensorFlow. The first axes are a batch."""

import abc

import tensorflow as tf

from relaax_like.nn import runtime  # noqa: F401 - settings, before anything is computed


class Distribution(abc.ABC):
    """What a policy returns for one action."""

    @abc.abstractmethod
    def sample(self, generator: tf.random.Generator) -> tf.Tensor:
        """Draws one action per row."""

    @abc.abstractmethod
    def mode(self) -> tf.Tensor:
        """Returns the most likely action of each row."""

    @abc.abstractmethod
    def log_prob(self, actions: tf.Tensor) -> tf.Tensor:
        """Returns log P(action) of each row, `[B] float32`."""


class Deterministic(Distribution):
    """All weight on one action, `mean: [B, ...]`: `sample()` is the mean."""

    def __init__(self, mean: tf.Tensor):
        self.mean = mean

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


class Categorical(Distribution):
    """One of n actions; `logits: [B, n] float32`, not normalised. Actions are `[B] int64`."""

    def __init__(self, logits: tf.Tensor):
        self.logits = logits

    def sample(self, generator: tf.random.Generator) -> tf.Tensor:
        """Draws by the Gumbel maximum: argmax(logits - log(-log(u))) (Gumbel 1954)."""
        uniform = generator.uniform(tf.shape(self.logits), minval=1e-30)
        return tf.argmax(self.logits - tf.math.log(-tf.math.log(uniform)), axis=-1)

    def mode(self) -> tf.Tensor:
        """Returns the action of the largest logit."""
        return tf.argmax(self.logits, axis=-1)

    def log_prob(self, actions: tf.Tensor) -> tf.Tensor:
        """Returns logits[action] - logsumexp(logits), `[B] float32`."""
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=actions, logits=self.logits)
