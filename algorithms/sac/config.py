"""Settings of sac."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from relaax_like.config import ContinuousReplayConfig, OptimizerConfig, Tunable, hyper
from relaax_like.wire.spaces import MAX_DISCRETE

TEMPERATURE = "temperature"


class Config(ContinuousReplayConfig):
    """Settings of sac: the keys of the YAML's `algorithm` section."""

    action_keys: ClassVar[tuple[str, ...]] = ("num_actions", "action_size")
    needed_action: ClassVar[str] = "one continuous action (Box) or one discrete action (Discrete)"

    num_actions: int | None = Field(default=None, ge=2, le=MAX_DISCRETE)
    """Number of actions, if the action is discrete; by default it comes from the environment."""
    entropy_target: Tunable | None = None
    """Entropy that the temperature is tuned for, in nats, of actions scaled to [-1, 1]; null: minus
    the number of components, or by entropy_fraction."""
    entropy_fraction: Tunable = Field(default=0.98, gt=0, lt=1)
    """With discrete actions: the entropy that the temperature is tuned for, as a fraction of the
    largest one, log(num_actions); used if entropy_target is null."""
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
    """Updates of the critics for each update of actor and temperature; with many updates per step,
    usually the number of these."""
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
                f"target_critics: {self.target_critics}, expected at most the number of critics, "
                f"{self.critics}; lower target_critics, or raise critics"
            )
        return self

    def _validate_action_keys(self) -> None:
        keys = ("action_size", "action_low", "action_high")
        given = [key for key in keys if getattr(self, key) is not None]
        if self.num_actions is None:
            super()._validate_action_keys()
        elif given:
            names, are = " and ".join(given), "is" if len(given) == 1 else "are"
            raise ValueError(
                f"num_actions: {self.num_actions}, but {names} {are} set, too, for a continuous "
                f"action; remove {names} if the environment's action is discrete (Discrete), or "
                "else num_actions"
            )

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """Adam for each variable group."""
        optimizers = super().optimizers
        if self.temperature is None:
            optimizers[TEMPERATURE] = self.make_adam(self.learning_rate)
        return optimizers
