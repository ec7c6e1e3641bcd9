"""ActorCritic: the Model of a policy and a value function, built from the YAML file's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from relaax_like.algorithm.batch import Batch, Losses
from relaax_like.algorithm.encoder import (
    get_inputs,
    make_input_specs,
    make_normalizers,
    read_observations,
)
from relaax_like.algorithm.model import Model, Specs, Tensors
from relaax_like.config.actor_critic import ACTOR, CRITIC, SHARED, ActorCriticConfig
from relaax_like.config.leaves import ActionConfig
from relaax_like.nn.action_heads import make_action_spec
from relaax_like.nn.arrays import Values
from relaax_like.nn.distributions import Distribution, Joint
from relaax_like.nn.layers import Constant, Parameter
from relaax_like.nn.lazy_tensorflow import tf
from relaax_like.nn.networks import Network, make_network
from relaax_like.nn.policy_head import PolicyHead
from relaax_like.wire.spaces import ACTION

POLICY, VALUE, TRUNK = "policy", "value", "trunk"


@dataclass(frozen=True)
class Evaluation:
    """What an actor-critic computes for a batch with the leading axes `[...]`.

    Attributes:
      policy: the distribution of `action`; with `actions` in the settings, a `Joint` of all
        actions.
      parameters: of the distribution, as `make_policy` takes them, `[..., n] float32`.
      values: V, `[...] float32`.
      memory: the memory after each step, name -> `[..., size]`; {} without a memory.
    """

    policy: Distribution
    parameters: tf.Tensor
    values: tf.Tensor
    memory: Tensors

    def log_prob(self, actions: Tensors) -> tf.Tensor:
        """Returns the log-probability of all actions of each row together, `[...] float32`.

        Args:
          actions: by name, as `batch.actions`.
        """
        return self.policy.log_prob(actions if isinstance(self.policy, Joint) else actions[ACTION])


class ActorCritic(Model):
    """A policy and a value function: two networks, or two linear heads on one trunk.

    Consists of our layers only, so it acts in NumPy, unless it has convolutions. If layers are
    recurrent, each network has its own memory. Each leaf of the action space has its own columns
    of the policy's outputs, in the order of the leaves' names.

    Attributes:
      heads: leaf of the action space -> its `PolicyHead`.
      trunk: the layers that policy and value function share; None: they share none.
      actor: the network of the policy.
      critic: the network of the value function.
      normalizers: leaf of the observation -> its `Normalizer`, if it is normalised.

    Args:
      config: describes observations, actions, rewards and layers.
      seed: of the initial values.

    Raises:
      ConfigError: see `get_inputs`; or a convolution does not fit the input.
    """

    def __init__(self, config: ActorCriticConfig, seed: int = 0):
        super().__init__(name="actor_critic")
        self._config = config
        self._num_values = config.num_values
        shape = get_inputs(config)
        self.heads = {
            leaf: _make_head(config, leaf, own) for leaf, own in config.action_leaves.items()
        }
        outputs = [head.outputs for head in self.heads.values()]
        # Of the outputs, and of the distribution's parameters, by leaf; {} for one action.
        self._columns = _make_columns(config, outputs)
        self._parameters = _make_columns(config, [head.size for head in self.heads.values()])
        self.xla = not config.images
        self.autograph = False
        self.normalizers = make_normalizers(config)
        self.trunk: Network | None = None
        network = config.network
        if config.shared_network:
            self.trunk = make_network(TRUNK, network, shape, None, seed=seed)
            shape = (self.trunk.features,)
            network = network.model_copy(update={"layers": ()})
        self.actor = make_network(POLICY, network, shape, sum(outputs), seed=seed, output_gain=0.01)
        self.critic = make_network(VALUE, network, shape, 1, seed=seed + 1000)
        named = {TRUNK: self.trunk, POLICY: self.actor, VALUE: self.critic}
        self._remembering = [n for n, part in named.items() if part and part.state_size]
        self._state_sizes = {n: named[n].state_size for n in self._remembering}  # type: ignore[union-attr]

    def separate(self) -> Self:
        """Makes each network a variable group, unless they share layers; returns itself."""
        if self.trunk is None:
            self.groups = {ACTOR: ("actor", "heads"), CRITIC: ("critic",)}
        return self

    def name_costs(self, actor: tf.Tensor, critic: tf.Tensor, metrics: Tensors) -> Losses:
        """Returns the costs of the two networks as those of the groups of `separate`.

        Args:
          actor: `[]`, of the policy.
          critic: `[]`, of the value function.
          metrics: see `Losses`; if the networks share layers, both costs are metrics, too.
        """
        if self.trunk is None:
            return Losses({ACTOR: actor, CRITIC: critic}, metrics=metrics)
        return Losses({SHARED: actor + critic}, metrics={ACTOR: actor, CRITIC: critic, **metrics})

    def get_input_specs(self) -> Specs:
        """Returns the specs of the observation, leaf by leaf: flat, an image, or integers."""
        return make_input_specs(self._config)

    def get_state_specs(self) -> Specs:
        """Returns the spec of each recurrent network's memory."""
        return [(name, {"shape": [size]}) for name, size in self._state_sizes.items()]

    def get_action_specs(self) -> Specs:
        """Returns the spec of the action, or of each leaf of the action space."""
        return [(leaf, make_action_spec(head.space)) for leaf, head in self.heads.items()]

    def get_reward_specs(self) -> Specs:
        """Returns the spec of one number named `reward`, or of one for each name in `rewards`."""
        rewards = self._config.rewards
        if rewards is None:
            return super().get_reward_specs()
        return [(name, {"shape": [1]}) for name in rewards]

    def policy(self, inputs: Tensors, states: Tensors) -> tuple[dict[str, Any], Tensors]:
        """Returns the distribution of each action, and the next memory; in NumPy for arrays."""
        x, next_states = self._look(inputs, states)
        outputs, state = self.actor(x, states.get(POLICY))
        if state is not None:
            next_states[POLICY] = state
        if VALUE in self._state_sizes:  # has its own memory, updated even if nothing is learned
            next_states[VALUE] = self.critic(x, states[VALUE])[1]
        if not self._columns:
            return {ACTION: self.heads[ACTION](outputs)}, next_states
        policies = {
            leaf: self.heads[leaf](outputs[..., columns]) for leaf, columns in self._columns.items()
        }
        return policies, next_states

    def value(self, inputs: Tensors, states: Tensors, critic: Network | None = None) -> tf.Tensor:
        """Returns V(observation), `[...] float32`; each row is a separate step.

        Args:
          inputs: observations by leaf, `[..., *shape]`.
          states: the memory before them, name -> `[..., size]`.
          critic: computes the values, such as the copy in a `Target` of this model's critic
            (`Target.module`); None: this model's critic.
        """
        x, _ = self._look(inputs, states)
        return (critic or self.critic)(x, states.get(VALUE))[0][..., 0]

    def evaluate(self, batch: Batch) -> Evaluation:
        """Computes policy and values of all rows of a batch; rollouts step by step."""
        parameters, values, memory = self._compute(batch.inputs, batch.memory, batch.begins)
        return Evaluation(self.make_distribution(parameters), parameters, values, memory)

    def encode(self, batch: Batch) -> tf.Tensor:
        """Returns what the shared layers compute of a batch's observations, `[..., features]`.

        Only with `shared_network`. Rollouts are computed step by step.
        """
        assert self.trunk is not None, "shared_network is false: there are no shared layers"
        x = read_observations(self._config, self.normalizers, self._num_values, batch.inputs)
        return self.trunk(x, batch.memory.get(TRUNK), batch.begins)[0]

    def compute_returns(self, batch: Batch) -> tf.Tensor:
        """Returns `batch.returns`, or the weighted sum of the rewards in the settings, `[...]`."""
        rewards = self._config.rewards
        if rewards is None:
            return batch.returns
        return tf.add_n([weight * batch.rewards[name][..., 0] for name, weight in rewards.items()])

    def make_distribution(self, parameters: tf.Tensor) -> Distribution:
        """Returns the policy from the parameters of an `Evaluation`; see `Evaluation.policy`."""
        if not self._parameters:
            return self.heads[ACTION].make_distribution(parameters)
        return Joint(
            {
                leaf: self.heads[leaf].make_distribution(parameters[..., columns])
                for leaf, columns in self._parameters.items()
            }
        )

    def compute_means(self, parameters: tf.Tensor) -> tf.Tensor:
        """Returns the policy's mean actions, from the parameters of an `Evaluation`.

        Args:
          parameters: `[..., n]`.

        Returns:
          `[..., m]`: what `PolicyHead.compute_means` returns, one leaf after the other.
        """
        if not self._parameters:
            return self.heads[ACTION].compute_means(parameters)
        parts = [
            self.heads[leaf].compute_means(parameters[..., columns])
            for leaf, columns in self._parameters.items()
        ]
        return tf.concat(parts, -1)

    def _compute(
        self, inputs: Tensors, states: Tensors, begins: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor, Tensors]:
        """Returns the policy's parameters, the values, and the memory after each step."""
        memory: dict[str, tf.Tensor | None] = {}
        x = read_observations(self._config, self.normalizers, self._num_values, inputs)
        if self.trunk is not None:
            x, memory[TRUNK] = self.trunk(x, states.get(TRUNK), begins)
        outputs, memory[POLICY] = self.actor(x, states.get(POLICY), begins)
        values, memory[VALUE] = self.critic(x, states.get(VALUE), begins)
        known = {name: state for name, state in memory.items() if state is not None}
        return self._complete(outputs, inputs), values[..., 0], known

    def _complete(self, outputs: tf.Tensor, inputs: Tensors) -> tf.Tensor:
        if not self._columns:
            return self.restrict(self.heads[ACTION].complete(outputs), inputs)
        parts = [
            self.restrict(self.heads[leaf].complete(outputs[..., columns]), inputs, leaf)
            for leaf, columns in self._columns.items()
        ]
        return tf.concat(parts, -1)

    def _look(
        self, inputs: Mapping[str, Values], states: Mapping[str, Values]
    ) -> tuple[Values, dict[str, Values]]:
        x = read_observations(self._config, self.normalizers, self._num_values, inputs)
        if self.trunk is None:
            return x, {}
        x, state = self.trunk(x, states.get(TRUNK))
        return x, {} if state is None else {TRUNK: state}


def _make_head(config: ActorCriticConfig, leaf: str, own: ActionConfig) -> PolicyHead:
    log_std: Parameter | Constant | None = None
    if own.size is not None:
        fixed = own.fixed_log_std
        if fixed is None:
            name = "log_std" if config.actions is None else f"log_std.{leaf}"
            log_std = Parameter(name, np.full(own.size, own.log_std_init, np.float32))
        else:
            log_std = Constant(fixed)
    return PolicyHead(own.space, bounded=own.bounded, log_std=log_std)


def _make_columns(config: ActorCriticConfig, sizes: list[int]) -> dict[str, slice]:
    """Returns the columns of each leaf's numbers, which are side by side; {} for one action."""
    if config.actions is None:
        return {}
    columns, start = {}, 0
    for leaf, size in zip(config.action_leaves, sizes, strict=True):
        columns[leaf] = slice(start, start + size)
        start += size
    return columns
