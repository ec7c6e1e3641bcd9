"""Steps read by their layout: the same transitions as when they are parsed."""

import numpy as np
import pytest
from support.rlx import array

from relaax_like.rlx_server.step_reader import StepReader
from relaax_like.rlx_server.transition import read_step
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.spaces import Box, Discrete

SPACES = {"position": Box(dtype="float32", shape=(3,)), "level": Discrete(n=4)}
MOVES = {"arm": Box(dtype="float32", shape=(2,)), "grip": Discrete(n=3)}


def make(seed=0, slots=2, dtype="float32", **fields):
    random = np.random.default_rng(seed)
    step = rlx_pb2.Step(
        observations={
            "position": array(random.standard_normal((slots, 3)), "float32"),
            "level": array(random.integers(4, size=slots), "int64"),
        },
        rewards=array(random.standard_normal(slots), dtype),
        terminated=array(np.zeros(slots), "bool"),
        truncated=array(np.zeros(slots), "bool"),
    )
    for name, value in fields.items():
        getattr(step, name).CopyFrom(value)
    return rlx_pb2.ClientMessage(step=step)


def make_more(seed, step_id=7):
    """Makes a step with all optional parts."""
    random, message = np.random.default_rng(seed), make(seed)
    step = message.step
    step.step_id = step_id
    step.executed["arm"].CopyFrom(array(random.standard_normal((2, 2)), "float32"))
    step.executed["grip"].CopyFrom(array(random.integers(3, size=2), "int64"))
    for name in ("present", "overridden"):
        getattr(step, name).CopyFrom(array(random.integers(2, size=2), "bool"))
    return message


def read(reader, message):
    return reader.read(memoryview(message.SerializeToString()))


def make_reader(message, slots=2):
    reader = StepReader(SPACES, MOVES, slots, {})
    assert read(reader, message) is None  # nothing to compare with yet
    reader.remember(
        message.SerializeToString(), read_step(message.step, SPACES, MOVES, slots, True)
    )
    return reader


@pytest.mark.parametrize("slots", [1, 2, 5])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_reads_what_parsing_reads(slots, dtype):
    reader = make_reader(make(0, slots, dtype), slots)
    for seed in range(1, 4):
        message = make(seed, slots, dtype)
        got, want = read(reader, message), read_step(message.step, SPACES, MOVES, slots, True)
        for name in SPACES:
            one, other = got.observations[name], want.observations[name]
            np.testing.assert_array_equal(one, other, strict=True)
        for field in ("rewards", "terminated", "truncated"):
            one, other = getattr(got, field), getattr(want, field)
            np.testing.assert_array_equal(one, other, strict=True)
        assert got.ended is want.ended is None


def test_what_was_carried_out_and_who_is_absent_is_read_like_that():
    reader = make_reader(make_more(0))
    for seed in range(1, 9):
        message = make_more(seed, step_id=seed << 40)
        got, want = read(reader, message), read_step(message.step, SPACES, MOVES, 2, True)
        assert got.step_id == want.step_id == seed << 40
        for field in ("absent", "overridden"):
            np.testing.assert_array_equal(getattr(got, field), getattr(want, field))
        for name in MOVES:
            np.testing.assert_array_equal(got.executed[name], want.executed[name], strict=True)
    assert read(reader, make(1)) is None
    assert read(make_reader(make()), make_more(1)) is None


def test_any_number_but_zero_is_true():
    reader, message = make_reader(make_more(0)), make_more(1)
    for field in ("present", "overridden"):
        getattr(message.step, field).data = b"\x02\x00"
    for got in (read(reader, message), read_step(message.step, SPACES, MOVES, 2, True)):
        assert got.absent.tolist() == [False, True]
        assert got.overridden.tolist() == [True, False]


def test_an_action_that_cannot_be_was_not_carried_out():
    reader, message = make_reader(make_more(0)), make_more(1)
    message.step.executed["grip"].CopyFrom(array([0, 3], "int64"))
    for read_it in (read, lambda _, m: read_step(m.step, SPACES, MOVES, 2, True)):
        with pytest.raises(InvalidInputError, match="grip"):
            read_it(reader, message)


def test_what_it_read_outlives_the_buffer_that_it_came_in():
    reader = make_reader(make())
    buffer = bytearray(make(1).SerializeToString())
    transition = reader.read(memoryview(buffer))
    want = transition.observations["position"].copy()
    buffer[:] = bytes(len(buffer))
    np.testing.assert_array_equal(transition.observations["position"], want)


@pytest.mark.parametrize(
    "fields",
    [
        {"terminated": array([True, False], "bool")},
        {"truncated": array([False, True], "bool")},
        {"success": array([0, 0], "int8")},
        {"rewards": array([[1.0, 2.0], [3.0, 4.0]], "float32")},
        {"rewards": array([1.0, 2.0], "float64")},
    ],
    ids=["terminated", "truncated", "success", "two rewards", "dtype"],
)
def test_what_is_not_ordinary_is_left_to_the_parser(fields):
    assert read(make_reader(make()), make(1, **fields)) is None


@pytest.mark.parametrize(
    "more",
    [b"\xe3\x03\xe4\x03", b"\xe0\x03\x01" * 5000],
    ids=["a group", "a lot that nobody knows"],
)
def test_messages_with_more_in_them_are_always_parsed(more):
    message = make()
    body = message.SerializeToString() + more
    assert rlx_pb2.ClientMessage.FromString(body).HasField("step")
    reader = StepReader(SPACES, MOVES, 2, {})
    reader.remember(body, read_step(message.step, SPACES, MOVES, 2, True))
    assert reader.read(body) is None


def test_a_step_with_an_end_is_a_pattern_for_those_without():
    reader = make_reader(make(terminated=array([True, False], "bool")))
    transition = read(reader, make(1))
    assert transition is not None
    assert not transition.terminated.any()
    assert not transition.truncated.any()


def test_after_an_end_the_next_ordinary_step_is_read_again():
    reader = make_reader(make())
    end = make(1, terminated=array([True, False], "bool"))
    assert read(reader, end) is None
    reader.remember(end.SerializeToString(), read_step(end.step, SPACES, MOVES, 2, True))
    assert read(reader, make(2)) is not None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"rewards": array([1.0, np.nan], "float32")}, "rewards"),
        ({"rewards": array([1.0, 1e30], "float32")}, "rewards"),
    ],
)
def test_bad_rewards_are_refused_as_ever(fields, field):
    reader = make_reader(make())
    with pytest.raises(InvalidInputError, match="slot 1") as caught:
        read(reader, make(1, **fields))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("leaf", "values", "dtype"),
    [("position", [[1, 2, 3], [0, np.inf, 0]], "float32"), ("level", [0, 4], "int64")],
)
def test_bad_observations_are_refused_as_ever(leaf, values, dtype):
    reader, message = make_reader(make()), make(1)
    message.step.observations[leaf].CopyFrom(array(values, dtype))
    with pytest.raises(InvalidInputError) as fast:
        read(reader, message)
    with pytest.raises(InvalidInputError) as slow:
        read_step(message.step, SPACES, MOVES, 2, True)
    assert str(fast.value) == str(slow.value)
