"""BC: behaviour cloning, which maximises the likelihood of the actions of another policy."""

from relaax_like.algorithm import ActorCritic, Algorithm, Batch, Losses

from .config import Config


class BC(Algorithm):
    """Behaviour cloning, with a distribution of actions.

    Pomerleau 1991 (https://doi.org/10.1162/neco.1991.3.1.88).
    """

    autograph = False
    config: Config
    model: ActorCritic

    def __init__(self, model: ActorCritic, config: Config, seed: int = 0):
        super().__init__(model, config, seed)
        self.frozen = config.network_groups[1:]

    def learn(self, batch: Batch) -> Losses:
        """Returns -mean(log pi(a_t | x_t)) for the observations x_t and the actions a_t to imitate.

        These are recorded actions, or those that were carried out instead of the policy's.
        """
        seen = self.model.evaluate(batch)
        cost = -batch.mean(seen.log_prob(batch.actions))
        metrics = {"cloning": cost, "entropy": batch.mean(seen.policy.entropy())}
        return Losses({self.config.network_groups[0]: cost}, metrics=metrics)


def make_algorithm(config: Config, model: ActorCritic, seed: int) -> BC:
    """Builds the algorithm."""
    return BC(model, config, seed)
