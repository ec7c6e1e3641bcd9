"""Averages numbers over a second, for the curves, because an update can take a millisecond."""

import math
import time
from collections.abc import Mapping

import numpy as np

from relaax_like.core.metrics import Metrics

# Curve: versions between the values that acted and those that learn from it, in each placement.
LAG = "Train/Lag"
_EVERY_SEC = 1.0


class Means:
    """Averages numbers by name; records the means about once a second, the first ones immediately.

    Not thread-safe.

    Args:
      metrics: the recorder.
    """

    def __init__(self, metrics: Metrics):
        self._metrics = metrics
        self._since = -math.inf
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, numbers: Mapping[str, float], x: float | None = None) -> None:
        """Adds numbers by the names of their curves, except those that are not finite.

        Args:
          numbers: name -> number.
          x: of the points, if any are recorded now; None: the newest `global_t`.

        Raises:
          InvalidInputError: the name of a curve is not valid; see `Metrics.scalar`.
        """
        for name, number in numbers.items():
            if np.isfinite(number):
                self._sums[name] = self._sums.get(name, 0.0) + number
                self._counts[name] = self._counts.get(name, 0) + 1
        now = time.monotonic()
        if now - self._since >= _EVERY_SEC:
            self.record(x)

    def record(self, x: float | None = None) -> None:
        """Records the means now, and starts over; raises the same as `add`."""
        sums, counts = self._sums, self._counts
        self._since = time.monotonic()
        self._sums, self._counts = {}, {}
        for name, total in sums.items():
            self._metrics.scalar(name, total / counts[name], x)
