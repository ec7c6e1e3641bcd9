"""Settings of impala."""

from pydantic import Field

from relaax_like.config import ActorCriticConfig, OnPolicy, hyper
from relaax_like.config.optimizer import OptimizerConfig


class Config(ActorCriticConfig):
    """Settings of impala: the keys of the YAML's `algorithm` section."""

    shared_network: bool = True
    """Share all layers except the last between the policy and the value function."""
    rollout_steps: int = Field(default=20, ge=1)
    """Steps of every slot in one rollout."""
    batch_rollouts: int = Field(default=8, ge=1)
    """Minimum number of rollouts of one update; more are used if more have arrived."""
    max_batch_rollouts: int = Field(default=64, ge=1)
    """Maximum number of rollouts of one update, or batch_rollouts if that is larger; more only if
    one client sends them at once."""
    gamma: hyper.Gamma = 0.99
    """Discount factor per step."""
    vtrace: bool = True
    """Correct for the older policies that acted; false: treat their experience as if the newest one
    had acted, for comparisons."""
    rho_bar: float = Field(default=1.0, gt=0)
    """Bound of the importance ratio of each step; with 1 the values are those of a policy between
    the acting and the newest one."""
    c_bar: float = Field(default=1.0, gt=0)
    """Bound of the ratios of earlier steps, which shorten the traces."""
    entropy_coefficient: hyper.EntropyCoefficient = 0.01
    """Weight of the policy's entropy in the loss."""
    value_coefficient: hyper.ValueCoefficient = 0.5
    """Weight of the value function's squared error in the loss."""
    max_gradient_norm: hyper.MaxGradientNorm = 40.0
    """Maximum gradient norm, for actor and critic together; larger gradients are scaled down; null:
    no limit."""
    learning_rate: hyper.LearningRate = 6e-4
    """Learning rate at the start."""
    learning_rate_end: float | None = Field(default=0.0, ge=0)
    """Learning rate at max_global_step, approached linearly; null: the schedule of optimizer, by
    default constant."""
    optimizer: OptimizerConfig = OptimizerConfig(name="rmsprop", epsilon=0.1)
    """Optimizer; its learning rate is replaced by learning_rate, and its schedule by
    learning_rate_end unless that is null."""

    @property
    def plan(self) -> OnPolicy:
        """One update from the rollouts that have arrived, within bounds, each used once."""
        return OnPolicy(
            rollout_steps=self.rollout_steps,
            min_rollouts=self.batch_rollouts,
            max_rollouts=max(self.batch_rollouts, self.max_batch_rollouts),
            update_norm=self.normalize_observations,
            discount=self.gamma,
        )

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """The setting `optimizer` for each variable group, with the learning rate's schedule."""
        changes: dict[str, object] = {"learning_rate": self.learning_rate}
        if self.learning_rate_end is not None:
            changes |= {
                "schedule": "linear",
                "learning_rate_end": self.learning_rate_end,
                "schedule_env_steps": self.max_global_step,
            }
        one = OptimizerConfig.model_validate({**self.optimizer.model_dump(), **changes})
        return dict.fromkeys(self.network_groups, one)
