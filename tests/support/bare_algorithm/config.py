"""Settings: the common ones only."""

from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.spaces import validate_discrete, validate_vector
from relaax_like.wire.spaces import Spaces


class Config(AlgorithmConfig):
    """Nothing of its own."""

    learning_rate: float = 0.05

    def validate_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> None:
        """Four numbers in, two actions out."""
        validate_vector(observation_spaces, 4)
        validate_discrete(action_spaces, 2)
