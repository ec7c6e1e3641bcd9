"""What ends a training run, and which clients have been notified of the end."""

import logging
import math
import threading
import time

from relaax_like.parameter_server.statistics import Statistics
from relaax_like.wire.errors import ConfigError

_LOG = logging.getLogger(__name__)
_POLL_SEC = 0.02


class StopCondition:
    """Notes when the training has ended, which is final. Thread-safe.

    Attributes:
      reason: what ended the training, or "" while it continues.
      told: clients that have been notified of the end.
    """

    def __init__(
        self,
        max_global_step: int | None = None,
        target_return: float | None = None,
        *,
        target_score: float | None = None,
        max_episodes: int | None = None,
    ):
        """Waits for the first of these.

        Args:
          max_global_step: environment steps after which the training ends; None: no limit.
          target_return: mean return of a full window of newest episodes that ends the training;
            None: no target.
          target_score: mean return of an evaluation that ends the training; requires snapshots.
            None: no target.
          max_episodes: training episodes after which the training ends; None: no limit.

        Raises:
          ConfigError: a number is out of range.
        """
        if max_global_step is not None and not max_global_step > 0:
            raise ConfigError(f"max_global_step: {max_global_step}, expected more than 0")
        if target_return is not None and not math.isfinite(target_return):
            raise ConfigError(
                f"target_return: {target_return}, expected a finite mean return "
                "(learner.target_return)"
            )
        self.reason = ""
        self.told: set[str] = set()
        self._max_global_step = max_global_step
        self._target_return = target_return
        self._target_score = target_score
        self._max_episodes = max_episodes
        self._lock = threading.Lock()  # guards changes of `reason`
        self._ended = threading.Event()
        self._judged = 0  # episodes

    def check(self, global_t: int, statistics: Statistics) -> None:
        """Ends the training if the budget is used up, or the newest episodes reach the target."""
        if self.reason:
            return
        target = self._target_return
        if self._max_global_step is not None and global_t >= self._max_global_step:
            self._end(f"budget of {self._max_global_step} env steps used up")
        elif self._max_episodes is not None and statistics.episodes >= self._max_episodes:
            self._end(f"budget of {self._max_episodes} episodes used up")
        elif target is not None and statistics.episodes != self._judged:
            self._judged = statistics.episodes
            means = statistics.means
            mean = means.mean_return
            if means.is_full and mean is not None and mean >= target:
                self._end(
                    f"mean return {mean:g} of the last {means.return_episodes} episodes reached "
                    f"the target {target:g}"
                )

    def check_score(self, best_score: float | None) -> None:
        """Ends the training if the best mean return of an evaluation reaches the target score."""
        target = self._target_score
        if target is not None and best_score is not None and best_score >= target:
            self._end(f"mean return {best_score:g} of an evaluation reached the target {target:g}")

    def _end(self, reason: str) -> None:
        with self._lock:
            if self.reason:
                return
            self.reason = reason
        _LOG.info("training has finished: %s", reason)
        self._ended.set()

    def note_notified(self, client_id: str) -> None:
        """Notes that a client has been notified of the end."""
        self.told.add(client_id)

    def wait(self, timeout_sec: float | None) -> str:
        """Waits for the end; returns what ended the training, or "" on timeout."""
        self._ended.wait(timeout_sec)
        return self.reason

    def wait_notified(self, statistics: Statistics, timeout_sec: float) -> None:
        """Waits until all present clients are notified; see `ParameterServer.wait_notified`."""
        deadline = time.monotonic() + timeout_sec
        while time.monotonic() < deadline:
            present = statistics.client_ids
            if present and present <= self.told:
                return
            time.sleep(_POLL_SEC)
