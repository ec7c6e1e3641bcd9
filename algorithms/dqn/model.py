"""The network of dqn, and its target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relaax_like.algorithm import (
    Encoder,
    Model,
    ReturnSupport,
    Specs,
    Target,
    Tensors,
    make_drawn_epsilon_greedy,
    make_epsilon_greedy,
)
from relaax_like.nn import Dense, Module, NoisyDense
from relaax_like.nn.lazy_tensorflow import tf

from .config import Config


class QNetwork(Module):
    """Maps observations to the value of each action, or to the distribution of its return.

    Each action has N atoms: with `distribution.kind` categorical, the logits of N fixed returns
    z_i; with quantile, N returns that are equally likely; otherwise one, which is its value.

    With `dueling`, Q(x, a) = V(x) + A(x, a) - mean_b A(x, b) for each atom: Wang et al. 2016,
    equation 9 (https://arxiv.org/abs/1511.06581).

    Attributes:
      encoder: the layers before the heads.
      advantages: head of the actions.
      value: head of the state; None without `dueling`.
      support: z_i, of kind categorical; otherwise None.
    """

    def __init__(self, config: Config, seed: int):
        super().__init__()
        self.encoder = Encoder(config, seed=seed)
        assert config.num_actions is not None
        features, distribution = self.encoder.features, config.distribution
        atoms = 1 if distribution is None else distribution.atoms
        self._is_quantile = distribution is not None and distribution.kind == "quantile"
        self._shape = [config.num_actions, atoms]
        self.support: ReturnSupport | None = None
        if distribution is not None and distribution.kind == "categorical":
            assert distribution.v_min is not None
            assert distribution.v_max is not None
            self.support = ReturnSupport(distribution.v_min, distribution.v_max, atoms)
        dense = NoisyDense if config.noisy else Dense
        self.advantages = dense("q", features, config.num_actions * atoms, seed=seed + 1)
        self.value = dense("value", features, atoms, seed=seed + 2) if config.dueling else None

    def encode(self, inputs: Tensors, memory: Tensors, begins: Any = None) -> tuple[Any, Tensors]:
        """Returns features `[..., features]`, and the memory after each step; see `Encoder`."""
        return self.encoder(inputs, memory, begins)

    def compute_atoms(self, features: Any, random: Any = None) -> Any:
        """Returns the atoms, `[..., num_actions, N]`.

        Args:
          features: from `encode`.
          random: draws the noise of noisy layers; None: no noise.
        """
        atoms = self._reshape(self._apply(self.advantages, features, random), self._shape)
        if self.value is None:
            return atoms
        value = self._reshape(self._apply(self.value, features, random), [1, self._shape[1]])
        mean = np.mean if isinstance(atoms, np.ndarray) else tf.reduce_mean
        return value + atoms - mean(atoms, -2, keepdims=True)

    def to_values(self, atoms: Any) -> Any:
        """Returns the mean of the distribution that atoms `[..., N]` describe: a value, `[...]`."""
        if self.support is not None:
            return self.support.compute_means(atoms)
        if not self._is_quantile:
            return atoms[..., 0]
        return atoms.mean(-1) if isinstance(atoms, np.ndarray) else tf.reduce_mean(atoms, -1)

    def _apply(self, layer: Dense | NoisyDense, features: Any, random: Any) -> Any:
        if random is None or isinstance(layer, Dense):
            return layer(features)
        return layer(features, layer.draw_noise(random, features))

    def _reshape(self, x: Any, shape: list[int]) -> Any:
        if isinstance(x, np.ndarray):
            return x.reshape(*x.shape[:-1], *shape)
        return tf.reshape(x, tf.concat([tf.shape(x)[:-1], shape], 0))


class DQNModel(Model):
    """Action values, and a target network: a copy that is updated more slowly.

    Attributes:
      online: the network that acts and learns.
      target: its `Target`.
    """

    autograph = False
    acting: Sequence[str] = ("online",)

    def __init__(self, config: Config, seed: int):
        super().__init__()
        self._is_noisy = config.noisy
        self.online = QNetwork(config, seed)
        self.target = Target(self.online, every=config.target_every)

    def get_input_specs(self) -> Specs:
        """Returns the specs of the observations."""
        return self.online.encoder.get_input_specs()

    def get_state_specs(self) -> Specs:
        """Returns the spec of the network's memory, if it has one."""
        return self.online.encoder.get_state_specs()

    def get_action_specs(self) -> Specs:
        """Returns the spec of the discrete action."""
        return [("action", {"shape": [], "dtype": "int64"})]

    def policy(
        self, inputs: Tensors, states: Tensors, explore: Tensors
    ) -> tuple[dict[str, Any], Tensors]:
        """Returns the epsilon-greedy policy with `explore["epsilon"]`, and the next memory."""
        online, epsilon = self.online, explore["epsilon"]
        features, after = online.encode(inputs, states)
        values = online.to_values(online.compute_atoms(features))
        if not self._is_noisy:
            return {"action": make_epsilon_greedy(values, epsilon)}, after

        def draw(random: Any) -> Any:
            return online.to_values(online.compute_atoms(features, random))

        return {"action": make_drawn_epsilon_greedy(values, draw, epsilon)}, after


def make_model(config: Config, seed: int) -> DQNModel:
    """Builds the model with the values that a run starts from."""
    return DQNModel(config, seed)
