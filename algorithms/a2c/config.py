"""Settings of a2c."""

from typing import Self

from pydantic import Field, model_validator

from relaax_like.config import ActorCriticConfig, OnPolicy, Tunable, hyper
from relaax_like.config.optimizer import OptimizerConfig, make_adam


class Config(ActorCriticConfig):
    """Settings of a2c: the keys of the YAML's `algorithm` section."""

    rollout_steps: int = Field(default=16, ge=1)
    """Steps of every slot in one rollout."""
    num_steps: int = Field(default=1, ge=1)
    """Minimum number of environment steps, of all slots together, in one gradient; more are used if
    more have arrived. Rounded up to complete rollouts."""
    agents_per_batch: int = Field(default=1024, ge=1)
    """Maximum number of rollouts, each of one slot, in one gradient; more only if one client with
    more slots sends them at once."""
    gamma: hyper.Gamma = 0.99
    """Discount factor per step."""
    gae_lambda: hyper.GaeLambda = 0.95
    """Lambda of generalised advantage estimation; 1: all rewards of the rollout; 0: one reward plus
    the next value."""
    reward_scale: Tunable = Field(default=1.0, gt=0)
    """Factor by which rewards are multiplied; values and losses then have that scale."""
    entropy_coefficient: hyper.EntropyCoefficient = 0.0
    """Weight of the policy's entropy in the loss."""
    value_coefficient: hyper.ValueCoefficient = 0.5
    """Weight of the value function's squared error in the loss."""
    max_gradient_norm: hyper.MaxGradientNorm = 0.5
    """Maximum gradient norm, for actor and critic separately, or for both together with
    shared_network; larger gradients are scaled down; null: no limit."""
    normalize_advantage: bool = False
    """Normalise the advantages of each gradient to mean 0 and standard deviation 1."""
    learning_rate: hyper.LearningRate = 7e-4
    """Learning rate of Adam."""
    learning_rate_end: float | None = Field(default=None, ge=0)
    """Learning rate at max_global_step, approached linearly; null: constant learning rate."""
    adam_epsilon: hyper.AdamEpsilon = 1e-5
    """Epsilon of Adam."""

    @model_validator(mode="after")
    def _validate_batch(self) -> Self:
        if self.num_steps > self.agents_per_batch * self.rollout_steps:
            raise ValueError(
                f"num_steps: {self.num_steps} is more than agents_per_batch "
                f"{self.agents_per_batch} times rollout_steps {self.rollout_steps}; lower "
                "num_steps, or raise agents_per_batch"
            )
        return self

    @property
    def plan(self) -> OnPolicy:
        """One gradient from the rollouts that have arrived, within bounds."""
        return OnPolicy(
            rollout_steps=self.rollout_steps,
            min_rollouts=-(-self.num_steps // self.rollout_steps),
            max_rollouts=self.agents_per_batch,
            update_norm=self.normalize_observations,
            discount=self.gamma,
        )

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """Adam for actor and critic, or for all variables if they share layers."""
        end, steps = self.learning_rate_end, self.max_global_step
        adam = make_adam(self.learning_rate, self.adam_epsilon, end, steps)
        return dict.fromkeys(self.network_groups, adam)
