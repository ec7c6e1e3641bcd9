"""The policy network of policy_gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relaax_like.algorithm import Model, Specs, get_variables
from relaax_like.algorithm.model import Tensors
from relaax_like.core import Variable
from relaax_like.nn import Dense, make_action_spec, make_policy
from relaax_like.nn.lazy_tensorflow import tf
from relaax_like.wire import Discrete

from .config import Config

if TYPE_CHECKING:
    from relaax_like.nn.distributions import Distribution


class PolicyModel(Model):
    """One hidden ReLU layer, no biases; softmax over the actions.

    Two actions need one output z, the log-odds of action 0: softmax([z, 0]) is
    [sigmoid(z), 1 - sigmoid(z)], the tutorial's policy. With more actions, each has its own output.
    """

    autograph = False

    def __init__(self, config: Config, seed: int = 0):
        super().__init__(name="policy")
        self._config = config
        self._space = Discrete(n=config.num_actions)
        self._outputs = 1 if config.num_actions == 2 else config.num_actions
        self.hidden = Dense(
            "hidden",
            config.state_size,
            config.hidden_layer_size,
            seed=seed,
            activation="relu",
            use_bias=False,
        )
        self.output = Dense(
            "output", config.hidden_layer_size, self._outputs, seed=seed + 1, use_bias=False
        )

    def get_input_specs(self) -> Specs:
        """Returns the spec of the flat observation."""
        return [("observation", {"shape": [self._config.state_size]})]

    def get_action_specs(self) -> Specs:
        """Returns the spec of the discrete action."""
        return [("action", make_action_spec(self._space))]

    def policy(self, inputs: Tensors, states: Tensors) -> tuple[dict[str, Distribution], Tensors]:
        """Returns the distribution of `action`, and the memory unchanged."""
        logits = self.output(self.hidden(inputs["observation"]))
        if self._outputs == 1:
            logits = tf.concat([logits, tf.zeros_like(logits)], axis=-1)
        return {"action": make_policy(self._space, logits)}, states


def make_model(config: Config, seed: int) -> PolicyModel:
    """Builds the model with the initial weights of a run."""
    return PolicyModel(config, seed)


def make_initial_values(config: Config, seed: int) -> list[Variable]:
    """Returns the initial weights of a run."""
    return get_variables(make_model(config, seed))
