"""Settings of dqn."""

from typing import Literal, Self

from pydantic import Field, model_validator

from relaax_like.algorithm import Linear, Schedule
from relaax_like.config import DiscreteConfig, OptimizerConfig, ReplayConfig, hyper
from relaax_like.config.base import Settings
from relaax_like.config.problems import describe_value


class DistributionConfig(Settings):
    """How the distribution of the return is learned, instead of its mean alone."""

    kind: Literal["categorical", "quantile"]
    """Probabilities of fixed returns (C51), or returns of fixed probabilities (QR-DQN)."""
    atoms: int = Field(default=51, ge=2)
    """Number of returns of each action."""
    v_min: float | None = None
    """The smallest discounted return; of kind categorical. Smaller ones are clipped to it."""
    v_max: float | None = None
    """The largest discounted return; of kind categorical. Larger ones are clipped to it."""

    @model_validator(mode="after")
    def _validate_range(self) -> Self:
        if self.kind == "quantile":
            for key, value in (("v_min", self.v_min), ("v_max", self.v_max)):
                if value is not None:
                    raise ValueError(
                        f"{key}: {describe_value(value)} has no effect with kind: quantile; remove "
                        "v_min and v_max, or set both, and kind: categorical"
                    )
        elif self.v_min is None or self.v_max is None or self.v_min >= self.v_max:
            raise ValueError(
                f"v_min is {describe_value(self.v_min)} and v_max is {describe_value(self.v_max)}, "
                "but kind: categorical needs two numbers, v_min below v_max; set them to the "
                "smallest and the largest discounted return"
            )
        return self


class Config(DiscreteConfig, ReplayConfig):
    """Settings of dqn: the keys of the YAML's `algorithm` section."""

    double: bool = True
    """Choose the next action with the network, and value it with the target (double DQN)."""
    dueling: bool = False
    """Split the last layer into the value of the state and the advantages of actions."""
    distribution: DistributionConfig | None = None
    """Learn the distribution of the return of each action: {kind: categorical, v_min: A, v_max: B}
    or {kind: quantile}; null: its mean."""
    noisy: bool = False
    """Add noise, of which the network learns how much, to the weights of the last layers; then
    epsilon can be 0."""
    target_every: int = Field(default=500, ge=1)
    """The network is copied to the target in each update whose number is a multiple of this."""
    epsilon: Schedule = Linear(1.0, 0.05, steps=10_000)
    """Fraction of actions that are random, by environment steps of all slots together."""
    max_gradient_norm: hyper.MaxGradientNorm = 10.0
    """Maximum gradient norm; larger gradients are scaled down; null: no limit."""
    learning_rate: hyper.LearningRate = 1e-3
    """Learning rate of Adam."""

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """Adam for all variables."""
        adam = OptimizerConfig(learning_rate=self.learning_rate, epsilon=self.adam_epsilon)
        return {"default": adam}
