"""DQN: deep Q-learning with a replay table and a target network."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from relaax_like.algorithm import Algorithm, Batch, Losses

from .config import Config
from .model import DQNModel

logger = logging.getLogger(__name__)
# Metrics of a categorical distribution: the share of targets more than one atom outside of it.
_OUTSIDE, _SMALLEST, _LARGEST = "outside v_min to v_max", "smallest target", "largest target"
# A larger share of the targets of so many updates is worth a line.
_MAX_SHARE, _REVIEWED_UPDATES = 0.01, 200


class DQN(Algorithm):
    """Deep Q-learning, with the options of `Config`.

    Mnih et al. 2015 (https://doi.org/10.1038/nature14236).
    """

    autograph = False
    config: Config
    model: DQNModel

    def __init__(self, model: DQNModel, config: Config, seed: int) -> None:
        super().__init__(model, config, seed)
        self._reviewed: list[list[float]] = []  # updates, share outside, smallest, largest
        self._has_warned = False

    def learn(self, batch: Batch) -> Losses:
        """Returns the cost of a minibatch of steps, or of sequences.

            delta = R + discount Q'(x', a') - Q(x, a),   a' = argmax_a Q(x', a), a legal in x'

        R is the sum of n discounted rewards, Q' the target. a' is chosen by Q (double DQN: van
        Hasselt et al. 2016, equation 4, https://arxiv.org/abs/1509.06461), or else by Q'. The cost
        is the Huber loss of delta, averaged over the rows. With `distribution`, the target and
        Q(x, a) are distributions, and the cost is their cross-entropy (categorical) or the quantile
        Huber loss (quantile). Noisy networks draw different noise for Q'(x', .), Q(x', .) and
        Q(x, .). With a memory, both networks read the sequence from its first step, including the
        burn-in.
        """
        online, target = self.model.online, self.model.target.module
        random = self.random if self.config.noisy else None
        features, after = online.encode(batch.inputs, batch.memory, batch.begins)
        target_after = after
        if batch.memory:
            _, target_after = target.encode(batch.inputs, batch.memory, batch.begins)
        next_features, _ = target.encode(batch.next_inputs, target_after)
        next_atoms = target.compute_atoms(next_features, random)
        chosen_by = next_atoms
        if self.config.double:
            chosen_by = online.compute_atoms(online.encode(batch.next_inputs, after)[0], random)
        best = tf.argmax(self.model.restrict(online.to_values(chosen_by), batch.next_inputs), -1)
        next_atoms = _take_action(next_atoms, best)
        atoms = _take_action(online.compute_atoms(features, random), batch.actions["action"])
        costs, sizes = self._compare(atoms, tf.stop_gradient(next_atoms), batch)
        metrics = {"value": batch.mean(online.to_values(atoms))}
        distribution = self.config.distribution
        if distribution is not None and distribution.kind == "categorical":
            target = batch.returns + batch.discount * online.to_values(next_atoms)
            atom = online.support[1] - online.support[0]
            is_outside = (target < online.support[0] - atom) | (target > online.support[-1] + atom)
            share = batch.mean(tf.cast(is_outside, tf.float32))
            metrics[_OUTSIDE] = share / batch.mean(tf.ones_like(target))
            is_known = batch.valid > 0
            metrics[_SMALLEST] = tf.reduce_min(tf.where(is_known, target, np.inf))
            metrics[_LARGEST] = tf.reduce_max(tf.where(is_known, target, -np.inf))
        return Losses(
            {"default": batch.mean(costs)},
            rows={"priority": sizes},
            metrics=metrics,
        )

    def review(self, numbers: Mapping[str, Any], updates: int) -> None:
        """Warns, once, if a categorical distribution clips more than 1 % of the targets."""
        if _OUTSIDE not in numbers or self._has_warned:
            return
        newest = [numbers[name] for name in (_OUTSIDE, _SMALLEST, _LARGEST)]
        self._reviewed.append([updates, *newest])
        counts, shares, smallest, largest = np.transpose(self._reviewed)
        if counts.sum() < _REVIEWED_UPDATES:
            return
        self._reviewed.clear()
        share = np.average(shares, weights=counts)
        if share > _MAX_SHARE:
            self._has_warned = True
            support = self.model.online.support
            logger.warning(
                "%.1f %% of the targets are outside of algorithm.distribution, v_min: %g to v_max: "
                "%g, and are clipped; in the newest %d updates they were from about %.4g to %.4g. "
                "Set v_min and v_max to the smallest and the largest discounted return",
                *(100 * share, support[0], support[-1], counts.sum()),
                *(smallest.min(), largest.max()),
            )

    def _compare(
        self, atoms: tf.Tensor, next_atoms: tf.Tensor, batch: Batch
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the cost of each row, and the size of its error, `[...]` each.

        The size is |delta|; for quantiles the mean absolute error, and for categorical
        distributions the cost less its smallest possible value.

        Args:
          atoms: of x and a, `[..., N]`.
          next_atoms: of x' and a', `[..., N]`.
          batch: the minibatch.
        """
        returns, discount = batch.returns[..., None], batch.discount[..., None]
        distribution = self.config.distribution
        if distribution is None:
            error = (returns + discount * next_atoms - atoms)[..., 0]
            return _compute_huber(error), tf.abs(error)
        if distribution.kind == "quantile":
            return compute_quantile_cost(atoms, returns + discount * next_atoms)
        support = self.model.online.support
        goal = project(tf.nn.softmax(next_atoms), support, returns + discount * support)
        costs = -tf.reduce_sum(goal * tf.nn.log_softmax(atoms), -1)
        entropy = -tf.reduce_sum(tf.math.xlogy(goal, goal), -1)
        return costs, tf.stop_gradient(costs) - entropy


def project(probabilities: tf.Tensor, support: Any, reached: tf.Tensor) -> tf.Tensor:
    """Moves a distribution back to its support: Bellemare et al. 2017, equation 7.

    Source: https://arxiv.org/abs/1707.06887.

    Args:
      probabilities: of each atom, `[..., N]`.
      support: returns z_i in equal distances, `[N] float32`.
      reached: return that each atom moves to, `[..., N]`, clipped to the range of the support; its
        probability is divided between the two nearest z_i.

    Returns:
      Probabilities of the support, `[..., N]`.
    """
    reached = tf.clip_by_value(reached, support[0], support[-1])
    distances = tf.abs(reached[..., None, :] - support[:, None]) / (support[1] - support[0])
    shares = tf.maximum(1.0 - distances, 0.0)  # [..., N of the support, N]
    return tf.reduce_sum(shares * probabilities[..., None, :], -1)


def compute_quantile_cost(atoms: tf.Tensor, goals: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the quantile Huber loss, and mean(|u|), `[...]` each.

        u_ij = goal_j - atom_i,   tau_i = (i - 1/2) / N
        sum_i mean_j |tau_i - (u_ij < 0)| huber(u_ij)

    Dabney et al. 2018, equations 9 and 10 with kappa = 1, https://arxiv.org/abs/1710.10044.

    Args:
      atoms: predicted returns, `[..., N]`.
      goals: target returns, `[..., M]`.
    """
    errors = goals[..., None, :] - atoms[..., None]  # [..., N, M]
    number = atoms.shape[-1]
    taus = (np.arange(number, dtype=np.float32) + 0.5) / number
    weights = tf.abs(taus[:, None] - tf.cast(errors < 0, tf.float32))
    costs = tf.reduce_sum(tf.reduce_mean(weights * _compute_huber(errors), -1), -1)
    return costs, tf.reduce_mean(tf.abs(errors), [-2, -1])


def _compute_huber(error: tf.Tensor) -> tf.Tensor:
    size = tf.abs(error)
    return tf.where(size < 1.0, 0.5 * error**2, size - 0.5)


def _take_action(atoms: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Returns the atoms `[..., N]` of one action, of `[..., num_actions, N]`."""
    return tf.gather(atoms, actions, axis=-2, batch_dims=len(actions.shape))


def make_algorithm(config: Config, model: DQNModel, seed: int) -> DQN:
    """Builds the algorithm."""
    return DQN(model, config, seed)
