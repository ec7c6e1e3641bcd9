"""Settings of td3."""

from pydantic import Field

from relaax_like.config import NoisyReplayConfig, Tunable


class Config(NoisyReplayConfig):
    """Settings of td3: the keys of the YAML's `algorithm` section."""

    policy_delay: int = Field(default=2, ge=1)
    """Updates of the critics for each update of the actor and of all targets."""
    target_noise: Tunable = Field(default=0.2, ge=0)
    """Standard deviation of the noise on the action of the target actor, of actions scaled to
    [-1, 1]."""
    target_noise_clip: Tunable = Field(default=0.5, ge=0)
    """Largest absolute value of that noise."""
