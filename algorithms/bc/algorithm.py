"""BC: behaviour cloning, which maximises the likelihood of the actions of another policy."""

from relaax_like.algorithm import Algorithm, Batch, Losses

from .config import ACTOR, CRITIC, SHARED, Config
from .model import BCModel


class BC(Algorithm):
    """Behaviour cloning, with a distribution of actions.

    Pomerleau 1991 (https://doi.org/10.1162/neco.1991.3.1.88).
    """

    autograph = False
    config: Config
    model: BCModel

    def __init__(self, model: BCModel, config: Config, seed: int = 0):
        super().__init__(model, config, seed)
        if not config.shared_network:
            self.frozen = (CRITIC,)

    def learn(self, batch: Batch) -> Losses:
        """Returns -mean(log pi(a_t | x_t)) for the observations x_t and the actions a_t to imitate.

        These are recorded actions, or those that were carried out instead of the policy's.
        """
        seen = self.model.evaluate(batch)
        cost = -batch.mean(seen.log_prob(batch.actions))
        group = SHARED if self.config.shared_network else ACTOR
        return Losses(
            {group: cost}, metrics={"cloning": cost, "entropy": batch.mean(seen.policy.entropy())}
        )


def make_algorithm(config: Config, model: BCModel, seed: int) -> BC:
    """Builds the algorithm."""
    return BC(model, config, seed)
