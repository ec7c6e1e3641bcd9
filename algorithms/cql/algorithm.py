"""CQL: soft actor-critic from recordings, with a penalty on values of other actions."""

import math

import tensorflow as tf

from relaax_like.algorithm import Algorithm, Batch, Losses, Phase
from relaax_like.config.continuous import ACTOR, CRITIC

from .config import TEMPERATURE, Config
from .model import CQLModel


class CQL(Algorithm):
    """Conservative Q-learning, CQL(H), based on soft actor-critic.

    Kumar et al. 2020 (https://arxiv.org/abs/2006.04779). In each update the critics take a step,
    then the actor at their new values, then the temperature.
    """

    autograph = False
    config: Config
    model: CQLModel
    phases = (Phase(CRITIC), Phase(ACTOR), Phase(TEMPERATURE))

    def learn(self, batch: Batch) -> Losses:
        """Returns the costs of a minibatch of steps; a' and a~ are drawn from the policy.

            critic:       sum_i mean((Q_i(x, a) - y)^2 / 2 + w (log Z_i(x) - Q_i(x, a))),
                          y = R + discount min_i Q'_i(x', a')
            actor:        mean(alpha log pi(a~|x) - min_i Q_i(x, a~))
            temperature:  -log alpha mean(log pi(a~|x) + H)

        Equation 4, with w = `cql_weight`; Z(x) is the integral of exp Q(x, b) over all actions b,
        estimated as the mean of exp Q(x, b) / p(b) over the n actions b of each of three kinds:
        uniform, drawn from the policy at x, and drawn from the policy at x' (appendix F). Actor and
        temperature are those of Haarnoja et al. 2018 (https://arxiv.org/abs/1812.05905), equations
        7 and 18, with H = `entropy_target`. Log-probabilities are of actions scaled to [-1, 1].
        """
        config, model = self.config, self.model
        alpha = tf.stop_gradient(tf.exp(model.log_alpha(batch.returns)))
        drawn, log_prob = model.draw(batch.inputs, config.cql_actions, self.random)
        next_drawn, next_log_prob = model.draw(batch.next_inputs, config.cql_actions, self.random)
        uniform = self.random.uniform(tf.shape(drawn))
        uniform = model.space.low + (model.space.high - model.space.low) * uniform
        next_values = model.targets.module(batch.next_inputs, next_drawn[:, 0])
        goal = batch.returns + batch.discount * tf.reduce_min(next_values, -1)
        values = model.critics(batch.inputs, batch.actions["action"])
        errors = values - tf.stop_gradient(goal)[..., None]
        others = tf.concat([uniform, drawn, next_drawn], 1)
        flat = tf.fill(tf.shape(log_prob), -len(model.space.low) * math.log(2.0))
        densities = tf.concat([flat, log_prob, next_log_prob], 1)
        gap = self._integrate(batch, others, densities) - values
        value = tf.reduce_min(model.critics(batch.inputs, drawn[:, 0]), -1)
        target = config.entropy_target
        if target is None:
            target = -float(len(model.space.low))
        surplus = tf.stop_gradient(batch.mean(log_prob[:, 0] + target))
        return Losses(
            {
                CRITIC: batch.mean(tf.reduce_sum(0.5 * errors**2 + config.cql_weight * gap, -1)),
                ACTOR: batch.mean(alpha * log_prob[:, 0] - value),
                TEMPERATURE: -model.log_alpha(batch.returns) * surplus,
            },
            metrics={
                "alpha": alpha,
                "gap": batch.mean(tf.reduce_mean(gap, -1)),
                ACTOR: {"entropy": -batch.mean(log_prob[:, 0]), "value": batch.mean(value)},
            },
        )

    def _integrate(self, batch: Batch, actions: tf.Tensor, log_densities: tf.Tensor) -> tf.Tensor:
        """Returns log Z(x) of each critic, `[B, critics]`, from the values of drawn actions."""
        ratios = self.model.critics(batch.inputs, tf.stop_gradient(actions))
        ratios -= tf.stop_gradient(log_densities)[..., None]
        return tf.reduce_logsumexp(ratios, 1) - math.log(3.0 * self.config.cql_actions)


def make_algorithm(config: Config, model: CQLModel, seed: int) -> CQL:
    """Builds the algorithm."""
    return CQL(model, config, seed)
