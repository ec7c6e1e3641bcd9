"""The base of the recorder and its remote stub: a bounded queue, emptied by one thread."""

import abc
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from relaax_like.core.metrics import Metrics
from relaax_like.wire.closing import Closing
from relaax_like.wire.errors import InvalidInputError

MAX_NAME_LENGTH = 200
# TensorBoard's steps are 64-bit integers; a float holds integers exactly up to here.
MAX_X = 2.0**53
DEFAULT_MAX_QUEUE = 100_000
# The name of a point that marks a start of the run, see `Metrics.start_at`; no curve has it.
START = ""
_FLUSH_INTERVAL_SEC = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Histogram:
    """The distribution of some numbers.

    Attributes:
      edges: of the bins, [bins + 1] float64, increasing.
      counts: how many numbers are in each bin, [bins] int64.
      total: the sum of the numbers.
      total_of_squares: the sum of their squares.
    """

    edges: np.ndarray
    counts: np.ndarray
    total: float
    total_of_squares: float


class Point(NamedTuple):
    """One point of a curve.

    Attributes:
      name: of the curve, or `START`.
      y: the value; for a histogram, its mean.
      x: the position, usually `global_t`.
      wall_time: seconds since 1970.
      histogram: replaces the value, or None.
    """

    name: str
    y: float
    x: float
    wall_time: float
    histogram: Histogram | None = None


def validate_point(name: str, y: float, x: float | None, field: str = "metric") -> None:
    """Checks that TensorBoard can show a point.

    Args:
      name: of the curve.
      y: the value.
      x: the position; None, for the newest `global_t`, is always valid.
      field: first word of the error.

    Raises:
      InvalidInputError: the name is not valid, `y` is not finite, or `x` is out of range.
    """
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_LENGTH or not name.isprintable():
        shown = repr(name)[:60] + (f" of length {len(name)}" if isinstance(name, str) else "")
        raise InvalidInputError(
            f"{field}: name {shown}, expected 1 to {MAX_NAME_LENGTH} printable characters"
        )
    if not math.isfinite(y):
        raise InvalidInputError(f"{field} {name!r}: y is {y}, expected a finite number", field)
    if x is not None and not abs(x) <= MAX_X:
        raise InvalidInputError(
            f"{field} {name!r}: x is {x}, expected a number from -2**53 to 2**53", field
        )


def select_valid(
    points: list[tuple[str, float, float | None]], field: str = "metric"
) -> tuple[list[tuple[str, float, float | None]], InvalidInputError | None]:
    """Returns the points that `validate_point` accepts, and the first error; None: no error.

    Args:
      points: (name, y, x).
      field: first word of the error.
    """
    names = {name for name, _, _ in points}
    if all(1 <= len(name) <= MAX_NAME_LENGTH and name.isprintable() for name in names):
        numbers = np.array([(y, 0.0 if x is None else x) for _, y, x in points]).reshape(-1, 2)
        if np.isfinite(numbers[:, 0]).all() and (np.abs(numbers[:, 1]) <= MAX_X).all():
            return points, None  # the usual case, in a tenth of the time
    valid, mistake = [], None
    for name, y, x in points:
        try:
            validate_point(name, y, x, field)
        except InvalidInputError as error:
            mistake = mistake or error
        else:
            valid.append((name, y, x))
    return valid, mistake


