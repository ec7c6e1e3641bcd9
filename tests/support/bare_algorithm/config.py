"""Settings: the common ones only."""

from relaax_like.config.algorithm import AlgorithmConfig


class Config(AlgorithmConfig):
    """Nothing of its own."""

    learning_rate: float = 0.05
