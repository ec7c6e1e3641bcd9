"""Settings of algorithms with one bounded continuous action, an actor and critics.

They learn from a replay table, or from recordings.
"""

from typing import ClassVar, Self

from pydantic import Field, model_validator

from relaax_like.config import hyper
from relaax_like.config.encoder import EncoderConfig
from relaax_like.config.leaves import Bound
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.config.plan import Offline
from relaax_like.config.replay import ReplayConfig
from relaax_like.config.schedule import Constant, Schedule
from relaax_like.wire.spaces import Box

ACTOR, CRITIC = "actor", "critic"


class ContinuousConfig(EncoderConfig):
    """Base of the `Config` of an algorithm with an actor and `Critics`; it has no plan.

    Fields are read from the keys of the YAML's `algorithm` section.
    """

    action_keys: ClassVar[tuple[str, ...]] = ("action_size",)
    bounded: ClassVar[bool] = True
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
            super()._validate_action_keys()

    @property
    def action_space(self) -> Box:
        """The space of the action, with its bounds.

        Raises:
          ConfigError: its size is not known yet.
        """
        self.require_spaces()
        space = super().action_space
        assert isinstance(space, Box)
        return space

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


class OfflineConfig(ContinuousConfig):
    """Base of the `Config` of an algorithm with an actor and `Critics` that learns from recordings.

    Fields are read from the keys of the YAML's `algorithm` section. `max_global_step` counts the
    steps of all minibatches: a run makes `max_global_step / batch_size` updates, rounded up to a
    multiple of `updates_at_once`.
    """

    normalize_observations: bool = True
    """Normalise observations to mean 0 and standard deviation 1, from the statistics of all
    recorded steps."""
    batch_size: int = Field(default=256, ge=1)
    """Steps of one update, drawn from all recordings."""
    updates_at_once: int = Field(default=100, ge=1)
    """Number of updates that are made together, in one call; then their values are published. More
    is faster."""
    gamma: hyper.Gamma = 0.99
    """Discount factor per step."""

    @model_validator(mode="after")
    def _validate_network(self) -> Self:
        if self.network.is_recurrent:
            raise ValueError(
                f"network: {self._own_name} learns from single steps, which recurrent layers "
                "cannot use; remove lstm and gru (observation_history shows the network earlier "
                "observations)"
            )
        return self

    @property
    def plan(self) -> Offline:
        """Minibatches of steps of all recordings."""
        return Offline(
            batch_size=self.batch_size,
            updates_at_once=self.updates_at_once,
            discount=self.gamma,
            prenormalize=self.normalize_observations,
        )
