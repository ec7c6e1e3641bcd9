"""The networks of td3: an actor, two critics, and their targets."""

from relaax_like.algorithm import DeterministicModel

from .config import Config


def make_model(config: Config, seed: int) -> DeterministicModel:
    """Builds the model with the values that a run starts from."""
    return DeterministicModel(config, seed, critics=2, target_every=config.policy_delay)
