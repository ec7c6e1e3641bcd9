"""Settings of xqc and crossq."""

import dataclasses
from typing import Self

from pydantic import Field, model_validator

from relaax_like.config import ContinuousReplayConfig, OptimizerConfig, Tunable, hyper
from relaax_like.config.plan import Replay

TEMPERATURE = "temperature"


class Config(ContinuousReplayConfig):
    """Settings of xqc: the keys of the YAML's `algorithm` section.

    Those of CrossQ are in crossq.yaml.
    """

    entropy_target: Tunable | None = None
    """Entropy that the temperature is tuned for, in nats, of actions scaled to [-1, 1]; null: minus
    the number of components."""
    initial_temperature: float = Field(default=0.01, gt=0)
    """Weight of the entropy at the start; it is tuned."""
    critics: int = Field(default=2, ge=1)
    """Number of critics, the smallest of whose values is used."""
    atoms: int | None = Field(default=101, ge=2)
    """Number of returns, in equal distances from -v_max to v_max, of which each critic learns the
    probabilities; null: each critic learns the mean return."""
    v_max: float = Field(default=5.0, gt=0)
    """Largest return that critics with atoms know."""
    normalize_rewards: bool = True
    """Divide rewards by the running standard deviation of their discounted sums, or by more, so
    that almost all of these sums lie between -v_max and v_max."""
    unit_norm: bool = True
    """Scale the weights of each hidden unit to the norm 1 after each update."""
    target_networks: bool = True
    """Whether targets are computed by slowly updated copies of the critics, or by these."""
    actor_every: int = Field(default=3, ge=1)
    """Updates of the critics for each update of actor and temperature."""
    learning_rate: hyper.LearningRate = 3e-4
    """Learning rate of Adam, for the actor and the temperature."""
    critic_learning_rate: hyper.CriticLearningRate = 3e-4
    """Learning rate of Adam, for the critics."""
    last_rate_share: float = Field(default=1.0, ge=0, le=1)
    """Learning rates decrease linearly to this share of them at max_global_step."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment of Adam."""

    @model_validator(mode="after")
    def _validate_end(self) -> Self:
        if self.last_rate_share < 1 and self.max_global_step is None:
            raise ValueError(
                f"last_rate_share: {self.last_rate_share}, but no max_global_step, at which "
                "learning rates would have it; set max_global_step, or last_rate_share: 1"
            )
        return self

    @property
    def plan(self) -> Replay:
        """Minibatches from a table of past steps; sums of rewards are measured."""
        discount = self.gamma if self.normalize_rewards else None
        return dataclasses.replace(super().plan, reward_discount=discount)

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """Adam for each variable group."""
        return {**super().optimizers, TEMPERATURE: self.make_adam(self.learning_rate)}

    def make_adam(self, rate: float) -> OptimizerConfig:
        """Returns Adam with a learning rate, and the file's schedule, beta1 and epsilon."""
        settings = {**super().make_adam(rate).model_dump(), "beta1": self.adam_beta1}
        if self.last_rate_share < 1:
            settings |= {
                "schedule": "linear",
                "learning_rate_end": rate * self.last_rate_share,
                "schedule_env_steps": int(self.max_global_step or 1),
            }
        return OptimizerConfig.model_validate(settings)
