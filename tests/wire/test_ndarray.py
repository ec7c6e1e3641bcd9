"""The array codec. Covers R13 (NdArray), R14."""

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

from relaax_like.bridge import bridge_pb2
from relaax_like.v1 import ndarray_pb2
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.ndarray import (
    DTYPES,
    MAX_AXES,
    message_to_ndarray,
    ndarray_to_message,
)

NdArray = ndarray_pb2.NdArray
_SHAPES = st_np.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=5)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Any array that the wire knows: every dtype, byte order and layout."""
    name = draw(st.sampled_from(sorted(DTYPES)))
    shape = draw(_SHAPES)
    dtype = DTYPES[name]
    size = int(np.prod(shape))
    if name == "bool":
        array = np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool)
    else:
        raw = draw(st.binary(min_size=size * dtype.itemsize, max_size=size * dtype.itemsize))
        array = np.frombuffer(raw, dtype)
    array = array.reshape(shape)
    if name != "bfloat16" and draw(st.booleans()):
        array = array.astype(dtype.newbyteorder(">"))
    if array.ndim and draw(st.booleans()):
        array = array.T
    if array.ndim and draw(st.booleans()):
        array = array[::-1]
    return array


def _little_endian_bytes(array: np.ndarray) -> bytes:
    """Element by element, in C order; NumPy's scalars have the machine's byte order."""
    parts = [array[index].tobytes() for index in np.ndindex(array.shape)]
    return b"".join(parts if sys.byteorder == "little" else [part[::-1] for part in parts])


@settings(deadline=None)
@given(array=arrays(), message_class=st.sampled_from([NdArray, bridge_pb2.NdArray]))
def test_round_trip_keeps_every_bit(array: np.ndarray, message_class: Any) -> None:
    message = ndarray_to_message(array, message_class)
    assert message.data == _little_endian_bytes(array)
    parsed = message_class.FromString(message.SerializeToString())
    back = message_to_ndarray(parsed)
    assert back.shape == array.shape
    assert back.dtype == DTYPES[message.dtype]
    assert back.dtype.name == array.dtype.name
    assert back.tobytes() == message.data


def test_every_dtype_of_the_contract_is_known() -> None:
    contract = {
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "bfloat16"),
    }
    assert set(DTYPES) == contract


def test_bytes_are_little_endian_in_c_order() -> None:
    array = np.array([[1, 2], [3, 4]], ">i2").T
    message = ndarray_to_message(array, NdArray)
    assert message.dtype == "int16"
    assert message.data == b"\x01\x00\x03\x00\x02\x00\x04\x00"


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.5, np.float32),
        np.zeros((0,), np.int64),
        np.zeros((3, 0, 2), np.float16),
        np.arange(24, dtype=np.float32).reshape(2, 3, 4)[:, ::2, ::-1],
        np.broadcast_to(np.float64(7), (2, 3)),
        np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3)),
    ],
    ids=["0-d", "empty", "empty axis", "strided", "broadcast", "fortran"],
)
def test_unusual_layouts_round_trip(array: np.ndarray) -> None:
    back = message_to_ndarray(ndarray_to_message(array, NdArray))
    np.testing.assert_array_equal(back, array, strict=True)


def test_received_array_is_read_only() -> None:
    back = message_to_ndarray(ndarray_to_message(np.zeros(3, np.float32), NdArray))
    with pytest.raises(ValueError, match="read-only"):
        back[0] = 1


@pytest.mark.parametrize(
    "array",
    [
        np.array([object()]),
        np.array(["text"]),
        np.array([b"bytes"]),
        np.array([1j]),
        np.array(["2020-01-01"], "M8[D]"),
        np.zeros(2, [("a", "i4")]),
        np.zeros(2, "V8"),
    ],
    ids=lambda array: str(array.dtype),
)
def test_sending_a_foreign_dtype_is_a_type_error(array: np.ndarray) -> None:
    with pytest.raises(TypeError, match=r"arrays of dtype .* cannot be sent"):
        ndarray_to_message(array, NdArray)


@pytest.mark.parametrize(
    ("dtype", "item_bytes"),
    [
        ("V8", 8),
        ("M8[ns]", 8),
        ("c16", 16),
        ("complex128", 16),
        (">f4", 4),
        ("<f4", 4),
        ("f4", 4),
        ("float", 8),
        ("O", 8),
        ("object", 8),
        ("S4", 4),
        ("U1", 4),
        ("i4,i4", 8),
        ("FLOAT32", 4),
        ("float32 ", 4),
        ("", 4),
        ("x" * 10_000, 4),
    ],
    ids=lambda value: str(value)[:12],
)
def test_received_dtype_outside_the_list_is_refused(dtype: str, item_bytes: int) -> None:
    message = NdArray(dtype=dtype, shape=[1], data=bytes(item_bytes))
    with pytest.raises(InvalidInputError, match="weights: unknown dtype") as caught:
        message_to_ndarray(message, "weights")
    assert caught.value.field == "weights"
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ([-1], b""),
        ([-1], bytes(8)),
        ([-2, 3], bytes(24)),
        ([-2, -3], bytes(24)),
        ([0, -1], b""),
        ([1] * (MAX_AXES + 1), bytes(4)),
    ],
    ids=str,
)
def test_impossible_shape_is_refused(shape: list[int], data: bytes) -> None:
    with pytest.raises(InvalidInputError, match="invalid shape"):
        message_to_ndarray(NdArray(dtype="float32", shape=shape, data=data))


def test_a_shape_without_numbers_that_numpy_cannot_count_is_refused() -> None:
    message = NdArray(dtype="float32", shape=[0, *[(1 << 31) - 1] * 3])
    with pytest.raises(InvalidInputError, match=r"weights: shape .* is too large"):
        message_to_ndarray(message, "weights")


@pytest.mark.parametrize(
    ("shape", "num_bytes"),
    [
        ([2, 3], 23),
        ([2, 3], 25),
        ([2, 3], 0),
        ([], 0),
        ([], 8),
        ([0], 4),
        # Products that are 0 or small modulo 2**32 and 2**64.
        ([65536, 65536], 0),
        ([2**31 - 1, 2**31 - 1, 4], 16),
        ([2**30, 2**30, 16], 0),
        ([2**30] * 32, 0),
    ],
    ids=str,
)
def test_size_that_does_not_match_the_data_is_refused(shape: list[int], num_bytes: int) -> None:
    with pytest.raises(InvalidInputError, match="bytes of data"):
        message_to_ndarray(NdArray(dtype="float32", shape=shape, data=bytes(num_bytes)))


def test_most_axes_are_accepted() -> None:
    message = NdArray(dtype="float32", shape=[1] * MAX_AXES, data=bytes(4))
    assert message_to_ndarray(message).shape == (1,) * MAX_AXES


def test_data_above_the_limit_is_refused() -> None:
    message = ndarray_to_message(np.zeros(5, np.float32), NdArray)
    assert message_to_ndarray(message, max_bytes=20).size == 5
    with pytest.raises(InvalidInputError, match="at most 19"):
        message_to_ndarray(message, max_bytes=19)


@settings(deadline=None)
@given(
    dtype=st.sampled_from([*sorted(DTYPES), "V8", "c16", "O"]),
    shape=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
    data=st.binary(max_size=64),
)
def test_any_message_is_read_or_refused_but_never_crashes(
    dtype: str, shape: list[int], data: bytes
) -> None:
    try:
        array = message_to_ndarray(NdArray(dtype=dtype, shape=shape, data=data))
    except InvalidInputError:
        return
    assert array.shape == tuple(shape)
    assert array.nbytes == len(data)
