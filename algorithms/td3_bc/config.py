"""Settings of td3_bc."""

from pydantic import Field

from relaax_like.config import OfflineConfig, Tunable, hyper


class Config(OfflineConfig):
    """Settings of td3_bc: the keys of the YAML's `algorithm` section."""

    alpha: Tunable = Field(default=2.5, gt=0)
    """Weight of the values against the recorded actions. Raise it if recorded actions are poor, or
    if values differ little between actions, compared with their size."""
    target_noise: Tunable = Field(default=0.2, ge=0)
    """Standard deviation of the noise that is added to the target's action, of actions scaled to
    [-1, 1]."""
    target_noise_clip: Tunable = Field(default=0.5, ge=0)
    """Largest absolute value of that noise."""
    actor_every: int = Field(default=2, ge=1)
    """Updates of the critics for each update of the actor."""
    learning_rate: hyper.LearningRate = 3e-4
    """Learning rate of Adam, for the actor."""
    critic_learning_rate: hyper.CriticLearningRate = 3e-4
    """Learning rate of Adam, for the critics."""
