"""Settings of sac."""

from typing import Literal, Self

from pydantic import Field, model_validator

from relaax_like.config import ContinuousReplayConfig, OptimizerConfig, Tunable, hyper

TEMPERATURE = "temperature"


class Config(ContinuousReplayConfig):
    """Fields are read from the keys of the YAML's `algorithm` section."""

    entropy_target: Tunable | None = None
    """Entropy that the temperature is tuned for, in nats, of actions scaled to [-1, 1]; null: minus
    the number of components."""
    temperature: float | None = Field(default=None, gt=0)
    """Fixed weight of the entropy; null: it is tuned."""
    critics: int = Field(default=2, ge=1)
    """Number of critics."""
    target_critics: int | None = Field(default=None, ge=1)
    """Number of critics, drawn at random for each update, the smallest of whose values is the
    target's (REDQ); null: all."""
    actor_value: Literal["min", "mean"] = "min"
    """What the actor maximises: the smallest of the critics' values, or their mean (REDQ)."""
    actor_every: int = Field(default=1, ge=1)
    """Updates of the critics between two of actor and temperature; with many updates per step, as
    many as these."""
    critic_layer_norm: bool = False
    """Normalise the hidden layers of the critics before their activation (DroQ)."""
    critic_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Fraction of the units of the critics' hidden layers that an update leaves out (DroQ)."""
    learning_rate: hyper.LearningRate = 3e-4
    """Learning rate of Adam, for the actor and the temperature."""
    critic_learning_rate: hyper.CriticLearningRate = 3e-4
    """Learning rate of Adam, for the critics."""

    @model_validator(mode="after")
    def _validate_critics(self) -> Self:
        if self.target_critics is not None and self.target_critics > self.critics:
            raise ValueError(
                f"target_critics: {self.target_critics}, but there are {self.critics} critics; "
                "lower it, or raise critics"
            )
        return self

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """Adam for each variable group."""
        optimizers = super().optimizers
        if self.temperature is None:
            optimizers[TEMPERATURE] = self.make_adam(self.learning_rate)
        return optimizers
