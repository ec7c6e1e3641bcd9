"""The networks of cql: an actor, critics with their targets, and the temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relaax_like.algorithm import (
    Critics,
    Encoder,
    Model,
    Specs,
    Target,
    Tensors,
    make_policy,
)
from relaax_like.config.continuous import ACTOR, CRITIC
from relaax_like.nn import Dense, Parameter
from relaax_like.nn.arrays import clip
from relaax_like.nn.layers import concatenate
from relaax_like.nn.lazy_tensorflow import tf

from .config import TEMPERATURE, Config

# Of the logarithm of the actor's standard deviation, before tanh.
_LOG_STD_RANGE = (-20.0, 2.0)


class CQLModel(Model):
    """An actor that squashes a Gaussian into the action's bounds; critics; the temperature.

    Attributes:
      space: of the action, a Box.
      encoder, head: the networks of the actor.
      critics, targets: the critics and their `Target`.
      log_alpha: the logarithm of the temperature.
      log_volume: sum of log((high - low) / 2) over the action's components: the difference between
        the log-probability of an action scaled to [-1, 1] and that of the same action unscaled.
    """

    autograph = False
    acting: Sequence[str] = ("encoder", "head")
    groups: Mapping[str, Sequence[str]] = {
        CRITIC: ("critics",),
        ACTOR: ("encoder", "head"),
        TEMPERATURE: ("log_alpha",),
    }

    def __init__(self, config: Config, seed: int):
        super().__init__()
        self.space = config.action_space
        size = len(self.space.low)
        self.encoder = Encoder(config, seed=seed, name="actor")
        self.head = Dense("policy", self.encoder.features, 2 * size, seed=seed + 1, gain=0.01)
        self.critics = Critics(config, seed, config.critics, normalizers=self.encoder.normalizers)
        self.targets = Target(self.critics, tau=config.tau)
        self.log_alpha = Parameter("log_alpha", np.zeros((), np.float32))
        self.log_volume = float(np.sum(np.log((self.space.high - self.space.low) / 2.0)))

    def get_input_specs(self) -> Specs:
        """Returns the specs of the observations."""
        return self.encoder.get_input_specs()

    def get_action_specs(self) -> Specs:
        """Returns the spec of the continuous action."""
        return [("action", {"shape": list(self.space.shape)})]

    def policy(self, inputs: Tensors, states: Tensors) -> tuple[dict[str, Any], Tensors]:
        """Returns the distribution of the action, and the memory unchanged."""
        return {"action": self._make_policy(self._compute(inputs))}, states

    def draw(self, inputs: Tensors, number: int, random: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Draws several actions for each observation.

        Args:
          inputs: by name, `[B, size]`.
          number: n.
          random: of the algorithm.

        Returns:
          Actions `[B, n, d]`; and their log-probabilities when scaled to [-1, 1], `[B, n]`.
        """
        parameters = tf.repeat(self._compute(inputs)[:, None, :], number, axis=1)
        actions, log_prob = self._make_policy(parameters).sample_with_log_prob(random)
        return actions, log_prob + self.log_volume

    def _compute(self, inputs: Tensors) -> Any:
        outputs = self.head(self.encoder(inputs, {})[0])
        size = len(self.space.low)
        mean, log_std = outputs[..., :size], outputs[..., size:]
        return concatenate([mean, clip(log_std, *_LOG_STD_RANGE)])

    def _make_policy(self, parameters: Any) -> Any:
        return make_policy(self.space, parameters, bounded=True)


def make_model(config: Config, seed: int) -> CQLModel:
    """Builds the model with the values that a run starts from."""
    return CQLModel(config, seed)
