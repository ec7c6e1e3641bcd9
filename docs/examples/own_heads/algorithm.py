"""Q-learning on rollouts of the newest policy."""

import tensorflow as tf

from relaax_like.algorithm import Algorithm, Batch, Losses
from relaax_like.nn import take
from relaax_like.nn.returns import compute_lambda_returns

from .config import Config
from .model import DuelingModel


class QLambda(Algorithm):
    """Peng & Williams 1996 (https://doi.org/10.1007/BF00114731): lambda-returns of max Q."""

    model: DuelingModel

    def learn(self, batch: Batch) -> Losses:
        q, memory = self.model.compute_q(batch.inputs, batch.memory, batch.begins)  # [T, B, A]
        next_q, _ = self.model.compute_q(batch.next_inputs, memory)
        next_values = tf.reduce_max(next_q, -1)
        goals = compute_lambda_returns(
            batch.returns, next_values, batch.discount, batch.continues, 0.9
        )
        error = goals - take(q, batch.actions["action"])
        return Losses({"default": batch.mean(error**2)}, rows={"td_error": error})


def make_algorithm(config: Config, model: DuelingModel, seed: int) -> QLambda:
    return QLambda(model, config, seed)
