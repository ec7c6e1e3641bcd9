"""The networks of a2c: policy and value function, variable groups unless they share layers."""

from relaax_like.algorithm import ActorCritic

from .config import Config


def make_model(config: Config, seed: int) -> ActorCritic:
    """Builds the model with the initial values of a run."""
    return ActorCritic(config, seed).separate()
