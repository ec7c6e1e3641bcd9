"""Metrics: the role that records curves, and the one that drops them."""

import abc
import math
from collections.abc import Sequence

import numpy as np


class Metrics(abc.ABC):
    """Records curves; returned by every `metrics()`."""

    @abc.abstractmethod
    def scalar(self, name: str, y: float, x: float | None = None) -> None:
        """Records one point, without waiting for a disk or another process.

        A point can be lost, but is never duplicated.

        Args:
          name: name of the curve, 1 to 200 characters.
          y: the value.
          x: position; None means the newest `global_t`.

        Raises:
          InvalidInputError: the name is not valid, `y` is not finite, or `x` is out of range.
        """

    def scalars(self, points: Sequence[tuple[str, float, float | None]]) -> int:
        """Records many points at once, each (name, y, x) as in `scalar`, already validated.

        Returns:
          The number of points that were dropped; 0 if the recorder does not count them.
        """
        for name, y, x in points:
            self.scalar(name, y, x)
        return 0

    def start_at(self, global_t: int) -> None:  # noqa: B027 - not every recorder needs it
        """Notes that the run starts or resumes at this step.

        Points that earlier starts recorded for later steps belong to steps that were lost.
        """

    def histogram(self, name: str, values: np.ndarray, x: float | None = None) -> None:
        """Records the distribution of numbers at one position of a curve; see `scalar`.

        Remote recorders store only points, so a histogram is reduced to three curves: `NAME/min`,
        `NAME/mean` and `NAME/max`.

        Args:
          name: name of the curve, 1 to 190 characters.
          values: numbers, any shape. Non-finite ones are ignored; if none are left, nothing is
            recorded.
          x: position; None means the newest `global_t`.

        Raises:
          InvalidInputError: the name is not valid, or `x` is out of range.
        """
        finite = select_finite(values)
        if finite.size:
            low, high = float(finite.min()), float(finite.max())
            self.scalar(f"{name}/min", low, x)
            self.scalar(f"{name}/mean", _compute_mean(finite, low, high), x)
            self.scalar(f"{name}/max", high, x)


def _compute_mean(values: np.ndarray, low: float, high: float) -> float:
    """Returns the mean of finite numbers between `low` and `high`, even if their sum overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(values.mean())
    if not math.isfinite(mean):
        with np.errstate(over="ignore"):  # by rounding
            mean = float((values / values.size).sum())
        mean = min(max(mean, low), high)
    return mean


def select_finite(values: np.ndarray) -> np.ndarray:
    """Returns the finite numbers, `[n] float64`."""
    flat = np.asarray(values, np.float64).ravel()
    return flat[np.isfinite(flat)]


class NullMetrics(Metrics):
    """Records nothing."""

    def scalar(self, name: str, y: float, x: float | None = None) -> None:
        """Drops the point."""
