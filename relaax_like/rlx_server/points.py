"""How many points of curves are taken from clients."""

import threading
import time
from collections.abc import Callable

# A client sends one point per second by itself, and a few per episode.
POINTS_PER_SECOND = 2_000
POINTS_AT_ONCE = 10_000
POINTS_PER_SECOND_TOGETHER = 20_000


class PointBudget:
    """A token bucket. Thread-safe.

    Args:
      per_second: points that it gains.
      at_once: most that it holds, and has at first.
      clock: seconds, growing.
    """

    def __init__(
        self,
        per_second: float = POINTS_PER_SECOND,
        at_once: float = POINTS_AT_ONCE,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._per_second = per_second
        self._at_once = at_once
        self._clock = clock
        self._lock = threading.Lock()
        self._points = at_once  # guarded by _lock, like the next one
        self._counted_at = clock()

    def take(self, points: int) -> int:
        """Takes as many points as there are, at most `points`; returns how many."""
        with self._lock:
            now = self._clock()
            gained = (now - self._counted_at) * self._per_second
            self._points = min(self._at_once, self._points + gained)
            self._counted_at = now
            taken = min(points, int(self._points))
            self._points -= taken
        return taken


def make_shared_budget() -> PointBudget:
    """Makes the bucket of all clients together."""
    return PointBudget(POINTS_PER_SECOND_TOGETHER, POINTS_PER_SECOND_TOGETHER)
