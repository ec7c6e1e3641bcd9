"""The networks of a2c: policy and value function."""

from relaax_like.algorithm import ActorCritic

from .config import Config


def make_model(config: Config, seed: int) -> ActorCritic:
    """Builds the model with the values that a run starts from."""
    return ActorCritic(config, seed)
