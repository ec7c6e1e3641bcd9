"""The networks of sac: an actor, critics with their targets, and the temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relaax_like.algorithm import (
    Critics,
    DiscreteCritics,
    Encoder,
    Model,
    Regularization,
    Specs,
    Target,
    Tensors,
    make_policy,
)
from relaax_like.config.continuous import ACTOR, CRITIC
from relaax_like.nn import Dense, Parameter, make_action_spec
from relaax_like.nn.action_heads import num_parameters
from relaax_like.nn.arrays import clip
from relaax_like.nn.layers import concatenate
from relaax_like.wire.spaces import Box, Discrete

from .config import TEMPERATURE, Config

# Of the logarithm of the actor's standard deviation, before tanh.
_LOG_STD_RANGE = (-20.0, 2.0)


class SACModel(Model):
    """An actor, critics, and the temperature.

    The actor squashes a Gaussian into the action's bounds, or has a probability for each action.

    Attributes:
      space: of the action: a Box or Discrete.
      log_alpha: the logarithm of the temperature; None: it is fixed.
      log_volume: sum of log((high - low) / 2) over the action's components: the difference between
        the log-probability of an action scaled to [-1, 1] and that of the same action unscaled; 0
        if the action is discrete.
      encoder, head: the networks of the actor.
      critics, targets: the critics and their `Target`.
    """

    autograph = False
    acting: Sequence[str] = ("encoder", "head")

    def __init__(self, config: Config, seed: int):
        super().__init__()
        actions = config.num_actions
        self.space: Box | Discrete
        self.space = config.action_space if actions is None else Discrete(n=actions)
        self.log_volume = 0.0
        if isinstance(self.space, Box):
            self.log_volume = float(np.sum(np.log((self.space.high - self.space.low) / 2.0)))
        outputs = num_parameters(self.space)
        self.encoder = Encoder(config, seed=seed, name="actor")
        self.head = Dense("policy", self.encoder.features, outputs, seed=seed + 1, gain=0.01)
        norm: Any = "layer" if config.critic_layer_norm else ""
        regular = Regularization(norm, config.critic_dropout)
        options = (seed, config.critics, regular, self.encoder.normalizers)
        self.critics: Critics | DiscreteCritics
        if actions is None:
            self.critics = Critics(config, *options)
        else:
            self.critics = DiscreteCritics(config, actions, *options)
        self.targets = Target(self.critics, tau=config.tau)
        groups = {CRITIC: ("critics",), ACTOR: ("encoder", "head")}
        self.log_alpha: Parameter | None = None
        if config.temperature is None:
            self.log_alpha = Parameter("log_alpha", np.zeros((), np.float32))
            groups[TEMPERATURE] = ("log_alpha",)
        self.groups: Mapping[str, Sequence[str]] = groups

    def get_input_specs(self) -> Specs:
        """Returns the specs of the observations."""
        return self.encoder.get_input_specs()

    def get_action_specs(self) -> Specs:
        """Returns the spec of the action."""
        return [("action", make_action_spec(self.space))]

    def policy(self, inputs: Tensors, states: Tensors) -> tuple[dict[str, Any], Tensors]:
        """Returns the distribution of the action, and the memory unchanged."""
        features, _ = self.encoder(inputs, {})
        outputs = self.head(features)
        if isinstance(self.space, Discrete):
            return {"action": make_policy(self.space, outputs)}, states
        size = len(self.space.low)
        mean, log_std = outputs[..., :size], outputs[..., size:]
        parameters = concatenate([mean, clip(log_std, *_LOG_STD_RANGE)])
        return {"action": make_policy(self.space, parameters, bounded=True)}, states


def make_model(config: Config, seed: int) -> SACModel:
    """Builds the model with the values that a run starts from."""
    return SACModel(config, seed)
