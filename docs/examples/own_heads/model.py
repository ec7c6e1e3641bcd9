"""Two heads on an encoder: how good a state is, and how much better each action makes it."""

from relaax_like.algorithm import Encoder, Model, Specs, make_epsilon_greedy
from relaax_like.nn import Dense

from .config import Config


class DuelingModel(Model):
    """Q(x, a) = V(x) + A(x, a): Wang et al. 2016 (https://arxiv.org/abs/1511.06581), equation 7."""

    def __init__(self, config: Config, seed: int):
        super().__init__()
        self.xla = not config.images  # XLA is slow at convolutions
        self.encoder = Encoder(config, seed=seed)
        width, actions = self.encoder.features, config.num_actions
        self.value = Dense("value", width, 1, seed=seed + 1)
        self.advantages = Dense("advantages", width, actions, seed=seed + 2)

    def get_input_specs(self) -> Specs:
        return self.encoder.get_input_specs()

    def get_state_specs(self) -> Specs:
        return self.encoder.get_state_specs()

    def get_action_specs(self) -> Specs:
        return [("action", {"shape": [], "dtype": "int64"})]

    def compute_q(self, inputs, memory, begins=None):  # type: ignore[no-untyped-def]
        features, memory = self.encoder(inputs, memory, begins)
        return self.value(features) + self.advantages(features), memory

    def policy(self, inputs, memory, explore):  # type: ignore[no-untyped-def]
        q, memory = self.compute_q(inputs, memory)
        return {"action": make_epsilon_greedy(q, explore["epsilon"])}, memory


def make_model(config: Config, seed: int) -> DuelingModel:
    return DuelingModel(config, seed)
