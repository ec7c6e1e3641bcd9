"""Spaces on the wire, and the validation of what arrives for them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaax_like.v1 import ndarray_pb2, rlx_pb2
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.ndarray import DTYPES, ndarray_to_message
from relaax_like.wire.spaces import (
    MAX_COMPONENTS,
    Box,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    message_to_space,
    messages_to_spaces,
    pack_arrays,
    space_to_message,
    unpack_arrays,
)

BOX = Box(dtype="float32", shape=(2,))
SPACES: dict[str, Space] = {
    "box without bounds": BOX,
    "box with bounds": Box(
        dtype="float64",
        shape=(2,),
        low=np.array([-1.0, -np.inf]),
        high=np.array([1.0, np.inf]),
    ),
    "box with one bound": Box(dtype="uint8", shape=(1, 2), low=np.zeros((1, 2), np.uint8)),
    "box of shape ()": Box(dtype="int32", shape=()),
    "discrete": Discrete(n=4),
    "discrete that starts at -2": Discrete(n=3, start=-2, dtype="int32"),
    "multi-discrete": MultiDiscrete(n=(3, 5), shape=(2,)),
    "multi-discrete of two axes": MultiDiscrete(n=(1, 2, 3, 4), shape=(2, 2), dtype="int32"),
    "multi-discrete with starts": MultiDiscrete(n=(3, 5), shape=(2,), starts=(-4, 7)),
    "multi-binary": MultiBinary(shape=(3,)),
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
def test_space_survives_the_wire(space: Space) -> None:
    message = rlx_pb2.Space.FromString(space_to_message(space).SerializeToString())
    assert message_to_space(message, "observation") == space


@pytest.mark.parametrize(
    ("space", "sizes", "words"),
    [
        (BOX, (), "Box of float32, shape [2] (2 numbers)"),
        (Discrete(n=4, start=3), (4,), "Discrete of 4 values"),
        (MultiDiscrete(n=(3, 5), shape=(2,)), (3, 5), "MultiDiscrete of [3, 5] values"),
        (MultiBinary(shape=(1,)), (2,), "MultiBinary of int8, shape [1] (1 number)"),
    ],
)
def test_a_space_says_how_many_values_it_has(
    space: Space, sizes: tuple[int, ...], words: str
) -> None:
    assert space.sizes == sizes
    assert space.describe() == words


@pytest.mark.parametrize(
    ("make", "want"),
    [
        (lambda: Box(dtype="float32", shape=4), r"shape is 4, expected a tuple of integers"),
        (lambda: Box(dtype="float32", shape="4"), r"shape is '4', expected a tuple of integers"),
        (lambda: Box(dtype="float32", shape=(4.0,)), r"shape is \(4.0,\), expected a tuple of"),
        (lambda: Box(dtype=["float32"], shape=(4,)), r"unknown dtype \['float32'\]"),
        (lambda: Box(dtype="float32", shape=(1,), mirror=3), "mirror is 3, expected a tuple of"),
        (lambda: Box(dtype="float32", shape=(1,), mirror="a"), "mirror is 'a', expected a tuple"),
        (lambda: Discrete(n="3"), "n is '3', expected an integer"),
        (lambda: Discrete(n=2.0), "n is 2.0, expected an integer"),
        (lambda: Discrete(n=2, start="a"), "start is 'a', expected an integer"),
        (lambda: MultiDiscrete(n=3, shape=(1,)), "n is 3, expected a tuple of integers"),
        (lambda: MultiDiscrete(n=(2.0,), shape=(1,)), r"n is \(2.0,\), expected a tuple of"),
    ],
)
def test_attributes_of_a_wrong_type_are_refused(make: Any, want: str) -> None:
    with pytest.raises(InvalidInputError, match=want):
        make()


def test_a_shape_can_be_a_list_and_have_numbers_of_numpy() -> None:
    space: Any = Box(dtype="float32", shape=[np.int64(2)], low=0)  # type: ignore[arg-type]
    assert space == Box(dtype="float32", shape=(2,), low=0)
    assert hash(space) == hash(BOX)


@settings(deadline=None)
@given(
    n=st.lists(st.integers(1, 2**31), min_size=1, max_size=6), start=st.integers(-(2**31), 2**31)
)
def test_discrete_numbers_survive_the_wire(n: list[int], start: int) -> None:
    for space in (Discrete(n=n[0], start=start), MultiDiscrete(n=tuple(n), shape=(len(n),))):
        assert message_to_space(space_to_message(space), "action") == space


@pytest.mark.parametrize(
    "space",
    [
        Box(dtype="float32", shape=(2,), low=0, mirror=(1, 0.1)),
        Discrete(n=3, mirror=(-0.1, 2, 1)),
        MultiDiscrete(n=(2, 2), shape=(2,), mirror=(2, 3, 0.1, 1)),
    ],
)
def test_mirrors_survive_the_wire_and_distinguish_no_spaces(space: Space) -> None:
    received = message_to_space(space_to_message(space), "action")
    assert received.mirror == space.mirror
    assert received == space == replace(space, mirror=None)


def test_a_mirror_that_is_too_long_is_refused() -> None:
    message = space_to_message(BOX)
    message.mirror.extend([1.0] * (MAX_COMPONENTS + 1))
    with pytest.raises(InvalidInputError, match="a mirror of 65537 numbers"):
        message_to_space(message, "action")


def test_boxes_with_other_bounds_are_not_equal() -> None:
    narrow = Box(dtype="float32", shape=(1,), low=np.zeros(1, np.float32))
    assert narrow != Box(dtype="float32", shape=(1,))
    assert narrow != Box(dtype="float32", shape=(1,), low=np.ones(1, np.float32))
    assert narrow == Box(dtype="float32", shape=(1,), low=np.zeros(1, np.float32))


_BAD_SPACES: dict[str, tuple[dict[str, Any], str]] = {
    "no kind": ({"dtype": "float32"}, "unknown kind 0"),
    "unknown kind": ({"kind": 9, "dtype": "float32"}, "unknown kind 9"),
    "unknown dtype": ({"kind": rlx_pb2.BOX, "dtype": "V8"}, "unknown dtype 'V8'"),
    "negative axis": ({"kind": rlx_pb2.BOX, "dtype": "float32", "shape": [-1]}, "negative axis"),
    "discrete without n": (
        {"kind": rlx_pb2.DISCRETE, "dtype": "int64"},
        "needs exactly one n, got 0",
    ),
    "discrete with two n": (
        {"kind": rlx_pb2.DISCRETE, "dtype": "int64", "n": [1, 2]},
        "needs exactly one n, got 2",
    ),
    "discrete of nothing": (
        {"kind": rlx_pb2.DISCRETE, "dtype": "int64", "n": [0]},
        "expected n from 1 to 2147483648",
    ),
    "discrete with a shape": (
        {"kind": rlx_pb2.DISCRETE, "dtype": "int64", "n": [2], "shape": [1]},
        "expected n from 1 to 2147483648",
    ),
    "discrete of floats": (
        {"kind": rlx_pb2.DISCRETE, "dtype": "float32", "n": [2]},
        "expected an integer dtype",
    ),
    "discrete that its dtype does not hold": (
        {"kind": rlx_pb2.DISCRETE, "dtype": "int8", "n": [200]},
        "values 0..199, which do not fit into int8",
    ),
    "multi-discrete of floats": (
        {"kind": rlx_pb2.MULTI_DISCRETE, "dtype": "float64", "n": [2], "shape": [1]},
        "expected an integer dtype",
    ),
    "33 axes": ({"kind": rlx_pb2.BOX, "dtype": "float32", "shape": [1] * 33}, "at most 32"),
    "multi-discrete, n without end": (
        {"kind": rlx_pb2.MULTI_DISCRETE, "dtype": "int64", "n": [2] * 100_000, "shape": [2]},
        "n of length 100000, expected one number",
    ),
    "multi-discrete, one n too few": (
        {"kind": rlx_pb2.MULTI_DISCRETE, "dtype": "int64", "n": [2], "shape": [2]},
        "one number from 1 to 2147483648 for each component",
    ),
    "multi-discrete with a zero": (
        {"kind": rlx_pb2.MULTI_DISCRETE, "dtype": "int64", "n": [2, 0], "shape": [2]},
        r"n\[1\]=0, expected 1 to 2147483648",
    ),
    "multi-discrete with starts without end": (
        {"kind": rlx_pb2.MULTI_DISCRETE, "n": [2], "shape": [1], "starts": [1] * 100_000}
        | {"dtype": "int64"},
        "with 2 starts, expected none, or one for each of 1 components",
    ),
    "multi-discrete whose starts its dtype does not hold": (
        {"kind": rlx_pb2.MULTI_DISCRETE, "n": [9], "shape": [1], "starts": [120], "dtype": "int8"},
        "values 120..128, which do not fit into int8",
    ),
}


@pytest.mark.parametrize(("fields", "want"), _BAD_SPACES.values(), ids=_BAD_SPACES.keys())
def test_message_that_is_no_space_is_refused(fields: dict[str, Any], want: str) -> None:
    with pytest.raises(InvalidInputError, match=want) as caught:
        message_to_space(rlx_pb2.Space(**fields), "action_spaces[action]")
    assert str(caught.value).startswith("action_spaces[action]: ")
    assert caught.value.field == "action_spaces[action]"


@pytest.mark.parametrize(
    ("low", "high", "want"),
    [
        (np.zeros(3, np.float32), None, r"low has shape \[3\], expected \[2\]"),
        (None, np.array([1, np.nan], np.float32), r"high contains NaN, first at \[1\]"),
        (np.array([0, 2], np.float32), np.array([1, 1], np.float32), "low is above high"),
    ],
    ids=["shape", "NaN", "crossed"],
)
def test_impossible_bounds_are_refused(
    low: np.ndarray | None, high: np.ndarray | None, want: str
) -> None:
    message = rlx_pb2.Space(kind=rlx_pb2.BOX, dtype="float32", shape=[2])
    for name, bound in (("low", low), ("high", high)):
        if bound is not None:
            getattr(message, name).CopyFrom(ndarray_to_message(bound, ndarray_pb2.NdArray))
    with pytest.raises(InvalidInputError, match=want):
        message_to_space(message, "observation")


@pytest.mark.parametrize(
    ("shape", "slots", "size"),
    [
        ((2, 3), 4, 96),
        ((), 1, 4),
        ((1 << 24,), 1, 1 << 26),
        ((1 << 24,), 2, None),
        ((1 << 24, 2), 1, None),
        ((2**31 - 1,) * 32, 1, None),
        ((2**31 - 1,) * 31 + (0,), 1, 0),
    ],
)
def test_the_bytes_of_all_slots_are_counted_up_to_the_limit(
    shape: tuple[int, ...], slots: int, size: int | None
) -> None:
    assert Box(dtype="float32", shape=shape).count_bytes(slots) == size


def test_a_leaf_that_is_too_large_for_all_slots_is_refused() -> None:
    messages = {"camera": space_to_message(Box(dtype="uint8", shape=(1 << 22,)))}
    assert messages_to_spaces(messages, "observation_spaces", 16)
    with pytest.raises(InvalidInputError, match=r"17 slot.*use fewer slots") as caught:
        messages_to_spaces(messages, "observation_spaces", 17)
    assert caught.value.field == "observation_spaces[camera]"


def test_damaged_bound_is_refused() -> None:
    low = ndarray_pb2.NdArray(dtype="float32", shape=[2], data=b"123")
    message = rlx_pb2.Space(kind=rlx_pb2.BOX, dtype="float32", shape=[2], low=low)
    with pytest.raises(InvalidInputError, match="low: 3 bytes of data"):
        message_to_space(message, "observation")


_GOOD_VALUES: dict[str, tuple[Space, Any]] = {
    "box": (BOX, np.array([[1, 2], [3, 4]], np.float32)),
    "box beyond its bounds": (SPACES["box with bounds"], np.array([[9.0, 0.0], [0.0, -9.0]])),
    "discrete, first and last": (Discrete(n=3, start=-1), np.array([-1, 1])),
    "multi-discrete, last": (MultiDiscrete(n=(2, 3), shape=(2,)), np.array([[1, 2], [0, 0]])),
    "multi-binary": (MultiBinary(shape=(2,)), np.array([[0, 1], [1, 1]], np.int8)),
}


@pytest.mark.parametrize(("space", "values"), _GOOD_VALUES.values(), ids=_GOOD_VALUES.keys())
def test_values_inside_a_space_pass(space: Space, values: np.ndarray) -> None:
    assert space.validate(values, 2, "x") is values


_BAD_VALUES: dict[str, tuple[Space, Any, str]] = {
    "one slot too few": (BOX, np.zeros((1, 2), np.float32), r"shape \[1, 2\], expected \[2, 2\]"),
    "no slot axis": (BOX, np.zeros(2, np.float32), "2 slots of shape"),
    "transposed": (Box(dtype="float32", shape=(3,)), np.zeros((3, 2), np.float32), "expected"),
    "other float": (BOX, np.zeros((2, 2), np.float64), "dtype float64, expected float32"),
    "other byte order": (BOX, np.zeros((2, 2), ">f4"), "expected float32"),
    "NaN": (BOX, np.array([[0, 0], [0, np.nan]], np.float32), r"slot 1 \(first: nan at \[1, 1\]\)"),
    "infinity": (BOX, np.array([[np.inf, 0], [0, 0]], np.float32), "NaN or infinity in slot 0"),
    "bfloat16 NaN": (
        Box(dtype="bfloat16", shape=()),
        np.array([0, np.nan]).astype(DTYPES["bfloat16"]),
        "NaN or infinity in slot 1",
    ),
    "discrete below": (Discrete(n=2), np.array([0, -1]), r"outside 0\.\.1"),
    "discrete above": (Discrete(n=2, start=5), np.array([5, 7]), r"outside 5\.\.6"),
    "multi-discrete above": (
        MultiDiscrete(n=(2, 3), shape=(2,)),
        np.array([[2, 0], [0, 0]]),
        r"2 is outside 0\.\.1",
    ),
    "multi-discrete below": (
        MultiDiscrete(n=(2, 3), shape=(2,)),
        np.array([[0, -1], [0, 0]]),
        r"-1 is outside 0\.\.2",
    ),
    "multi-binary two": (MultiBinary(shape=(1,)), np.array([[2], [0]], np.int8), "2, expected 0"),
}


@pytest.mark.parametrize(("space", "values", "want"), _BAD_VALUES.values(), ids=_BAD_VALUES.keys())
def test_values_outside_a_space_are_refused(space: Space, values: np.ndarray, want: str) -> None:
    with pytest.raises(InvalidInputError, match=want) as caught:
        space.validate(values, 2, "observations[x]")
    assert caught.value.field == "observations[x]"


def test_leaves_come_in_the_order_of_their_names() -> None:
    messages = {name: space_to_message(BOX) for name in ("b", "arm/joints", "0", "camera-1.rgb")}
    spaces = messages_to_spaces(messages, "observation_spaces")
    assert list(spaces) == ["0", "arm/joints", "b", "camera-1.rgb"]


@pytest.mark.parametrize("name", ["", "a b", "a\n", "ä", "a" * 201, "a;b", "../x\0"])
def test_bad_leaf_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="leaf name"):
        messages_to_spaces({name: space_to_message(BOX)}, "observation_spaces")


@pytest.mark.parametrize("count", [0, 1001])
def test_wrong_number_of_leaves_is_refused(count: int) -> None:
    messages = {f"leaf{i}": rlx_pb2.Space() for i in range(count)}
    with pytest.raises(InvalidInputError, match=f"{count} leaves, expected 1 to 1000"):
        messages_to_spaces(messages, "observation_spaces")


def test_named_arrays_round_trip_and_are_validated() -> None:
    spaces: dict[str, Space] = {"a": BOX, "b": Discrete(n=3)}
    arrays = {"b": np.array([2, 0]), "a": np.ones((2, 2), np.float32)}
    step = rlx_pb2.Step()
    pack_arrays(arrays, step.observations)
    back = unpack_arrays(step.observations, spaces, 2, "observations")
    assert list(back) == ["a", "b"]
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array, strict=True)
    with pytest.raises(InvalidInputError, match=r"observations\[b\]: .* outside 0\.\.1"):
        unpack_arrays(step.observations, {"a": BOX, "b": Discrete(n=2)}, 2, "observations")


@pytest.mark.parametrize("sent", [["a"], ["a", "b", "c"], []], ids=["missing", "extra", "none"])
def test_leaves_other_than_in_the_hello_are_refused(sent: list[str]) -> None:
    step = rlx_pb2.Step()
    pack_arrays({name: np.zeros((1, 2), np.float32) for name in sent}, step.observations)
    with pytest.raises(InvalidInputError, match=r"expected \['a', 'b'\] as in the hello"):
        unpack_arrays(step.observations, {"a": BOX, "b": BOX}, 1, "observations")


def test_one_number_is_a_bound_of_all_components() -> None:
    box = Box(dtype="float32", shape=(2, 3), low=-1, high=np.float64(0.5))
    assert (box.low.dtype, box.low.tolist()) == (np.float32, [[-1] * 3] * 2)
    assert box.high.tolist() == [[0.5] * 3] * 2
    assert box == Box(dtype="float32", shape=(2, 3), low=box.low, high=[[0.5] * 3] * 2)
    assert message_to_space(space_to_message(box), "x") == box
    assert Box(dtype="float32", shape=(3,), low=-np.inf).low.shape == (3,)


@pytest.mark.parametrize(
    ("dtype", "low", "want"),
    [
        ("uint8", -1, "space: low is -1, expected a number of uint8"),
        ("float32", "low", "space: low is 'low', expected a number of float32"),
        ("float32", [1, 2], r"space: low is \[1, 2\], expected .* or an array of shape \[3\]"),
        ("float32", float("nan"), "contains NaN"),
        ("float32", np.array(["a", "b", "c"], object), "expected a number of float32"),
        ("float32", np.array(1.0), r"low has shape \[\], expected \[3\]"),
    ],
)
def test_a_bound_that_is_none_is_refused(dtype: str, low: Any, want: str) -> None:
    with pytest.raises(InvalidInputError, match=want):
        Box(dtype=dtype, shape=(3,), low=low)
