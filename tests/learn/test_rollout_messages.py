"""Rollouts as bytes: what comes out is what went in. covers F11"""

import dataclasses

import numpy as np
import pytest
from support.rollouts import make_rollout

from relaax_like.experience.rollout import TRUNCATED, Rollout, RolloutBuffer
from relaax_like.learn.rollout_messages import bytes_to_rollout, rollout_to_bytes
from relaax_like.v1 import learner_pb2
from relaax_like.wire.errors import InvalidInputError


def send(rollout):
    data = rollout_to_bytes(rollout)
    return learner_pb2.Rollout.FromString(data.tobytes()), bytes_to_rollout(data)


def assert_same(got, want):
    for field in dataclasses.fields(Rollout):
        one, other = getattr(got, field.name), getattr(want, field.name)
        if not isinstance(one, dict):
            one, other = {"": one}, {"": other}
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], strict=True)


def collect(finals):
    """A rollout of two slots from a buffer, truncated at step 1 of 3 if there are `finals`."""
    buffer = RolloutBuffer(3, np.arange(2))
    for t in range(3):
        state = {"memory": np.full((2, 1), t, np.float32)}
        seen = {"x": np.full((2, 4), t, np.float32), "image": np.full((2, 2, 2, 1), t, np.uint8)}
        buffer.add_actions(seen, {"a": np.array([t, 1])}, np.zeros(2, np.float32), state, t)
        after = {name: array + 1 for name, array in seen.items()}
        alive = np.array([TRUNCATED if finals and t == 1 else 1, 1], np.float32)
        last = {k: np.full_like(v, 99) for k, v in seen.items()} if finals and t == 1 else None
        rollout = buffer.add_outcome(np.ones((2, 1)), alive, after, last)
    return rollout


@pytest.mark.parametrize("finals", [False, True])
def test_a_collected_rollout_comes_out_as_it_went_in(finals):
    rollout = collect(finals)
    message, got = send(rollout)
    assert_same(got, rollout)
    # Observations are sent twice only where an episode was cut off.
    assert bool(message.next_inputs) == finals


def test_inputs_that_are_no_observations_are_sent_once_too():
    rollout = make_rollout(3, seed=0)
    message, got = send(rollout)
    assert not message.next_inputs
    assert_same(got, rollout)
    assert not got.rewards.flags.writeable


@pytest.mark.parametrize("shift", [0, 2])
def test_views_of_one_array_that_are_not_one_step_apart_are_both_sent(shift):
    whole = np.arange(24, dtype=np.float32).reshape(6, 1, 4)
    rollout = dataclasses.replace(
        make_rollout(1, seed=0, steps=4),
        inputs={"observation": whole[:4]},
        next_inputs={"observation": whole[shift : shift + 4]},
    )
    assert_same(send(rollout)[1], rollout)


def test_an_array_that_is_not_what_it_says_is_refused():
    message, _ = send(make_rollout(1, seed=0))
    message.rewards.shape[0] += 1
    with pytest.raises(InvalidInputError, match="rewards: 20 bytes of data, but shape"):
        bytes_to_rollout(np.frombuffer(message.SerializeToString(), np.uint8))
