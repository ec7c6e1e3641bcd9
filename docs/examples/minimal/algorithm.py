"""REINFORCE on rollouts."""

import tensorflow as tf

from relaax_like.algorithm import Algorithm, Batch, Losses
from relaax_like.nn.returns import compute_lambda_returns

from .config import Config
from .model import PolicyModel


class Reinforce(Algorithm):
    """Williams 1992: the log-likelihood of each action times its normalised return."""

    def prepare(self, batch: Batch) -> dict[str, tf.Tensor]:
        nothing = tf.zeros_like(batch.returns)  # the value behind the last step
        # With lambda = 1, the sum of all rewards to come.
        returns = compute_lambda_returns(
            batch.returns, nothing, batch.discount, batch.continues, 1.0
        )
        return {"advantages": batch.normalize(returns)}

    def learn(self, batch: Batch) -> Losses:
        policies, _ = self.model.policy(batch.inputs, batch.memory)
        log_prob = policies["action"].log_prob(batch.actions["action"])
        return Losses({"default": -batch.mean(log_prob * batch.extras["advantages"])})


def make_algorithm(config: Config, model: PolicyModel, seed: int) -> Reinforce:
    return Reinforce(model, config, seed)
