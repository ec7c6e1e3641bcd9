"""Minibatches as a replay table draws them."""

from typing import Any

from relaax_like.algorithm.batch import Batch
from relaax_like.nn.runtime import tf


def make_replay_batch(
    x: Any, next_x: Any, actions: Any, returns: Any, discounts: Any, weights: Any
) -> Batch:
    """Makes a minibatch of a replay table, of arrays `[B, ...]`."""
    ones = tf.ones(len(x))
    return Batch(
        inputs={"observation": tf.constant(x)},
        next_inputs={"observation": tf.constant(next_x)},
        actions={"action": tf.constant(actions)},
        rewards={"reward": tf.constant(returns[:, None])},
        returns=tf.constant(returns),
        discount=tf.constant(discounts),
        continues=ones,
        valid=ones,
        weights=tf.constant(weights),
        log_prob=None,
    )
