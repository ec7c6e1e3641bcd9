"""Batch: what an algorithm learns from. Losses: what it returns."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from relaax_like.nn.batch_norm import compute_moments, spread_shares
from relaax_like.nn.lazy_tensorflow import tf
from relaax_like.wire.errors import ConfigError

# By name: a tensor each.
Tensors = Mapping[str, Any]


class Reduction(Protocol):
    """Makes sums over the rows of all learners from sums over the rows of one."""

    def total(self, local: tf.Tensor) -> tf.Tensor:
        """Returns the sum over all learners of a number, `[]`."""

    def count(self, valid: tf.Tensor) -> tf.Tensor:
        """Returns sum(valid) over all learners."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Steps to learn from, as tensors: rollouts `[T, B, ...]`, or single steps `[B, ...]`.

    `[...]` below stands for the leading axes, `[T, B]` or `[B]`. Networks and distributions take
    both forms, the functions of `relaax_like.nn.returns` only rollouts.

    Attributes:
      inputs: observations x_t by name, `[..., *shape]`.
      next_inputs: observations after the action, or after the last action whose reward is in
        `returns`; where an episode was truncated, its final one; after a termination, any, because
        its value does not count.
      actions: by name.
      rewards: by name, as in the model's reward specs, `[..., *shape]`.
      returns: `[...]`, the sum of the discounted rewards of n steps, fewer near the end of an
        episode; with n = 1 the reward itself. None if there are several rewards, or one of several
        numbers: read `rewards`.
      discount: `[...]`, the factor of the value of `next_inputs`: gamma to the power of the number
        of summed rewards, and 0 after a termination (not after a truncation).
      continues: `[...]`, 1 where the next row in time is of the same episode, 0 after any end; cuts
        recursions such as those of advantages. For single steps of a plan `Replay`, 1 where
        `discount` is not 0, so also after a truncation.
      valid: `[...]`, 1, or 0 for rows that do not count: padding, and steps that are not known.
      weights: `[...]`, importance of each row; 1 unless a replay table sets another.
      log_prob: `[...]`, of the actions under the policy that acted; None if an agent with its own
        `CompiledAlgorithm` does not pass it.
      memory: the network's memory before the first step, or before each single step, name ->
        `[B, size]`; {} without memory.
      next_memory: the memory after single steps, name -> `[B, size]`, if an agent with its own
        `CompiledAlgorithm` provides it; otherwise {}.
      begins: `[T, B] bool`, whether an episode begins at t, so that the memory before it is empty;
        False at the first step, before which it is `memory`. None for single steps.
      next_actions: actions at t + 1, by name; {} unless the plan has `next_actions`, or an agent
        with its own `CompiledAlgorithm` passes them.
      extras: what `prepare` returned, and what a data handler, or such an agent, added.
      reduction: if several learners each have some of the rows (combine.method: sync), makes
        `sum`, `mean` and `normalize` reduce over the rows of all; None: these rows are all.
    """

    inputs: Tensors
    next_inputs: Tensors
    actions: Tensors
    rewards: Tensors
    returns: tf.Tensor
    discount: tf.Tensor
    continues: tf.Tensor
    valid: tf.Tensor
    weights: tf.Tensor
    log_prob: tf.Tensor
    memory: Tensors = field(default_factory=dict)
    next_memory: Tensors = field(default_factory=dict)
    begins: tf.Tensor | None = None
    next_actions: Tensors = field(default_factory=dict)
    extras: Tensors = field(default_factory=dict)
    reduction: Reduction | None = field(default=None, repr=False)

    def sum(self, x: tf.Tensor) -> tf.Tensor:
        """Returns sum(valid * weights * x), a scalar.

        Args:
          x: `[...]`.
        """
        return self._total(self.valid * self.weights * x)

    def mean(self, x: tf.Tensor) -> tf.Tensor:
        """Returns sum(valid * weights * x) / sum(valid), a scalar; 0 if no row is valid.

        Args:
          x: `[...]`.
        """
        return self.sum(x) / self._count()

    def moments(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns mean and variance of each feature, for example to normalise a layer.

            mean = sum(valid * weights * x) / sum(valid * weights)

        The variance is the same mean of (x - mean)^2. Both are 0 if nothing counts.

        Args:
          x: `[..., *axes, n]`; the sums are over all axes but the last one. Or `[...]`, numbers
            without features.

        Returns:
          `[n]` each; `[]` without features.

        Raises:
          ConfigError: see `find_shares`.
        """
        if len(x.shape) == len(self.valid.shape):
            mean, variance = self.moments(x[..., None])
            return mean[0], variance[0]
        return compute_moments(x, spread_shares(self.find_shares(), x))

    def find_shares(self) -> tf.Tensor:
        """Returns what each row counts in a mean, `[...]`: valid * weights / sum(valid * weights).

        0 if nothing counts.

        Raises:
          ConfigError: several learners share the batch.
        """
        if self.reduction is not None:
            raise ConfigError(
                "learn calls batch.moments or batch.find_shares, which several learners that share "
                "a batch (relaax-parameter-server.combine.method: sync) do not compute together; "
                "use batch.sum, or another method, such as fifo"
            )
        counted = self.valid * self.weights
        return tf.math.divide_no_nan(counted, tf.reduce_sum(counted))

    def normalize(self, x: tf.Tensor) -> tf.Tensor:
        """Shifts and scales valid rows of `x`, `[...]`, to mean 0 and deviation 1; others are 0."""
        rows = self._count()
        if self.reduction is not None:
            return self._normalize_jointly(x, rows)
        x = (x - self._total(self.valid * x) / rows) * self.valid
        return x / (tf.sqrt(self._total(self.valid * x * x) / rows) + 1e-8)

    def _normalize_jointly(self, x: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Normalises with independent sums, so that learners exchange them only once.

        The variance is the mean of squares less the square of the mean, in double precision.
        """
        wide = tf.cast(self.valid * x, tf.float64)
        mean = self._total(wide) / tf.cast(rows, tf.float64)
        square = self._total(wide * wide) / tf.cast(rows, tf.float64)
        deviation = tf.sqrt(tf.maximum(square - mean * mean, 0.0))
        x = (x - tf.cast(mean, tf.float32)) * self.valid
        return x / (tf.cast(deviation, tf.float32) + 1e-8)

    def _count(self) -> tf.Tensor:
        """Returns sum(valid), but 1 if no row is valid: a mean over no rows is 0."""
        if self.reduction is not None:
            return tf.maximum(self.reduction.count(self.valid), 1.0)
        return tf.maximum(tf.reduce_sum(self.valid), 1.0)

    def _total(self, x: tf.Tensor) -> tf.Tensor:
        local = tf.reduce_sum(x)
        return local if self.reduction is None else self.reduction.total(local)


@dataclass(frozen=True)
class Losses:
    """What `Algorithm.learn` returns.

    Attributes:
      costs: variable group -> scalar that is minimised only by the group's variables.
      rows: per-row results by name, `[...]` like the batch, such as TD errors; they are passed to
        the data handler. `priority` also becomes the priorities in a replay table.
      metrics: scalars by name; they are recorded and passed to `Algorithm.stop`, and no gradient
        flows from them. Those in a dict under the name of a variable group are computed in the
        group's phase, all others in the first one: best where the cost has the same parts.
      updates: buffer -> new value, which it gets with the optimizer step of its variable group.
        Each buffer of a group that is not frozen needs one.
    """

    costs: Mapping[str, tf.Tensor]
    rows: Tensors = field(default_factory=dict)
    metrics: Tensors = field(default_factory=dict)
    updates: Tensors = field(default_factory=dict)

    def list_metrics(self, groups: Collection[str] | None) -> dict[str, tf.Tensor]:
        """Returns the metrics by name, of groups only those of these; None: of all."""
        listed: dict[str, tf.Tensor] = {}
        for name, metric in self.metrics.items():
            if not isinstance(metric, Mapping):
                listed[name] = metric
            elif groups is None or name in groups:
                listed.update(metric)
        return listed
