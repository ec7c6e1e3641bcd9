"""SAC: soft actor-critic with a tuned or a fixed temperature."""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from relaax_like.algorithm import Algorithm, Batch, Losses, Phase, Tensors
from relaax_like.config.continuous import ACTOR, CRITIC
from relaax_like.wire.spaces import MASK, Discrete

from .config import TEMPERATURE, Config
from .model import SACModel


class SAC(Algorithm):
    """Soft actor-critic.

    Haarnoja et al. 2018, the second version (https://arxiv.org/abs/1812.05905). With discrete
    actions: Christodoulou 2019 (https://arxiv.org/abs/1910.07207), where expectations over all
    actions replace the draws.

    In each update the critics take a step. In every `actor_every`-th one, the actor then takes one
    at their new values, and with it the temperature, unless that is fixed.
    """

    autograph = False
    config: Config
    model: SACModel

    def __init__(self, model: SACModel, config: Config, seed: int):
        super().__init__(model, config, seed)
        tuned = (TEMPERATURE,) if config.temperature is None else ()
        self.phases = (Phase(CRITIC), Phase(ACTOR, *tuned, every=config.actor_every))

    def learn(self, batch: Batch) -> Losses:
        """Returns the costs of a minibatch of steps; a' and a~ are drawn from the policy.

            critic:       sum_i mean((Q_i(x, a) - y)^2),
                          y = R + discount (min_i Q'_i(x', a') - alpha log pi(a'|x'))
            actor:        mean(alpha log pi(a~|x) - min_i Q_i(x, a~))
            temperature:  -log alpha mean(log pi(a~|x) + H)

        Equations 5 (without the factor 1/2), 7 and 18, with log alpha instead of alpha in the last,
        as is usual; H is `entropy_target`, by default minus the number of components, or with
        discrete actions a fraction of log(num_actions). Log-probabilities are of actions scaled to
        [-1, 1]. With a fixed temperature its cost is left out.

        The smallest value in y is of `target_critics` critics drawn at random (REDQ: Chen et al.
        2021, https://arxiv.org/abs/2101.05982, algorithm 1); with `actor_value: mean` the actor's
        cost has the mean of all values.
        """
        config, model = self.config, self.model
        if model.log_alpha is None:
            log_alpha = tf.math.log(tf.constant(config.temperature, tf.float32))
        else:
            log_alpha = model.log_alpha(batch.returns)
        alpha = tf.stop_gradient(tf.exp(log_alpha))
        next_value, next_log_prob = self._evaluate(
            model.targets.module,
            batch.next_inputs,
            lambda values: tf.reduce_min(self._choose(values), -1),
        )
        goal = batch.returns + batch.discount * (next_value - alpha * next_log_prob)
        errors = self._compute_values(batch) - tf.stop_gradient(goal)[..., None]
        reduce = tf.reduce_min if config.actor_value == "min" else tf.reduce_mean
        value, log_prob = self._evaluate(
            model.critics, batch.inputs, lambda values: reduce(values, -1)
        )
        costs = {
            CRITIC: batch.mean(tf.reduce_sum(errors**2, -1)),
            ACTOR: batch.mean(alpha * log_prob - value),
        }
        if model.log_alpha is not None:
            surplus = tf.stop_gradient(batch.mean(log_prob + self._find_target(batch.inputs)))
            costs[TEMPERATURE] = -log_alpha * surplus
        return Losses(
            costs,
            rows={"priority": tf.reduce_mean(tf.abs(errors), -1)},
            metrics={
                "alpha": alpha,
                ACTOR: {"entropy": -batch.mean(log_prob), "value": batch.mean(value)},
            },
        )

    def _find_target(self, inputs: Tensors) -> Any:
        """Returns the entropy that the temperature is tuned for; with masks, that of each row."""
        config, space = self.config, self.model.space
        if config.entropy_target is not None:
            return config.entropy_target
        if isinstance(space, Discrete):
            if not self.model.masks:
                return config.entropy_fraction * math.log(space.n)
            number = tf.reduce_sum(tf.cast(inputs[f"{MASK}action"], tf.float32), -1)
            return config.entropy_fraction * tf.math.log(tf.maximum(number, 1.0))
        return -float(len(space.low))

    def _evaluate(
        self, critics: Any, inputs: Tensors, reduce: Callable[[tf.Tensor], tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns value and log-probability of an action of the policy, `[...]` each.

        A continuous action is drawn; for discrete actions, the results are the expectations under
        the policy.

        Args:
          critics: the critics or their targets.
          inputs: observations by name.
          reduce: maps the critics' values `[..., m]` to one, `[...]`.
        """
        policy = self.model.policy(inputs, {})[0]["action"]
        if isinstance(self.model.space, Discrete):
            log_probs = tf.nn.log_softmax(policy.logits)  # [..., A]
            values = reduce(critics(inputs, self.random))
            probs = tf.exp(log_probs)
            log_probs = tf.where(probs > 0, log_probs, 0.0)  # of actions that are not legal
            return tf.reduce_sum(probs * values, -1), tf.reduce_sum(probs * log_probs, -1)
        action, log_prob = policy.sample_with_log_prob(self.random)
        log_prob += self.model.log_volume
        return reduce(critics(inputs, action, self.random)), log_prob

    def _compute_values(self, batch: Batch) -> tf.Tensor:
        """Returns the critics' values of the batch's actions, `[..., m]`."""
        critics: Any = self.model.critics
        action = batch.actions["action"]
        if not isinstance(self.model.space, Discrete):
            return critics(batch.inputs, action, self.random)
        values = critics(batch.inputs, self.random)
        return tf.gather(values, action, axis=-2, batch_dims=len(action.shape))

    def _choose(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the values `[..., m]` of `target_critics` critics, drawn at random, or of all."""
        number = self.config.target_critics
        if number is None or number == values.shape[-1]:
            return values
        order = self.random.uniform([values.shape[-1]])
        return tf.gather(values, tf.math.top_k(order, number).indices, axis=-1)


def make_algorithm(config: Config, model: SACModel, seed: int) -> SAC:
    """Builds the algorithm."""
    return SAC(model, config, seed)
