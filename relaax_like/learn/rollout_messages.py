"""Converts rollouts to bytes and back, for streams of experience and for replay logs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from relaax_like.experience.rollout import Rollout
from relaax_like.v1 import learner_pb2, ndarray_pb2
from relaax_like.wire import ndarray
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.ndarray import write_ndarray

Arrays = Mapping[str, np.ndarray]
# The stream limits the total size; anything within that limit is accepted.
_MAX_BYTES = 1 << 31
_MAX_ARRAYS = 1_000
_MAX_NAME_LENGTH = 200
# Fields of a Rollout, and of its message, besides the observations: arrays, and arrays by name.
_ARRAYS, _OPTIONAL = ("next_alive", "rewards", "log_prob", "versions"), ("valid", "starts")
_NAMED = ("actions", "states", "extras", "history")


def rollout_to_bytes(rollout: Rollout) -> np.ndarray:
    """Returns a serialised `relaax.v1.Rollout`, `[n] uint8`, read-only.

    Raises:
      TypeError: the dtype of an array cannot be sent; see `write_ndarray`.
    """
    message = learner_pb2.Rollout()
    for name, inputs in rollout.inputs.items():
        whole = _find_whole(inputs, rollout.next_inputs[name])
        if whole is None:
            next_inputs = rollout.next_inputs[name]
            write_ndarray(next_inputs, message.next_inputs[name])
            whole = np.concatenate([inputs, next_inputs[-1:]])
        write_ndarray(whole, message.inputs[name])
    for name in (*_ARRAYS, *_OPTIONAL):
        if (array := getattr(rollout, name)) is not None:
            write_ndarray(array, getattr(message, name))
    for kind in _NAMED:
        for name, array in getattr(rollout, kind).items():
            write_ndarray(array, getattr(message, kind)[name])
    return np.frombuffer(message.SerializeToString(), np.uint8)


def bytes_to_rollout(data: np.ndarray) -> Rollout:
    """Reads a received `relaax.v1.Rollout`, `[n] uint8`; the arrays are read-only.

    Raises:
      InvalidInputError: the bytes are not a valid message, there are too many arrays, the name of
        one is too long, or an array is malformed.
    """
    try:
        message = learner_pb2.Rollout.FromString(data.tobytes())
    except DecodeError:
        raise InvalidInputError("rollout: not a valid Rollout message") from None
    for arrays in (getattr(message, kind) for kind in ("inputs", "next_inputs", *_NAMED)):
        # Errors name arrays: a name of a megabyte must not be returned in an error.
        if len(arrays) > _MAX_ARRAYS:
            raise InvalidInputError(
                f"rollout: {len(arrays)} arrays of one kind, expected at most {_MAX_ARRAYS}"
            )
        longest = max(map(len, arrays), default=0)
        if longest > _MAX_NAME_LENGTH:
            raise InvalidInputError(
                f"rollout: the name of an array has {longest} characters, expected at most "
                f"{_MAX_NAME_LENGTH}"
            )
    whole = _read_all(message.inputs, "inputs")
    for name, array in whole.items():
        if not array.ndim:
            raise InvalidInputError(f"inputs {name}: expected an array [T + 1, ...], got a number")
    apart = _read_all(message.next_inputs, "next_inputs")
    present = (*_ARRAYS, *(name for name in _OPTIONAL if message.HasField(name)))
    fields: dict[str, Any] = {name: _to_array(getattr(message, name), name) for name in present}
    fields |= {kind: _read_all(getattr(message, kind), kind) for kind in _NAMED}
    return Rollout(
        inputs={name: array[:-1] for name, array in whole.items()},
        next_inputs={name: apart.get(name, array[1:]) for name, array in whole.items()},
        **fields,
    )


def _find_whole(inputs: np.ndarray, next_inputs: np.ndarray) -> np.ndarray | None:
    """Returns the `[T + 1, ...]` array of which both are views; None: there is no such array."""
    whole = inputs.base
    if (
        whole is not None
        and whole is next_inputs.base
        and whole.shape == (len(inputs) + 1, *inputs.shape[1:])
        and next_inputs.ctypes.data - inputs.ctypes.data == whole.strides[0]
    ):
        return whole
    return None


def _read_all(messages: Any, field: str) -> dict[str, np.ndarray]:
    return {name: _to_array(message, f"{field} {name}") for name, message in messages.items()}


def _to_array(message: ndarray_pb2.NdArray, field: str) -> np.ndarray:
    return ndarray.message_to_ndarray(message, field, _MAX_BYTES)
