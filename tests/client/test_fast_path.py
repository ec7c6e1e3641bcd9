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


PARTS = ("observations", "final_observations", "executed")
NAMES = ("rewards", "terminated", "truncated", "success", "present", "overridden")


@given(
    st.integers(1, 70),
    st.integers(0, 9),
    st.sampled_from([np.float32, np.float64]),
    st.sets(st.sampled_from(PARTS)),
    st.sets(st.sampled_from(NAMES)),
    st.sampled_from([0, 1, 2**40]),
)
def test_a_step_says_what_went_in(slots, seed, dtype, parts, names, step_id):
    random = np.random.default_rng(seed)
    leaves = {
        part: {
            "x": random.standard_normal((slots, 3)).astype(np.float32),
            "image": random.integers(256, size=(slots, 4, 4, 1), dtype=np.uint8),
        }
        for part in parts
    }
    dtypes = {"rewards": dtype, "success": np.int8}
    arrays = {
        name: random.integers(2, size=slots).astype(dtypes.get(name, np.bool_)) for name in names
    }
    message = rlx_pb2.ClientMessage.FromString(pack_step(arrays, leaves, step_id))
    assert message.WhichOneof("body") == "step"
    step = message.step
    assert step.step_id == step_id
    for part in PARTS:
        assert getattr(step, part).keys() == leaves.get(part, {}).keys()
        for name, array in leaves.get(part, {}).items():
            got = message_to_ndarray(getattr(step, part)[name])
            np.testing.assert_array_equal(got, array, strict=True)
    for name in NAMES:
        assert step.HasField(name) == (name in names)
    for name, array in arrays.items():
        got = message_to_ndarray(getattr(step, name))
        np.testing.assert_array_equal(got, array, strict=True)


def test_arrays_that_are_not_in_order_are_sent_in_order():
    x = np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]
    message = rlx_pb2.ClientMessage.FromString(pack_step({}, {"observations": {"x": x}}))
    np.testing.assert_array_equal(message_to_ndarray(message.step.observations["x"]), x)


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
