"""A2C: advantage actor-critic, the synchronous form of A3C."""

from typing import Any

import tensorflow as tf

from relaax_like.algorithm import ActorCritic, Algorithm, Batch, Losses
from relaax_like.nn.returns import compute_vtrace

from .config import Config


class A2C(Algorithm):
    """Advantage actor-critic, with generalised advantages.

    Mnih et al. 2016 (https://arxiv.org/abs/1602.01783).
    """

    autograph = False
    config: Config
    model: ActorCritic

    @property
    def max_gradient_norm(self) -> Any:
        """Separate limits for actor and critic, unless they share layers."""
        norm = self.config.max_gradient_norm
        groups = self.config.network_groups
        return norm if self.config.shared_network else dict.fromkeys(groups, norm)

    def learn(self, batch: Batch) -> Losses:
        """Returns the costs of a rollout `[T, k, ...]`.

            actor:  -mean(A_t log pi(a_t|x_t)) - c_e mean(H(pi(.|x_t)))
            critic:  c_v mean((v_t - V(x_t))^2), v_t = V(x_t) + A_t being constant

        with the advantages A_t of Schulman et al. 2016, equation 16, for rewards multiplied by
        `reward_scale`: a terminal state has value 0, a truncated episode is bootstrapped from the
        value of its last observation. If an older policy mu acted, because agents continue while
        their last rollout is learned from, the sum is that of V-trace, whose factors min(1, pi /
        mu) weight each of its terms (Espeholt et al. 2018, equation 1). With `normalize_advantage`,
        the actor's A_t are normalised.
        """
        config, seen = self.config, self.model.evaluate(batch)
        next_values = self.model.value(batch.next_inputs, seen.memory)
        log_prob = seen.log_prob(batch.actions)
        targets = compute_vtrace(
            log_prob - batch.log_prob,
            config.reward_scale * self.model.compute_returns(batch),
            seen.values,
            next_values,
            batch.discount,
            batch.continues,
            gae_lambda=config.gae_lambda,
        ).targets
        advantages = targets - tf.stop_gradient(seen.values)
        if config.normalize_advantage:
            advantages = batch.normalize(advantages)
        entropy = batch.mean(seen.policy.entropy())
        actor = -batch.mean(log_prob * advantages) - config.entropy_coefficient * entropy
        critic = config.value_coefficient * batch.mean((targets - seen.values) ** 2)
        return self.model.name_costs(actor, critic, {"entropy": entropy})


def make_algorithm(config: Config, model: ActorCritic, seed: int) -> A2C:
    """Builds the algorithm."""
    return A2C(model, config, seed)
