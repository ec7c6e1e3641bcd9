"""The arguments of updates that learn from minibatches of a replay table."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from relaax_like.algorithm.parts import DISCOUNT, MASK, WEIGHTS
from relaax_like.core.prediction import LOG_PROB
from relaax_like.experience.replay.items import Minibatches
from relaax_like.replay import SequenceBatch

if TYPE_CHECKING:  # It imports TensorFlow.
    from relaax_like.learn.compiled_algorithm import CompiledAlgorithm


def make_replay_arguments(owner: "CompiledAlgorithm", batch: Minibatches | None) -> dict[str, Any]:
    """Returns the arguments of updates, rows `[U * B, ...]` or `[L, U * B, ...]`.

    Args:
      owner: whose updates they are.
      batch: the minibatches of a `ReplayIteration`; not None.
    """
    assert batch is not None
    if isinstance(batch, SequenceBatch):
        return _make_sequences(owner, batch)
    return {
        "inputs": _merge_all(batch.observations),
        "next_inputs": _merge_all(batch.next_observations),
        "next_alive": {"alive": (_merge(batch.discounts) > 0).astype(np.float32)},
        "rewards": owner.split_rewards(_merge(batch.returns)),
        "actions": {**_merge_all(batch.actions), LOG_PROB: _merge(batch.log_prob)},
        "states": {},
        "extras": {
            **_merge_all(batch.extras),
            DISCOUNT: _merge(batch.discounts),
            WEIGHTS: _merge(batch.weights),
        },
    }


def _make_sequences(owner: "CompiledAlgorithm", batch: SequenceBatch) -> dict[str, Any]:
    """Returns the arguments of updates of sequences, which begin with an empty memory."""
    updates, _, size = batch.present.shape
    rows = updates * size
    weights = np.broadcast_to(batch.weights[:, None], batch.present.shape)
    observations = {name: _line_up(array) for name, array in batch.observations.items()}
    return {
        "inputs": {name: array[:-1] for name, array in observations.items()},
        "next_inputs": {name: array[1:] for name, array in observations.items()},
        "next_alive": {"alive": _line_up(batch.continues).astype(np.float32)},
        "rewards": owner.split_rewards(_line_up(batch.rewards)),
        "actions": {
            **{name: _line_up(array) for name, array in batch.actions.items()},
            LOG_PROB: _line_up(batch.log_prob),
        },
        "states": {
            name: np.zeros((rows, *shape), np.float32) for name, shape in owner.state_shapes.items()
        },
        "extras": {
            **{name: _line_up(array) for name, array in batch.extras.items()},
            MASK: _line_up(batch.valid).astype(np.float32),
            DISCOUNT: _line_up(batch.discounts),
            WEIGHTS: _line_up(weights),
        },
    }


def _merge(array: np.ndarray) -> np.ndarray:
    """Returns `[U, B, ...]` as `[U * B, ...]`."""
    return array.reshape(-1, *array.shape[2:])


def _merge_all(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: _merge(array) for name, array in arrays.items()}


def _line_up(array: np.ndarray) -> np.ndarray:
    """Returns `[U, L, B, ...]` as `[L, U * B, ...]`."""
    return np.moveaxis(array, 1, 0).reshape(array.shape[1], -1, *array.shape[3:])
