"""Splits flat vectors into chunks, and joins them: one large gRPC message is far slower."""

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
    """Joins chunks into a vector of known length; nothing that the sender sends is trusted.

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
    def filled(self) -> int:
        """Number of bytes that have arrived."""
        return self._filled

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
                f"{self._field}: received {end} bytes or more, expected {len(self._flat)}; run "
                "the same version of relaax_like with the same settings on both ends",
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
                f"{self._field}: received {self._filled} bytes, expected {len(self._flat)}; run "
                "the same version of relaax_like with the same settings on both ends",
                self._field,
            )
        return self._flat


def read_vector(parts: Iterator[Any], num_bytes: int, field: str) -> np.ndarray:
    """Joins the next chunks of a stream into a vector, `[num_bytes] uint8`.

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
            came = "the end of the stream" if part is None else "a message that is not a chunk"
            raise InvalidInputError(
                f"{field}: received {came} after {assembler.filled} bytes, expected chunks of "
                f"{num_bytes} bytes in total; run the same version of relaax_like with the same "
                "settings on both ends",
                field,
            )
        assembler.add(cast(memoryview, part))
    return assembler.finish()
