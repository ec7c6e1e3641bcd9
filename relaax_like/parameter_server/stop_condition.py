"""What ends a training run, and which clients have been notified of the end."""

import logging
import math
import threading
import time
from dataclasses import dataclass

from relaax_like.parameter_server.statistics import DEFAULT_WINDOW, Statistics
from relaax_like.wire.errors import ConfigError

_LOG = logging.getLogger(__name__)
_POLL_SEC = 0.02


@dataclass(frozen=True)
class Target:
    """Training ends when the mean return of the newest episodes is at least `mean_return`.

    Attributes:
      mean_return: a finite number.
      episodes: number of newest episodes in the mean, not fewer; 1 or more. The same number of each
        slot; see `TrainingReturns`.

    Raises:
      ConfigError: a number is out of range.
    """

    mean_return: float
    episodes: int = DEFAULT_WINDOW

    def __post_init__(self) -> None:
        if not math.isfinite(self.mean_return) or self.episodes < 1:
            raise ConfigError(
                f"target: mean_return {self.mean_return}, episodes {self.episodes}; expected a "
                "finite mean_return (learner.target_return), and 1 or more episodes "
                "(learner.target_episodes)"
            )


class StopCondition:
    """Notes when the training has ended, which is final. Thread-safe.

    Args:
      max_global_step: environment steps after which the training ends; None: no limit.
      target: mean return that ends the training; None: no target.
      target_score: mean return of an evaluation that ends the training; None: no target.
      max_episodes: training episodes after which the training ends; None: no limit.

    Attributes:
      reason: what ended the training, or "" while it continues.
      told: clients that have been notified of the end.
    """

    def __init__(
        self,
        max_global_step: int | None,
        target: Target | None,
        target_score: float | None = None,
        max_episodes: int | None = None,
    ):
        self.reason = ""
        self._max_global_step = max_global_step
        self._target = target
        self._target_score = target_score
        self._max_episodes = max_episodes
        self._lock = threading.Lock()  # guards changes of `reason`
        self._ended = threading.Event()
        self.told: set[str] = set()
        self._judged = 0  # episodes

    def check(self, global_t: int, statistics: Statistics) -> None:
        """Ends the training if the budget is used up, or the newest episodes reach the target."""
        if self.reason:
            return
        target = self._target
        if self._max_global_step is not None and global_t >= self._max_global_step:
            self._end(f"budget of {self._max_global_step} env steps used up")
        elif self._max_episodes is not None and statistics.episodes >= self._max_episodes:
            self._end(f"budget of {self._max_episodes} episodes used up")
        elif target is not None and statistics.episodes != self._judged:
            self._judged = statistics.episodes
            means = statistics.means
            mean = means.mean_return
            if means.is_full and mean is not None and mean >= target.mean_return:
                self._end(
                    f"mean return {mean:g} of the last {means.return_episodes} episodes reached "
                    f"the target {target.mean_return:g}"
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
