"""Settings of ddpg."""

from relaax_like.config import NoisyReplayConfig


class Config(NoisyReplayConfig):
    """Settings of ddpg: the keys of the YAML's `algorithm` section."""
