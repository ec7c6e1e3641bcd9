"""Makes a `Batch` from the parts of experience, as they are passed to TensorFlow.

Parts are dictionaries of tensors: `inputs`, `next_inputs`, `states`, `next_states` (if they are
known), `next_alive`, `actions` (with the entry `log_prob` if it is known), `next_actions`,
`rewards` and `extras`, some of whose entries are fields of a `Batch`: `mask` is 1 for rows that
count, `discount` and `weights` come with what a replay table has drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relaax_like.algorithm.batch import Batch, Reduction
from relaax_like.core.prediction import LOG_PROB
from relaax_like.nn.lazy_tensorflow import tf

Parts = Mapping[str, Mapping[str, tf.Tensor]]
# Entries of `extras`: `Batch.valid`, `Batch.discount`, `Batch.weights`.
MASK, DISCOUNT, WEIGHTS = "mask", "discount", "weights"
_ALIVE = "alive"


def add_next_actions(parts: Parts) -> Parts:
    """Takes each step's next action from the next row; marks rows without one as not valid.

    Rows that terminated their episode stay valid, since no action follows.

    Args:
      parts: of rollouts `[T, B, ...]` without `next_actions`.
    """
    alive = parts["next_alive"][_ALIVE]
    following = {n: tf.roll(a, -1, axis=0) for n, a in parts["actions"].items() if n != LOG_PROB}
    # After a termination no action follows, and none is needed.
    known = tf.concat([tf.cast(alive[:-1] >= 0, tf.float32), tf.zeros_like(alive[-1:])], 0)
    known = tf.maximum(known, tf.cast(alive == 0, tf.float32))
    extras = dict(parts.get("extras", {}))
    extras[MASK] = extras.get(MASK, tf.ones_like(alive)) * known
    return {**parts, "next_actions": following, "extras": extras}


def make_batch(parts: Parts, discount: tf.Tensor, reduction: Reduction | None = None) -> Batch:
    """Makes a batch from parts.

    Args:
      parts: of rollouts `[T, B, ...]`, or of single steps `[B, ...]`.
      discount: per step, `[] float32`.
      reduction: see `Batch`.
    """
    alive = parts["next_alive"][_ALIVE]
    rewards = dict(parts["rewards"])
    first = next(iter(rewards.values()))
    if len(alive.shape) == len(first.shape):  # in FLARE's form, [B, 1]
        alive = alive[..., 0]
    continues = tf.cast(alive > 0, tf.float32)
    actions, extras = dict(parts["actions"]), dict(parts.get("extras", {}))
    ones = tf.ones_like(alive)
    begins: Any = None
    if len(alive.shape) == 2:
        begins = tf.concat([tf.zeros_like(alive[:1]), 1.0 - continues[:-1]], 0) > 0
    has_one = len(rewards) == 1 and first.shape[-1] == 1
    return Batch(
        inputs=parts["inputs"],
        next_inputs=parts["next_inputs"],
        log_prob=actions.pop(LOG_PROB, None),
        actions=actions,
        next_actions=parts["next_actions"],
        rewards=rewards,
        returns=first[..., 0] if has_one else None,
        discount=extras.pop(DISCOUNT, discount * tf.abs(alive)),
        continues=continues,
        valid=extras.pop(MASK, ones),
        weights=extras.pop(WEIGHTS, ones),
        memory=parts["states"],
        next_memory=parts.get("next_states", {}) if begins is None else {},
        begins=begins,
        extras=extras,
        reduction=reduction,
    )


def flatten(batch: Parts) -> list[tf.Tensor]:
    """Returns all tensors of a batch, one after another."""
    return [tensor for part in batch.values() for tensor in part.values()]


def unflatten(batch: Parts, tensors: Sequence[tf.Tensor]) -> Parts:
    """Returns tensors by the names that they have in a batch."""
    rest = iter(tensors)
    return {part: {name: next(rest) for name in parts} for part, parts in batch.items()}
