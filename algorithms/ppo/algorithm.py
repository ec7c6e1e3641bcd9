"""PPO: proximal policy optimisation with the clipped objective."""

from dataclasses import replace
from typing import Any

import tensorflow as tf

from relaax_like.algorithm import Algorithm, Batch, Evaluation, Losses, Tensors
from relaax_like.config import Mirror
from relaax_like.nn.returns import compute_gae
from relaax_like.wire.spaces import OBSERVATION

from .config import Config
from .model import PPOModel


class PPO(Algorithm):
    """Proximal policy optimisation, with generalised advantages.

    Schulman et al. 2017 (https://arxiv.org/abs/1707.06347).
    """

    autograph = False
    config: Config
    model: PPOModel

    @property
    def max_gradient_norm(self) -> Any:
        """Separate limits for actor and critic, unless they share layers."""
        norm = self.config.max_gradient_norm
        groups = self.config.network_groups
        return norm if self.config.shared_network else dict.fromkeys(groups, norm)

    def prepare(self, batch: Batch) -> Tensors:
        """Returns the tensors that stay the same for all updates of an iteration.

        `advantages` are those of Schulman et al. 2016, equation 16: a terminal state has value 0, a
        truncated episode is bootstrapped from the value of its last observation. `returns` are
        advantages plus values; with `normalize_advantage: batch`, the advantages are normalised
        after that. `values` and `parameters` (of the policy) are those of the networks
        before the first update.
        """
        config, seen = self.config, self.model.evaluate(batch)
        next_values = self.model.value(batch.next_inputs, seen.memory)
        advantages = compute_gae(
            self.model.compute_returns(batch),
            seen.values,
            next_values,
            batch.discount,
            batch.continues,
            config.gae_lambda,
        )
        returns = advantages + seen.values
        if config.normalize_advantage == "batch":
            advantages = batch.normalize(advantages)
        prepared = {"advantages": advantages, "returns": returns, "values": seen.values}
        return {**prepared, "parameters": seen.parameters}

    def learn(self, batch: Batch) -> Losses:
        """Returns the costs of a minibatch.

            actor:  -mean(min(r_t A_t, clip(r_t, 1 - c, 1 + c) A_t)) - c_e mean(H(pi(.|x_t)))
                    + c_m mean((a(x_t) - m_a(a(m_x(x_t))))^2)
            critic:  c_v mean((G_t - V(x_t))^2)

        with r_t = pi(a_t|x_t) / mu(a_t|x_t), mu being the policy that acted (equation 7), and the
        advantages A_t and returns G_t of `prepare`; a(x) is the mean action of the policy, and m_x,
        m_a are the mirrors of observations and actions. A_t is first normalised within the
        minibatch if `normalize_advantage` says so. With `clip_value` the critic's error is the
        larger of two, see `_compute_value_cost`.
        """
        config, seen = self.config, self.model.evaluate(batch)
        clip = self._schedule(config.clip, config.clip_schedule)
        ratios = tf.exp(seen.log_prob(batch.actions) - batch.log_prob)
        advantages = batch.extras["advantages"]
        if config.normalize_advantage == "minibatch":
            advantages = batch.normalize(advantages)
        clipped = tf.clip_by_value(ratios, 1.0 - clip, 1.0 + clip)
        gains = tf.minimum(ratios * advantages, clipped * advantages)
        entropy = batch.mean(seen.policy.entropy())
        before = self.model.make_distribution(batch.extras["parameters"])
        mirrored = self._compare_with_mirror(batch, seen)
        weight = self._schedule(config.entropy_coefficient, config.entropy_schedule)
        actor = -batch.mean(gains) - weight * entropy
        if config.mirror:
            actor += config.mirror * mirrored["mirror"]
        critic = config.value_coefficient * batch.mean(self._compute_value_cost(batch, seen.values))
        metrics = {
            **mirrored,
            "entropy": entropy,
            "KL": batch.mean(before.kl(seen.policy)),
            "clip fraction": batch.mean(tf.cast(tf.abs(ratios - 1.0) > clip, tf.float32)),
        }
        return self.model.name_costs(actor, critic, metrics)

    def stop(self, metrics: Tensors) -> tf.Tensor | bool:
        """Returns whether the policy has moved too far since the iteration began.

        The divergence is that of the update's minibatch, before the update.
        """
        return False if self.config.kl is None else metrics["KL"] > self.config.kl

    def _compare_with_mirror(self, batch: Batch, seen: Evaluation) -> Tensors:
        """Returns how far the policy is from its mirror image; {} without mirrors.

        `mirror`: mean over steps and components of the squared difference of the two means
        (Abdolhosseini et al. 2019, https://doi.org/10.1145/3359566.3360070, mirror symmetry loss).
        `asymmetry`: sum(|a - a'|) / sum(|a| + |a'|), 0 to 1.

        A memory has no mirror image, so both sides begin without memory.
        """
        look, act = self.config.observation_mirror, self.config.action_mirror
        if look is None or act is None:
            return {}
        empty = {name: tf.zeros_like(state) for name, state in batch.memory.items()}
        own = self.model.evaluate(replace(batch, memory=empty)) if empty else seen
        image = {OBSERVATION: _reflect(batch.inputs[OBSERVATION], look)}
        other = self.model.evaluate(replace(batch, inputs=image, memory=empty))
        a = self.model.compute_means(own.parameters)
        b = _reflect(self.model.compute_means(other.parameters), act)
        apart = batch.mean(tf.reduce_sum(tf.abs(a - b), -1))
        size = batch.mean(tf.reduce_sum(tf.abs(a) + tf.abs(b), -1))
        return {
            "mirror": batch.mean(tf.reduce_mean((a - b) ** 2, -1)),
            "asymmetry": tf.math.divide_no_nan(apart, size),
        }

    def _schedule(self, value: Any, schedule: str) -> tf.Tensor | float:
        """Returns the current value of a setting; linear: it is 0 at max_global_step."""
        if schedule == "constant":
            return value
        done = tf.cast(self.global_t, tf.float32) / self.config.max_global_step
        return value * tf.maximum(1.0 - done, 0.0)

    def _compute_value_cost(self, batch: Batch, values: tf.Tensor) -> tf.Tensor:
        """Returns the squared error of each value; with clip_value, the larger of two errors.

        The other one is that of the clipped value. The code of Schulman et al. 2016 does this, but
        no paper describes it.
        """
        returns, bound = batch.extras["returns"], self.config.clip_value
        cost = (returns - values) ** 2
        if bound is None:
            return cost
        before = batch.extras["values"]
        near = before + tf.clip_by_value(values - before, -bound, bound)
        return tf.maximum(cost, (returns - near) ** 2)


def make_algorithm(config: Config, model: PPOModel, seed: int) -> PPO:
    """Builds the algorithm."""
    return PPO(model, config, seed)


def _reflect(x: tf.Tensor, mirror: Mirror) -> tf.Tensor:
    """Returns the mirror image of vectors `[..., n]`."""
    return tf.gather(x, mirror.indices, axis=-1) * tf.constant(mirror.signs, tf.float32)
