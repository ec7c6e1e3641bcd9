"""An actor, a critic with a target, and a network that can be frozen."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relaax_like.algorithm import Model, Target, make_network, make_policy
from relaax_like.config import NetworkConfig
from relaax_like.nn import Parameter
from relaax_like.wire import Discrete

from .config import Config

EXPLORES, SEES_CRITIC, IS_ODD = 1, 2, 4


class ContractModel(Model):
    xla = False  # compiling takes longer than all else; tests/learn/test_updates.py has both forms
    acting = ("actor",)  # if acting
    groups: Mapping[str, Sequence[str]] = {
        "actor": ("actor",),
        "critic": ("critic",),
        "fixed": ("fixed",),
    }

    def __init__(self, config: Config, seed: int):
        super().__init__()
        layers = NetworkConfig.model_validate({"layers": ()})
        self.actor = make_network("actor", layers, (1,), 8, seed=seed)
        self.critic = make_network("critic", layers, (1,), 1, seed=seed)
        self.fixed = make_network("fixed", layers, (1,), 1, seed=seed)
        self.critic.counted = Parameter("counted", np.float32(0), "buffer")  # if buffers
        self.target = Target(self.critic, every=1)  # if target

    def get_input_specs(self):
        return [("observation", {"shape": [1]})]

    def get_action_specs(self):
        return [("action", {"shape": [], "dtype": "int64"})]

    def get_reward_specs(self):  # if several rewards
        return [("speed", {"shape": [1]}), ("costs", {"shape": [2]})]  # if several rewards

    def value(self, inputs, memory):
        return self.critic(inputs["observation"])[..., 0]

    def policy(
        self,
        inputs,
        memory,
        explore,  # if exploration
    ):
        """Acts in NumPy alone; the action shows what is at hand."""
        x = inputs["observation"]
        action = np.where(np.isnan(self.critic(x)[..., 0]), 0, SEES_CRITIC)
        action += IS_ODD * (x[..., 0] % 2 == 1)
        action += EXPLORES * (explore["epsilon"] > 0.5)  # if exploration
        logits = self.actor(x) + 1e3 * np.eye(8, dtype=np.float32)[action]
        return {"action": make_policy(Discrete(n=8), logits)}, memory


def make_model(config: Config, seed: int) -> Any:
    return ContractModel(config, seed)