class BufferedMetrics(Metrics, Closing):
    """Queues points and passes them to `_consume` in one thread: about once a second, or sooner.

    Thread-safe. Recording never waits: if the queue is full, new points are dropped and counted.

    Args:
      thread_name: name of the thread.
      global_t: returns the x of points without one; must be fast. None: the largest x so far.
      max_queue: maximum number of points in memory, 1 or more.

    Raises:
      ValueError: `max_queue` is below 1.
    """

    def __init__(
        self,
        thread_name: str,
        global_t: Callable[[], float] | None = None,
        max_queue: int = DEFAULT_MAX_QUEUE,
    ):
        if max_queue < 1:
            raise ValueError(f"max_queue is {max_queue}, expected 1 or more")
        self._global_t = global_t
        self._max_queue = max_queue
        self._condition = threading.Condition()
        # All attributes below are guarded by _condition.
        self._points: list[Point] = []
        self._newest_x = 0.0
        self._dropped = 0
        self._taken = self._done = 0
        self._hurry = self._closing = False
        self._is_stuck = False  # no point could be consumed the last time
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)

    @property
    def dropped(self) -> int:
        """Number of lost points: not queued (queue full or closed), or not written or sent."""
        with self._condition:
            return self._dropped

    def scalar(self, name: str, y: float, x: float | None = None) -> None:
        """Records one point; see `Metrics.scalar`.

        Raises:
          InvalidInputError: the name is not valid, `y` is not finite, or `x` is out of range.
        """
        validate_point(name, y, x)
        self.store([(name, y, x)])

    def scalars(self, points: Sequence[tuple[str, float, float | None]]) -> int:
        """Records many points at once; see `Metrics.scalars`."""
        return self.store(points)

    def start_at(self, global_t: int) -> None:
        """Records a start of the run; see `Metrics.start_at`."""
        self.store([(START, 0.0, float(global_t))])

    def store(
        self,
        points: Sequence[tuple[str, float, float | None]],
        histogram: Histogram | None = None,
    ) -> int:
        """Records (name, y, x) points that were validated; returns how many were dropped.

        Args:
          points: (name, y, x); with a histogram, at most one point.
          histogram: replaces the point's value; None: a number. Not for recorders that send points.
        """
        newest = self._global_t() if self._global_t is not None else None
        now = time.time()
        with self._condition:
            room = 0 if self._closing else max(0, self._max_queue - len(self._points))
            for name, y, x in points[:room]:
                if x is None:
                    x = self._newest_x if newest is None else newest
                self._newest_x = max(self._newest_x, float(x))
                self._points.append(Point(name, float(y), float(x), now, histogram))
            self._taken += min(room, len(points))
            dropped = len(points) - min(room, len(points))
            self._dropped += dropped
            if 2 * len(self._points) >= self._max_queue:
                self._condition.notify_all()
        return dropped

    def flush(self, timeout_sec: float = 5.0) -> bool:
        """Waits until all points so far are written or dropped; returns False after the timeout.

        Returns True at once if the thread has ended.
        """
        with self._condition:
            target = self._taken
            self._hurry = True
            self._condition.notify_all()
            return self._condition.wait_for(
                lambda: self._done >= target or not self._thread.is_alive(), timeout_sec
            )

    def close(self, timeout_sec: float = 5.0) -> None:
        """Writes queued points and ends the thread; later points are dropped. Idempotent.

        Args:
          timeout_sec: longest wait; the thread continues afterwards.
        """
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join(timeout_sec)

    @abc.abstractmethod
    def _consume(self, points: list[Point], closing: bool) -> int:
        """Writes or sends points, in the thread.

        Args:
          points: the queued points, oldest first.
          closing: whether the recorder is being closed.

        Returns:
          How many of the first points are done. The others are passed again later; if `closing` is
          set and no point is done, they are dropped.
        """

    def _finish(self) -> None:
        """Releases files or channels, at the end of the thread."""

    def _start(self) -> None:
        self._thread.start()

    def _count_dropped(self, number: int) -> None:
        with self._condition:
            self._dropped += number

    def _run(self) -> None:
        try:
            while self._run_once():
                pass
        finally:
            self._finish()

    def _run_once(self) -> bool:
        """Waits until points are due and consumes them; returns False after the last time."""
        with self._condition:
            self._condition.wait_for(self._is_urgent, _FLUSH_INTERVAL_SEC)
            self._hurry = False
            closing = self._closing
            points = self._points[:]
        done = self._try_to_consume(points, closing) if points else 0
        more = 0 < done < len(points)
        with self._condition:
            del self._points[:done]
            if closing and not more:
                self._dropped += len(self._points)
                done += len(self._points)
                self._points.clear()
            self._done += done
            self._hurry |= more
            self._is_stuck = bool(points) and not done
            self._condition.notify_all()
        return more or not closing

    def _try_to_consume(self, points: list[Point], closing: bool) -> int:
        try:
            return self._consume(points, closing)
        except Exception:  # our own bug, which must not end the process
            _log.exception("points of curves were lost: %d", len(points))
            self._count_dropped(len(points))
            return len(points)

    def _is_urgent(self) -> bool:
        is_filling = 2 * len(self._points) >= self._max_queue and not self._is_stuck
        return self._hurry or self._closing or is_filling
