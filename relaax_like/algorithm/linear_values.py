"""LinearValues: one linear function of the observation for each action."""

from __future__ import annotations

from typing import Any

from relaax_like.algorithm.encoder import Encoder
from relaax_like.algorithm.model import Model, Specs, Tensors
from relaax_like.config.discrete import LinearValuesConfig
from relaax_like.nn.action_heads import make_epsilon_greedy
from relaax_like.nn.layers import Dense


class LinearValues(Model):
    """Q(x, a) = x . w_a; for an integer x, which becomes a one-hot vector, this is a table.

    All values are 0 at the start.

    Args:
      config: describes the observation and the action.
      seed: of the initial values.
    """

    autograph = False

    def __init__(self, config: LinearValuesConfig, seed: int):
        super().__init__()
        self.encoder = Encoder(config, seed=seed)
        assert config.num_actions is not None
        width, actions = self.encoder.features, config.num_actions
        self.values = Dense("q", width, actions, seed=seed, use_bias=False, gain=0.0)

    def get_input_specs(self) -> Specs:
        """Returns the specs of the observations."""
        return self.encoder.get_input_specs()

    def get_action_specs(self) -> Specs:
        """Returns the spec of the discrete action."""
        return [("action", {"shape": [], "dtype": "int64"})]

    def compute_q(self, inputs: Tensors) -> Any:
        """Returns Q, `[..., num_actions]`; in NumPy for arrays."""
        return self.values(self.encoder(inputs, {})[0])

    def policy(
        self, inputs: Tensors, states: Tensors, explore: Tensors
    ) -> tuple[dict[str, Any], Tensors]:
        """Returns the epsilon-greedy policy with `explore["epsilon"]`, and the memory unchanged."""
        return {"action": make_epsilon_greedy(self.compute_q(inputs), explore["epsilon"])}, states
