"""Settings of dqn."""

from typing import Any

from pydantic import Field

from relaax_like.algorithm import Linear, Schedule
from relaax_like.config import OptimizerConfig, ReplayConfig, hyper
from relaax_like.config.found_spaces import describe_actions
from relaax_like.config.spaces import validate_discrete
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.spaces import ACTION, Discrete, Spaces


class Config(ReplayConfig):
    """Fields are read from the keys of the YAML's `algorithm` section."""

    num_actions: int | None = Field(default=None, ge=2)
    """Number of actions; by default it comes from the environment."""
    double: bool = True
    """Choose the next action with the network, and value it with the target (double DQN)."""
    dueling: bool = False
    """Split the last layer into the value of the state and the advantages of actions."""
    target_every: int = Field(default=500, ge=1)
    """Updates between two copies of the network to the target."""
    epsilon: Schedule = Linear(1.0, 0.05, steps=10_000)
    """Fraction of actions that are random, by environment steps of all slots together."""
    max_gradient_norm: hyper.MaxGradientNorm = 10.0
    """Maximum gradient norm; larger gradients are scaled down; null: no limit."""
    learning_rate: hyper.LearningRate = 1e-3
    """Learning rate of Adam."""

    @property
    def lacks_spaces(self) -> bool:
        """Whether the file does not define observations or actions."""
        return super().lacks_spaces or self.num_actions is None

    @property
    def action_spaces(self) -> Spaces:
        """One of `num_actions` actions."""
        return {} if self.num_actions is None else {ACTION: Discrete(n=self.num_actions)}

    def describe_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> dict[str, Any]:
        """Returns the keys of observations and actions that the file does not set."""
        keys = super().describe_spaces(observation_spaces, action_spaces)
        if self.num_actions is None:
            actions = describe_actions(action_spaces, bounded=False)
            if not isinstance(actions.get("num_actions"), int):
                raise InvalidInputError(
                    f"action_spaces: {', '.join(action_spaces)}: dqn needs one discrete action "
                    "(Discrete); use sac or ppo for continuous ones, ppo for several",
                    "action_spaces",
                )
            keys |= actions
        return keys

    def validate_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> None:
        """Refuses environments whose spaces do not fit this network."""
        super().validate_spaces(observation_spaces, action_spaces)
        if self.num_actions is not None:
            validate_discrete(action_spaces, self.num_actions, any_start=True)

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """Adam."""
        adam = OptimizerConfig(learning_rate=self.learning_rate, epsilon=self.adam_epsilon)
        return {"default": adam}
