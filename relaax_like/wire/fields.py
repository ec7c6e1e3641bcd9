"""Walks through the fields of a serialised message without parsing it.

A parser spends far more time on an entry of a map than on array data: 60 ns per byte. Scanning the
lengths refuses a message with many entries at a fraction of the cost of parsing it. The encoding:
https://protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Iterator
from typing import Any

from relaax_like.v1 import ndarray_pb2

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {FIXED64: 8, FIXED32: 4}

_ARRAY = ndarray_pb2.NdArray.DESCRIPTOR.full_name
_DATA = ndarray_pb2.NdArray.DESCRIPTOR.fields_by_name["data"].number
# Cost of a field in addition to its bytes, in bytes.
_FIELD_BYTES = 64

Body = bytes | memoryview


def walk_fields(body: Body, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields number, wire type, and start and end of the value of each field in `body[start:stop]`.

    Raises:
      ValueError: bytes that are not a field, or a group, which our messages do not have.
    """
    while start < stop:
        tag, after = body[start], start + 1
        if tag > 0x7F:
            tag, after = _read_varint(body, start, stop)
        number, kind = tag >> 3, tag & 7
        if kind == BYTES:
            if after < stop and (length := body[after]) < 0x80:  # most are of one byte
                start = after + 1
            else:
                length, start = _read_varint(body, after, stop)
            end = start + length
        elif kind == VARINT:
            start = after
            end = _read_varint(body, start, stop)[1]
        elif kind in _FIXED_SIZES:
            start = after
            end = start + _FIXED_SIZES[kind]
        else:
            raise ValueError(f"wire type {kind}, which is a group or not a field")
        if end > stop:
            raise ValueError("a field that extends beyond the end of its message")
        yield number, kind, start, end
        start = end


def has_more_fields(body: Body, start: int, stop: int, limit: int) -> bool:
    """Returns whether a message has more than `limit` fields; stops at the first one beyond it.

    Raises:
      ValueError: see `walk_fields`; only if an invalid field comes before the limit.
    """
    return any(count > limit for count, _ in enumerate(walk_fields(body, start, stop), 1))


def weigh(body: Body, descriptor: Any, start: int, stop: int, limit: int) -> int:
    """Returns the estimated cost of parsing a message, in bytes; stops above `limit`.

    Array data is only copied and does not count. Everything else counts, and each field, at any
    depth, adds a fixed number of bytes.

    Args:
      body: contains the message at [start, stop).
      descriptor: of the message.
      start: of the message.
      stop: of the message.
      limit: value above which the exact result does not matter.

    Raises:
      ValueError: see `walk_fields`.
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
