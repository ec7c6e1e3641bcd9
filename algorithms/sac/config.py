"""Settings of sac."""

from pydantic import Field

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
    """Number of critics; targets use the smallest of their values."""
    learning_rate: hyper.LearningRate = 3e-4
    """Learning rate of Adam, for the actor and the temperature."""
    critic_learning_rate: hyper.CriticLearningRate = 3e-4
    """Learning rate of Adam, for the critics."""

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """Adam for each variable group."""
        optimizers = super().optimizers
        if self.temperature is None:
            optimizers[TEMPERATURE] = self.make_adam(self.learning_rate)
        return optimizers
