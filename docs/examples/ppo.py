"""PPO with the clipped objective; the complete one is algorithms/ppo.

Schulman et al. 2017 (https://arxiv.org/abs/1707.06347), equation 7.
"""

import tensorflow as tf
from pydantic import Field

from relaax_like.algorithm import ActorCritic, Algorithm, Batch, Losses, OnPolicy, Tensors, Tunable
from relaax_like.config import ActorCriticConfig
from relaax_like.nn.returns import compute_gae


class Config(ActorCriticConfig):
    """Keys of the YAML's `algorithm` section."""

    gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount per step."""
    gae_lambda: Tunable = Field(default=0.95, ge=0, le=1)
    """Lambda of the generalised advantages."""
    clip: Tunable = Field(default=0.2, gt=0)
    """Probability ratios are clipped to 1 +- clip."""
    kl: float | None = Field(default=None, gt=0)
    """KL divergence above which the remaining updates of an iteration are skipped."""
    max_gradient_norm: Tunable = Field(default=0.5, gt=0)
    """Norm that gradients are scaled down to."""

    @property
    def plan(self) -> OnPolicy:
        """16 rollouts of 128 steps, 10 epochs of minibatches of 64 steps."""
        return OnPolicy(
            rollout_steps=128, rollouts=16, epochs=10, batch_size=64, discount=self.gamma
        )


class PPO(Algorithm):
    """The networks are those of an actor-critic, with or without memory."""

    autograph = False
    config: Config
    model: ActorCritic

    def prepare(self, batch: Batch) -> Tensors:
        """Returns advantages (Schulman et al. 2016, equation 16) and lambda-returns."""
        seen = self.model.evaluate(batch)
        next_values = self.model.value(batch.next_inputs, seen.memory)
        advantages = compute_gae(
            batch.returns,
            seen.values,
            next_values,
            batch.discount,
            batch.continues,
            self.config.gae_lambda,
        )
        return {"advantages": advantages, "returns": advantages + seen.values}

    def learn(self, batch: Batch) -> Losses:
        """Returns -min(r A, clip(r) A) and the squared error of the values."""
        seen, clip = self.model.evaluate(batch), self.config.clip
        log_ratios = seen.log_prob(batch.actions) - batch.log_prob
        ratios = tf.exp(log_ratios)
        advantages = batch.normalize(batch.extras["advantages"])
        clipped = tf.clip_by_value(ratios, 1.0 - clip, 1.0 + clip)
        gains = tf.minimum(ratios * advantages, clipped * advantages)
        actor = -batch.mean(gains)
        critic = batch.mean((batch.extras["returns"] - seen.values) ** 2)
        return Losses(
            {"default": actor + 0.5 * critic},
            metrics={
                "actor": actor,
                "critic": critic,
                "KL": batch.mean(ratios - 1.0 - log_ratios),
            },
        )

    def stop(self, metrics: Tensors) -> tf.Tensor | bool:
        """Returns whether the policy has moved too far."""
        return False if self.config.kl is None else metrics["KL"] > self.config.kl
