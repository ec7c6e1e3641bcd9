"""Settings of algorithms with one discrete action; some learn linear values, step by step."""

from typing import ClassVar, Self

from pydantic import Field, model_validator

from relaax_like.config import hyper
from relaax_like.config.encoder import EncoderConfig
from relaax_like.config.network import NetworkConfig
from relaax_like.config.optimizer import OptimizerConfig, make_sgd
from relaax_like.config.plan import OnPolicy
from relaax_like.config.schedule import Constant, Schedule
from relaax_like.wire.spaces import MAX_DISCRETE


class DiscreteConfig(EncoderConfig):
    """Base of the `Config` of an algorithm with one discrete action.

    Fields are read from the keys of the YAML's `algorithm` section.
    """

    action_keys: ClassVar[tuple[str, ...]] = ("num_actions",)
    needed_action: ClassVar[str] = "one discrete action (Discrete)"

    num_actions: int | None = Field(default=None, ge=2, le=MAX_DISCRETE)
    """Number of actions; by default it comes from the environment."""


class LinearValuesConfig(DiscreteConfig):
    """Base of the `Config` of an algorithm whose model is a `LinearValues`.

    Fields are read from the keys of the YAML's `algorithm` section.

    Attributes:
      needs_next_action: whether a step is learned from when the next action is known.
      alternative: an algorithm whose values are not linear, for errors.
    """

    needs_next_action: ClassVar[bool] = False
    alternative: ClassVar[str] = "another algorithm"

    network: NetworkConfig = NetworkConfig(layers=())
    """No layers: values are linear in the observation, which for an integer is a table."""
    gamma: hyper.Gamma = 0.99
    """Discount factor per step."""
    epsilon: Schedule = Constant(0.1)
    """Fraction of actions that are random, by environment steps of all slots together."""
    learning_rate: hyper.LearningRateSchedule = Constant(0.1)  # type: ignore[assignment]
    """Alpha, by environment steps of all slots together: a number, or a linear schedule that
    falls."""
    updates_at_once: int = Field(default=1, ge=1)
    """Number of updates that are made together, in one call; for example, the number of slots."""

    @model_validator(mode="after")
    def _validate_linear(self) -> Self:
        if given := self._find_nonlinear_keys():
            raise ValueError(
                f"{', '.join(given)}: the values of {self._own_name} are linear in "
                "the observation, without layers, images and normalisation; remove those keys that "
                f"the file sets, or use {self.alternative} (also if the environment sends images)"
            )
        make_sgd(self.learning_rate)
        return self

    def _find_nonlinear_keys(self) -> list[str]:
        """Returns the keys that are set, but do not fit values linear in the observation.

        These are layers, images and normalisation; those of single observations have full names.
        """
        found = ["network.layers"] if self.network.layers else []
        found += [key for key in ("image", "normalize_observations") if getattr(self, key)]
        for leaf, own in (self.observations or {}).items():
            given = [key for key in ("image", "layers") if getattr(own, key)]
            found += [f"observations.{leaf}.{key}" for key in given]
        return found

    @property
    def plan(self) -> OnPolicy:
        """Each step is an update of its own.

        With `needs_next_action`, it is made when that action is known; the last two are one update.
        """
        return OnPolicy(
            rollout_steps=1 + self.needs_next_action,
            rollouts=self.updates_at_once,
            batch_size=1,
            minibatch_of="rollouts",
            discount=self.gamma,
            overlap=self.needs_next_action,
        )

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """Gradient descent for all variables."""
        return {"default": make_sgd(self.learning_rate)}
