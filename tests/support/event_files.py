"""Reads event files back, for tests and small reports; strict, and without TensorFlow."""

import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from relaax_like.metrics.tensorboard_files import Event, masked_crc32c
from relaax_like.wire.errors import InvalidInputError

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")


def read_scalars(directory: str | Path) -> dict[str, list[tuple[int, float]]]:
    """Returns the (x, y) points of each curve in a directory's event files, in their order.

    Histograms are left out.

    Raises:
      InvalidInputError: a file is damaged.
    """
    curves: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for path in sorted(Path(directory).glob("events.out.tfevents.*")):
        for event in read_events(path):
            for value in event.summary.value:
                if value.WhichOneof("value") != "simple_value":
                    continue
                curves[value.tag].append((event.step, value.simple_value))
    return dict(curves)


def read_events(path: Path) -> Iterator[Event]:
    """Yields the events of a file.

    Raises:
      InvalidInputError: it is damaged.
    """
    data = path.read_bytes()
    start = 0
    while start < len(data):
        header, start = _take(path, data, start, _LENGTH.size)
        body, start = _take(path, data, start, _LENGTH.unpack(header)[0])
        yield Event.FromString(body)


def _take(path: Path, data: bytes, start: int, length: int) -> tuple[bytes, int]:
    """Returns `length` bytes, which are followed by their CRC, and the start of the next part."""
    end = start + length
    part, crc = data[start:end], data[end : end + _CRC.size]
    if len(crc) != _CRC.size or _CRC.unpack(crc)[0] != masked_crc32c(part):
        raise InvalidInputError(f"{path}: damaged at byte {start}")
    return part, end + _CRC.size
