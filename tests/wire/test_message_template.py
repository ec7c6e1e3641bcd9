"""Layouts: what fits is the same message with other data, and nothing else. covers R8, R9"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from relaax_like.v1 import ndarray_pb2, rlx_pb2
from relaax_like.wire.message_template import Layout
from relaax_like.wire.ndarray import ndarray_to_message
from relaax_like.wire.spaces import pack_arrays

NAMES = st.text("abc/._-", min_size=1, max_size=6)
ARRAYS = st_numpy.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_]),
    st_numpy.array_shapes(min_dims=1, max_dims=3, max_side=40),
)


def make_step(observations, rewards=None, **fields):
    step = rlx_pb2.Step(**fields)
    pack_arrays(observations, step.observations)
    if rewards is not None:
        step.rewards.CopyFrom(ndarray_to_message(rewards, ndarray_pb2.NdArray))
    return rlx_pb2.ClientMessage(step=step)


def make_layout(message, fixed=()):
    return Layout(message.SerializeToString(), rlx_pb2.ClientMessage.DESCRIPTOR, fixed)


@given(st.dictionaries(NAMES, ARRAYS, min_size=1, max_size=4), ARRAYS, st.randoms())
def test_other_data_fits_and_is_found_where_it_lies(observations, rewards, random):
    layout = make_layout(make_step(observations, rewards))
    other = {k: np.roll(v, 1) for k, v in observations.items()}
    message = make_step(other, rewards[::-1])
    # The order of a map's entries is the sender's.
    by_path = {("step", "observations", k): v for k, v in other.items()}
    by_path["step", "rewards"] = rewards[::-1]
    assert {span.path for span in layout.spans} == by_path.keys()
    body = layout.fill([by_path[span.path].tobytes() for span in layout.spans])
    assert rlx_pb2.ClientMessage.FromString(body) == message
    assert layout.fits(body)
    for span in layout.spans:
        assert body[span.start : span.stop] == by_path[span.path].tobytes()


@pytest.mark.parametrize("fixed", [[], [("step", "rewards")]], ids=["none fixed", "rewards fixed"])
@given(st.binary(max_size=200))
def test_nothing_fits_but_the_pattern(fixed, noise):
    observations = {"observation": np.arange(8, dtype=np.float32)}
    message = make_step(observations, np.ones(2, np.float32))
    layout = make_layout(message, fixed)
    assert [span.path for span in layout.spans if span.path in fixed] == []
    body = message.SerializeToString()
    assert not layout.fits(noise)
    assert not layout.fits(body + noise[:1] + b"x")
    free = {i for span in layout.spans for i in range(span.start, span.stop)}
    for place in range(len(body)):
        changed = body[:place] + bytes([body[place] ^ 0x41]) + body[place + 1 :]
        assert layout.fits(changed) == (place in free)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.step.observations["observation"].shape.__setitem__(0, 4),
        lambda m: setattr(m.step.observations["observation"], "dtype", "float64"),
        lambda m: m.step.observations["more"].CopyFrom(m.step.rewards),
        lambda m: m.step.success.CopyFrom(m.step.rewards),
        lambda m: m.step.ClearField("rewards"),
    ],
    ids=["shape", "dtype", "leaf", "field", "missing"],
)
def test_another_structure_does_not_fit(change):
    message = make_step({"observation": np.ones((2, 4), np.float32)}, np.ones(2))
    layout = make_layout(message)
    change(message)
    assert not layout.fits(message.SerializeToString())


def test_a_group_is_refused():
    body = make_step({"a": np.ones(2)}).SerializeToString()
    group = bytes(
        [60 << 3 & 0x7F | 0x80 | 3, 60 << 3 >> 7, 60 << 3 & 0x7F | 0x80 | 4, 60 << 3 >> 7]
    )
    assert rlx_pb2.ClientMessage.FromString(body + group).HasField("step")
    with pytest.raises(ValueError, match="group"):
        Layout(body + group, rlx_pb2.ClientMessage.DESCRIPTOR)


def test_arrays_without_data_have_no_span():
    layout = make_layout(make_step({"a": np.zeros((0, 3), np.float32)}, np.ones(1)))
    assert [span.path for span in layout.spans] == [("step", "rewards")]


def test_a_leaf_that_comes_twice_has_two_spans():
    one = make_step({"a": np.ones(2)}).step.SerializeToString()
    # Parsers take the last of a map's entries with the same key.
    doubled = rlx_pb2.ClientMessage(step=rlx_pb2.Step.FromString(one + one))
    assert len(make_layout(doubled).spans) == 1
    field = rlx_pb2.ClientMessage.DESCRIPTOR.fields_by_name["step"].number
    raw = bytes([field << 3 | 2]) + bytes([2 * len(one)]) + one + one
    assert len(Layout(raw, rlx_pb2.ClientMessage.DESCRIPTOR).spans) == 2
