"""Learns the answers by heart: rewards do not matter, the privileged observation does."""

import tensorflow as tf

from relaax_like.algorithm import Algorithm, Batch, Losses

from .config import Config
from .model import Student


class Learning(Algorithm):
    autograph = False

    def learn(self, batch: Batch) -> Losses:
        policies, _ = self.model.policy(batch.inputs, batch.memory)
        answers = tf.argmax(batch.inputs["answer"], -1)
        values = self.model.value(batch.inputs, batch.memory)
        following = self.model.value(batch.next_inputs, batch.memory)
        error = batch.returns + batch.discount * tf.stop_gradient(following) - values
        cost = batch.mean(error**2) - batch.mean(policies["action"].log_prob(answers))
        return Losses(
            {"default": cost}, metrics={"seen": batch.mean(batch.inputs["answer"][..., 0])}
        )


def make_algorithm(config: Config, model: Student, seed: int) -> Learning:
    return Learning(model, config, seed)
