"""Ordinary steps and answers: written and read as protobuf would. covers R8, R9"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaax_like.client.fast_path import ActionsReader, pack_step
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.ndarray import message_to_ndarray
from relaax_like.wire.spaces import Box, Discrete, pack_arrays

SPACES = {"force": Box(dtype="float32", shape=(2,)), "gear": Discrete(n=3)}


@given(st.integers(1, 70), st.integers(0, 9), st.sampled_from([np.float32, np.float64]))
def test_a_step_says_what_went_in(slots, seed, dtype):
    random = np.random.default_rng(seed)
    observations = {
        "x": random.standard_normal((slots, 3)).astype(np.float32),
        "image": random.integers(256, size=(slots, 4, 4, 1), dtype=np.uint8),
    }
    rewards = random.standard_normal(slots).astype(dtype)
    ends = random.integers(2, size=(2, slots)).astype(np.bool_)
    step = rlx_pb2.ClientMessage.FromString(pack_step(observations, rewards, *ends)).step
    for name, array in observations.items():
        got = message_to_ndarray(step.observations[name])
        np.testing.assert_array_equal(got, array, strict=True)
    for name, array in (("rewards", rewards), ("terminated", ends[0]), ("truncated", ends[1])):
        np.testing.assert_array_equal(message_to_ndarray(getattr(step, name)), array, strict=True)
    assert not step.final_observations
    assert not step.HasField("success")


def test_arrays_that_are_not_in_order_are_sent_in_order():
    x = np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]
    flags = np.zeros(2, np.bool_)
    step = rlx_pb2.ClientMessage.FromString(pack_step({"x": x}, np.ones(2), flags, flags)).step
    np.testing.assert_array_equal(message_to_ndarray(step.observations["x"]), x)


def answer(force=((1, 2), (3, 4)), gear=(0, 2), version=7, **fields):
    message = rlx_pb2.ServerMessage(actions=rlx_pb2.Actions(version=version, **fields))
    leaves = {"force": np.array(force, np.float32), "gear": np.array(gear, np.int64)}
    pack_arrays(leaves, message.actions.actions)
    return message.SerializeToString()


def make_reader():
    reader = ActionsReader(SPACES, 2)
    assert reader.read(answer()) is None
    reader.remember(answer(), 7)
    return reader


def test_an_answer_of_the_same_version_is_read():
    reader = make_reader()
    leaves = reader.read(answer(force=((5, 6), (7, 8)), gear=(1, 1)))
    want = np.array([[5, 6], [7, 8]], np.float32)
    np.testing.assert_array_equal(leaves["force"], want, strict=True)
    np.testing.assert_array_equal(leaves["gear"], [1, 1])
    assert reader.version == 7


@pytest.mark.parametrize(
    "body",
    [
        answer(version=8),
        answer(finished="the end"),
        answer(episodes=[rlx_pb2.EpisodeEnd(slot=1, score=2.0, length=3)]),
        rlx_pb2.ServerMessage(error=rlx_pb2.Error(message="no")).SerializeToString(),
        b"",
        b"noise",
    ],
    ids=["version", "finished", "episode", "error", "empty", "noise"],
)
def test_any_other_answer_has_to_be_parsed(body):
    assert make_reader().read(body) is None


@pytest.mark.parametrize("values", [{"force": ((1, np.nan), (3, 4))}, {"gear": (0, 3)}])
def test_bad_values_are_refused(values):
    with pytest.raises(InvalidInputError, match=f"actions.{next(iter(values))}"):
        make_reader().read(answer(**values))
