"""REINFORCE: the gradient of log-likelihood times return."""

import tensorflow as tf

from relaax_like.computation.algorithm import Algorithm
from relaax_like.computation.model import Tensors


class PolicyGradient(Algorithm):
    """Williams 1992 (https://doi.org/10.1007/BF00992696), on returns made ready by the agent."""

    def learn(
        self,
        inputs: Tensors,
        next_inputs: Tensors,
        states: Tensors,
        next_states: Tensors,
        next_alive: Tensors,
        actions: Tensors,
        next_actions: Tensors,
        rewards: Tensors,
    ) -> Tensors:
        """Returns the cost -mean(log pi(a_t | s_t) * R_t).

        `rewards["reward"]: [B, 1]` holds R_t, the discounted and normalised return from step t on.
        """
        distributions, _ = self.model.policy(inputs, states)
        log_prob = distributions["action"].log_prob(actions["action"])
        return {"actor": -tf.reduce_mean(log_prob * rewards["reward"][:, 0])}
