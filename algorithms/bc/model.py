"""The networks of bc: those of an actor-critic, so that one can go on from their weights."""

from relaax_like.computation.actor_critic import VALUE, ActorCritic

from .config import ACTOR, CRITIC, SHARED, Config


class BCModel(ActorCritic):
    """An ActorCritic; its value function is never trained."""

    def __init__(self, config: Config, seed: int = 0):
        super().__init__(config, seed)
        self._shared = config.shared_network

    def get_group(self, name: str) -> str:
        """Names the variable group of a variable."""
        if self._shared:
            return SHARED
        return CRITIC if name.startswith(f"{VALUE}.") else ACTOR


def make_model(config: Config, seed: int) -> BCModel:
    """Builds the model with the values that a run starts from."""
    return BCModel(config, seed)
