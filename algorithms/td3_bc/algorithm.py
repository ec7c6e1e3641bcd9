"""TD3+BC: TD3 from recordings, with an actor that also imitates them."""

import tensorflow as tf

from relaax_like.algorithm import Algorithm, Batch, Losses, Phase
from relaax_like.config.continuous import ACTOR, CRITIC

from .config import Config
from .model import TD3BCModel


class TD3BC(Algorithm):
    """TD3 from recordings, whose actor also imitates the recorded actions.

    Fujimoto and Gu 2021 (https://arxiv.org/abs/2106.06860). The critics take a step in each update,
    the actor in every `actor_every`-th.
    """

    autograph = False
    config: Config
    model: TD3BCModel

    def __init__(self, model: TD3BCModel, config: Config, seed: int):
        super().__init__(model, config, seed)
        self.phases = (Phase(CRITIC), Phase(ACTOR, every=config.actor_every))

    def learn(self, batch: Batch) -> Losses:
        """Returns the costs of a minibatch of steps; actions are scaled to [-1, 1].

            critic:  sum_i mean((Q_i(x, a) - y)^2),  y = R + discount min_i Q'_i(x', a'),
                     a' = clip(pi'(x') + clip(noise, -c, c), -1, 1)
            actor:   mean((pi(x) - a)^2) - lambda mean(Q_1(x, pi(x))),
                     lambda = alpha / mean(|Q_1(x, pi(x))|), without a gradient

        Equations 3 to 5; the critics' cost is that of TD3 (Fujimoto et al. 2018,
        https://arxiv.org/abs/1802.09477, algorithm 1), and (pi(x) - a)^2 the mean over components.
        """
        config, model = self.config, self.model
        scaled = model.target_actor.module(batch.next_inputs)
        noise = config.target_noise * self.random.normal(tf.shape(scaled))
        noise = tf.clip_by_value(noise, -config.target_noise_clip, config.target_noise_clip)
        next_action = model.unscale(tf.clip_by_value(scaled + noise, -1.0, 1.0))
        next_values = model.target_critics.module(batch.next_inputs, next_action)
        goal = batch.returns + batch.discount * tf.reduce_min(next_values, -1)
        values = model.critics(batch.inputs, batch.actions["action"])
        errors = values - tf.stop_gradient(goal)[..., None]

        scaled = model.actor(batch.inputs)
        value = model.critics(batch.inputs, model.unscale(scaled))[..., 0]
        size = tf.stop_gradient(batch.mean(tf.abs(value)))
        low, high = model.space.low, model.space.high
        recorded = 2.0 * (batch.actions["action"] - low) / (high - low) - 1.0
        distance = batch.mean(tf.reduce_mean((scaled - recorded) ** 2, -1))
        mean_value = batch.mean(value)
        return Losses(
            {
                CRITIC: batch.mean(tf.reduce_sum(errors**2, -1)),
                ACTOR: distance - config.alpha * mean_value / (size + 1e-8),
            },
            metrics={ACTOR: {"value": mean_value, "distance": distance}},
        )


def make_algorithm(config: Config, model: TD3BCModel, seed: int) -> TD3BC:
    """Builds the algorithm."""
    return TD3BC(model, config, seed)
