"""Settings of cql."""

from pydantic import Field

from relaax_like.config import OfflineConfig, OptimizerConfig, Tunable, hyper

TEMPERATURE = "temperature"


class Config(OfflineConfig):
    """Settings of cql: the keys of the YAML's `algorithm` section."""

    cql_weight: Tunable = Field(default=5.0, ge=0)
    """Weight of the penalty on values of actions that were not recorded; alpha of the paper. 0: no
    penalty, as in sac."""
    cql_actions: int = Field(default=10, ge=1)
    """Number of actions of each kind (uniform, of the policy at the observation, and of the policy
    at the next one) that the penalty compares with the recorded one."""
    critics: int = Field(default=2, ge=1)
    """Number of critics; targets and the actor use the smallest of their values."""
    entropy_target: Tunable | None = None
    """Entropy that the temperature is tuned for, in nats, of actions scaled to [-1, 1]; null: minus
    the number of components."""
    learning_rate: hyper.LearningRate = 1e-4
    """Learning rate of Adam, for the actor and the temperature."""
    critic_learning_rate: hyper.CriticLearningRate = 3e-4
    """Learning rate of Adam, for the critics."""

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """Adam for each variable group."""
        return {**super().optimizers, TEMPERATURE: self.make_adam(self.learning_rate)}
