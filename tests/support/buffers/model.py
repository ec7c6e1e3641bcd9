"""A policy that subtracts a moving mean, and a critic that counts its own steps and has a copy."""

from collections.abc import Mapping, Sequence

import numpy as np

from relaax_like.algorithm import Model, Target, make_network
from relaax_like.config import NetworkConfig
from relaax_like.nn import Module, Parameter
from relaax_like.nn.distributions import Categorical

from .config import Config


class Critic(Module):
    def __init__(self, seed: int):
        super().__init__()
        layers = NetworkConfig.model_validate({"layers": ()})
        self.net = make_network("critic", layers, (4,), 1, seed=seed)
        self.steps = Parameter("critic.steps", np.float32(0), "buffer")
        self.scale = Parameter("critic.scale", np.float32(0.5), "constant")

    def __call__(self, x):
        return self.scale(x) * self.net(x)[..., 0]


class MovingModel(Model):
    xla = False
    acting: Sequence[str] = ("actor", "mean", "variance")
    groups: Mapping[str, Sequence[str]] = {
        "actor": ("actor", "mean", "variance"),
        "critic": ("critic",),
    }

    def __init__(self, config: Config, seed: int):
        super().__init__()
        layers = NetworkConfig.model_validate({"layers": ()})
        self.actor = make_network("actor", layers, (4,), 2, seed=seed)
        self.mean = Parameter("mean", np.zeros(4, np.float32), "buffer")
        self.variance = Parameter("variance", np.ones(4, np.float32), "buffer")
        self.critic = Critic(seed)
        self.slow = Target(self.critic, every=3)

    def get_input_specs(self):
        return [("observation", {"shape": [4]})]

    def get_action_specs(self):
        return [("action", {"shape": [], "dtype": "int64"})]

    def policy(self, inputs, memory):
        x = inputs["observation"]
        centred = (x - self.mean(x)) / (self.variance(x) + 1e-3) ** 0.5
        return {"action": Categorical(self.actor(centred))}, memory


def make_model(config: Config, seed: int) -> MovingModel:
    return MovingModel(config, seed)
