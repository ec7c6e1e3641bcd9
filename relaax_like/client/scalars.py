"""Metrics of a client: buffered here, sent periodically."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator

from relaax_like.v1 import metrics_pb2
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.framing import MAX_MESSAGE_BYTES

_POINTS_PER_MESSAGE = 1000
# Most bytes of a message around each point.
_POINT_BYTES = 8
# Bounds the memory while the server is away; the oldest points go first.
_MAX_POINTS = 10_000
_MAX_NAME_LENGTH = 200


class ScalarBuffer:
    """Buffers points until they are sent: every `interval_sec`, or when 1000 have accumulated.

    Attributes:
      dropped: number of points that were dropped because too many were waiting, or because one was
        too long to send.
    """

    def __init__(
        self, interval_sec: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Makes an empty buffer.

        Args:
          interval_sec: time after a send until the next one is due; a full buffer is due at once.
            Latencies are averaged over the same time, so that not every step requires a message.
          clock: returns monotonic seconds.
        """
        self.dropped = 0
        self._interval_sec = interval_sec
        self._clock = clock
        self._points: deque[metrics_pb2.Scalar] = deque(maxlen=_MAX_POINTS)
        self._sent_at = self._measured_at = clock()
        self._latencies: list[float] = []  # of the interval at hand

    def __len__(self) -> int:
        return len(self._points)

    @property
    def full(self) -> bool:
        """Whether enough points for a full message are waiting."""
        return len(self._points) >= _POINTS_PER_MESSAGE

    @property
    def due(self) -> bool:
        """Whether it is time to send."""
        if not self._points:
            return False
        return self.full or self._clock() - self._sent_at >= self._interval_sec

    def append(self, name: str, y: float, x: float | None = None) -> None:
        """Adds a point. If the buffer is full, the oldest one is dropped, and counted.

        Raises:
          InvalidInputError: the name is not a text of 1 to 200 characters, or `y` or `x` is not a
            finite number.
        """
        if not isinstance(name, str):
            raise InvalidInputError(f"scalar: name is {name!r:.60}, expected a text", "name")
        if not 1 <= len(name) <= _MAX_NAME_LENGTH:
            raise InvalidInputError(
                f"scalar: name {name[:60]!r} of {len(name)} characters, expected 1 to "
                f"{_MAX_NAME_LENGTH}",
                "name",
            )
        for field, number in (("y", y), ("x", 0.0 if x is None else x)):
            if not _is_finite(number):
                raise InvalidInputError(
                    f"scalar {name!r}: {field} is {str(number)[:60]}, expected a finite number",
                    field,
                )
        self.dropped += len(self._points) == _MAX_POINTS
        self._points.append(metrics_pb2.Scalar(name=name, y=y, x=x))

    def measure(self, latency_sec: float) -> None:
        """Adds a latency; adds a point with the mean of each interval, if the interval is over."""
        self._latencies.append(latency_sec)
        if self._clock() - self._measured_at >= self._interval_sec:
            self.end_interval()

    def end_interval(self) -> None:
        """Adds a point with the mean of the latencies so far, if there are any."""
        latencies, self._latencies = self._latencies, []
        self._measured_at = self._clock()
        if latencies:
            self.append("client latency", sum(latencies) / len(latencies), None)

    def take(self, max_bytes: int = MAX_MESSAGE_BYTES) -> Iterator[metrics_pb2.StoreScalarsRequest]:
        """Yields the points as messages; removes a message's points just before it is yielded.

        Args:
          max_bytes: longest message; points that do not fit in one are dropped.
        """
        self._sent_at = self._clock()
        while self._points:
            request, size = metrics_pb2.StoreScalarsRequest(), 0
            while self._points and len(request.scalars) < _POINTS_PER_MESSAGE:
                size += self._points[0].ByteSize() + _POINT_BYTES
                if size > max_bytes:
                    break
                request.scalars.append(self._points.popleft())
            if request.scalars:
                yield request
            else:
                self._points.popleft()
                self.dropped += 1


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except (TypeError, OverflowError):  # no number, or an int that no float can represent
        return False
