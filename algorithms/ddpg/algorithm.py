"""DDPG: deep deterministic policy gradients."""

import tensorflow as tf

from relaax_like.algorithm import Algorithm, Batch, DeterministicModel, Losses, Phase
from relaax_like.config.continuous import ACTOR, CRITIC

from .config import Config


class DDPG(Algorithm):
    """Deep deterministic policy gradients.

    Lillicrap et al. 2015 (https://arxiv.org/abs/1509.02971). In each update the critic takes a
    step, then the actor at the critic's new values. Each target moves after the step of its
    network.
    """

    autograph = False
    phases = (Phase(CRITIC), Phase(ACTOR))
    config: Config
    model: DeterministicModel

    def learn(self, batch: Batch) -> Losses:
        """Returns the costs of a minibatch of steps.

            critic:  mean((Q(x, a) - y)^2),  y = R + discount Q'(x', pi'(x'))
            actor:   -mean(Q(x, pi(x)))

        Equations 4 to 6, and algorithm 1.
        """
        model = self.model
        next_action = model.target_actor.module(batch.next_inputs)
        next_value = model.target_critics.module.compute_first(batch.next_inputs, next_action)
        goal = batch.returns + batch.discount * next_value
        value = model.critics.compute_first(batch.inputs, batch.actions["action"])
        error = value - tf.stop_gradient(goal)
        best = model.critics.compute_first(batch.inputs, model.actor(batch.inputs))
        return Losses(
            {CRITIC: batch.mean(error**2), ACTOR: -batch.mean(best)},
            rows={"priority": tf.abs(error)},
            metrics={"value": batch.mean(value)},
        )


def make_algorithm(config: Config, model: DeterministicModel, seed: int) -> DDPG:
    """Builds the algorithm."""
    return DDPG(model, config, seed)
