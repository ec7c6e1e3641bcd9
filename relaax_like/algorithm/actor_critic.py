"""ActorCritic: the Model of a policy and a value function, built from the YAML's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from relaax_like.algorithm.encoder import (
    get_inputs,
    make_input_specs,
    make_normalizers,
    read_observations,
)
from relaax_like.algorithm.model import Model, Specs, Tensors
from relaax_like.config.actions import LEARNED
from relaax_like.config.actor_critic import ActorCriticConfig
from relaax_like.nn.action_heads import (
    make_action_spec,
    make_distribution,
    make_policy,
    num_parameters,
)
from relaax_like.nn.layers import Constant, Parameter, Values
from relaax_like.nn.lazy_tensorflow import tf
from relaax_like.nn.networks import Network, make_network
from relaax_like.wire.spaces import MultiDiscrete

if TYPE_CHECKING:
    from relaax_like.algorithm.batch import Batch
    from relaax_like.nn.distributions import Distribution

POLICY, VALUE, TRUNK = "policy", "value", "trunk"


@dataclass(frozen=True)
class Unrolled:
    """What an actor-critic makes of a rollout `[T, k, ...]`.

    Attributes:
      distribution: of `action`, over the T * k rows.
      parameters: of the distribution, as `make_distribution` takes them, `[T, k, n] float32`.
      values: V, `[T, k] float32`.
      states: the memory after each step, name -> `[T, k, size]`.
    """

    distribution: Distribution
    parameters: tf.Tensor
    values: tf.Tensor
    states: Tensors


@dataclass(frozen=True)
class Evaluation:
    """What an actor-critic computes for a batch, whose leading axes `[...]` it has.

    Attributes:
      policy: the distribution of `action`.
      parameters: of the distribution, as `make_distribution` takes them, `[..., n] float32`.
      values: V, `[...] float32`.
      memory: after each step, name -> `[..., size]`; {} without one.
    """

    policy: Distribution
    parameters: tf.Tensor
    values: tf.Tensor
    memory: Tensors


class ActorCritic(Model):
    """A policy and a value function: two networks, or two linear heads on one trunk.

    Made of our layers alone, so that it acts in NumPy, unless it has convolutions. Where layers are
    recurrent, each network remembers for itself.
    """

    def __init__(self, config: ActorCriticConfig, seed: int = 0):
        super().__init__(name="actor_critic")
        self._config = config
        self._space = config.action_space
        shape = get_inputs(config)
        self._bounded = config.bounded
        outputs = num_parameters(self._space, bounded=self._bounded, separate_log_std=True)
        self.xla = not config.images
        self.normalizers = make_normalizers(config)
        self.trunk: Network | None = None
        network = config.network
        if config.shared_network:
            self.trunk = make_network(TRUNK, network, shape, None, seed=seed)
            shape = (self.trunk.features,)
            network = network.model_copy(update={"layers": ()})
        self.actor = make_network(POLICY, network, shape, outputs, seed=seed, output_gain=0.01)
        self.critic = make_network(VALUE, network, shape, 1, seed=seed + 1000)
        self.log_std = _make_log_std(config)
        named = {TRUNK: self.trunk, POLICY: self.actor, VALUE: self.critic}
        self._remembering = [n for n, part in named.items() if part and part.state_size]
        self._state_sizes = {n: named[n].state_size for n in self._remembering}  # type: ignore[union-attr]

    def get_input_specs(self) -> Specs:
        """One observation, leaf by leaf: flat, or an image."""
        return make_input_specs(self._config)

    def get_state_specs(self) -> Specs:
        """The memory of each recurrent network."""
        return [(name, {"shape": [size]}) for name, size in self._state_sizes.items()]

    def get_action_specs(self) -> Specs:
        """One action."""
        return [("action", make_action_spec(self._space))]

    def policy(self, inputs: Tensors, states: Tensors) -> tuple[dict[str, Any], Tensors]:
        """Returns the distribution of `action`; in NumPy for arrays."""
        x, next_states = self._look(inputs, states)
        parameters, state = self.actor(x, states.get(POLICY))
        if state is not None:
            next_states[POLICY] = state
        if VALUE in self._state_sizes:  # remembers on its own, also while nothing is learned
            next_states[VALUE] = self.critic(x, states[VALUE])[1]
        return {"action": self._make_distribution(parameters)}, next_states

    def value(self, inputs: Tensors, states: Tensors) -> tf.Tensor:
        """Returns V(observation), `[B] float32`; states are the memory before it."""
        x, _ = self._look(inputs, states)
        return self.critic(x, states.get(VALUE))[0][..., 0]

    def unroll(self, inputs: Tensors, states: Tensors, begins: tf.Tensor) -> Unrolled:
        """Goes through a rollout.

        Args:
          inputs: name -> `[T, k, ...]`.
          states: the memory before the first step, name -> `[k, size]`.
          begins: whether an episode begins at t, `[T, k] bool`.
        """
        all_states: dict[str, tf.Tensor | None] = {}
        x = self._read(inputs)
        if self.trunk is not None:
            x, all_states[TRUNK] = self.trunk(x, states.get(TRUNK), begins)
        parameters, all_states[POLICY] = self.actor(x, states.get(POLICY), begins)
        values, all_states[VALUE] = self.critic(x, states.get(VALUE), begins)
        if self.log_std is not None:
            log_std = tf.broadcast_to(self.log_std(parameters), tf.shape(parameters))
            parameters = tf.concat([parameters, log_std], -1)
        return Unrolled(
            self.make_distribution(tf.reshape(parameters, [-1, parameters.shape[-1]])),
            parameters,
            values[..., 0],
            {name: state for name, state in all_states.items() if state is not None},
        )

    def evaluate(self, batch: Batch) -> Evaluation:
        """Computes policy and values of all rows of a batch."""
        memory: dict[str, tf.Tensor | None] = {}
        x, begins = self._read(batch.inputs), batch.begins
        if self.trunk is not None:
            x, memory[TRUNK] = self.trunk(x, batch.memory.get(TRUNK), begins)
        parameters, memory[POLICY] = self.actor(x, batch.memory.get(POLICY), begins)
        values, memory[VALUE] = self.critic(x, batch.memory.get(VALUE), begins)
        if self.log_std is not None:
            log_std = tf.broadcast_to(self.log_std(parameters), tf.shape(parameters))
            parameters = tf.concat([parameters, log_std], -1)
        return Evaluation(
            self.make_distribution(parameters),
            parameters,
            values[..., 0],
            {name: state for name, state in memory.items() if state is not None},
        )

    def make_distribution(self, parameters: tf.Tensor) -> Distribution:
        """Returns the distribution of `action` from the parameters of an `Evaluation`."""
        return make_distribution(self._space, parameters, bounded=self._bounded)

    def compute_means(self, parameters: tf.Tensor) -> tf.Tensor:
        """Returns what the policy does on average, from the parameters of an `Unrolled`.

        Args:
          parameters: `[..., n]`.

        Returns:
          A continuous action's mean `[..., d]`, in its bounds if it has some; of discrete actions
          the probability of each, choice by choice, `[..., n]`.
        """
        if self.log_std is not None:
            return self.make_distribution(parameters).mode()
        sizes = self._space.n if isinstance(self._space, MultiDiscrete) else [parameters.shape[-1]]
        parts = tf.split(parameters, sizes, axis=-1)
        return tf.concat([tf.nn.softmax(part) for part in parts], axis=-1)

    def _look(
        self, inputs: Mapping[str, Values], states: Mapping[str, Values]
    ) -> tuple[Values, dict[str, Values]]:
        x = self._read(inputs)
        if self.trunk is None:
            return x, {}
        x, state = self.trunk(x, states.get(TRUNK))
        return x, {} if state is None else {TRUNK: state}

    def _read(self, inputs: Mapping[str, Values]) -> Values:
        return read_observations(self._config, self.normalizers, inputs)

    def _make_distribution(self, parameters: Values) -> Any:
        log_std = None if self.log_std is None else self.log_std(parameters)
        return make_policy(self._space, parameters, log_std, bounded=self._bounded)


def _make_log_std(config: ActorCriticConfig) -> Parameter | Constant | None:
    """Returns the logarithm of the standard deviation; None for discrete actions."""
    if config.action_size is None:
        return None
    if config.std == LEARNED:
        initial = np.full(config.action_size, config.log_std_init, np.float32)
        return Parameter("log_std", initial)
    return Constant(np.log(np.broadcast_to(config.std, config.action_size)))
