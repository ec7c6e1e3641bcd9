"""SAC: soft actor-critic with a tuned temperature."""

import tensorflow as tf

from relaax_like.algorithm import Algorithm, Batch, Losses, Phase
from relaax_like.config.continuous import ACTOR, CRITIC

from .config import TEMPERATURE, Config
from .model import SACModel


class SAC(Algorithm):
    """Haarnoja et al. 2018, the second version (https://arxiv.org/abs/1812.05905).

    In each update the critics take a step, then the actor at their new values, then the
    temperature.
    """

    autograph = False
    config: Config
    model: SACModel

    def __init__(self, model: SACModel, config: Config, seed: int):
        super().__init__(model, config, seed)
        every = config.actor_every
        tuned = (Phase(TEMPERATURE, every=every),) if config.temperature is None else ()
        self.phases = (Phase(CRITIC), Phase(ACTOR, every=every), *tuned)

    def learn(self, batch: Batch) -> Losses:
        """Returns the costs of a minibatch of steps; a' and a~ are drawn from the policy.

            critic:       sum_i mean((Q_i(x, a) - y)^2),
                          y = R + discount (min_i Q'_i(x', a') - alpha log pi(a'|x'))
            actor:        mean(alpha log pi(a~|x) - min_i Q_i(x, a~))
            temperature:  -log alpha mean(log pi(a~|x) + H)

        Equations 5, 7 and 18, with the logarithm of alpha in the last, as is usual; H is
        `entropy_target`. Log-probabilities are of actions scaled to [-1, 1].

        The smallest value in y is of `target_critics` critics drawn at random (REDQ: Chen et al.
        2021, https://arxiv.org/abs/2101.05982, algorithm 1); with `actor_value: mean` the actor's
        cost has the mean of all values.
        """
        config, model = self.config, self.model
        if model.log_alpha is None:
            log_alpha = tf.math.log(tf.constant(config.temperature, tf.float32))
        else:
            log_alpha = model.log_alpha(batch.returns)
        alpha = tf.stop_gradient(tf.exp(log_alpha))
        next_policy = model.policy(batch.next_inputs, {})[0]["action"]
        next_action, next_log_prob = next_policy.sample_with_log_prob(self.random)
        next_log_prob += model.log_volume
        next_values = model.targets.module(batch.next_inputs, next_action, self.random)
        next_value = tf.reduce_min(self._choose(next_values), -1)
        goal = batch.returns + batch.discount * (next_value - alpha * next_log_prob)
        values = model.critics(batch.inputs, batch.actions["action"], self.random)
        errors = values - tf.stop_gradient(goal)[..., None]
        policy = model.policy(batch.inputs, {})[0]["action"]
        action, log_prob = policy.sample_with_log_prob(self.random)
        log_prob += model.log_volume
        reduce = tf.reduce_min if config.actor_value == "min" else tf.reduce_mean
        value = reduce(model.critics(batch.inputs, action, self.random), -1)
        costs = {
            CRITIC: batch.mean(tf.reduce_sum(errors**2, -1)),
            ACTOR: batch.mean(alpha * log_prob - value),
        }
        if model.log_alpha is not None:
            target = config.entropy_target
            if target is None:
                target = -float(len(model.space.low))
            surplus = tf.stop_gradient(batch.mean(log_prob + target))
            costs[TEMPERATURE] = -log_alpha * surplus
        return Losses(
            costs,
            rows={"priority": tf.reduce_mean(tf.abs(errors), -1)},
            metrics={"entropy": -batch.mean(log_prob), "alpha": alpha, "value": batch.mean(value)},
        )

    def _choose(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the values `[B, m]` of as many critics as a target is made of."""
        number = self.config.target_critics
        if number is None or number == values.shape[-1]:
            return values
        order = self.random.uniform([values.shape[-1]])
        return tf.gather(values, tf.math.top_k(order, number).indices, axis=-1)


def make_algorithm(config: Config, model: SACModel, seed: int) -> SAC:
    """Builds the algorithm."""
    return SAC(model, config, seed)
