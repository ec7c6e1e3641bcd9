"""Values and buffers as messages between a run and its sampling workers, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relaax_like.experience.buffer import Buffer
from relaax_like.v1 import ndarray_pb2, sampling_pb2
from relaax_like.wire.ndarray import message_to_ndarray, ndarray_to_message, write_ndarray

# Both ends are ours: what fits a message may come.
_MAX_BYTES = 1 << 31
_TREES = ("states", "actions", "extras")
_ARRAYS = ("rewards", "values", "returns", "traj_idx", "terminal_values")


def values_to_message(values: Sequence[np.ndarray], version: int) -> sampling_pb2.Sync:
    """Converts the values of a version."""
    arrays = [ndarray_to_message(value, ndarray_pb2.NdArray) for value in values]
    return sampling_pb2.Sync(version=version, values=arrays)


def message_to_values(message: sampling_pb2.Sync) -> list[np.ndarray]:
    """Converts received values; they are read-only.

    Raises:
      InvalidInputError: an array is not what it says.
    """
    return [message_to_ndarray(value, "values", _MAX_BYTES) for value in message.values]


def buffer_to_message(buffer: Buffer) -> sampling_pb2.Trajectories:
    """Converts a buffer whose states and actions are named arrays; they are copied."""
    state = buffer.get_state()
    message = sampling_pb2.Trajectories()
    for field in _TREES:
        _write_all(state[field], getattr(message, field))
    for field in _ARRAYS:
        write_ndarray(state[field], getattr(message, field))
    return message


def message_to_buffer(
    message: sampling_pb2.Trajectories, discount: float, gae_lambda: float
) -> Buffer:
    """Converts received trajectories.

    Raises:
      InvalidInputError: an array is not what it says.
    """
    state: dict[str, Any] = {
        field: {
            name: message_to_ndarray(array, name, _MAX_BYTES)
            for name, array in getattr(message, field).items()
        }
        for field in _TREES
    }
    for field in _ARRAYS:
        state[field] = message_to_ndarray(getattr(message, field), field, _MAX_BYTES)
    buffer = Buffer(discount, gae_lambda)
    buffer.set_state(state)
    return buffer


def _write_all(arrays: Mapping[str, np.ndarray], messages: Any) -> None:
    for name, array in arrays.items():
        write_ndarray(array, messages[name])
