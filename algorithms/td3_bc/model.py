"""The networks of td3_bc: an actor without randomness, two critics, and targets of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relaax_like.algorithm import Critics, Encoder, Model, Specs, Target, Tensors
from relaax_like.config.continuous import ACTOR, CRITIC
from relaax_like.nn import Dense, Module
from relaax_like.nn.arrays import tanh
from relaax_like.nn.distributions import Deterministic

from .config import Config


class Actor(Module):
    """Maps an observation to an action scaled to [-1, 1], in NumPy for arrays.

    Args:
      config: describes the observation, the action and the layers.
      seed: of the initial values.
    """

    def __init__(self, config: Config, seed: int):
        super().__init__()
        self.encoder = Encoder(config, seed=seed, name="actor")
        size = config.action_size
        assert size is not None, "the settings define the spaces"
        self.head = Dense("policy", self.encoder.features, size, seed=seed + 1, gain=0.01)

    def __call__(self, inputs: Tensors) -> Any:
        """Returns `[..., d] float32`."""
        return tanh(self.head(self.encoder(inputs, {})[0]))


class TD3BCModel(Model):
    """An actor without randomness; two critics; targets of both.

    Attributes:
      space: of the action, a Box.
      actor, critics: the networks.
      target_actor, target_critics: their targets.
    """

    autograph = False
    acting: Sequence[str] = ("actor",)
    groups: Mapping[str, Sequence[str]] = {CRITIC: ("critics",), ACTOR: ("actor",)}

    def __init__(self, config: Config, seed: int):
        super().__init__()
        self.space = config.action_space
        self.actor = Actor(config, seed)
        self.critics = Critics(config, seed, 2, normalizers=self.actor.encoder.normalizers)
        self.target_actor = Target(self.actor, tau=config.tau)
        self.target_critics = Target(self.critics, tau=config.tau)

    def get_input_specs(self) -> Specs:
        """Returns the specs of the observations."""
        return self.actor.encoder.get_input_specs()

    def get_action_specs(self) -> Specs:
        """Returns the spec of the continuous action."""
        return [("action", {"shape": list(self.space.shape)})]

    def policy(self, inputs: Tensors, states: Tensors) -> tuple[dict[str, Any], Tensors]:
        """Returns a distribution of one action only, and the memory unchanged."""
        action = self.unscale(self.actor(inputs))
        return {"action": Deterministic(action)}, states

    def unscale(self, scaled: Any) -> Any:
        """Converts actions scaled to [-1, 1] to the environment's; for arrays and tensors."""
        low, high = self.space.low, self.space.high
        return low + 0.5 * (high - low) * (scaled + 1.0)


def make_model(config: Config, seed: int) -> TD3BCModel:
    """Builds the model with the values that a run starts from."""
    return TD3BCModel(config, seed)
