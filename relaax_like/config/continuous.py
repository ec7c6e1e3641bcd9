"""Settings of algorithms with one bounded continuous action, an actor and critics."""

from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from relaax_like.config import hyper
from relaax_like.config.actions import ActionConfig, Bound
from relaax_like.config.encoder import EncoderConfig
from relaax_like.config.found_spaces import describe_actions
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.config.replay import ReplayConfig
from relaax_like.config.schedule import Constant, Schedule
from relaax_like.config.spaces import describe_leaves, validate_bounds, validate_continuous
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.spaces import ACTION, Box, Spaces

ACTOR, CRITIC = "actor", "critic"


class ContinuousConfig(EncoderConfig):
    """Base of the `Config` of an algorithm with an actor and `Critics`; it has no plan.

    Fields are read from the keys of the YAML's `algorithm` section.

    Attributes:
      needed_action: what the action must be, for the error if it is something else.
    """

    needed_action: ClassVar[str] = "one continuous action (Box)"

    action_size: int | None = Field(default=None, ge=1)
    """Number of components of the action; by default it comes from the environment."""
    action_low: Bound | None = None
    """Lowest action of the environment, as one number or one per component."""
    action_high: Bound | None = None
    """Highest action of the environment, as one number or one per component."""
    tau: float = Field(default=0.005, gt=0, le=1)
    """Fraction of the networks that is mixed into their targets after each update."""
    learning_rate: hyper.LearningRate = 1e-3
    """Learning rate of Adam, for the actor."""
    critic_learning_rate: hyper.CriticLearningRate = 1e-3
    """Learning rate of Adam, for the critics."""
    adam_epsilon: float = Field(default=1e-8, gt=0)
    """Epsilon of Adam."""

    def _validate_kind(self) -> None:
        # Before the checks of the other keys of observations, whose cures would not help.
        given = [name for name in ("image", "num_states") if getattr(self, name) is not None]
        for leaf, own in (self.observations or {}).items():
            found = [key for key in ("image", "num", "layers") if getattr(own, key)]
            given += [f"observations.{leaf}.{key}" for key in found]
        if given:
            raise ValueError(
                f"{given[0]}: {self._own_name} observes vectors without layers of their own in "
                "this version; set state_size, or only the size of each observation, instead (an "
                "environment whose observations are integers also needs a wrapper that makes "
                "vectors of them), or choose another algorithm"
            )
        if self.network.begins_with_convolution:
            raise ValueError(
                f"network: the first layer is a convolution, but {self._own_name} observes "
                "vectors; use dense layers, or choose another algorithm"
            )

    @model_validator(mode="after")
    def _validate_action(self) -> Self:
        self._validate_action_keys()
        return self

    def _validate_action_keys(self) -> None:
        keys = ("action_size", "action_low", "action_high")
        given = [key for key in keys if getattr(self, key) is not None]
        missing = [key for key in keys[1:] if key not in given]
        if given and missing:
            raise ValueError(
                f"{given[0]} is set without {' and '.join(missing)}; set action_low and "
                "action_high (one number, or one per component), or remove "
                f"{' and '.join(given)} to use the environment's action"
            )
        if self.action_size is not None:
            self._get_action().validate_keys("action_")

    def _get_action(self) -> ActionConfig:
        return ActionConfig.model_construct(
            size=self.action_size, bounded=True, low=self.action_low, high=self.action_high
        )

    @property
    def _own_name(self) -> str:
        return self.name or "this algorithm"

    @property
    def lacks_spaces(self) -> bool:
        """Whether the file lacks observations, actions, or both."""
        return super().lacks_spaces or self.action_size is None

    @property
    def action_spaces(self) -> Spaces:
        """One bounded continuous action; {} if its size is not known yet."""
        return {} if self.action_size is None else {ACTION: self.action_space}

    @property
    def action_space(self) -> Box:
        """The space of the action, with its bounds.

        Raises:
          ConfigError: its size is not known yet.
        """
        if self.action_size is None:
            self.require_spaces()
        space = self._get_action().space
        assert isinstance(space, Box)
        return space

    def describe_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> dict[str, Any]:
        """Returns the keys of observations and actions that the file does not set.

        Raises:
          InvalidInputError: an observation cannot be used, or the action is not one Box with finite
            bounds. Bounds in the file replace those of the environment.
        """
        keys = super().describe_spaces(observation_spaces, action_spaces)
        if self.action_size is None:
            actions = describe_actions(action_spaces, self.action_low is None)
            if "action_size" not in actions:
                raise InvalidInputError(
                    f"action_spaces: got {describe_leaves(action_spaces)}; {self._own_name} needs "
                    f"{self.needed_action} named {ACTION!r}; choose another algorithm for other "
                    "actions",
                    "action_spaces",
                )
            keys |= actions
        return keys

    def validate_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> None:
        """Refuses environments whose spaces do not fit these networks.

        What the settings do not define yet is not compared.

        Raises:
          InvalidInputError: a space does not fit; the error says what differs, and the cure.
        """
        super().validate_spaces(observation_spaces, action_spaces)
        if self.action_size is not None:
            validate_continuous(action_spaces, self.action_size)
            space = self.action_space
            validate_bounds(action_spaces, space.low, space.high)

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """Adam for critics and actor."""
        return {
            CRITIC: self.make_adam(self.critic_learning_rate),
            ACTOR: self.make_adam(self.learning_rate),
        }

    def make_adam(self, rate: float) -> OptimizerConfig:
        """Returns Adam with a learning rate, and the file's epsilon."""
        return OptimizerConfig(learning_rate=rate, epsilon=self.adam_epsilon)


class ContinuousReplayConfig(ContinuousConfig, ReplayConfig):
    """Base of the `Config` of an algorithm with an actor, `Critics` and a replay table."""

    @model_validator(mode="after")
    def _validate_steps(self) -> Self:
        if self.sequence_steps is not None:
            raise ValueError(
                f"sequence_steps: {self.sequence_steps}, but {self._own_name} learns from single "
                "steps, without a memory; remove it (observation_history shows the network earlier "
                "observations), or choose an algorithm with a memory"
            )
        return self


class NoisyReplayConfig(ContinuousReplayConfig):
    """Base of the `Config` of an algorithm with a `DeterministicModel`."""

    exploration_noise: Schedule = Constant(0.1)
    """Standard deviation of the noise that agents add to actions scaled to [-1, 1]; a schedule over
    the environment steps of all slots together. The sum is clipped to the bounds."""

    @model_validator(mode="after")
    def _validate_noise(self) -> Self:
        noise = self.exploration_noise
        least = min(noise.start, noise.end)
        if least <= 0:
            raise ValueError(
                f"exploration_noise: {least:g}, expected more than 0; for actions without noise, "
                "evaluate the policy (relaax eval)"
            )
        return self
