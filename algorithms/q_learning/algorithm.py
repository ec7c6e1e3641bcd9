"""Q-learning: values of the best policy, learned while another one acts."""

import tensorflow as tf

from relaax_like.algorithm import Algorithm, Batch, LinearValues, Losses
from relaax_like.nn import take

from .config import Config


class QLearning(Algorithm):
    """One-step Q-learning with linear values.

    Watkins 1989; Sutton & Barto 2018, equation 6.8, and section 9.3 for linear values.
    """

    autograph = False
    config: Config
    model: LinearValues

    def learn(self, batch: Batch) -> Losses:
        """Returns the cost of the minibatch, which is one step.

            delta = r + discount max_a' Q(x', a') - Q(x, a)
            cost = sum of delta^2 / 2

        discount is 0 after a termination, and a' is legal in x'. The target is constant, so a step
        of gradient descent adds alpha delta x to the weights of a.
        """
        value = take(self.model.compute_q(batch.inputs), batch.actions["action"])
        next_values = self.model.compute_q(batch.next_inputs)
        next_value = tf.reduce_max(self.model.restrict(next_values, batch.next_inputs), -1)
        goal = tf.stop_gradient(batch.returns + batch.discount * next_value)
        delta = goal - value
        return Losses(
            {"default": batch.sum(0.5 * delta**2)},
            rows={"td_error": delta},
            metrics={"value": batch.mean(value)},
        )


def make_algorithm(config: Config, model: LinearValues, seed: int) -> QLearning:
    """Builds the algorithm."""
    return QLearning(model, config, seed)
