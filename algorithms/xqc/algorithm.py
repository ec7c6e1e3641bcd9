"""XQC and CrossQ: soft actor-critic with batch norms."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from relaax_like.algorithm import Algorithm, Batch, Losses, Phase, Tensors
from relaax_like.config.continuous import ACTOR, CRITIC
from relaax_like.nn import Norming

from .config import TEMPERATURE, Config
from .model import XQCModel


class XQC(Algorithm):
    """Soft actor-critic whose networks have batch norms.

    XQC: Palenicek et al. 2025 (https://arxiv.org/abs/2509.25174). With `atoms: null`, and without
    `unit_norm` and `target_networks`, CrossQ: Bhatt et al. 2024 (https://arxiv.org/abs/1902.05605).

    In each update the critics take a step. In every `actor_every`-th one, the actor then takes one
    at their new values, and with it the temperature.
    """

    autograph = False
    config: Config
    model: XQCModel

    def __init__(self, model: XQCModel, config: Config, seed: int):
        super().__init__(model, config, seed)
        self.phases = (Phase(CRITIC), Phase(ACTOR, TEMPERATURE, every=config.actor_every))

    def learn(self, batch: Batch) -> Losses:
        """Returns the costs of a minibatch of steps; a' and a~ are drawn from the policy.

            critic:       sum_i mean(D(y, Z_i(x, a))),  y = R / s + discount (Z'(x') - alpha log pi)
            actor:        mean(alpha log pi(a~|x) - min_i E Z_i(x, a~))
            temperature:  -log alpha mean(log pi(a~|x) + H)

        The critics see x, a and x', a' as one batch, whose moments their norms use and move by. Z'
        is what the critic with the smallest mean, or its target, then says of x', a'. D is the
        cross-entropy after a projection to the support, or, for `atoms: null`, where Z is one
        number, the squared difference. The actor's norms use the moments of x when it is trained;
        everywhere else, norms use their moving statistics. s: see `_find_scale`. H and the
        log-probabilities are as in sac.
        """
        config, model = self.config, self.model
        log_alpha = model.log_alpha(batch.returns)
        alpha = tf.stop_gradient(tf.exp(log_alpha))
        shares = batch.find_shares()
        norming, actor_norming = Norming(shares), Norming(shares)
        costs, errors, metrics = self._learn_critics(batch, alpha, norming)
        action, log_prob = model.act(batch.inputs, actor_norming).sample_with_log_prob(self.random)
        log_prob += model.log_volume
        value = tf.reduce_min(self._find_means(model.critics(batch.inputs, action)), -1)
        target = config.entropy_target
        target = -float(len(model.space.low)) if target is None else target
        surplus = tf.stop_gradient(batch.mean(log_prob + target))
        acting = {"entropy": -batch.mean(log_prob), "value": batch.mean(value)}
        return Losses(
            {
                CRITIC: batch.mean(tf.reduce_sum(costs, -1)),
                ACTOR: batch.mean(alpha * log_prob - value),
                TEMPERATURE: -log_alpha * surplus,
            },
            rows={"priority": tf.reduce_mean(errors, -1)},
            metrics={"alpha": alpha, ACTOR: acting, **metrics},
            updates={**norming.updates, **actor_norming.updates},
        )

    def review(self, numbers: Mapping[str, Any], updates: int) -> None:
        """Warns if many targets are outside of the support."""
        if self.model.support is not None:
            self.model.support.review(numbers, updates, "algorithm.v_max")

    def _learn_critics(
        self, batch: Batch, alpha: tf.Tensor, norming: Norming
    ) -> tuple[tf.Tensor, tf.Tensor, Tensors]:
        """Returns the cost and the size of the error of each critic, `[..., m]`, and metrics."""
        model = self.model
        next_action, next_log_prob = model.act(batch.next_inputs).sample_with_log_prob(self.random)
        steps = (
            (batch.inputs, batch.actions["action"]),
            (batch.next_inputs, tf.stop_gradient(next_action)),
        )
        values, next_values = model.critics.compute_jointly(steps, norming)
        if model.targets is not None:
            target = model.targets.module
            _, next_values = target.compute_jointly(steps, Norming(batch.find_shares()))
        next_values = tf.stop_gradient(next_values)
        returns = batch.returns / self._find_scale()
        returns -= batch.discount * alpha * (next_log_prob + model.log_volume)
        returns = tf.stop_gradient(returns)
        means = self._find_means(next_values)
        goals = returns + batch.discount * tf.reduce_min(means, -1)
        if model.support is None:
            errors = values - goals[..., None]
            return errors**2, tf.abs(errors), {}
        axes = len(means.shape) - 1
        next_logits = tf.gather(next_values, tf.argmin(means, -1), axis=axes, batch_dims=axes)
        parts = (next_logits[..., None, :], returns[..., None], batch.discount[..., None])
        costs, errors = model.support.compute_costs(values, *parts)
        return costs, errors, model.support.measure(batch, goals)

    def _find_means(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the mean return that each critic expects, `[..., m]`."""
        support = self.model.support
        return values if support is None else support.compute_means(values)

    def _find_scale(self) -> tf.Tensor:
        """Returns what rewards are divided by: max(d, (|mean| + 3 d) / v_max), or 1.

        Mean and standard deviation d are those of the discounted sums of rewards that agents have
        had; 1 where none is known, as in the first update of a learner beside its agents. The paper
        divides by the largest sum so far instead of |mean| + 3 d.
        """
        returns = self.model.returns
        if returns is None:
            return tf.constant(1.0)
        rows = tf.maximum(returns.count, 1.0)
        deviation = tf.sqrt(returns.m2 / rows + 1e-8)
        largest = tf.abs(returns.mean) + 3.0 * deviation
        scale = tf.maximum(deviation, largest / self.config.v_max)
        return tf.cast(tf.where(returns.count > 0, scale, tf.ones_like(scale)), tf.float32)


def make_algorithm(config: Config, model: XQCModel, seed: int) -> XQC:
    """Builds the algorithm."""
    return XQC(model, config, seed)
