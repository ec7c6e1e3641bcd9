"""The networks of xqc: an actor and critics with batch norms, targets, and the temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relaax_like.algorithm import (
    Critics,
    Model,
    Regularization,
    RegularNetwork,
    ReturnSupport,
    Specs,
    Target,
    Tensors,
    make_input_specs,
    make_normalizers,
    make_policy,
)
from relaax_like.algorithm.critics import join_inputs
from relaax_like.config.continuous import ACTOR, CRITIC
from relaax_like.config.plan import RETURN_STATISTIC
from relaax_like.nn import Normalizer, Norming, Parameter, make_action_spec
from relaax_like.nn.action_heads import num_parameters
from relaax_like.nn.arrays import clip
from relaax_like.nn.layers import concatenate

from .config import TEMPERATURE, Config

# Of the logarithm of the actor's standard deviation, before tanh.
_LOG_STD_RANGE = (-20.0, 2.0)


class XQCModel(Model):
    """An actor, critics, and the temperature; the actor squashes a Gaussian into the bounds.

    Attributes:
      space: of the action.
      log_alpha: the logarithm of the temperature.
      log_volume: sum of log((high - low) / 2) over the action's components: the difference between
        the log-probability of an action scaled to [-1, 1] and that of the same action unscaled.
      actor: the network of the actor.
      critics, targets: the critics and their `Target`; None: there are no targets.
      support: of the critics' distributions; None: they learn means.
      returns: running statistic of the discounted sums of rewards; None: rewards are not scaled.
    """

    autograph = False
    acting: Sequence[str] = ("actor", "normalizers")

    def __init__(self, config: Config, seed: int):
        super().__init__()
        self._config = config
        self.space = config.action_space
        self.log_volume = float(np.sum(np.log((self.space.high - self.space.low) / 2.0)))
        regular = Regularization("batch", unit_norm=config.unit_norm)
        self.normalizers = make_normalizers(config)
        if not self.normalizers:
            self.acting = ("actor",)
        self._names = sorted(config.input_shapes)
        sizes = sum(config.input_shapes[n][0] for n in self._names), num_parameters(self.space)
        self.actor = RegularNetwork("actor", config.network, sizes, seed, regular, gain=0.01)
        atoms, v_max = config.atoms, config.v_max
        self.support = None if atoms is None else ReturnSupport(-v_max, v_max, atoms)
        self.critics = Critics(
            config, seed, config.critics, regular, self.normalizers, outputs=atoms or 1
        )
        self.targets = Target(self.critics, tau=config.tau) if config.target_networks else None
        self.returns = Normalizer(RETURN_STATISTIC, ()) if config.normalize_rewards else None
        start = np.log(np.float32(config.initial_temperature))
        self.log_alpha = Parameter("log_alpha", start)
        self.groups: Mapping[str, Sequence[str]] = {
            CRITIC: ("critics",),
            ACTOR: ("actor",),
            TEMPERATURE: ("log_alpha",),
        }

    def get_input_specs(self) -> Specs:
        """Returns the specs of the observations."""
        return make_input_specs(self._config)

    def get_action_specs(self) -> Specs:
        """Returns the spec of the action."""
        return [("action", make_action_spec(self.space))]

    def policy(self, inputs: Tensors, states: Tensors) -> tuple[dict[str, Any], Tensors]:
        """Returns the distribution of the action, and the memory unchanged."""
        return {"action": self.act(inputs)}, states

    def act(self, inputs: Tensors, norming: Norming | None = None) -> Any:
        """Returns the distribution of the action.

        Args:
          inputs: observations by name.
          norming: of the training, for batch norms; None: they use their moving statistics.
        """
        x = join_inputs(inputs, self._names, self.normalizers)
        outputs = self.actor(x, norming=norming)
        size = len(self.space.low)
        parameters = [outputs[..., :size], clip(outputs[..., size:], *_LOG_STD_RANGE)]
        return make_policy(self.space, concatenate(parameters), bounded=True)


def make_model(config: Config, seed: int) -> XQCModel:
    """Builds the model with the values that a run starts from."""
    return XQCModel(config, seed)
