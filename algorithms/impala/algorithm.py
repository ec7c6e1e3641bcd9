"""IMPALA: importance-weighted actor-learner architectures."""

import tensorflow as tf

from relaax_like.algorithm import ActorCritic, Algorithm, Batch, Losses
from relaax_like.nn.returns import compute_vtrace

from .config import Config


class IMPALA(Algorithm):
    """An actor-critic that corrects for older acting policies with V-trace.

    Espeholt et al. 2018 (https://arxiv.org/abs/1802.01561).
    """

    autograph = False
    config: Config
    model: ActorCritic

    def learn(self, batch: Batch) -> Losses:
        """Returns the costs of rollouts `[T, k, ...]` in which older policies mu have acted.

            actor:  -mean(A_t log pi(a_t|x_t)) - c_e mean(H(pi(.|x_t)))
            critic:  c_v mean((v_t - V(x_t))^2)

        with the V-trace targets v_t of equation 1 and A_t = rho_t (r_t + gamma v_{t+1} - V(x_t)) of
        section 4.2, both constant. Without `vtrace`, all ratios pi / mu are 1.
        """
        config, seen = self.config, self.model.evaluate(batch)
        next_values = self.model.value(batch.next_inputs, seen.memory)
        log_prob = seen.log_prob(batch.actions)
        log_ratios = log_prob - batch.log_prob
        trace = compute_vtrace(
            log_ratios if config.vtrace else tf.zeros_like(log_ratios),
            self.model.compute_returns(batch),
            seen.values,
            next_values,
            batch.discount,
            batch.continues,
            rho_bar=config.rho_bar,
            c_bar=config.c_bar,
        )
        entropy = batch.mean(seen.policy.entropy())
        actor = -batch.mean(log_prob * trace.advantages) - config.entropy_coefficient * entropy
        critic = config.value_coefficient * batch.mean((trace.targets - seen.values) ** 2)
        return self.model.name_costs(
            actor, critic, {"entropy": entropy, "ratio": batch.mean(tf.exp(log_ratios))}
        )


def make_algorithm(config: Config, model: ActorCritic, seed: int) -> IMPALA:
    """Builds the algorithm."""
    return IMPALA(model, config, seed)
