"""Settings of ddpg."""

from relaax_like.config import NoisyReplayConfig


class Config(NoisyReplayConfig):
    """Fields are read from the keys of the YAML's `algorithm` section."""
