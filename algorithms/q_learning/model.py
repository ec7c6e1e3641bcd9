"""The values of q_learning."""

from relaax_like.algorithm import LinearValues

from .config import Config


def make_model(config: Config, seed: int) -> LinearValues:
    """Builds the model with the values that a run starts from."""
    return LinearValues(config, seed)
