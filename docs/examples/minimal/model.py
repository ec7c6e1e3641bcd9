"""A policy for CartPole: four numbers in, one of two actions out."""

from relaax_like.algorithm import Model, Specs, make_network, make_policy
from relaax_like.config import NetworkConfig
from relaax_like.wire import Discrete

from .config import Config


class PolicyModel(Model):
    """Acts in NumPy and learns in TensorFlow, by the same code."""

    def __init__(self, config: Config, seed: int):
        super().__init__()
        layers = NetworkConfig.model_validate({"layers": (32,)})
        self.network = make_network("policy", layers, (4,), 2, seed=seed, output_gain=0.01)

    def get_input_specs(self) -> Specs:
        return [("observation", {"shape": [4]})]

    def get_action_specs(self) -> Specs:
        return [("action", {"shape": [], "dtype": "int64"})]

    def policy(self, inputs, memory):  # type: ignore[no-untyped-def]
        return {"action": make_policy(Discrete(n=2), self.network(inputs["observation"]))}, memory


def make_model(config: Config, seed: int) -> PolicyModel:
    return PolicyModel(config, seed)
