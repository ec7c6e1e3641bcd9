"""Settings that algorithms share which learn the values of actions from recordings."""

from typing import Any, Self

from pydantic import Field, model_validator

from relaax_like.config import hyper
from relaax_like.config.actions import ActionConfig, Bound
from relaax_like.config.encoder import EncoderConfig
from relaax_like.config.found_spaces import describe_actions
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.config.plan import Offline
from relaax_like.config.spaces import validate_bounds, validate_continuous
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.spaces import ACTION, Box, Spaces


class OfflineConfig(EncoderConfig):
    """Base of the `Config` of an algorithm with an actor and `OfflineCritics`.

    Observations are one vector, actions one continuous action with finite bounds. Fields are read
    from the keys of the YAML's `algorithm` section. `max_global_step` counts the steps of all
    minibatches: a run makes `max_global_step / batch_size` updates.
    """

    normalize_observations: bool = True
    """Normalise observations to mean 0 and standard deviation 1, from the statistics of all
    recorded steps."""
    action_size: int | None = Field(default=None, ge=1)
    """Number of components of the action; by default it comes from the environment."""
    action_low: Bound | None = None
    """Lowest action of the environment, as one number or one per component."""
    action_high: Bound | None = None
    """Highest action of the environment, as one number or one per component."""
    batch_size: int = Field(default=256, ge=1)
    """Steps of one update, drawn from all recordings."""
    updates_at_once: int = Field(default=100, ge=1)
    """Number of updates that are made together, in one call; then their values are published. More
    is faster."""
    gamma: hyper.Gamma = 0.99
    """Discount factor per step."""
    tau: float = Field(default=0.005, gt=0, le=1)
    """Fraction of the networks that is mixed into their targets after each update."""
    adam_epsilon: float = Field(default=1e-8, gt=0)
    """Epsilon of Adam."""

    @model_validator(mode="after")
    def _validate_vector(self) -> Self:
        if self.image is not None or self.num_states is not None or self.observations is not None:
            raise ValueError(
                f"image, num_states or observations: {self._own_name} observes one vector in this "
                "version; set state_size, or use behaviour cloning"
            )
        if self.network.is_recurrent:
            raise ValueError(
                f"network: {self._own_name} learns from single steps, which recurrent layers "
                "cannot use; remove lstm and gru, or set observation_history"
            )
        return self

    @property
    def _own_name(self) -> str:
        return self.name or "this algorithm"

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
                    f"action_spaces: {', '.join(action_spaces)}: {self._own_name} needs one "
                    "continuous action (Box); use behaviour cloning for others",
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
    def plan(self) -> Offline:
        """Minibatches of steps of all recordings."""
        return Offline(
            minibatch_size=self.batch_size,
            updates_at_once=self.updates_at_once,
            discount=self.gamma,
            prenormalize=self.normalize_observations,
        )

    def make_adam(self, rate: float) -> OptimizerConfig:
        """Returns Adam with a learning rate, and the file's epsilon."""
        return OptimizerConfig(learning_rate=rate, epsilon=self.adam_epsilon)
