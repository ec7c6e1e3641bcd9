"""OptimizerCurves: the parameter server's curves of its updates."""

import logging
from collections.abc import Callable, Mapping

from relaax_like.core.metrics import Metrics

_LOG = logging.getLogger(__name__)
# One point per second, however many pushes there are.
_EVERY_SEC = 1.0


class OptimizerCurves:
    """Curves of learning rates, the mean staleness of gradients, and what happened to gradients.

    Used by one thread at a time.

    Args:
      metrics: the recorder.
      clock: returns monotonic seconds.
    """

    def __init__(self, metrics: Metrics, clock: Callable[[], float]):
        self._metrics = metrics
        self._clock = clock
        self._begin(clock())

    def add_gradient(self, staleness: int) -> None:
        """Counts a gradient computed with values that are `staleness` versions old."""
        self._staleness += staleness
        self._gradients += 1

    def add_publish(self) -> None:
        """Counts an update published by a learner."""
        self._publishes += 1

    def record(
        self,
        global_t: int,
        get_learning_rates: Callable[[], Mapping[str, float]],
        counts: Mapping[str, int],
        now: bool = False,
    ) -> None:
        """Adds a point to each curve, if it is time and there was an update; raises nothing.

        Args:
          global_t: environment steps so far.
          get_learning_rates: returns the groups' learning rates; called only when it is time.
          counts: numbers of gradients, by what happened to them.
          now: add the points even if it is not yet time.
        """
        time_sec = self._clock()
        is_due = now or time_sec - self._since >= _EVERY_SEC
        if not is_due or not (self._gradients or self._publishes):
            return
        scalars: dict[str, float] = {}
        if self._gradients:
            scalars["Optimizer/staleness"] = self._staleness / self._gradients
        self._begin(time_sec)
        for group, rate in get_learning_rates().items():
            scalars[f"Optimizer/learning_rate/{group}"] = rate
        for name, count in counts.items():
            if count:
                scalars[f"Optimizer/gradients {name.replace('_', ' ')}"] = count
        try:
            for name, y in scalars.items():
                self._metrics.scalar(name, y, global_t)
        except Exception:  # a recorder must never stop the training
            _LOG.exception("metrics were lost")

    def _begin(self, since: float) -> None:
        self._since = since
        self._staleness = self._gradients = self._publishes = 0
