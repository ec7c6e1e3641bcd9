"""A2C: advantage actor-critic, synchronous form of A3C."""

import tensorflow as tf

from relaax_like.computation.actor_critic import ActorCritic
from relaax_like.computation.algorithm import Algorithm
from relaax_like.computation.model import Tensors
from relaax_like.computation.prediction import LOG_PROB
from relaax_like.nn.layers import merge_steps
from relaax_like.nn.returns import compute_vtrace

from .config import Config


class A2C(Algorithm):
    """Mnih et al. 2016 (https://arxiv.org/abs/1602.01783), with generalised advantages."""

    autograph = False
    model: ActorCritic

    def __init__(self, model: ActorCritic, config: Config, seed: int = 0):
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

            actor:  -mean(A_t log pi(a_t|x_t)) - c_e mean(H(pi(.|x_t)))
            critic:  c_v mean((v_t - V(x_t))^2), v_t = V(x_t) + A_t being constant

        with the advantages A_t of Schulman et al. 2016, equation 16: a terminal state is worth
        nothing, a truncated episode goes on with the value of its last observation. Where an older
        policy mu acted, as agents act on while their last rollout is learned from, every step of
        the sum is weighted by min(1, pi / mu), as in V-trace (Espeholt et al. 2018, equation 1).
        """
        config, alive = self._config, next_alive["alive"]
        ends = tf.concat([tf.zeros_like(alive[:1]), 1.0 - tf.maximum(alive[:-1], 0.0)], 0)
        seen = self.model.unroll(inputs, states, begins=ends > 0)
        following = tf.nest.map_structure(merge_steps, (next_inputs, seen.states))
        next_values = self.model.value(*following)
        log_prob = seen.distribution.log_prob(merge_steps(actions["action"]))
        log_ratios = tf.reshape(log_prob, tf.shape(alive)) - actions[LOG_PROB]
        corrections = compute_vtrace(
            log_ratios,
            config.reward_scale * rewards["reward"][..., 0],
            seen.values,
            tf.reshape(next_values, tf.shape(alive)),
            alive,
            config.gamma,
            gae_lambda=config.gae_lambda,
        )
        advantages = corrections.targets - tf.stop_gradient(seen.values)
        value_cost = tf.reduce_mean((corrections.targets - seen.values) ** 2)
        if config.normalize_advantage:
            mean, variance = tf.nn.moments(advantages, [0, 1])
            advantages = (advantages - mean) / (tf.sqrt(variance) + 1e-8)
        entropy = tf.reduce_mean(seen.distribution.entropy())
        policy = -tf.reduce_mean(log_prob * tf.reshape(advantages, [-1]))
        return {
            "actor": policy - config.entropy_coefficient * entropy,
            "critic": config.value_coefficient * value_cost,
            "entropy": tf.stop_gradient(entropy),
        }


def make_algorithm(config: Config, model: ActorCritic, seed: int) -> A2C:
    """Builds the algorithm."""
    return A2C(model, config, seed)
