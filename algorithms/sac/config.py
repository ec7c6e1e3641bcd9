"""Settings of sac."""

from typing import Any, Self

from pydantic import Field, model_validator

from relaax_like.config import OptimizerConfig, ReplayConfig, Tunable, hyper
from relaax_like.config.actions import ActionConfig, Bound
from relaax_like.config.found_spaces import describe_actions
from relaax_like.config.spaces import validate_bounds, validate_continuous
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.spaces import ACTION, Box, Spaces

ACTOR, CRITIC, TEMPERATURE = "actor", "critic", "temperature"


class Config(ReplayConfig):
    """Fields are read from the keys of the YAML's `algorithm` section."""

    action_size: int | None = Field(default=None, ge=1)
    """Number of components of the action; by default it comes from the environment."""
    action_low: Bound | None = None
    """Lowest action of the environment, as one number or one per component."""
    action_high: Bound | None = None
    """Highest action of the environment, as one number or one per component."""
    tau: float = Field(default=0.005, gt=0, le=1)
    """Fraction of the critics that is mixed into their targets after each update."""
    entropy_target: Tunable | None = None
    """Entropy that the temperature is tuned for, in nats, of actions scaled to [-1, 1]; null: minus
    the number of components."""
    temperature: float | None = Field(default=None, gt=0)
    """Fixed weight of the entropy; null: it is tuned."""
    critics: int = Field(default=2, ge=1)
    """Number of critics; targets use the smallest of their values."""
    learning_rate: hyper.LearningRate = 3e-4
    """Learning rate of Adam, for the actor and the temperature."""
    critic_learning_rate: hyper.CriticLearningRate = 3e-4
    """Learning rate of Adam, for the critics."""

    @model_validator(mode="after")
    def _validate_vector(self) -> Self:
        if self.image is not None or self.num_states is not None or self.observations is not None:
            raise ValueError(
                "image, num_states or observations: sac observes one vector in this version; set "
                "state_size, or use ppo"
            )
        return self

    @property
    def lacks_spaces(self) -> bool:
        """Whether the file does not define observations or actions."""
        return super().lacks_spaces or self.action_size is None

    @property
    def action_spaces(self) -> Spaces:
        """One bounded continuous action."""
        return {} if self.action_size is None else {ACTION: self.action_space}

    @property
    def action_space(self) -> Box:
        """The action, with its bounds."""
        action = ActionConfig(
            size=self.action_size, bounded=True, low=self.action_low, high=self.action_high
        )
        space = action.space
        assert isinstance(space, Box)
        return space

    def describe_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> dict[str, Any]:
        """Returns the keys of observations and actions that the file does not set."""
        keys = super().describe_spaces(observation_spaces, action_spaces)
        if self.action_size is None:
            actions = describe_actions(action_spaces, self.action_low is None)
            if "action_size" not in actions:
                raise InvalidInputError(
                    f"action_spaces: {', '.join(action_spaces)}: sac needs one continuous action "
                    "(Box); use dqn or ppo for discrete ones, ppo for several",
                    "action_spaces",
                )
            keys |= actions
        return keys

    def validate_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> None:
        """Refuses environments whose spaces do not fit these networks."""
        super().validate_spaces(observation_spaces, action_spaces)
        if self.action_size is not None:
            validate_continuous(action_spaces, self.action_size)
            space = self.action_space
            validate_bounds(action_spaces, space.low, space.high)

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """Adam for each variable group."""

        def make(rate: float) -> OptimizerConfig:
            return OptimizerConfig(learning_rate=rate, epsilon=self.adam_epsilon)

        optimizers = {CRITIC: make(self.critic_learning_rate), ACTOR: make(self.learning_rate)}
        if self.temperature is None:
            optimizers[TEMPERATURE] = make(self.learning_rate)
        return optimizers
