"""Spaces and arrays in JSON: as people write them, and as types that text is checked against."""

import base64
import binascii
import math
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.ndarray import DTYPES
from relaax_like.wire.spaces import KINDS, Box, Discrete, Space, Spaces

# Beyond it, a JSON number does not hold each integer in each language.
MAX_INTEGER = 1 << 53
UNSET = msgspec.UNSET
_FORMS = f"an object with one of {', '.join(KINDS)}, or named ones of these"
_LONG = ("int64", "uint64")


class _Form(msgspec.Struct, forbid_unknown_fields=True):
    """An array that is not a nested list: its bytes, or integers as text."""

    base64: str | msgspec.UnsetType = UNSET
    integers: Any = UNSET


def read_spaces(written: Mapping[str, Any], plain: str) -> tuple[dict[str, Space], bool]:
    """Converts a space of a hello to leaves.

    Args:
      written: `{"box": [4]}` and the like, or names -> these.
      plain: name of the leaf if there is only one without a name.

    Returns:
      leaf -> space; and whether it is one leaf without a name.

    Raises:
      InvalidInputError: it is not a space; the error names it.
    """
    if written and all(isinstance(space, dict) for space in written.values()):
        return {
            name: _read_space(space, f"{plain}.{name}") for name, space in written.items()
        }, False
    return {plain: _read_space(written, plain)}, True


def _read_space(written: Mapping[str, Any], field: str) -> Space:
    found = [kind for kind in KINDS if kind in written]
    if len(found) != 1:
        raise InvalidInputError(f"{field}: {str(written)[:80]}, expected {_FORMS}")
    (kind,) = found
    more = {name: value for name, value in written.items() if name != kind}
    if "mirror" in more and isinstance(more["mirror"], list):
        more["mirror"] = tuple(more["mirror"])
    try:
        if any(isinstance(value, bool) for value in written.values()):
            raise TypeError  # which Python would take for 0 and 1
        return KINDS[kind].from_json(written[kind], **more)
    except InvalidInputError as error:
        raise InvalidInputError(f"{field}: {error}") from None
    except (TypeError, ValueError, OverflowError):
        raise InvalidInputError(
            f"{field}: {str(written)[:80]} does not describe a space of the kind {kind}; see "
            "docs/json.md"
        ) from None


def make_type(space: Space, slots: int | None) -> Any:
    """Returns the type of a leaf's value, for a decoder.

    Args:
      space: of the leaf.
      slots: length of the first axis; None: there is none.
    """
    return nest(_make_number(space), (() if slots is None else (slots,)) + space.shape) | _Form


def nest(inner: Any, shape: tuple[int, ...]) -> Any:
    """Returns the type of nested lists of exactly this shape."""
    for length in reversed(shape):
        inner = Annotated[list[inner], msgspec.Meta(min_length=length, max_length=length)]
    return inner


def _make_number(space: Space) -> Any:
    dtype = DTYPES[space.dtype]
    if dtype.kind == "b":
        return bool
    if dtype.kind not in "iu":
        return float
    limits = np.iinfo(dtype)
    first, last = max(int(limits.min), -MAX_INTEGER), min(int(limits.max), MAX_INTEGER)
    return Annotated[int, msgspec.Meta(ge=first, le=last)]


def make_leaves(spaces: Spaces, slots: int | None, plain: str, is_plain: bool) -> Any:
    """Returns the type of all leaves of a space, for a decoder; see `read_leaves`."""
    if is_plain:
        return make_type(spaces[plain], slots)
    names = {f"leaf_{number}": name for number, name in enumerate(spaces)}
    return msgspec.defstruct(
        plain,
        [(field, make_type(spaces[name], slots)) for field, name in names.items()],
        rename=names,
        forbid_unknown_fields=True,
    )


def read_leaves(
    value: Any, spaces: Spaces, slots: int | None, field: str, is_plain: bool
) -> tuple[dict[str, np.ndarray], int]:
    """Converts decoded leaves to arrays.

    Args:
      value: of the type that `make_leaves` returned.
      spaces: leaf -> space.
      slots: k; None: the value has no slot axis, which is added.
      field: name for errors.
      is_plain: whether the value is that of the only leaf.

    Returns:
      leaf -> `[k, *shape]`; and the number of keys that the text of the value had.

    Raises:
      InvalidInputError: a leaf as bytes or text is not one of its space.
    """
    values = [value] if is_plain else [getattr(value, name) for name in value.__struct_fields__]
    arrays, keys = {}, 0 if is_plain else len(spaces)
    for (name, space), one in zip(spaces.items(), values, strict=True):
        if type(one) is _Form:
            keys += 1
            one = _read_form(one, space, slots, field if is_plain else f"{field}.{name}")
        with np.errstate(over="ignore"):  # infinity is refused where ranges are checked
            array = np.asarray(one, DTYPES[space.dtype])
        arrays[name] = array[None] if slots is None else array
    return arrays, keys


def _read_form(form: _Form, space: Space, slots: int | None, field: str) -> np.ndarray:
    shape = (() if slots is None else (slots,)) + space.shape
    dtype = DTYPES[space.dtype]
    if (form.base64 is UNSET) == (form.integers is UNSET):
        raise InvalidInputError(f"{field}: expected one of base64 and integers")
    if form.base64 is not UNSET:
        try:
            data = base64.b64decode(form.base64, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidInputError(
                f"{field}.base64: not base64; see docs/json.md", field
            ) from None
        wanted = math.prod(shape) * dtype.itemsize
        if len(data) != wanted:
            raise InvalidInputError(
                f"{field}.base64: {len(data)} bytes, expected {wanted}: {space.dtype} "
                f"{list(shape)}, little-endian, the last axis varies fastest",
                field,
            )
        return np.frombuffer(data, dtype).reshape(shape)
    if space.dtype not in _LONG:
        raise InvalidInputError(
            f"{field}.integers: the space has dtype {space.dtype}, expected int64 or uint64; send "
            "nested lists of numbers",
            field,
        )
    digits = Annotated[str, msgspec.Meta(pattern=r"^(0|-?[1-9][0-9]{0,19})$")]
    try:
        texts = msgspec.convert(form.integers, nest(digits, shape))
        return np.array(texts, object).astype(dtype).reshape(shape)
    except (msgspec.ValidationError, OverflowError, ValueError):
        raise InvalidInputError(
            f"{field}.integers: expected {space.dtype} {list(shape)} as nested lists of strings of "
            'decimal digits, such as "9007199254740993"',
            field,
        ) from None


def has_large_integers(space: Space) -> bool:
    """Returns whether a space has integers that a JSON number does not hold."""
    if isinstance(space, Discrete):
        return max(abs(space.start), abs(space.start + space.n)) > MAX_INTEGER
    return isinstance(space, Box) and space.dtype in _LONG


def write_leaf(array: np.ndarray, is_large: bool) -> Any:
    """Converts one array to numbers, or nested lists of them.

    Args:
      array: of any shape.
      is_large: whether its space has large integers; if there are any, it becomes
        `{"integers": ...}`.
    """
    if array.dtype.kind == "V":  # bfloat16
        return array.astype(np.float32).tolist()
    if is_large and array.size and max(int(array.max()), -int(array.min())) > MAX_INTEGER:
        return {"integers": array.astype(str).tolist()}
    return array.tolist()
