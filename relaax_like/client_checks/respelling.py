"""Other spellings of one message, all of which a client must read."""

import json
from collections.abc import Callable
from typing import Any

from relaax_like.v1 import rlx_pb2
from relaax_like.wire.fields import BYTES, FIXED32, FIXED64, VARINT, walk_fields

# One field: its number, wire type, and value, without the length.
Part = tuple[int, int, bytes]
# Gets the fields of a message and its descriptor, for each message in a message, the innermost
# first; returns the fields to send.
Change = Callable[[list[Part], Any], list[Part]]
# Of numbers that nobody knows, from 12345 to the largest one, and of each wire type.
_UNKNOWN: list[Part] = [
    (12_345, VARINT, b"\xff" * 9 + b"\x01"),
    (12_346, BYTES, b"later"),
    ((1 << 29) - 2, FIXED64, bytes(8)),
    ((1 << 29) - 1, FIXED32, bytes(4)),
]


def respell(body: bytes, change: Change) -> bytes:
    """Returns a `ServerMessage`, or the JSON of one, with other bytes and the same meaning."""
    if not body.startswith(b"{"):
        return _respell(body, change, rlx_pb2.ServerMessage.DESCRIPTOR)
    reverse = None if change is add_unknown else lambda pairs: dict(reversed(pairs))
    message = json.loads(body, object_pairs_hook=reverse)
    more = {"later": [7, None]} if change is add_unknown else {}
    return json.dumps(message | more, separators=(",", ":")).encode()


def _respell(body: bytes, change: Change, descriptor: Any) -> bytes:
    parts = []
    for number, kind, start, stop in walk_fields(body, 0, len(body)):
        inner, value = descriptor.fields_by_number[number].message_type, body[start:stop]
        parts.append((number, kind, value if inner is None else _respell(value, change, inner)))
    fields = b""
    for number, kind, value in change(parts, descriptor):
        length = _pack_varint(len(value)) if kind == BYTES else b""
        fields += _pack_varint(number << 3 | kind) + length + value
    return fields


def add_unknown(parts: list[Part], descriptor: Any) -> list[Part]:
    """Adds unknown fields, but not to entries of maps: libraries drop those."""
    return parts if _is_entry(descriptor) else parts + _UNKNOWN


def reverse_fields(parts: list[Part], descriptor: Any) -> list[Part]:
    """Puts the largest numbers first, also in entries of maps; repeated fields keep their order."""
    return sorted(parts, key=lambda part: -part[0])


def reverse_maps(parts: list[Part], descriptor: Any) -> list[Part]:
    """Reverses the entries of each map."""
    types = [descriptor.fields_by_number[number].message_type for number, _, _ in parts]
    entries = [part for part, inner in zip(parts, types, strict=True) if _is_entry(inner)]
    return [
        entries.pop() if _is_entry(inner) else part
        for part, inner in zip(parts, types, strict=True)
    ]


def _is_entry(descriptor: Any) -> bool:
    return descriptor is not None and descriptor.GetOptions().map_entry


def _pack_varint(number: int) -> bytes:
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])
