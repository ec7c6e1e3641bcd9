"""Double DQN with a recurrent network, on sequences with burn-in.

Mnih et al. 2015 (https://doi.org/10.1038/nature14236); double: van Hasselt et al. 2016, equation 4
(https://arxiv.org/abs/1509.06461); sequences: Kapturowski et al. 2019 (R2D2).
"""

from collections.abc import Sequence

import tensorflow as tf
from pydantic import Field

from relaax_like.algorithm import (
    Algorithm,
    AlgorithmConfig,
    Batch,
    Linear,
    Losses,
    Model,
    Replay,
    Schedule,
    Specs,
    Target,
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
    network: NetworkConfig = NetworkConfig.model_validate({"layers": (64, {"lstm": 64})})
    """Layers of the network."""
    target_every: int = Field(default=500, ge=1)
    """Optimizer steps between two copies to the target network."""
    epsilon: Schedule = Linear(1.0, 0.05, steps=10_000)
    """Share of actions that are drawn at random."""
    plan: Replay = Replay(
        capacity=100_000,
        batch_size=32,
        updates_per_step=0.25,
        warm_up_steps=1_000,
        sequence_steps=40,
        burn_in_steps=8,
    )


class DQNModel(Model):
    """Action values with a memory, and their target."""

    acting: Sequence[str] = ("online",)  # what agents pull

    def __init__(self, config: Config, seed: int):
        super().__init__()
        self.config = config
        shape = (config.state_size,)
        self.online = make_network("q", config.network, shape, config.num_actions, seed=seed)
        self.target = Target(self.online, every=config.target_every)

    def get_input_specs(self) -> Specs:
        return [("observation", {"shape": [self.config.state_size]})]

    def get_state_specs(self) -> Specs:
        return [("memory", {"shape": [self.online.state_size]})]

    def get_action_specs(self) -> Specs:
        return [("action", {"shape": [], "dtype": "int64"})]

    def policy(self, inputs, memory, explore):  # type: ignore[no-untyped-def]
        values, after = self.online(inputs["observation"], memory["memory"])
        return {"action": make_epsilon_greedy(values, explore["epsilon"])}, {"memory": after}


class DQN(Algorithm):
    """target = r + discount Q_target(x', argmax_a Q(x', a))."""

    model: DQNModel

    def learn(self, batch: Batch) -> Losses:
        online, target = self.model.online, self.model.target.module
        x, next_x = batch.inputs["observation"], batch.next_inputs["observation"]
        memory = batch.memory["memory"]
        values, after = online(x, memory, batch.begins)  # [T, B, A]
        _, target_after = target(x, memory, batch.begins)
        best = tf.argmax(online(next_x, after)[0], -1)
        next_value = take(target(next_x, target_after)[0], best)
        goal = tf.stop_gradient(batch.returns + batch.discount * next_value)
        error = goal - take(values, batch.actions["action"])
        return Losses(
            {"default": batch.mean(error**2)},
            rows={"priority": tf.abs(error)},
            metrics={"target": batch.mean(goal)},
        )
