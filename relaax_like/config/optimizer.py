"""Settings of one variable group's optimizer."""

from typing import Literal, Self

from pydantic import Field, model_validator

from relaax_like.config.base import Settings


class OptimizerConfig(Settings):
    """How the parameter server moves one variable group.

    `name: adam` follows Kingma & Ba 2015 (https://arxiv.org/abs/1412.6980) with epsilon outside of
    the bias correction, as TensorFlow does; `adamw` is Loshchilov & Hutter 2019
    (https://arxiv.org/abs/1711.05101).
    """

    name: Literal["adam", "adamw", "rmsprop", "sgd"] = "adam"
    # Rate at global_t = 0.
    learning_rate: float = Field(default=1e-3, ge=0)
    # linear: from learning_rate at global_t = 0 down to learning_rate_end at schedule_env_steps.
    schedule: Literal["constant", "linear"] = "constant"
    learning_rate_end: float | None = Field(default=None, ge=0)
    # Environment steps over which the schedule runs.
    schedule_env_steps: int | None = Field(default=None, ge=1)
    # adam, adamw: decay of the first moment; sgd: momentum is `momentum`.
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    epsilon: float = Field(default=1e-7, gt=0)
    # outside: TensorFlow's form; inside (of the bias correction): PyTorch's.
    adam_epsilon: Literal["outside", "inside"] = "outside"
    # sgd, rmsprop.
    momentum: float = Field(default=0.0, ge=0, lt=1)
    # rmsprop: decay of the mean square.
    rho: float = Field(default=0.9, ge=0, lt=1)
    # adamw: decoupled, multiplied by the learning rate.
    weight_decay: float = Field(default=0.01, ge=0)

    @model_validator(mode="after")
    def _validate_schedule(self) -> Self:
        if self.schedule == "linear":
            if self.learning_rate_end is None or self.schedule_env_steps is None:
                raise ValueError(
                    "schedule: linear needs learning_rate_end and schedule_env_steps "
                    "(where it ends, and when)"
                )
            if self.learning_rate_end > self.learning_rate:
                raise ValueError(
                    f"learning_rate_end {self.learning_rate_end} is above learning_rate "
                    f"{self.learning_rate}: the linear schedule only goes down"
                )
        elif self.learning_rate_end is not None or self.schedule_env_steps is not None:
            raise ValueError(
                "learning_rate_end and schedule_env_steps mean nothing with schedule: constant; "
                "set schedule: linear or leave them out"
            )
        return self
