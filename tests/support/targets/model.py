"""Two networks and two copies of the second: one every third step, one that is mixed."""

from collections.abc import Mapping, Sequence

from relaax_like.algorithm import Model, Target, make_epsilon_greedy, make_network
from relaax_like.config import NetworkConfig

from .config import Config


class TargetModel(Model):
    acting: Sequence[str] = ("actor",)
    groups: Mapping[str, Sequence[str]] = {"actor": ("actor",), "critic": ("critic",)}

    def __init__(self, config: Config, seed: int):
        super().__init__()
        layers = NetworkConfig.model_validate({"layers": (8,)})
        self.actor = make_network("actor", layers, (4,), 2, seed=seed)
        self.critic = make_network("critic", layers, (4,), 1, seed=seed)
        self.copied = Target(self.critic, every=3)
        self.mixed = Target(self.critic, tau=0.1, name="mixed")

    def get_input_specs(self):
        return [("observation", {"shape": [4]})]

    def get_action_specs(self):
        return [("action", {"shape": [], "dtype": "int64"})]

    def policy(self, inputs, memory, explore):
        values = self.actor(inputs["observation"])
        return {"action": make_epsilon_greedy(values, explore["epsilon"])}, memory


def make_model(config: Config, seed: int) -> TargetModel:
    return TargetModel(config, seed)
