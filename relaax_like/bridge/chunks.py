"""Splits flat vectors into chunks, and joins them: one large gRPC message is far slower."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from relaax_like.wire.errors import InvalidInputError

CHUNK_BYTES = 512 * 1024


def split(flat: np.ndarray, chunk_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
    """Yields views of successive parts of a vector.

    Args:
      flat: `[n] uint8`.
      chunk_bytes: length of each part, except the last one.
    """
    view = flat.data
    for start in range(0, len(view), chunk_bytes):
        yield view[start : start + chunk_bytes]


def split_first(flat: np.ndarray | None) -> tuple[bytes, Iterator[memoryview]]:
    """Returns what is sent in the header of a vector, and the chunks after it.

    Args:
      flat: `[n] uint8`; None: nothing is sent.
    """
    if flat is None:
        return b"", iter(())
    return (flat.tobytes(), iter(())) if fits_one(flat.nbytes) else (b"", split(flat))


def fits_one(num_bytes: int) -> bool:
    """Returns whether a vector of `num_bytes` fits one chunk."""
    return num_bytes <= CHUNK_BYTES


def read_vector(
    parts: Iterator[Any],
    num_bytes: int,
    field: str,
    first: bytes = b"",
    buffer: np.ndarray | None = None,
) -> np.ndarray:
    """Joins the next chunks of a stream into a vector, `[num_bytes] uint8`.

    Nothing that the sender sends is trusted; nothing is read beyond the vector.

    Args:
      parts: the stream.
      num_bytes: length of the vector.
      field: name of the vector, for errors.
      first: its beginning, which came with the header.
      buffer: the vector to fill; None: a new one.

    Raises:
      InvalidInputError: a message is not a chunk, the stream ends, or there are too many bytes.
    """
    flat = np.empty(num_bytes, np.uint8) if buffer is None else buffer
    filled = 0
    chunk: bytes | memoryview = first
    while True:
        end = filled + len(chunk)
        if end > num_bytes:
            raise _make_error(field, f"{end} bytes or more", num_bytes)
        flat[filled:end] = np.frombuffer(chunk, np.uint8)
        filled = end
        if filled == num_bytes:
            return flat
        part = next(parts, None)
        if part is None:
            raise _make_error(field, f"{filled} bytes", num_bytes)
        if isinstance(part, memoryview):
            chunk = part
        elif part.HasField("chunk"):
            chunk = part.chunk
        else:
            came = "a second header, or another message that is not a chunk"
            raise _make_error(field, came, num_bytes)


def _make_error(field: str, came: str, num_bytes: int) -> InvalidInputError:
    return InvalidInputError(
        f"{field}: received {came}, expected {num_bytes}; send as many bytes after a header as it "
        "says, and run the same version of relaax_like with the same settings on both ends"
    )
