"""Flat vectors as streams of chunks: a single large gRPC message is several times slower."""

from collections.abc import Iterator
from typing import Any, cast

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


def fits_one(num_bytes: int) -> bool:
    """Returns whether a vector of `num_bytes` fits one chunk."""
    return num_bytes <= CHUNK_BYTES


class Assembler:
    """Joins chunks to a vector of known length, whatever the sender sends.

        assembler = Assembler(manifest.gradient_bytes, "gradient")
        for chunk in chunks:
            assembler.add(chunk)
        flat = assembler.finish()

    Args:
      num_bytes: length of the vector.
      field: name of the vector, for errors.
      buffer: `[num_bytes] uint8`, the vector to fill; None: a new one.
    """

    def __init__(self, num_bytes: int, field: str, buffer: np.ndarray | None = None):
        self._flat = np.empty(num_bytes, np.uint8) if buffer is None else buffer
        self._field = field
        self._filled = 0

    @property
    def complete(self) -> bool:
        """Whether all bytes have arrived."""
        return self._filled == len(self._flat)

    def add(self, chunk: bytes | memoryview) -> None:
        """Appends a chunk.

        Raises:
          InvalidInputError: there are more bytes than the vector has.
        """
        end = self._filled + len(chunk)
        if end > len(self._flat):
            raise InvalidInputError(
                f"{self._field}: received more than the expected {len(self._flat)} bytes",
                self._field,
            )
        self._flat[self._filled : end] = np.frombuffer(chunk, np.uint8)
        self._filled = end

    def finish(self) -> np.ndarray:
        """Returns the vector, `[num_bytes] uint8`.

        Raises:
          InvalidInputError: bytes are missing.
        """
        if self._filled != len(self._flat):
            raise InvalidInputError(
                f"{self._field}: received {self._filled} bytes, expected {len(self._flat)}",
                self._field,
            )
        return self._flat


def read_vector(parts: Iterator[Any], num_bytes: int, field: str) -> np.ndarray:
    """Joins the next chunks of a stream to a vector, `[num_bytes] uint8`.

    Args:
      parts: messages, of which those that are memoryviews are chunks.
      num_bytes: length of the vector.
      field: name of the vector, for errors.

    Raises:
      InvalidInputError: a message is not a chunk, the stream ends, or there are too many bytes.
    """
    assembler = Assembler(num_bytes, field)
    while not assembler.complete:
        part = next(parts, None)
        if not isinstance(part, memoryview):
            raise InvalidInputError(
                f"{field}: the stream ended, or another message came, before its {num_bytes} bytes",
                field,
            )
        assembler.add(cast(memoryview, part))
    return assembler.finish()
