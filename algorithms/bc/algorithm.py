"""BC: behaviour cloning, maximum likelihood of the actions that were recorded."""

import tensorflow as tf

from relaax_like.computation.algorithm import Algorithm
from relaax_like.computation.model import Tensors
from relaax_like.nn.layers import merge_steps

from .config import Config
from .model import BCModel


class BC(Algorithm):
    """Pomerleau 1991 (https://doi.org/10.1162/neco.1991.3.1.88), with a distribution of actions."""

    autograph = False
    model: BCModel

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
        """Returns the cost: -mean(log pi(a_t | x_t)), x_t and a_t being what was recorded.

        A minibatch is of steps, `[B, ...]`, or of rollouts, `[T, B, ...]`.
        """
        alive, action = next_alive["alive"], actions["action"]
        if len(alive.shape) == 1:  # steps: a rollout of one step
            inputs = {name: tensor[None] for name, tensor in inputs.items()}
            alive, action = alive[None], action[None]
        ends = tf.concat([tf.zeros_like(alive[:1]), 1.0 - tf.maximum(alive[:-1], 0.0)], 0)
        seen = self.model.unroll(inputs, states, begins=ends > 0)
        return {
            "cloning": -tf.reduce_mean(seen.distribution.log_prob(merge_steps(action))),
            "entropy": tf.stop_gradient(tf.reduce_mean(seen.distribution.entropy())),
        }


def make_algorithm(config: Config, model: BCModel, seed: int) -> BC:
    """Builds the algorithm."""
    return BC(model, seed)
