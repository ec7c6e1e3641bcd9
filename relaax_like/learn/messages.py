"""Rollouts, works and answers as messages, and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from relaax_like.core.records import Episode, LearnerUpdate, LearnRequest
from relaax_like.experience.rollout import Rollout
from relaax_like.v1 import learner_pb2, ndarray_pb2
from relaax_like.wire import ndarray
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.ndarray import ndarray_to_message, write_ndarray

Arrays = Mapping[str, np.ndarray]
# Both ends are ours: what fits a message may come.
_MAX_BYTES = 1 << 31


def request_to_message(work: LearnRequest, task: str) -> learner_pb2.Work:
    """Converts work for a task; its rollout's arrays are copied."""
    message = learner_pb2.Work(number=work.number, task=task, env_steps=work.env_steps)
    for episode in work.episodes:
        message.episodes.add(episode_return=episode.episode_return, length=episode.length)
    if work.rollout is not None:
        _write_rollout(work.rollout, message.rollout)
    return message


def message_to_request(message: learner_pb2.Work) -> LearnRequest:
    """Converts received work; the rollout's arrays are read-only.

    Raises:
      InvalidInputError: an array is not what it says.
    """
    rollout = message_to_rollout(message.rollout) if message.HasField("rollout") else None
    episodes = [Episode(e.episode_return, e.length) for e in message.episodes]
    return LearnRequest(message.number, rollout, episodes, message.env_steps)


def update_to_message(learned: LearnerUpdate, task: str) -> learner_pb2.Learned:
    """Converts an answer for the agents of a task."""
    return learner_pb2.Learned(
        task=task,
        numbers=learned.numbers,
        version=learned.version,
        global_t=learned.global_t,
        finished=learned.finished,
        values=[ndarray_to_message(v, ndarray_pb2.NdArray) for v in learned.values or ()],
    )


def message_to_update(message: learner_pb2.Learned) -> LearnerUpdate:
    """Converts a received answer; its values are read-only.

    Raises:
      InvalidInputError: an array is not what it says.
    """
    return LearnerUpdate(
        list(message.numbers),
        message.version,
        message.global_t,
        message.finished,
        [_to_array(value, "values") for value in message.values] or None,
    )


def _write_rollout(rollout: Rollout, message: learner_pb2.Rollout) -> None:
    for name, inputs in rollout.inputs.items():
        whole = _find_whole(inputs, rollout.next_inputs[name])
        if whole is None:
            next_inputs = rollout.next_inputs[name]
            write_ndarray(next_inputs, message.next_inputs[name])
            whole = np.concatenate([inputs, next_inputs[-1:]])
        write_ndarray(whole, message.inputs[name])
    _write_all(rollout.actions, message.actions)
    _write_all(rollout.states, message.states)
    write_ndarray(rollout.next_alive, message.next_alive)
    write_ndarray(rollout.rewards, message.rewards)
    write_ndarray(rollout.log_prob, message.log_prob)
    write_ndarray(rollout.versions, message.versions)
    if rollout.valid is not None:
        write_ndarray(rollout.valid, message.valid)
    if rollout.starts is not None:
        write_ndarray(rollout.starts, message.starts)
    _write_all(rollout.extras, message.extras)
    _write_all(rollout.history, message.history)


def _find_whole(inputs: np.ndarray, next_inputs: np.ndarray) -> np.ndarray | None:
    """Returns the `[T + 1, ...]` array that both are parts of, if there is one."""
    whole = inputs.base
    if (
        whole is not None
        and whole is next_inputs.base
        and whole.shape == (len(inputs) + 1, *inputs.shape[1:])
        and next_inputs.ctypes.data - inputs.ctypes.data == whole.strides[0]
    ):
        return whole
    return None


def rollout_to_message(rollout: Rollout) -> learner_pb2.Rollout:
    """Converts a rollout; its arrays are copied."""
    message = learner_pb2.Rollout()
    _write_rollout(rollout, message)
    return message


def message_to_rollout(message: learner_pb2.Rollout) -> Rollout:
    """Converts a received rollout; its arrays are read-only.

    Raises:
      InvalidInputError: an array is not what it says.
    """
    whole = _read_all(message.inputs)
    for name, array in whole.items():
        if not array.ndim:
            raise InvalidInputError(f"{name}: expected an array [T + 1, ...], got a number", name)
    apart = _read_all(message.next_inputs)
    return Rollout(
        inputs={name: array[:-1] for name, array in whole.items()},
        next_inputs={name: apart.get(name, array[1:]) for name, array in whole.items()},
        next_alive=_to_array(message.next_alive, "next_alive"),
        rewards=_to_array(message.rewards, "rewards"),
        actions=_read_all(message.actions),
        log_prob=_to_array(message.log_prob, "log_prob"),
        states=_read_all(message.states),
        versions=_to_array(message.versions, "versions"),
        valid=_to_array(message.valid, "valid") if message.HasField("valid") else None,
        starts=_to_array(message.starts, "starts") if message.HasField("starts") else None,
        extras=_read_all(message.extras),
        history=_read_all(message.history),
    )


def _write_all(arrays: Arrays, messages: Any) -> None:
    for name, array in arrays.items():
        write_ndarray(array, messages[name])


def _read_all(messages: Any) -> dict[str, np.ndarray]:
    return {name: _to_array(message, name) for name, message in messages.items()}


def _to_array(message: ndarray_pb2.NdArray, field: str) -> np.ndarray:
    return ndarray.message_to_ndarray(message, field, _MAX_BYTES)
