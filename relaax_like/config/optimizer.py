"""Settings of one variable group's optimizer."""

from collections.abc import Container, Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from relaax_like.config.base import Settings
from relaax_like.config.schedule import Schedule

# Rule of an update -> what each row of the optimizer's slots holds. Slots begin as zeros.
_SLOTS: Mapping[str, tuple[str, ...]] = {
    "adam": ("first_moment", "second_moment"),
    "rmsprop": ("mean_square",),
    "rmsprop_momentum": ("mean_square", "velocity"),
    "sgd": (),
    "sgd_momentum": ("velocity",),
}


class OptimizerConfig(Settings):
    """How one variable group is updated, by the parameter server or by a learner that publishes.

    `name: adam` follows Kingma & Ba 2015 (https://arxiv.org/abs/1412.6980), by default with epsilon
    outside of the bias correction, as in TensorFlow; `adamw` is Loshchilov & Hutter 2019
    (https://arxiv.org/abs/1711.05101), with the same epsilon.
    """

    name: Literal["adam", "adamw", "rmsprop", "sgd"] = "adam"
    """Optimizer algorithm."""
    learning_rate: float = Field(default=1e-3, ge=0)
    """Learning rate at global_t = 0."""
    schedule: Literal["constant", "linear"] = "constant"
    """Schedule of the learning rate: constant, or linear from learning_rate at global_t = 0 down to
    learning_rate_end at schedule_env_steps."""
    learning_rate_end: float | None = Field(default=None, ge=0)
    """Learning rate at the end of the linear schedule."""
    schedule_env_steps: int | None = Field(default=None, ge=1)
    """Environment steps over which the linear schedule runs."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment of adam and adamw."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Decay of the second moment of adam and adamw."""
    epsilon: float = Field(default=1e-7, gt=0)
    """Added to the denominator of adam and adamw, and to the mean square under the root by
    rmsprop."""
    adam_epsilon: Literal["outside", "inside"] = "outside"
    """Where adam and adamw add epsilon: outside the bias correction (as TensorFlow does) or inside
    (as PyTorch does)."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Momentum of sgd and rmsprop."""
    rho: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the mean square of rmsprop."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay of adamw, multiplied by the learning rate."""

    @property
    def rule(self) -> str:
        """Name of the formulas of an update."""
        if self.name in ("adam", "adamw"):
            return "adam"
        return f"{self.name}_momentum" if self.momentum else self.name

    @property
    def slot_names(self) -> tuple[str, ...]:
        """What each row of the slots holds, which is the optimizer's state."""
        return _SLOTS[self.rule]

    @model_validator(mode="after")
    def _validate_schedule(self) -> Self:
        keys = ("learning_rate_end", "schedule_env_steps")
        given = [key for key in keys if getattr(self, key) is not None]
        if self.schedule == "linear":
            if self.learning_rate_end is None or self.schedule_env_steps is None:
                missing = " and ".join(key for key in keys if key not in given)
                remove = f" and remove {given[0]}" if given else ""
                raise ValueError(
                    f"schedule: linear also needs {missing}; set {missing}, or set schedule: "
                    f"constant{remove}"
                )
            if self.learning_rate_end > self.learning_rate:
                raise ValueError(
                    f"learning_rate_end {self.learning_rate_end} is above learning_rate "
                    f"{self.learning_rate}, but a linear schedule can only decrease; lower "
                    "learning_rate_end"
                )
        elif given:
            has = "has" if len(given) == 1 else "have"
            names = " and ".join(given)
            linear = " and ".join(["schedule: linear", *(key for key in keys if key not in given)])
            raise ValueError(
                f"{names} {has} no effect with schedule: constant; set {linear}, or remove {names}"
            )
        return self


def make_adam(
    learning_rate: float, epsilon: float, end: float | None = None, env_steps: int | None = None
) -> OptimizerConfig:
    """Returns the settings of Adam.

    Args:
      learning_rate: at the start.
      epsilon: see `OptimizerConfig`.
      end: learning rate after `env_steps`, approached linearly; None: it is constant.
      env_steps: environment steps of the schedule; required with `end`.

    Raises:
      ValueError: `end` is above `learning_rate`, `env_steps` is missing, or a number is not valid.
    """
    adam = OptimizerConfig(learning_rate=learning_rate, epsilon=epsilon)
    if end is None:
        return adam
    changes = {"schedule": "linear", "learning_rate_end": end, "schedule_env_steps": env_steps}
    return OptimizerConfig.model_validate({**adam.model_dump(), **changes})


def make_sgd(learning_rate: Schedule) -> OptimizerConfig:
    """Returns the settings of plain gradient descent.

    Args:
      learning_rate: constant, or linear and decreasing.

    Raises:
      ValueError: the schedule is neither constant nor linear and decreasing, or a rate is negative.
    """
    start, end = learning_rate.start, learning_rate.end
    if min(start, end) < 0:
        raise ValueError(f"learning_rate: {min(start, end):g}, expected 0 or more")
    if start == end:
        return OptimizerConfig(name="sgd", learning_rate=start)
    if learning_rate.kind != "linear" or end > start:
        raise ValueError(
            f"learning_rate: a schedule of kind {learning_rate.kind} from {start:g} to {end:g}, "
            "expected one of kind linear that decreases, or a number"
        )
    return OptimizerConfig(
        name="sgd",
        learning_rate=start,
        schedule="linear",
        learning_rate_end=end,
        schedule_env_steps=learning_rate.steps,
    )


def choose_optimizer(group: str, optimizers: Container[str]) -> str:
    """Returns the name under which the optimizer of a variable group is configured, or "".

    Args:
      group: as in the run's manifest. For `ALGORITHM/NAME`, the optimizer of this group is chosen,
        else that of `NAME`, else `default`.
      optimizers: names of the configured optimizers.
    """
    _, slash, own = group.partition("/")
    names = (group, own, "default") if slash else (group,)
    return next((name for name in names if name in optimizers), "")
