"""Curve points that clients send: how many are accepted, and how they reach the recorder."""

import logging
import threading
import time
import traceback
from collections.abc import Callable, Sequence

from relaax_like.core.metrics import Metrics
from relaax_like.metrics.buffered import select_valid
from relaax_like.rlx_server.client_log import MAX_TRACE_LENGTH, ClientLog, shorten
from relaax_like.v1 import metrics_pb2

# A client sends one point per second on its own, and a few per episode.
POINTS_PER_SECOND = 2_000
POINTS_AT_ONCE = 10_000
POINTS_PER_SECOND_TOGETHER = 20_000
# Maximum number of points of one message; number of points stored in one turn of the event loop.
MAX_POINTS = 10_000
POINTS_PER_TURN = 500
_LIMITS = (
    f"more than {POINTS_PER_SECOND:,} points per second from this client, "
    f"{POINTS_PER_SECOND_TOGETHER:,} from all, or {MAX_POINTS:,} in one message; send fewer"
)


class PointBudget:
    """A token bucket. Thread-safe.

    Args:
      per_second: number of points added per second.
      at_once: maximum number of points that it holds; it starts full.
      clock: returns monotonic seconds.
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
        """Takes as many points as are available, at most `points`; returns how many."""
        with self._lock:
            now = self._clock()
            gained = (now - self._counted_at) * self._per_second
            self._points = min(self._at_once, self._points + gained)
            self._counted_at = now
            taken = min(points, int(self._points))
            self._points -= taken
        return taken


def make_shared_budget() -> PointBudget:
    """Makes the bucket that all clients share."""
    return PointBudget(POINTS_PER_SECOND_TOGETHER, POINTS_PER_SECOND_TOGETHER)


class GatheredMetric:
    """Sends the sum of what was added, or its mean, about once a second: points are too many.

    Args:
      metrics: the recorder.
      name: of the curve.
      is_mean: whether it is the mean.
      interval_sec: shortest time between two points, except by `flush`.
    """

    def __init__(
        self, metrics: Metrics, name: str, is_mean: bool = False, interval_sec: float = 1.0
    ):
        self._metrics = metrics
        self._name = name
        self._is_mean = is_mean
        self._interval_sec = interval_sec
        self._sum, self._count = 0.0, 0
        self._next = time.monotonic() + interval_sec

    def add(self, value: float) -> None:
        """Adds one number."""
        self._sum += value
        self._count += 1
        if time.monotonic() >= self._next:
            self.flush()

    def flush(self) -> None:
        """Sends what was added since the last point, if anything."""
        if self._count:
            self._metrics.scalar(self._name, self._sum / (self._count if self._is_mean else 1))
        self._sum, self._count = 0.0, 0
        self._next = time.monotonic() + self._interval_sec


class ClientPoints:
    """Passes the points of one client to the recorder, as many as the budgets allow.

        points.take(message.scalars.scalars, "walker", log)
        while points.store():
            ...                     # others have their turn

    Attributes:
      shared: the budget of all clients together; None: no such limit.
      dropped: number of points of the newest message that exceeded the budgets, or the maximum of
        one message.

    Args:
      metrics: the recorder.
    """

    def __init__(self, metrics: Metrics):
        self.shared: PointBudget | None = None
        self.dropped = 0
        self._metrics = metrics
        self._budget = PointBudget()
        self._drops = GatheredMetric(metrics, "dropped points")
        self._client_name = ""
        self._log = ClientLog(logging.getLogger(__name__))
        self._scalars: Sequence[metrics_pb2.Scalar] = ()
        # Number of them that are to be stored, that have been read, and that were valid.
        self._taken = self._done = self._stored = 0
        self._mistake: Exception | None = None

    def ignore(self, scalars: Sequence[metrics_pb2.Scalar]) -> None:
        """Counts a message against the client's budget, but stores nothing.

        Reading it costs as much as reading a message whose points are stored.
        """
        self.dropped = len(scalars) - self._budget.take(min(len(scalars), MAX_POINTS))

    def take(self, scalars: Sequence[metrics_pb2.Scalar], client_name: str, log: ClientLog) -> None:
        """Accepts a message; `store` then stores as many of its points as the budgets allow.

        Args:
          scalars: the points.
          client_name: for the log.
          log: receives the lines about dropped points.
        """
        taken = self._budget.take(min(len(scalars), MAX_POINTS))
        if self.shared is not None:
            taken = self.shared.take(taken)
        self.dropped = len(scalars) - taken
        self._scalars, self._taken, self._done, self._stored = scalars, taken, 0, 0
        self._mistake, self._client_name, self._log = None, client_name, log

    def store(self) -> bool:
        """Stores some points of the newest message; returns whether some are left.

        Of the points that the budgets allow, it drops those that are invalid, and no others; unless
        the recorder raises an error, which is logged, and after which the rest is lost.
        """
        if not self._scalars:
            return False
        try:
            return self._store_some()
        except Exception:
            self._log_failure()
            return False

    def _store_some(self) -> bool:
        start, self._done = self._done, min(self._done + POINTS_PER_TURN, self._taken)
        valid, mistake = select_valid(
            [
                (s.name, s.y, s.x if s.HasField("x") else None)
                for s in self._scalars[start : self._done]
            ],
            "scalars",
        )
        self._metrics.scalars(valid)
        self._stored += len(valid)
        self._mistake = self._mistake or mistake
        if self._done < self._taken:
            return True
        self._tell_dropped()
        self._scalars = ()
        return False

    def close(self) -> None:
        """Stores the remaining points, and records how many were dropped."""
        while self.store():
            pass
        try:
            self._drops.flush()
        except Exception:
            self._log_failure()

    def _log_failure(self) -> None:
        """Logs an error of the recorder, and discards what is left of the newest message."""
        self._scalars = ()
        self._log.write(
            logging.ERROR,
            "%s: its curve points could not be recorded, and are lost",
            self._client_name,
            trace=shorten(traceback.format_exc(), MAX_TRACE_LENGTH),
        )

    def _tell_dropped(self) -> None:
        dropped = len(self._scalars) - self._stored
        if not dropped:
            return
        self._drops.add(dropped)
        self._log.write(
            logging.WARNING,
            "%s: dropped %d of %d curve points: %s",
            self._client_name,
            dropped,
            len(self._scalars),
            self._mistake or _LIMITS,
        )
