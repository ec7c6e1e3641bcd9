"""The network of dqn, and its target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relaax_like.algorithm import Encoder, Model, Specs, Target, Tensors, make_epsilon_greedy
from relaax_like.nn import Dense, Module
from relaax_like.nn.lazy_tensorflow import tf

from .config import Config


class QNetwork(Module):
    """Maps observations to the value of each action.

    With `dueling`, Q(x, a) = V(x) + A(x, a) - mean_b A(x, b): Wang et al. 2016, equation 9
    (https://arxiv.org/abs/1511.06581).
    """

    def __init__(self, config: Config, seed: int):
        super().__init__()
        assert config.num_actions is not None
        self.encoder = Encoder(config, seed=seed)
        features = self.encoder.features
        self.advantages = Dense("q", features, config.num_actions, seed=seed + 1)
        self.value = Dense("value", features, 1, seed=seed + 2) if config.dueling else None

    def __call__(self, inputs: Tensors, memory: Tensors, begins: Any = None) -> tuple[Any, Tensors]:
        """Returns values `[..., num_actions]`, and the memory after each step; see `Encoder`."""
        features, after = self.encoder(inputs, memory, begins)
        values = self.advantages(features)
        if self.value is not None:
            mean = np.mean if isinstance(values, np.ndarray) else tf.reduce_mean
            values = self.value(features) + values - mean(values, -1, keepdims=True)
        return values, after


class DQNModel(Model):
    """Action values, and a copy of them that follows."""

    autograph = False
    acting: Sequence[str] = ("online",)

    def __init__(self, config: Config, seed: int):
        super().__init__()
        self.online = QNetwork(config, seed)
        self.target = Target(self.online, every=config.target_every)

    def get_input_specs(self) -> Specs:
        """Returns the observations."""
        return self.online.encoder.get_input_specs()

    def get_state_specs(self) -> Specs:
        """Returns the network's memory, if it has one."""
        return self.online.encoder.get_state_specs()

    def get_action_specs(self) -> Specs:
        """Returns one discrete action."""
        return [("action", {"shape": [], "dtype": "int64"})]

    def policy(
        self, inputs: Tensors, states: Tensors, explore: Tensors
    ) -> tuple[dict[str, Any], Tensors]:
        """Takes the best action, except for a fraction of `epsilon`."""
        values, after = self.online(inputs, states)
        return {"action": make_epsilon_greedy(values, explore["epsilon"])}, after


def make_model(config: Config, seed: int) -> DQNModel:
    """Builds the model with the values that a run starts from."""
    return DQNModel(config, seed)
