"""The two networks of a2c: policy and value function."""

from typing import Any

import numpy as np
import tensorflow as tf

from relaax_like.computation.model import Model, Specs, Tensors
from relaax_like.nn.action_heads import (
    make_action_spec,
    make_distribution,
    make_numpy_distribution,
    num_parameters,
)
from relaax_like.nn.layers import Parameter, make_mlp

from .config import Config


class ActorCritic(Model):
    """A policy and a value function, each a network of dense layers of its own.

    `policy` is made of our layers alone and so also runs in NumPy.
    """

    def __init__(self, config: Config, seed: int = 0):
        super().__init__(name="actor_critic")
        self._config = config
        self._space = config.action_space
        sizes = [config.state_size, *config.hidden_sizes]
        self.actor = make_mlp(
            "policy",
            sizes,
            seed=seed,
            activation=config.activation,
            outputs=num_parameters(self._space, separate_log_std=True),
            output_gain=0.01,
        )
        self.critic = make_mlp(
            "value", sizes, seed=seed + 1000, activation=config.activation, outputs=1
        )
        self.log_std: Parameter | None = None
        if config.action_size is not None:
            initial = np.full(config.action_size, config.log_std_init, np.float32)
            self.log_std = Parameter("log_std", initial)

    def get_input_specs(self) -> Specs:
        """One flat observation."""
        return [("observation", {"shape": [self._config.state_size]})]

    def get_action_specs(self) -> Specs:
        """One action."""
        return [("action", make_action_spec(self._space))]

    def policy(self, inputs: Tensors, states: Tensors) -> tuple[dict[str, Any], Tensors]:
        """Returns the distribution of `action`."""
        observation = inputs["observation"]
        parameters = self.actor(observation)
        log_std = None if self.log_std is None else self.log_std(observation)
        in_numpy = isinstance(observation, np.ndarray)
        make = make_numpy_distribution if in_numpy else make_distribution
        return {"action": make(self._space, parameters, log_std)}, states

    def value(self, inputs: Tensors) -> tf.Tensor:
        """Returns V(observation), `[B] float32`."""
        return self.critic(inputs["observation"])[..., 0]


def make_model(config: Config, seed: int) -> ActorCritic:
    """Builds the model with the values that a run starts from."""
    return ActorCritic(config, seed)
