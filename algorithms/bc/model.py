"""The networks of bc: those of an actor-critic, so that RL can continue from their weights."""

from relaax_like.algorithm import ActorCritic

from .config import ACTOR, CRITIC, Config


class BCModel(ActorCritic):
    """An ActorCritic; its value function is never trained."""

    def __init__(self, config: Config, seed: int = 0):
        super().__init__(config, seed)
        if not config.shared_network:
            self.groups = {ACTOR: ("actor", "heads"), CRITIC: ("critic",)}


def make_model(config: Config, seed: int) -> BCModel:
    """Builds the model with the initial values of a run."""
    return BCModel(config, seed)
