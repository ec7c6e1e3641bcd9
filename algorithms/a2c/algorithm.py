"""A2C: advantage actor-critic, synchronous form of A3C."""

import tensorflow as tf

from relaax_like.computation.algorithm import Algorithm
from relaax_like.computation.model import Model, Tensors
from relaax_like.nn.returns import compute_gae

from .config import Config


class A2C(Algorithm):
    """Mnih et al. 2016 (https://arxiv.org/abs/1602.01783), with generalised advantages."""

    def __init__(self, model: Model, config: Config, seed: int = 0):
        super().__init__(model, seed, config.max_gradient_norm)
        self._config = config

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
        """Returns the costs of a rollout `[T, k, ...]`.

            policy:  -mean(log pi(a_t|x_t) A_t)
            value:    c_v mean((R_t - V(x_t))^2),  R_t = A_t + V(x_t)
            entropy: -c_e mean(H(pi(.|x_t)))

        with the advantages A_t of Schulman et al. 2016, equation 16 (see `compute_gae`): a terminal
        state is worth nothing, a truncated episode goes on with the value of its last observation.
        """
        config = self._config
        rollout = tf.shape(next_alive["alive"])
        rows = _flatten(inputs)
        values = self.model.value(rows)
        next_values = self.model.value(_flatten(next_inputs))
        advantages = compute_gae(
            rewards["reward"][..., 0],
            tf.reshape(values, rollout),
            tf.reshape(next_values, rollout),
            next_alive["alive"],
            config.gamma,
            config.gae_lambda,
        )
        advantages = tf.reshape(advantages, [-1])
        returns = advantages + tf.stop_gradient(values)
        if config.normalize_advantage:
            mean, variance = tf.nn.moments(advantages, [0])
            advantages = (advantages - mean) / (tf.sqrt(variance) + 1e-8)
        distribution = self.model.policy(rows, states)[0]["action"]
        log_prob = distribution.log_prob(_flatten(actions)["action"])
        entropy = tf.reduce_mean(distribution.entropy())
        return {
            "policy cost": -tf.reduce_mean(log_prob * advantages),
            "value cost": config.value_coefficient * tf.reduce_mean((returns - values) ** 2),
            "entropy cost": -config.entropy_coefficient * entropy,
        }


def make_algorithm(config: Config, model: Model, seed: int) -> A2C:
    """Builds the algorithm."""
    return A2C(model, config, seed)


def _flatten(arrays: Tensors) -> Tensors:
    """Puts the steps of all slots one below another: `[T, k, ...]` to `[T * k, ...]`."""
    return {
        name: tf.reshape(array, tf.concat([[-1], tf.shape(array)[2:]], 0))
        for name, array in arrays.items()
    }
