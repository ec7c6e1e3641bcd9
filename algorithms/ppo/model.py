"""The networks of ppo: actor and critic, each a variable group unless they share layers."""

from relaax_like.algorithm import ActorCritic
from relaax_like.config.plan import RETURN_STATISTIC
from relaax_like.nn import Normalizer

from .config import Config


class PPOModel(ActorCritic):
    """An ActorCritic whose two networks have separate optimizers, unless they share layers."""

    def __init__(self, config: Config, seed: int = 0):
        super().__init__(config, seed)
        self.separate()
        # Applied to no input: the learner scales rewards by it, and it travels with the values.
        self.returns = Normalizer(RETURN_STATISTIC, ()) if config.normalize_rewards else None


def make_model(config: Config, seed: int) -> PPOModel:
    """Builds the model with the initial values of a run."""
    return PPOModel(config, seed)
