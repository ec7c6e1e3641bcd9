"""The networks of sac: an actor, critics with their targets, and the temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relaax_like.algorithm import Critics, Encoder, Model, Specs, Target, Tensors, make_policy
from relaax_like.config.continuous import ACTOR, CRITIC
from relaax_like.nn import Dense, Parameter
from relaax_like.nn.lazy_tensorflow import tf

from .config import TEMPERATURE, Config

# Of the logarithm of the actor's standard deviation, before tanh.
_LOG_STD_RANGE = (-20.0, 2.0)


class SACModel(Model):
    """An actor that squashes a Gaussian into the action's bounds; critics; the temperature.

    Attributes:
      log_alpha: the logarithm of the temperature; None: it is fixed.
      log_volume: of half the action's box: what log-probabilities of actions scaled to [-1, 1] have
        more than those of the environment's.
    """

    autograph = False
    acting: Sequence[str] = ("encoder", "head")

    def __init__(self, config: Config, seed: int):
        super().__init__()
        self.space = config.action_space
        size = len(self.space.low)
        self.encoder = Encoder(config, seed=seed, name="actor")
        self.head = Dense("policy", self.encoder.features, 2 * size, seed=seed + 1, gain=0.01)
        self.critics = Critics(
            config,
            seed,
            config.critics,
            config.critic_layer_norm,
            config.critic_dropout,
            self.encoder.normalizers,
        )
        self.targets = Target(self.critics, tau=config.tau)
        groups = {CRITIC: ("critics",), ACTOR: ("encoder", "head")}
        self.log_alpha: Parameter | None = None
        if config.temperature is None:
            self.log_alpha = Parameter("log_alpha", np.zeros((), np.float32))
            groups[TEMPERATURE] = ("log_alpha",)
        self.groups: Mapping[str, Sequence[str]] = groups
        self.log_volume = float(np.sum(np.log((self.space.high - self.space.low) / 2.0)))

    def get_input_specs(self) -> Specs:
        """Returns the observations."""
        return self.encoder.get_input_specs()

    def get_action_specs(self) -> Specs:
        """Returns one continuous action."""
        return [("action", {"shape": list(self.space.shape)})]

    def policy(self, inputs: Tensors, states: Tensors) -> tuple[dict[str, Any], Tensors]:
        """Returns the distribution of the action."""
        features, _ = self.encoder(inputs, {})
        outputs = self.head(features)
        size = len(self.space.low)
        mean, log_std = outputs[..., :size], outputs[..., size:]
        if isinstance(outputs, np.ndarray):
            parameters: Any = np.concatenate([mean, np.clip(log_std, *_LOG_STD_RANGE)], -1)
        else:
            parameters = tf.concat([mean, tf.clip_by_value(log_std, *_LOG_STD_RANGE)], -1)
        return {"action": make_policy(self.space, parameters, bounded=True)}, states


def make_model(config: Config, seed: int) -> SACModel:
    """Builds the model with the values that a run starts from."""
    return SACModel(config, seed)
