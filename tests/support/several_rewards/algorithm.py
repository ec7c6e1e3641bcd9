"""The policy gradient of speed minus weighted costs, step by step."""

import tensorflow as tf

from relaax_like.algorithm import Algorithm, Batch, Losses

from .config import Config
from .model import PaidModel


class Paid(Algorithm):
    autograph = False

    def learn(self, batch: Batch) -> Losses:
        speed, costs = batch.rewards["speed"][..., 0], batch.rewards["costs"]
        gains = batch.normalize(speed - self.config.weight * tf.reduce_sum(costs, -1))
        policies, _ = self.model.policy(batch.inputs, batch.memory)
        log_prob = policies["action"].log_prob(batch.actions["action"])
        metrics = {
            "speed": batch.mean(speed),
            "first cost": batch.mean(costs[..., 0]),
            "second cost": batch.mean(costs[..., 1]),
        }
        return Losses({"default": -batch.mean(log_prob * gains)}, metrics=metrics)


def make_algorithm(config: Config, model: PaidModel, seed: int) -> Paid:
    return Paid(model, config, seed)
