"""The networks of ddpg: an actor, a critic, and their targets."""

from relaax_like.algorithm import DeterministicModel

from .config import Config


def make_model(config: Config, seed: int) -> DeterministicModel:
    """Builds the model with the values that a run starts from."""
    return DeterministicModel(config, seed, critics=1)
