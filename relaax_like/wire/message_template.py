"""Layouts: the bytes of a serialised message that stay the same if only array data changes.

Numbers of a fixed size, such as that of a step, can also change.

Most messages of a dialogue are of this kind. Comparing everything except the data, and reading the
data in place, takes a fraction of the time of parsing and checking each message.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from relaax_like.v1 import ndarray_pb2
from relaax_like.wire.fields import BYTES, FIXED32, FIXED64, walk_fields

_ARRAY = ndarray_pb2.NdArray.DESCRIPTOR.full_name
_DATA = ndarray_pb2.NdArray.DESCRIPTOR.fields_by_name["data"].number

# Names of the fields that lead to an array; for an entry of a map, its key.
Path = tuple[str, ...]


@dataclass(frozen=True)
class Span:
    """The position of an array's data, or of a number: bytes [start, stop) of the message.

    Attributes:
      path: names of the fields that lead to it; for an entry of a map, its key.
      start: first byte.
      stop: byte after the last one.
    """

    path: Path
    start: int
    stop: int


class Layout:
    """Compares and fills messages that differ from a given one only in array data and numbers.

        layout = Layout(body, rlx_pb2.ClientMessage.DESCRIPTOR)
        if layout.fits(next_body):  # the same names, dtypes, shapes, numbers ...
            array = np.frombuffer(next_body, dtype, count, layout.spans[0].start)
        body = layout.fill([array.tobytes() for array in arrays])

    Attributes:
      spans: of the non-empty arrays that are not in `fixed`, and of `numbers`, in the order of the
        bytes.

    Args:
      body: a serialised message that has been parsed without an error.
      descriptor: of its class.
      fixed: paths of arrays whose data also stay the same; they have no spans.
      numbers: paths of fields of type fixed32 or fixed64 that can change, if the message has them.

    Raises:
      ValueError: the body has bytes that are not a field, or a group; see `walk_fields`.
    """

    def __init__(
        self,
        body: bytes,
        descriptor: Any,
        fixed: Collection[Path] = (),
        numbers: Collection[Path] = (),
    ):
        self.spans: Sequence[Span] = tuple(
            span
            for span in _find_spans(body, descriptor, 0, len(body), (), numbers)
            if span.path not in fixed
        )
        self._length = len(body)
        starts = [0, *(span.stop for span in self.spans)]
        stops = [*(span.start for span in self.spans), len(body)]
        self._fixed = [
            (start, stop, body[start:stop]) for start, stop in zip(starts, stops, strict=True)
        ]
        self._parts = [b""] * (2 * len(self.spans) + 1)
        self._parts[::2] = [part for _, _, part in self._fixed]

    def fits(self, body: bytes) -> bool:
        """Returns whether a message differs from this one only within `spans`."""
        if len(body) != self._length:
            return False
        for start, stop, part in self._fixed:  # noqa: SIM110 - twice as fast as `all`
            if body[start:stop] != part:
                return False
        return True

    def fill(self, data: Sequence[bytes]) -> bytes:
        """Returns the message with other data, in the order and with the lengths of `spans`."""
        parts = self._parts.copy()
        parts[1::2] = data
        body = b"".join(parts)
        assert len(body) == self._length, "data of a different length"
        return body


def _find_spans(
    body: bytes,
    descriptor: Descriptor,
    start: int,
    stop: int,
    path: Path,
    numbers: Collection[Path],
) -> Iterator[Span]:
    """Walks through a message's fields; see https://protobuf.dev/programming-guides/encoding."""
    is_array = descriptor.full_name == _ARRAY
    if descriptor.GetOptions().map_entry:
        path = (*path, _read_key(body, start, stop))
    for number, kind, begin, end in walk_fields(body, start, stop):
        field: Any = descriptor.fields_by_number.get(number)
        if field is None:
            continue
        if kind in (FIXED32, FIXED64) and (*path, field.name) in numbers:
            yield Span((*path, field.name), begin, end)
        if kind != BYTES:
            continue
        if is_array and number == _DATA:
            yield Span(path, begin, end)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            inside = field.message_type
            # The value of a map's entry does not have its own name.
            below = path if descriptor.GetOptions().map_entry else (*path, field.name)
            yield from _find_spans(body, inside, begin, end, below, numbers)


def _read_key(body: bytes, start: int, stop: int) -> str:
    key = ""
    for number, kind, begin, end in walk_fields(body, start, stop):
        if number == 1 and kind == BYTES:
            key = body[begin:end].decode(errors="replace")  # the last one counts
    return key
