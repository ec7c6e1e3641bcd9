"""Converts between NumPy arrays and `NdArray` messages: strict, little-endian, C order.

It supports both message types of this form, the tutorial's `NdArray` and `relaax.v1.NdArray`.
"""

import math
from typing import Any, TypeVar

import numpy as np

from relaax_like.wire.errors import InvalidInputError

MessageT = TypeVar("MessageT")

_NAMES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
# Name of the dtype on the wire -> NumPy dtype, little-endian.
DTYPES: dict[str, np.dtype] = {name: np.dtype(name).newbyteorder("<") for name in _NAMES}

try:  # NumPy does not have bfloat16; TensorFlow installs this package.
    import ml_dtypes

    DTYPES["bfloat16"] = np.dtype(ml_dtypes.bfloat16)
except ImportError:
    pass

_NAME_OF = {dtype: name for name, dtype in DTYPES.items()}
_SUMMABLE = (np.dtype(np.float32), np.dtype(np.float64))
MAX_AXES = 32
MAX_BYTES = 1 << 30


def ndarray_to_message(array: np.ndarray, message_class: type[MessageT]) -> MessageT:
    """Converts an array to a message, which has its own copy of the data.

    Args:
      array: any layout and byte order; its dtype must be one of `DTYPES`.
      message_class: the generated class to build.

    Raises:
      TypeError: the dtype cannot be sent (objects, strings, complex numbers, ...).
    """
    message = message_class()
    write_ndarray(array, message)
    return message


def write_ndarray(array: np.ndarray, message: Any) -> None:
    """Writes an array into an empty message. Arguments and errors: see `ndarray_to_message`."""
    array = np.asarray(array)
    name = _NAME_OF.get(array.dtype)
    if name is None:  # another byte order, or a dtype that cannot be sent
        dtype = array.dtype.newbyteorder("<")
        name = _NAME_OF.get(dtype)
        if name is None:
            raise TypeError(
                f"arrays of dtype {array.dtype} cannot be sent; use one of {', '.join(DTYPES)}"
            )
        array = array.astype(dtype)
    message.dtype = name
    message.shape.extend(array.shape)
    message.data = array.tobytes()


def make_array(value: Any) -> np.ndarray | None:
    """Returns a user's value as an array, of any shape and dtype.

    Args:
      value: an array, a number, or nested lists of numbers.

    Returns:
      The array; None: lists of different lengths, which are not an array.
    """
    try:
        return np.asarray(value)
    except ValueError:
        return None


def is_finite(array: np.ndarray) -> bool:
    """Returns whether an array of floating-point numbers contains neither NaN nor infinity."""
    # NaN and infinity make the sum of squares non-finite, which is the fastest check. Large numbers
    # can overflow in it, so the elements are checked if it is not finite.
    if array.dtype in _SUMMABLE and math.isfinite(np.vdot(array, array)):
        return True
    return bool(np.isfinite(array).all())


def describe_not_finite(array: np.ndarray) -> str:
    """Describes for an error where `[k, ...]` values are NaN or infinity; at least one must be.

    For example "NaN or infinity in slots 1, 4 (first: nan at [1, 0])".
    """
    wrong = np.argwhere(~np.isfinite(array))
    slots = np.unique(wrong[:, 0]).tolist()
    where = f"slot{'s' * (len(slots) > 1)} {', '.join(map(str, slots[:8]))}"
    first = wrong[0].tolist()
    return f"NaN or infinity in {where} (first: {array[tuple(first)]} at {first})"


def message_to_ndarray(
    message: Any, field: str = "array", max_bytes: int = MAX_BYTES
) -> np.ndarray:
    """Converts a message to a read-only array that shares the message's bytes.

    Args:
      message: as received; nothing in it is trusted.
      field: name of the array, for the error.
      max_bytes: longest data that is accepted.

    Raises:
      InvalidInputError: unknown dtype, a negative axis, too many axes or elements, or data whose
        length does not match the shape or exceeds `max_bytes`.
    """
    dtype = DTYPES.get(message.dtype)
    if dtype is None:
        raise InvalidInputError(
            f"{field}: unknown dtype {message.dtype[:40]!r}, expected one of {', '.join(DTYPES)}"
        )
    shape = _read_shape(message, dtype, field, max_bytes)
    array = np.frombuffer(message.data, dtype)
    if len(shape) == 1:
        return array
    try:
        return array.reshape(shape)
    except ValueError:  # an axis is 0, and the others are more than NumPy can count
        raise InvalidInputError(
            f"{field}: shape {list(shape)} is too large: it has no elements, but NumPy cannot "
            "count the product of its other axes; send shorter axes"
        ) from None


def _read_shape(message: Any, dtype: np.dtype, field: str, max_bytes: int) -> tuple[int, ...]:
    """Returns the shape of a message, if its data has that many bytes."""
    shape = tuple(message.shape[: MAX_AXES + 1])  # a message can have millions
    if len(shape) > MAX_AXES:
        raise InvalidInputError(
            f"{field}: invalid shape of {len(message.shape)} axes, expected at most {MAX_AXES}"
        )
    if min(shape, default=0) < 0:
        raise InvalidInputError(
            f"{field}: invalid shape {list(shape)}, expected axes of length 0 or more"
        )
    # Python integers, because NumPy's would overflow; a shape must not cause an allocation.
    expected = math.prod(shape) * dtype.itemsize
    if expected != len(message.data):
        raise InvalidInputError(
            f"{field}: {len(message.data)} bytes of data, but shape {list(shape)} of "
            f"{message.dtype} needs {expected} (at most {max_bytes})"
        )
    if expected > max_bytes:
        raise InvalidInputError(f"{field}: {expected} bytes of data, expected at most {max_bytes}")
    return shape
