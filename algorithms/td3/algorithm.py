"""TD3: twin delayed deterministic policy gradients."""

import tensorflow as tf

from relaax_like.algorithm import Algorithm, Batch, DeterministicModel, Losses, Phase
from relaax_like.config.continuous import ACTOR, CRITIC

from .config import Config


class TD3(Algorithm):
    """Twin delayed deterministic policy gradients.

    Fujimoto et al. 2018 (https://arxiv.org/abs/1802.09477). In each update the critics take a step;
    in every `policy_delay`-th one, the actor then takes a step at their new values. The targets of
    both move in the same updates as the actor.
    """

    autograph = False
    config: Config
    model: DeterministicModel

    def __init__(self, model: DeterministicModel, config: Config, seed: int):
        super().__init__(model, config, seed)
        self.phases = (Phase(CRITIC), Phase(ACTOR, every=config.policy_delay))

    def learn(self, batch: Batch) -> Losses:
        """Returns the costs of a minibatch of steps.

            critic:  sum_i mean((Q_i(x, a) - y)^2),  y = R + discount min_i Q'_i(x', a')
            actor:   -mean(Q_1(x, pi(x)))

        a' = pi'(x') + clip(e, -c, c), clipped to the bounds, where e is normal noise of deviation
        `target_noise`, c is `target_noise_clip`, and both are of actions scaled to [-1, 1].
        Section 5 and algorithm 1.
        """
        config, model, space = self.config, self.model, self.model.space
        next_action = model.target_actor.module(batch.next_inputs)
        noise = config.target_noise * self.random.normal(tf.shape(next_action))
        noise = tf.clip_by_value(noise, -config.target_noise_clip, config.target_noise_clip)
        next_action += noise * (0.5 * (space.high - space.low))
        next_action = tf.clip_by_value(next_action, space.low, space.high)
        next_values = model.target_critics.module(batch.next_inputs, next_action)
        goal = batch.returns + batch.discount * tf.reduce_min(next_values, -1)
        values = model.critics(batch.inputs, batch.actions["action"])
        errors = values - tf.stop_gradient(goal)[..., None]
        value = model.critics.compute_first(batch.inputs, model.actor(batch.inputs))
        return Losses(
            {CRITIC: batch.mean(tf.reduce_sum(errors**2, -1)), ACTOR: -batch.mean(value)},
            rows={"priority": tf.reduce_mean(tf.abs(errors), -1)},
            metrics={"value": batch.mean(values[..., 0])},
        )


def make_algorithm(config: Config, model: DeterministicModel, seed: int) -> TD3:
    """Builds the algorithm."""
    return TD3(model, config, seed)
