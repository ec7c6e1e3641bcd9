"""Settings of q_learning."""

from typing import Self

from pydantic import Field, model_validator

from relaax_like.algorithm import Constant, OnPolicy, Schedule
from relaax_like.config import DiscreteConfig, NetworkConfig, OptimizerConfig, hyper, make_sgd


class Config(DiscreteConfig):
    """Settings of q_learning: the keys of the YAML's `algorithm` section."""

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
        if given := self.find_nonlinear_keys():
            raise ValueError(
                f"{', '.join(given)}: the values of q_learning are linear in the observation, "
                "without layers, images and normalisation; remove those keys that the file sets, "
                "or use dqn (also if the environment sends images)"
            )
        make_sgd(self.learning_rate)
        return self

    @property
    def plan(self) -> OnPolicy:
        """Each step is an update of its own."""
        return OnPolicy(
            rollout_steps=1,
            rollouts=self.updates_at_once,
            minibatch_size=1,
            minibatch_of="rollouts",
            discount=self.gamma,
        )

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """Gradient descent for all variables."""
        return {"default": make_sgd(self.learning_rate)}
