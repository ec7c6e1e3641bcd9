"""Learns values by both targets and noise, and in every second update the actor by them."""

import tensorflow as tf

from relaax_like.algorithm import Algorithm, Batch, Losses, Phase
from relaax_like.nn import take

from .config import Config
from .model import TargetModel


class Delayed(Algorithm):
    autograph = False
    phases = (Phase("critic"), Phase("actor", every=2))

    def learn(self, batch: Batch) -> Losses:
        model, after = self.model, batch.next_inputs["observation"]
        next_value = tf.minimum(model.copied.module(after), model.mixed.module(after))[..., 0]
        goal = batch.returns + batch.discount * next_value
        goal += self.config.noise * self.random.normal(tf.shape(goal))
        value = model.critic(batch.inputs["observation"])[..., 0]
        chosen = take(model.actor(batch.inputs["observation"]), batch.actions["action"])
        goal = tf.stop_gradient(goal)
        costs = {
            "critic": batch.mean((goal - value) ** 2),
            "actor": batch.mean((goal - chosen) ** 2),
        }
        return Losses(costs, metrics={"epsilon": self.config.epsilon})


def make_algorithm(config: Config, model: TargetModel, seed: int) -> Delayed:
    return Delayed(model, config, seed)
