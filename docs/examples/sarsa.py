"""SARSA on a discrete action space: the value of the action that is taken next.

Rummery & Niranjan 1994; Sutton & Barto 2018, equation 6.7, with a network.
"""

import tensorflow as tf
from pydantic import Field

from relaax_like.algorithm import (
    Algorithm,
    AlgorithmConfig,
    Batch,
    Linear,
    Losses,
    Model,
    OnPolicy,
    Schedule,
    Specs,
    make_epsilon_greedy,
    make_network,
)
from relaax_like.config import NetworkConfig
from relaax_like.nn import take


class Config(AlgorithmConfig):
    """Keys of the YAML's `algorithm` section."""

    state_size: int = 4
    """Numbers in one observation."""
    num_actions: int = 2
    """Actions to choose from."""
    network: NetworkConfig = NetworkConfig()
    """Layers of the network."""
    gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount per step."""
    epsilon: Schedule = Linear(1.0, 0.05, steps=10_000)
    """Share of actions that are drawn at random."""

    @property
    def plan(self) -> OnPolicy:
        """Updates from the newest 32 steps of each slot."""
        return OnPolicy(rollout_steps=32, rollouts=4, discount=self.gamma, next_actions=True)


class SarsaModel(Model):
    """Action values."""

    def __init__(self, config: Config, seed: int):
        super().__init__()
        self.config = config
        shape = (config.state_size,)
        self.q = make_network("q", config.network, shape, config.num_actions, seed=seed)

    def get_input_specs(self) -> Specs:
        return [("observation", {"shape": [self.config.state_size]})]

    def get_action_specs(self) -> Specs:
        return [("action", {"shape": [], "dtype": "int64"})]

    def policy(self, inputs, memory, explore):  # type: ignore[no-untyped-def]
        values = self.q(inputs["observation"])
        return {"action": make_epsilon_greedy(values, explore["epsilon"])}, memory


class Sarsa(Algorithm):
    """target = r + discount Q(x', a')."""

    model: SarsaModel

    def learn(self, batch: Batch) -> Losses:
        value = take(self.model.q(batch.inputs["observation"]), batch.actions["action"])
        next_values = self.model.q(batch.next_inputs["observation"])
        next_value = take(next_values, batch.next_actions["action"])
        error = tf.stop_gradient(batch.returns + batch.discount * next_value) - value
        return Losses({"default": batch.mean(error**2)}, rows={"td_error": error})
