"""The two tasks: REINFORCE on linear policies, one of which never sees the observation."""

import numpy as np
import tensorflow as tf

from relaax_like.computation.algorithm import Algorithm
from relaax_like.computation.model import Model, Specs, Tensors
from relaax_like.nn.action_heads import make_distribution, make_numpy_distribution
from relaax_like.nn.layers import Dense
from relaax_like.wire.spaces import Discrete

from .config import Config

SPACE = Discrete(n=2)


class LinearPolicy(Model):
    """Logits of one choice out of two, linear in one input of two numbers."""

    def __init__(self, sees: str, chooses: str, seed: int):
        super().__init__()
        self._sees = sees
        self._chooses = chooses
        self.layer = Dense("logits", 2, 2, seed=seed, gain=0.1)

    def get_input_specs(self) -> Specs:
        """One input: what the other task sees is not selected."""
        return [(self._sees, {"shape": [2]})]

    def get_action_specs(self) -> Specs:
        """One choice."""
        return [(self._chooses, {"shape": [], "dtype": "int64"})]

    def policy(self, inputs: Tensors, states: Tensors) -> tuple[dict, Tensors]:
        """Returns the distribution of the choice; in NumPy for arrays."""
        logits = self.layer(inputs[self._sees])
        in_numpy = isinstance(logits, np.ndarray)
        make = make_numpy_distribution if in_numpy else make_distribution
        return {self._chooses: make(SPACE, logits)}, states


class Reinforce(Algorithm):
    """Williams 1992: cost = -mean(log pi(a|x) r), each choice being an episode of its own."""

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
        """Returns the cost of a rollout `[T, k, ...]`."""
        rows = {name: tf.reshape(array, [-1, 2]) for name, array in inputs.items()}
        ((name, distribution),) = self.model.policy(rows, states)[0].items()
        log_prob = distribution.log_prob(tf.reshape(actions[name], [-1]))
        return {"actor": -tf.reduce_mean(log_prob * tf.reshape(rewards["reward"], [-1]))}


def make_algorithms(config: Config, seed: int) -> dict[str, Algorithm]:
    """Builds both tasks."""
    return {
        "goal": Reinforce(LinearPolicy("observation", "goal", config.seed), seed),
        "control": Reinforce(LinearPolicy("goal", "action", config.seed + 1), seed + 1),
    }
