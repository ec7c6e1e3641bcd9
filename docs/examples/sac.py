"""Soft actor-critic with two critics and a learned temperature.

Haarnoja et al. 2018 (https://arxiv.org/abs/1812.05905), equations 5, 7 and 18.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from pydantic import Field

from relaax_like.algorithm import (
    Algorithm,
    AlgorithmConfig,
    Batch,
    Losses,
    Model,
    Phase,
    Replay,
    Specs,
    Target,
    Tunable,
    make_network,
    make_policy,
)
from relaax_like.config import NetworkConfig, OptimizerConfig
from relaax_like.nn import Module, Parameter
from relaax_like.wire import Box


class Config(AlgorithmConfig):
    """Keys of the YAML's `algorithm` section."""

    state_size: int = 3
    """Numbers in one observation."""
    action_size: int = 1
    """Components of an action, each in [-1, 1]."""
    network: NetworkConfig = NetworkConfig.model_validate({"layers": (256, 256)})
    """Layers of the actor and of each critic."""
    tau: float = Field(default=0.005, gt=0, le=1)
    """Share of the critics that is mixed into their targets after each step."""
    entropy_target: Tunable = -1.0
    """Entropy that the temperature is tuned for, in nats."""
    plan: Replay = Replay(capacity=1_000_000, batch_size=256, warm_up_steps=5_000)

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """Adam for each group."""
        return {group: OptimizerConfig(learning_rate=3e-4) for group in SACModel.groups}


class Critics(Module):
    """Two action values of the same observation and action."""

    def __init__(self, config: Config, seed: int):
        super().__init__()
        shape = (config.state_size + config.action_size,)
        self.networks = [
            make_network(f"critic{i}", config.network, shape, 1, seed=seed + 1000 * i)
            for i in (1, 2)
        ]

    def __call__(self, observation: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """Maps `[..., n]` and `[..., a]` to `[..., 2]`."""
        x = tf.concat([observation, action], -1)
        return tf.concat([network(x) for network in self.networks], -1)


class SACModel(Model):
    """An actor, two critics with their target, and the temperature's logarithm."""

    acting: Sequence[str] = ("actor",)
    groups: Mapping[str, Sequence[str]] = {
        "critic": ("critics",),
        "actor": ("actor",),
        "temperature": ("log_alpha",),
    }

    def __init__(self, config: Config, seed: int):
        super().__init__()
        self.config = config
        shape, outputs = (config.state_size,), 2 * config.action_size
        self.space = Box(
            dtype="float32",
            shape=(config.action_size,),
            low=np.full(config.action_size, -1, np.float32),
            high=np.full(config.action_size, 1, np.float32),
        )
        self.actor = make_network("actor", config.network, shape, outputs, seed=seed)
        self.critics = Critics(config, seed)
        self.targets = Target(self.critics, tau=config.tau)
        self.log_alpha = Parameter("log_alpha", np.zeros((), np.float32))

    def get_input_specs(self) -> Specs:
        return [("observation", {"shape": [self.config.state_size]})]

    def get_action_specs(self) -> Specs:
        return [("action", {"shape": [self.config.action_size]})]

    def policy(self, inputs, memory):  # type: ignore[no-untyped-def]
        parameters = self.actor(inputs["observation"])
        return {"action": make_policy(self.space, parameters, bounded=True)}, memory


class SAC(Algorithm):
    """One step of the critics, of the actor and of the temperature in each update."""

    phases = (Phase("critic"), Phase("actor"), Phase("temperature"))
    config: Config
    model: SACModel

    def learn(self, batch: Batch) -> Losses:
        model, log_alpha = self.model, self.model.log_alpha(batch.returns)
        alpha = tf.stop_gradient(tf.exp(log_alpha))
        x, next_x = batch.inputs["observation"], batch.next_inputs["observation"]
        next_policy = model.policy(batch.next_inputs, {})[0]["action"]
        next_action, next_log_prob = next_policy.sample_with_log_prob(self.random)
        next_value = tf.reduce_min(model.targets.module(next_x, next_action), -1)
        goal = batch.returns + batch.discount * (next_value - alpha * next_log_prob)
        errors = model.critics(x, batch.actions["action"]) - tf.stop_gradient(goal)[..., None]
        policy = model.policy(batch.inputs, {})[0]["action"]
        action, log_prob = policy.sample_with_log_prob(self.random)
        value = tf.reduce_min(model.critics(x, action), -1)
        surplus = tf.stop_gradient(batch.mean(log_prob + self.config.entropy_target))
        return Losses(
            {
                "critic": batch.mean(tf.reduce_sum(errors**2, -1)),
                "actor": batch.mean(alpha * log_prob - value),
                "temperature": -log_alpha * surplus,
            },
            rows={"priority": tf.reduce_mean(tf.abs(errors), -1)},
            metrics={"entropy": -batch.mean(log_prob), "alpha": alpha},
        )
