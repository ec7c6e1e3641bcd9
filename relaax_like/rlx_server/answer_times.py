"""How long a client's steps waited for their answers."""

import math

from relaax_like.core.metrics import Metrics

_INTERVAL_SEC = 1.0
# Percentiles are those of the newest one or two windows.
_WINDOW_SEC = 10.0
# Bins of equal width in the logarithm: 8 in each octave, so a percentile is 9 % too large at most.
_BINS_PER_OCTAVE = 8
_NUM_BINS = 27 * _BINS_PER_OCTAVE  # 1 us to 134 s


class AnswerTimes:
    """Counts the answers to one client by the time that they took. Used by one thread.

        times = AnswerTimes(metrics, limit_sec=0.02, now=time.monotonic())
        times.add(seconds, now)
        p50, p99 = times.find_percentiles(0.5, 0.99)

    Records curves about once a second: `server latency`, the mean, and `late answers`, their number
    if there is a limit.

    Args:
      metrics: the recorder.
      limit_sec: a longer answer is late; None: there is no limit.
      now: monotonic seconds.

    Attributes:
      limit_sec: as the argument.
      answers: their number.
      late: number of those that took longer than the limit.
    """

    def __init__(self, metrics: Metrics, limit_sec: float | None, now: float):
        self.limit_sec = limit_sec
        self.answers = 0
        self.late = 0
        self._metrics = metrics
        self._bins = [0] * _NUM_BINS
        self._bins_before = self._bins
        self._next_window = now + _WINDOW_SEC
        self._next_points = now + _INTERVAL_SEC
        self._sum = 0.0
        # At the newest points.
        self._answers_told = self._late_told = 0

    def add(self, seconds: float, now: float) -> None:
        """Adds an answer.

        Args:
          seconds: that it took.
          now: monotonic seconds.
        """
        self.answers += 1
        self._sum += seconds
        if self.limit_sec is not None and seconds > self.limit_sec:
            self.late += 1
        place = int(_BINS_PER_OCTAVE * math.log2(seconds * 1e6)) if seconds > 1e-6 else 0
        self._bins[min(place, _NUM_BINS - 1)] += 1
        if now >= self._next_points:
            self._record(now)

    def find_percentiles(self, *shares: float) -> list[float] | None:
        """Returns the seconds within which these shares of the answers came; None: there are none.

        Of the newest 10 to 20 seconds, each at most 9 % too large.
        """
        bins = self._bins
        if self._bins_before is not bins:
            bins = [one + other for one, other in zip(bins, self._bins_before, strict=True)]
        total = sum(bins)
        if not total:
            return None
        found = []
        for share in shares:
            place, seen = 0, bins[0]
            while seen < share * total:
                place += 1
                seen += bins[place]
            found.append(2 ** ((place + 1) / _BINS_PER_OCTAVE) / 1e6)
        return found

    def _record(self, now: float) -> None:
        self._next_points = now + _INTERVAL_SEC
        self._metrics.scalar("server latency", self._sum / (self.answers - self._answers_told))
        if self.limit_sec is not None:
            self._metrics.scalar("late answers", self.late - self._late_told)
        self._sum, self._answers_told, self._late_told = 0.0, self.answers, self.late
        if now >= self._next_window:
            self._next_window = now + _WINDOW_SEC
            self._bins, self._bins_before = [0] * _NUM_BINS, self._bins
