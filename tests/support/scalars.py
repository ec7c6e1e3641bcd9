"""A model of two numbers in groups of their own, and an algorithm whose updates are known."""

import numpy as np
import tensorflow as tf

from relaax_like.algorithm import Algorithm, Losses
from relaax_like.algorithm.model import Model


class Scalars(Model):
    """Two numbers in groups of their own."""

    groups = {"critic": ("critic",), "actor": ("actor",)}  # noqa: RUF012

    def __init__(self, xla=False):
        super().__init__(name="scalars")
        self.xla = xla
        self.critic = tf.Variable(1.0, name="critic")
        self.actor = tf.Variable(0.0, name="actor")

    def get_input_specs(self):
        return [("x", {"shape": []})]

    def get_action_specs(self):
        return [("action", {"shape": [1]})]

    def policy(self, inputs, states):
        raise NotImplementedError


class Chase(Algorithm):
    """The critic goes to 3, the actor to where the critic is."""

    autograph = False

    def learn(self, batch):
        critic, actor = self.model.critic, self.model.actor
        costs = {"critic": 0.5 * (critic - 3.0) ** 2, "actor": 0.5 * (actor - critic) ** 2}
        return Losses(costs, metrics={"sum": critic + actor})


def as_batch(inputs, rewards, **others):
    leading = rewards.shape[:-1]
    return {
        "inputs": inputs,
        "next_inputs": inputs,
        "next_alive": {"alive": np.ones(leading, np.float32)},
        "rewards": {"reward": rewards},
        "actions": {"action": np.zeros(rewards.shape, np.float32)},
        **others,
    }


def make_x(x):
    x = np.array(x, np.float32)
    return as_batch({"x": x}, np.zeros((*x.shape, 1), np.float32))


def read(compiled):
    return {variable.name: variable.value for variable in compiled.get_variables()}
