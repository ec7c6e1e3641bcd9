"""PPO: proximal policy optimisation with the clipped objective."""

from typing import Any

import tensorflow as tf

from relaax_like.computation.actor_critic import Unrolled
from relaax_like.computation.algorithm import Algorithm
from relaax_like.computation.model import Tensors
from relaax_like.computation.prediction import LOG_PROB
from relaax_like.config.mirror import Mirror
from relaax_like.nn.layers import merge_steps
from relaax_like.nn.returns import compute_gae
from relaax_like.wire.spaces import OBSERVATION

from .config import ACTOR, CRITIC, Config
from .model import PPOModel

# Added to deviations by which advantages are divided.
_EPSILON = 1e-8


class PPO(Algorithm):
    """Schulman et al. 2017 (https://arxiv.org/abs/1707.06347), with generalised advantages."""

    autograph = False
    model: PPOModel

    def __init__(self, model: PPOModel, config: Config, seed: int = 0):
        clip: Any = config.max_gradient_norm
        if not config.shared_network:
            clip = {ACTOR: clip, CRITIC: clip}
        super().__init__(model, seed, clip)
        self._config = config

    def prepare(
        self,
        inputs: Tensors,
        next_inputs: Tensors,
        states: Tensors,
        next_states: Tensors,
        next_alive: Tensors,
        actions: Tensors,
        next_actions: Tensors,
        rewards: Tensors,
        extras: Tensors | None = None,
    ) -> Tensors:
        """Returns what stays the same for all updates of an iteration, `[T, k, ...]`.

        `advantages` are those of Schulman et al. 2016, equation 16: a terminal state is worth
        nothing, a truncated episode goes on with the value of its last observation. `returns` are
        advantages plus values; `values` and `parameters` (of the policy) are those of the networks
        as they are now. Of what comes in `extras`, `mask` is 0 at steps that do not count.
        """
        config, alive = self._config, next_alive["alive"]
        seen = self._look(inputs, states, alive)
        following = tf.nest.map_structure(merge_steps, (next_inputs, seen.states))
        next_values = self.model.value(*following)
        advantages = compute_gae(
            rewards["reward"][..., 0],
            seen.values,
            tf.reshape(next_values, tf.shape(alive)),
            alive,
            config.gamma,
            config.gae_lambda,
        )
        prepared = {
            **(extras or {}),
            "returns": advantages + seen.values,
            "values": seen.values,
            "parameters": seen.parameters,
        }
        mask = prepared.get("mask", tf.ones_like(alive))
        if config.normalize_advantage == "batch":
            advantages = _normalize(advantages, mask)
        return {**prepared, "advantages": advantages}

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
        extras: Tensors | None = None,
    ) -> Tensors:
        """Returns the costs of a minibatch, of steps `[B, ...]` or of rollouts `[T, B, ...]`.

            actor:  -mean(min(r_t A_t, clip(r_t, 1 - c, 1 + c) A_t)) - c_e mean(H(pi(.|x_t)))
                    + c_m mean((a(x_t) - m_a(a(m_x(x_t))))^2)
            critic:  c_v mean((G_t - V(x_t))^2)

        with r_t = pi(a_t|x_t) / mu(a_t|x_t), mu being the policy that acted (equation 7), and the
        advantages A_t and returns G_t of `prepare`; a(x) is what the policy does on average, and
        m_x, m_a are the mirrors of observations and actions.
        """
        assert extras is not None
        config, alive = self._config, next_alive["alive"]
        seen = self._look(inputs, states, alive)
        mask = extras.get("mask", tf.ones_like(alive))
        shape = tf.shape(alive)
        log_prob = seen.distribution.log_prob(_to_rows(actions["action"], alive))
        log_ratios = tf.reshape(log_prob, shape) - actions[LOG_PROB]
        ratios = tf.exp(log_ratios)
        clip = self._compute_clip()
        advantages = extras["advantages"]
        if config.normalize_advantage == "minibatch":
            advantages = _normalize(advantages, mask)
        gains = tf.minimum(
            ratios * advantages, tf.clip_by_value(ratios, 1.0 - clip, 1.0 + clip) * advantages
        )
        entropy = _mean(tf.reshape(seen.distribution.entropy(), shape), mask)
        before = self.model.make_distribution(_to_rows(extras["parameters"], alive))
        kl = tf.reshape(before.kl(seen.distribution), shape)
        policy = -_mean(gains, mask)
        values = tf.reshape(seen.values, shape)
        critic = _mean(self._compute_value_cost(values, extras), mask)
        clipped = tf.cast(tf.abs(ratios - 1.0) > clip, tf.float32)
        actor = policy - config.entropy_coefficient * entropy
        mirrored = self._compare_with_mirror(seen, inputs, states, alive, mask)
        if config.mirror:
            actor += config.mirror * mirrored["mirror"]
        return {
            ACTOR: actor,
            CRITIC: config.value_coefficient * critic,
            **{name: tf.stop_gradient(metric) for name, metric in mirrored.items()},
            "entropy": tf.stop_gradient(entropy),
            "KL": tf.stop_gradient(_mean(kl, mask)),
            "clip fraction": tf.stop_gradient(_mean(clipped, mask)),
        }

    def stop(self, metrics: Tensors) -> tf.Tensor:
        """Returns whether the policy has gone too far from the one that the iteration began with.

        The divergence is that of the update's minibatch, before the update.
        """
        if self._config.kl is None:
            return tf.constant(False)
        return metrics["KL"] > self._config.kl

    def _look(self, inputs: Tensors, states: Tensors, alive: tf.Tensor) -> Unrolled:
        """Runs the networks; steps `[B, ...]` count as a rollout of one step."""
        if len(alive.shape) == 1:
            inputs = {name: tensor[None] for name, tensor in inputs.items()}
            alive = alive[None]
        ends = tf.concat([tf.zeros_like(alive[:1]), 1.0 - tf.maximum(alive[:-1], 0.0)], 0)
        return self.model.unroll(inputs, states, begins=ends > 0)

    def _compare_with_mirror(
        self, seen: Unrolled, inputs: Tensors, states: Tensors, alive: tf.Tensor, mask: tf.Tensor
    ) -> Tensors:
        """Returns how far the policy is from the same policy in a mirror; {} without mirrors.

        `mirror`: mean over steps and components of the squared difference of the two averages
        (Abdolhosseini et al. 2019, https://doi.org/10.1145/3359566.3360070, mirror symmetry loss).
        `asymmetry`: sum(|a - a'|) / sum(|a| + |a'|), 0 to 1.

        A memory has no mirror image: both sides begin without any.
        """
        look, act = self._config.observation_mirror, self._config.action_mirror
        if look is None or act is None:
            return {}
        begin = {name: tf.zeros_like(state) for name, state in states.items()}
        own = self._look(inputs, begin, alive) if states else seen
        image = {OBSERVATION: _reflect(inputs[OBSERVATION], look)}
        other = self._look(image, begin, alive)
        a = self.model.compute_means(own.parameters)
        b = _reflect(self.model.compute_means(other.parameters), act)
        shape = tf.shape(alive)
        error = _mean(tf.reshape(tf.reduce_mean((a - b) ** 2, -1), shape), mask)
        apart = _mean(tf.reshape(tf.reduce_sum(tf.abs(a - b), -1), shape), mask)
        size = _mean(tf.reshape(tf.reduce_sum(tf.abs(a) + tf.abs(b), -1), shape), mask)
        return {"mirror": error, "asymmetry": tf.math.divide_no_nan(apart, size)}

    def _compute_clip(self) -> tf.Tensor:
        config = self._config
        if config.clip_schedule == "constant":
            return tf.constant(config.clip)
        done = tf.cast(self.global_t, tf.float32) / config.max_global_step
        return config.clip * tf.maximum(1.0 - done, 0.0)

    def _compute_value_cost(self, values: tf.Tensor, extras: Tensors) -> tf.Tensor:
        """Returns the squared error of each value; with clip_value the larger of two.

        The other one is that of the value as far as it may go; Schulman et al. 2016 have it in
        their code, no paper does.
        """
        returns, bound = extras["returns"], self._config.clip_value
        cost = (returns - values) ** 2
        if bound is None:
            return cost
        near = extras["values"] + tf.clip_by_value(values - extras["values"], -bound, bound)
        return tf.maximum(cost, (returns - near) ** 2)


def make_algorithm(config: Config, model: PPOModel, seed: int) -> PPO:
    """Builds the algorithm."""
    return PPO(model, config, seed)


def _reflect(x: tf.Tensor, mirror: Mirror) -> tf.Tensor:
    """Returns the mirror image of vectors `[..., n]`."""
    return tf.gather(x, mirror.indices, axis=-1) * tf.constant(mirror.signs, tf.float32)


def _mean(x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Returns the mean over the steps that count."""
    return tf.reduce_sum(x * mask) / tf.reduce_sum(mask)


def _normalize(x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Brings the steps that count to mean 0 and deviation 1."""
    x = (x - _mean(x, mask)) * mask
    return x / (tf.sqrt(_mean(x * x, mask)) + _EPSILON)


def _to_rows(tensor: tf.Tensor, alive: tf.Tensor) -> tf.Tensor:
    """Returns `[B, ...]` as it is, and `[T, B, ...]` as `[T * B, ...]`."""
    if len(alive.shape) == 1:
        return tensor
    return merge_steps(tensor)
