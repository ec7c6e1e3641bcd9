"""Reused buffers: a new version is written to a buffer that is no longer being read.

Each version has its own buffer, which readers see through a read-only array. A buffer is never
written to while that array, or any view of it, is alive; a weak reference to the array shows
whether it is. Usually two buffers alternate; while a slow reader keeps an old version, one
more is allocated.
"""

import weakref

import numpy as np

# Maximum number of buffers in a pool, besides the newest one; any others are freed once their
# readers release them.
_MAX_POOLED = 4


class BufferPool:
    """Reuses buffers of one length. One thread takes and publishes; other threads only read.

    Args:
      num_bytes: length of each buffer.
    """

    def __init__(self, num_bytes: int):
        self._num_bytes = num_bytes
        self._published: list[tuple[weakref.ref[np.ndarray], np.ndarray]] = []

    def take(self) -> np.ndarray:
        """Returns a writable buffer that no reader sees: [num_bytes] uint8, content undefined."""
        for index, (readable, buffer) in enumerate(self._published):
            if readable() is None:
                del self._published[index]
                return buffer
        return np.empty(self._num_bytes, np.uint8)

    def publish(self, buffer: np.ndarray) -> np.ndarray:
        """Returns a buffer as a read-only array; the buffer must not be written to from now on."""
        # Made from a memoryview, this array stays alive as long as any view of it does. If it were
        # itself a view, views of it would only keep the buffer alive.
        readable = np.frombuffer(buffer.data.toreadonly(), np.uint8)
        self._published = [*self._published[-_MAX_POOLED:], (weakref.ref(readable), buffer)]
        return readable
