"""Settings of a2c."""

from typing import Literal, Self

from pydantic import Field, model_validator

from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.config.spaces import validate_continuous, validate_discrete, validate_vector
from relaax_like.wire.spaces import Box, Discrete, Space, Spaces


class Config(AlgorithmConfig):
    """Fields are read from the keys of the YAML's `algorithm` section."""

    # Model.
    # Numbers in one observation, flattened.
    state_size: int = Field(default=4, ge=1)
    # Discrete actions to choose from; exactly one of num_actions and action_size is set.
    num_actions: int | None = Field(default=None, ge=2)
    # Components of a continuous action.
    action_size: int | None = Field(default=None, ge=1)
    # Widths of the hidden layers of the policy, and of the value function, which shares nothing.
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    # Continuous actions: logarithm of the standard deviation at the start.
    log_std_init: float = 0.0

    # Learning rule.
    # Steps of every slot in one rollout, and so in one gradient.
    rollout_steps: int = Field(default=16, ge=1)
    # Discount per step.
    gamma: float = Field(default=0.99, ge=0, le=1)
    # 1: all of the rollout's rewards; 0: one step and the value.
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    entropy_coefficient: float = Field(default=0.0, ge=0)
    value_coefficient: float = Field(default=0.5, ge=0)
    # Global norm to which a gradient is scaled down; null: never.
    max_gradient_norm: float | None = Field(default=0.5, gt=0)
    # Shift and scale the advantages of a gradient to mean 0 and deviation 1.
    normalize_advantage: bool = False
    learning_rate: float = Field(default=7e-4, ge=0)
    # Rate at the end of max_global_step, to which it falls in a straight line; null: constant.
    learning_rate_end: float | None = Field(default=None, ge=0)
    epsilon: float = Field(default=1e-5, gt=0)

    @model_validator(mode="after")
    def _validate_action(self) -> Self:
        if (self.num_actions is None) == (self.action_size is None):
            raise ValueError(
                "set exactly one of num_actions (discrete) and action_size (continuous)"
            )
        return self

    @property
    def action_space(self) -> Space:
        """The leaf that the network's outputs describe."""
        if self.num_actions is not None:
            return Discrete(n=self.num_actions)
        assert self.action_size is not None
        return Box(dtype="float32", shape=(self.action_size,))

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """Adam for all variables."""
        if self.learning_rate_end is None:
            return {
                "default": OptimizerConfig(learning_rate=self.learning_rate, epsilon=self.epsilon)
            }
        return {
            "default": OptimizerConfig(
                learning_rate=self.learning_rate,
                epsilon=self.epsilon,
                schedule="linear",
                learning_rate_end=self.learning_rate_end,
                schedule_env_steps=self.max_global_step,
            )
        }

    def validate_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> None:
        """Refuses environments that this network does not fit."""
        validate_vector(observation_spaces, self.state_size)
        if self.num_actions is not None:
            validate_discrete(action_spaces, self.num_actions)
        else:
            assert self.action_size is not None
            validate_continuous(action_spaces, self.action_size)
