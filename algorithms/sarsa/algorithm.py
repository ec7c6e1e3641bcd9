"""SARSA: values of the policy that acts, exploration included."""

from typing import Any

import tensorflow as tf

from relaax_like.algorithm import Algorithm, Batch, LinearValues, Losses
from relaax_like.nn import take

from .config import Config


class Sarsa(Algorithm):
    """One-step SARSA with linear values.

    Rummery & Niranjan 1994; Sutton & Barto 2018, equation 6.7, and section 10.1 for linear values.
    """

    autograph = False
    config: Config
    model: LinearValues

    def learn(self, batch: Batch) -> Losses:
        """Returns the cost of a step, once the next action is known.

        The last two steps of an episode are learned from together.

            delta = r + discount Q(x', a') - Q(x, a)
            cost = sum of delta^2 / 2

        discount is 0 after a termination. After a truncation no action follows: Q(x', a') is
        replaced by its mean under the policy, over legal a' (expected SARSA: van Seijen et al.
        2009). The target is constant, so a step of gradient descent adds alpha delta x to the
        weights of a.

        The first row of a rollout is the last one of the previous rollout. If its episode ended
        there, the row was already learned from; otherwise it is learned from now.
        """
        actions = batch.actions["action"]  # [T, B]
        value = take(self.model.compute_q(batch.inputs), actions)
        next_values = self.model.compute_q(batch.next_inputs)
        epsilon: Any = self.config.epsilon
        legal = self.model.restrict(next_values, batch.next_inputs)
        best, mean = tf.reduce_max(legal, -1), tf.reduce_mean(next_values, -1)
        if self.model.masks:
            is_legal = tf.math.is_finite(legal)
            total = tf.reduce_sum(tf.where(is_legal, legal, 0.0), -1)
            mean = total / tf.reduce_sum(tf.cast(is_legal, tf.float32), -1)
        expected = (1.0 - epsilon) * best + epsilon * mean
        following = take(next_values, tf.roll(actions, -1, axis=0))
        next_value = tf.where(batch.continues > 0, following, expected)
        goal = tf.stop_gradient(batch.returns + batch.discount * next_value)
        delta = goal - value
        continues = batch.continues
        is_due = tf.concat(
            [continues[:1], tf.ones_like(continues[1:-1]), 1.0 - continues[-1:]], axis=0
        )
        return Losses(
            {"default": batch.sum(is_due * 0.5 * delta**2)},
            rows={"td_error": delta},
            metrics={"value": batch.mean(value)},
        )


def make_algorithm(config: Config, model: LinearValues, seed: int) -> Sarsa:
    """Builds the algorithm."""
    return Sarsa(model, config, seed)
