"""The networks of ppo: actor and critic, each a variable group where they share no layers."""

from relaax_like.computation.actor_critic import VALUE, ActorCritic
from relaax_like.config.update_plan import RETURN_STATISTIC
from relaax_like.nn.normalization import Normalizer

from .config import ACTOR, CRITIC, SHARED, Config


class PPOModel(ActorCritic):
    """An ActorCritic whose two networks have optimizers of their own."""

    def __init__(self, config: Config, seed: int = 0):
        super().__init__(config, seed)
        self._shared = config.shared_network
        # Applied to no input: the learner scales rewards by it, and it travels with the values.
        self.returns = Normalizer(RETURN_STATISTIC, ()) if config.normalize_rewards else None

    def get_group(self, name: str) -> str:
        """Names the variable group of a variable."""
        if self._shared:
            return SHARED
        return CRITIC if name.startswith(f"{VALUE}.") else ACTOR


def make_model(config: Config, seed: int) -> PPOModel:
    """Builds the model with the values that a run starts from."""
    return PPOModel(config, seed)
