"""DQN: deep Q-learning with a replay table and a target network."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from relaax_like.algorithm import Algorithm, Batch, Losses

from .config import Config
from .model import DQNModel


class DQN(Algorithm):
    """Deep Q-learning, with the options of `Config`.

    Mnih et al. 2015 (https://doi.org/10.1038/nature14236).
    """

    autograph = False
    config: Config
    model: DQNModel

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
        if online.support is not None:
            target = batch.returns + batch.discount * online.to_values(next_atoms)
            metrics |= online.support.measure(batch, target)
        return Losses(
            {"default": batch.mean(costs)},
            rows={"priority": sizes},
            metrics=metrics,
        )

    def review(self, numbers: Mapping[str, Any], updates: int) -> None:
        """Warns, once, if a categorical distribution clips more than 1 % of the targets."""
        support = self.model.online.support
        if support is not None:
            support.review(numbers, updates, "algorithm.distribution")

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
        support = self.model.online.support
        if support is not None:
            return support.compute_costs(atoms, next_atoms, batch.returns, batch.discount)
        goals = batch.returns[..., None] + batch.discount[..., None] * next_atoms
        if self.config.distribution is not None:
            return compute_quantile_cost(atoms, goals)
        error = (goals - atoms)[..., 0]
        return _compute_huber(error), tf.abs(error)


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
