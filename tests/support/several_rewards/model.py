"""A policy over two actions, paid in speed and charged in two costs."""

from relaax_like.algorithm import Model, make_network, make_policy
from relaax_like.config import NetworkConfig
from relaax_like.wire import Discrete

from .config import Config


class PaidModel(Model):
    def __init__(self, config: Config, seed: int):
        super().__init__()
        self.xla = False  # compiling takes longer than learning
        layers = NetworkConfig.model_validate({"layers": ()})
        self.network = make_network("policy", layers, (1,), 2, seed=seed, output_gain=0.01)

    def get_input_specs(self):
        return [("observation", {"shape": [1]})]

    def get_action_specs(self):
        return [("action", {"shape": [], "dtype": "int64"})]

    def get_reward_specs(self):
        return [("speed", {"shape": [1]}), ("costs", {"shape": [2]})]

    def policy(self, inputs, memory):
        return {"action": make_policy(Discrete(n=2), self.network(inputs["observation"]))}, memory


def make_model(config: Config, seed: int) -> PaidModel:
    return PaidModel(config, seed)
