"""The networks of td3_bc: an actor without randomness, two critics, and targets of both."""

from __future__ import annotations

from typing import Any

from relaax_like.algorithm import Tensors
from relaax_like.algorithm.critics import DeterministicActor, DeterministicModel
from relaax_like.nn.arrays import tanh
from relaax_like.nn.distributions import Deterministic

from .config import Config


class Actor(DeterministicActor):
    """Maps an observation to an action scaled to [-1, 1], in NumPy for arrays."""

    def __call__(self, inputs: Tensors) -> Any:
        """Returns `[..., d] float32`."""
        return tanh(self.head(self.encoder(inputs, {})[0]))


class TD3BCModel(DeterministicModel):
    """A DeterministicModel that acts without noise, and whose actor scales its actions."""

    actor_type = Actor

    def policy(
        self, inputs: Tensors, memory: Tensors, *_: Tensors
    ) -> tuple[dict[str, Any], Tensors]:
        """Returns a distribution of one action only, and the memory unchanged."""
        action = self.unscale(self.actor(inputs))
        return {"action": Deterministic(action)}, memory

    def unscale(self, scaled: Any) -> Any:
        """Converts actions scaled to [-1, 1] to the environment's; for arrays and tensors."""
        low, high = self.space.low, self.space.high
        return low + 0.5 * (high - low) * (scaled + 1.0)


def make_model(config: Config, seed: int) -> TD3BCModel:
    """Builds the model with the values that a run starts from."""
    return TD3BCModel(config, seed, critics=2)
