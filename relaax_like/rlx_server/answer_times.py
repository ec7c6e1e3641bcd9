"""How long a client's steps waited for their answers."""

from collections.abc import Sequence

import numpy as np

from relaax_like.core.metrics import Metrics

_INTERVAL_SEC = 1.0
# Percentiles cover the newest one or two windows.
_WINDOW_SEC = 10.0
# Bins of equal width in the logarithm: 8 in each octave, so a percentile is 9 % too large at most.
_BINS_PER_OCTAVE = 8
_NUM_BINS = 27 * _BINS_PER_OCTAVE  # 1 us to 134 s


class AnswerTimes:
    """Counts the answers to one client by how long they took. One thread adds, any can read.

        times = AnswerTimes(metrics, limit_sec=0.02, now=time.monotonic())
        times.add(seconds, now)
        p50, p99 = times.find_percentiles(0.5, 0.99)

    Records curves about once a second, while answers come: `server latency`, their mean in seconds,
    and, if there is a limit, `late answers`, the number of late ones.

    Args:
      metrics: the recorder.
      limit_sec: a longer answer is late; None: there is no limit.
      now: monotonic seconds.

    Attributes:
      limit_sec: as the argument.
      late: number of answers that took longer than the limit.
    """

    def __init__(self, metrics: Metrics, limit_sec: float | None, now: float):
        self.limit_sec = limit_sec
        self.late = 0
        self._metrics = metrics
        self._counted = 0
        # Not in a bin yet: sorting them into bins together takes a fraction of the time.
        self._newest: list[float] = []
        self._bins = np.zeros(_NUM_BINS, np.int64)
        self._bins_before = self._bins
        self._next_window = now + _WINDOW_SEC
        self._next_points = now + _INTERVAL_SEC
        self._late_told = 0

    @property
    def answers(self) -> int:
        """Number of answers so far."""
        return self._counted + len(self._newest)

    def add(self, seconds: float, now: float) -> None:
        """Adds an answer.

        Args:
          seconds: how long it took.
          now: monotonic seconds.
        """
        self._newest.append(seconds)
        if self.limit_sec is not None and seconds > self.limit_sec:
            self.late += 1
        if now >= self._next_points:
            self._record(now)

    def find_percentiles(self, *shares: float) -> list[float] | None:
        """Returns the seconds within which these shares of the answers came; None: no answers yet.

        Shares are from 0 to 1. The answers of the current window and of the one before count; a
        window lasts 10 to 11 s, and longer while no answers come. Each result is at most 9 % too
        large, except for times below 1 us, and 134 s at most.
        """
        bins = self._bins + _count(self._newest)
        if self._bins_before is not self._bins:
            bins += self._bins_before
        total = bins.sum()
        if not total:
            return None
        places = np.searchsorted(np.cumsum(bins), np.asarray(shares) * total)
        return [float(2 ** ((place + 1) / _BINS_PER_OCTAVE) / 1e6) for place in places]

    def _record(self, now: float) -> None:
        newest = self._newest
        self._next_points = now + _INTERVAL_SEC
        self._metrics.scalar("server latency", sum(newest) / len(newest))
        if self.limit_sec is not None:
            self._metrics.scalar("late answers", self.late - self._late_told)
        self._late_told = self.late
        self._bins = self._bins + _count(newest)
        self._counted += len(newest)
        self._newest = []
        if now >= self._next_window:
            self._next_window = now + _WINDOW_SEC
            self._bins, self._bins_before = np.zeros_like(self._bins), self._bins


def _count(seconds: Sequence[float]) -> np.ndarray:
    """Returns the number of times in each bin."""
    us = np.maximum(np.array(seconds) * 1e6, 1.0)
    places = np.minimum((_BINS_PER_OCTAVE * np.log2(us)).astype(np.int64), _NUM_BINS - 1)
    return np.bincount(places, minlength=_NUM_BINS)
