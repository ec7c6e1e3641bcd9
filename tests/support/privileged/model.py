"""A policy that sees a question, and a value function that sees its answer, too."""

from relaax_like.algorithm import Model, make_network, make_policy
from relaax_like.config import NetworkConfig
from relaax_like.wire import Discrete

from .config import Config


class Student(Model):
    def __init__(self, config: Config, seed: int):
        super().__init__()
        self.xla = False  # compiling takes longer than learning
        layers = NetworkConfig.model_validate({"layers": ()})
        self.network = make_network("policy", layers, (3,), 3, seed=seed, output_gain=0.01)
        self.critic = make_network("value", layers, (3,), 1, seed=seed)

    def get_input_specs(self):
        return [("question", {"shape": [3]})]

    def get_privileged_specs(self):
        return [("answer", {"shape": [3]})]

    def get_action_specs(self):
        return [("action", {"shape": [], "dtype": "int64"})]

    def policy(self, inputs, memory):
        return {"action": make_policy(Discrete(n=3), self.network(inputs["question"]))}, memory

    def value(self, inputs, memory):
        return self.critic(inputs["answer"])[..., 0]


def make_model(config: Config, seed: int) -> Student:
    return Student(config, seed)
