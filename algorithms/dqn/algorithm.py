"""DQN: deep Q-learning with a replay table and a target network."""

from typing import Any

import tensorflow as tf

from relaax_like.algorithm import Algorithm, Batch, Losses
from relaax_like.nn import take

from .config import Config
from .model import DQNModel


class DQN(Algorithm):
    """Mnih et al. 2015 (https://doi.org/10.1038/nature14236), with the options of `Config`."""

    autograph = False
    config: Config
    model: DQNModel

    @property
    def max_gradient_norm(self) -> Any:
        """Of all variables."""
        return self.config.max_gradient_norm

    def learn(self, batch: Batch) -> Losses:
        """Returns the Huber loss of the errors of a minibatch of steps, or of sequences.

            delta = R + discount Q'(x', a') - Q(x, a),   a' = argmax_a Q(x', a)

        R is the sum of n discounted rewards, Q' the target. a' is chosen by Q (double DQN: van
        Hasselt et al. 2016, equation 4, https://arxiv.org/abs/1509.06461), or else by Q'. With a
        memory, both networks read the sequence from its first step, the burn-in included.
        """
        online, target = self.model.online, self.model.target.module
        values, after = online(batch.inputs, batch.memory, batch.begins)
        target_after = after
        if batch.memory:
            _, target_after = target(batch.inputs, batch.memory, batch.begins)
        next_values, _ = target(batch.next_inputs, target_after)
        chosen_by = next_values
        if self.config.double:
            chosen_by, _ = online(batch.next_inputs, after)
        next_value = take(next_values, tf.argmax(chosen_by, -1))
        goal = tf.stop_gradient(batch.returns + batch.discount * next_value)
        value = take(values, batch.actions["action"])
        error = goal - value
        size = tf.abs(error)
        huber = tf.where(size < 1.0, 0.5 * error**2, size - 0.5)
        return Losses(
            {"default": batch.mean(huber)},
            rows={"priority": size},
            metrics={"value": batch.mean(value)},
        )


def make_algorithm(config: Config, model: DQNModel, seed: int) -> DQN:
    """Builds the algorithm."""
    return DQN(model, config, seed)
