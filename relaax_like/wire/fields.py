"""Walks through the fields of a serialised message without parsing it.

A parser spends far more on an entry of a map than on a byte of an array: 60 ns for each of its
bytes. A short look at the lengths refuses a message of many entries for a fraction of what parsing
it costs. The encoding: https://protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Iterator
from typing import Any

from relaax_like.v1 import ndarray_pb2

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {FIXED64: 8, FIXED32: 4}

_ARRAY = ndarray_pb2.NdArray.DESCRIPTOR.full_name
_DATA = ndarray_pb2.NdArray.DESCRIPTOR.fields_by_name["data"].number
# What a field costs beside its bytes, in bytes.
_FIELD_BYTES = 64

Body = bytes | memoryview


def walk_fields(body: Body, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields number, wire type, and where the value lies, of each field in `body[start:stop]`.

    Raises:
      ValueError: bytes that are not a field, or a group, which no message of ours has.
    """
    while start < stop:
        tag, start = _read_varint(body, start, stop)
        number, kind = tag >> 3, tag & 7
        if kind == BYTES:
            length, start = _read_varint(body, start, stop)
            end = start + length
        elif kind == VARINT:
            end = _read_varint(body, start, stop)[1]
        elif kind in _FIXED_SIZES:
            end = start + _FIXED_SIZES[kind]
        else:
            raise ValueError(f"wire type {kind}, which is a group or not a field")
        if end > stop:
            raise ValueError("a field that extends beyond the end of its message")
        yield number, kind, start, end
        start = end


def has_more_fields(body: Body, start: int, stop: int, limit: int) -> bool:
    """Tells whether a message has more than `limit` fields; looks at no more of them.

    Raises:
      ValueError: as `walk_fields`, where the end came first.
    """
    return any(count > limit for count, _ in enumerate(walk_fields(body, start, stop), 1))


def weigh(body: Body, descriptor: Any, start: int, stop: int, limit: int) -> int:
    """Returns about what parsing a message costs, in bytes; stops above `limit`.

    The data of arrays is copied and costs nothing. All else counts, and each field, at any depth,
    as so many bytes more.

    Args:
      body: has the message at [start, stop).
      descriptor: of the message.
      start: of the message.
      stop: of the message.
      limit: from which on the result does not matter.

    Raises:
      ValueError: as `walk_fields`.
    """
    weight = 0
    is_array = descriptor.full_name == _ARRAY
    for number, kind, begin, end in walk_fields(body, start, stop):
        weight += _FIELD_BYTES
        field = descriptor.fields_by_number.get(number)
        if field is not None and field.message_type is not None and kind == BYTES:
            weight += weigh(body, field.message_type, begin, end, limit - weight)
        elif not (is_array and number == _DATA):
            weight += end - begin
        if weight > limit:
            break
    return weight


def _read_varint(body: Body, start: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    while start < stop and shift < 70:
        byte = body[start]
        start += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, start
        shift += 7
    raise ValueError("an unterminated varint")
