"""REINFORCE: the gradient of log-likelihood times return."""

from relaax_like.algorithm import Algorithm, Batch, Losses


class PolicyGradient(Algorithm):
    """REINFORCE, with returns that the agent computes and normalises.

    Williams 1992 (https://doi.org/10.1007/BF00992696).
    """

    def learn(self, batch: Batch) -> Losses:
        """Returns the cost -mean(log pi(a_t | s_t) * R_t).

        `batch.returns` holds R_t, the discounted and normalised return from step t on, since the
        agent passes it as the reward.
        """
        policies, _ = self.model.policy(batch.inputs, batch.memory)
        log_prob = policies["action"].log_prob(batch.actions["action"])
        return Losses({"default": -batch.mean(log_prob * batch.returns)})
