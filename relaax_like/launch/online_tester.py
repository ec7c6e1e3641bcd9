"""OnlineTester: plays greedy episodes while a run learns, and keeps the best policy."""

import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from relaax_like.config.models import Experiment
from relaax_like.core.roles import Publisher
from relaax_like.launch.evaluation import play_greedy
from relaax_like.launch.local import make_local_agents, open_slots
from relaax_like.learn.fixed_values import FixedValues
from relaax_like.learn.hooks import LearnerHook
from relaax_like.wire.errors import RelaaxError

logger = logging.getLogger(__name__)
# After what the learner itself does in an iteration.
_PRIORITY = 50.0


class OnlineTester:
    """Plays with values at hand, in environments of its own; the run's are not disturbed.

        with OnlineTester(experiment) as tester:
            returns, lengths = tester.test(values, version, episodes=10)

    Args:
      experiment: names environment and algorithm.
    """

    def __init__(self, experiment: Experiment):
        self._experiment = experiment
        self._stack = contextlib.ExitStack()
        self._parts: Any = None

    def test(
        self, values: Sequence[np.ndarray], version: int, episodes: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Plays fresh greedy episodes.

        Args:
          values: of all variables, in manifest order.
          version: of the values.
          episodes: how many.

        Returns:
          Returns `[n] float64` and lengths `[n] int64`.
        """
        if self._parts is None:
            self._parts = self._open(values, version)
        fixed, slots, agents = self._parts
        fixed.set(values, version)
        played = play_greedy(self._experiment, slots, agents, episodes)
        return np.array([e.score for e in played]), np.array([e.length for e in played])

    def close(self) -> None:
        """Closes the environments; may be called twice."""
        self._stack.close()
        self._parts = None

    def __enter__(self) -> "OnlineTester":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, values: Sequence[np.ndarray], version: int) -> Any:
        fixed = FixedValues(values, version)
        slots = self._stack.enter_context(open_slots(self._experiment, "test"))

        def refuse(client_id: str) -> Any:
            raise RelaaxError(
                "learner.eval_freq: this algorithm's agents do not support evaluations; set "
                "eval_freq: 0"
            )

        agents = make_local_agents(self._experiment, slots, refuse, exploit=True, fixed=fixed)
        self._stack.callback(agents.close)
        return fixed, slots, agents


class TestHook(LearnerHook):
    """Has the policy tested now and then, and a snapshot kept where it is the best.

    That is every so many iterations, and in the one after the training's mean return was the best
    so far. A mean is compared with those of other episodes only: where episodes come a few at a
    time, that is once for each window of them.

    Args:
      tester: plays.
      policy: has `get_values()`.
      publisher: keeps snapshots and curves.
      every: iterations between two tests; the first is after so many.
      episodes: in one test.
    """

    __test__ = False  # for pytest: this is none

    def __init__(
        self, tester: OnlineTester, policy: Any, publisher: Publisher, every: int, episodes: int
    ):
        super().__init__("online_test", _PRIORITY, position="after_iter")
        self._tester = tester
        self._policy = policy
        self._publisher = publisher
        self._every = every
        self._episodes = episodes
        self._best = publisher.best_score
        self._best_train_return = -np.inf
        self._compared = 0  # episodes

    def __call__(self, engine: Any) -> None:
        """Tests, if it is time; `engine` is the BaseLearner."""
        was_best = self._compare_train_return()
        if engine.updates % self._every and not was_best:
            return
        began = time.monotonic()
        values = self._policy.get_values()
        returns, lengths = self._tester.test(values, engine.updates, self._episodes)
        mean, global_t = float(returns.mean()), self._policy.global_t
        metrics = self._publisher.metrics()
        metrics.scalar("Test/Return", mean, global_t)
        metrics.scalar("Test/Episode Length", float(lengths.mean()), global_t)
        metrics.scalar("Time/Test Time", time.monotonic() - began, global_t)
        engine.logger.info(
            "evaluation at step %s: mean return %.2f over %d greedy episodes (min %.0f, max %.0f)",
            f"{global_t:,}",
            mean,
            len(returns),
            returns.min(),
            returns.max(),
        )
        if self._best is None or mean > self._best:
            self._best = mean
            self._publisher.save_next_publication(mean)

    def _compare_train_return(self) -> bool:
        """Returns whether the training's return, as of the last iteration, is a new best one."""
        newest = self._publisher.train_return
        if newest is None or newest.episodes - self._compared < newest.window:
            return False
        self._compared = newest.episodes
        was_best = newest.mean > self._best_train_return
        self._best_train_return = max(newest.mean, self._best_train_return)
        return was_best


class CloseHook(LearnerHook):
    """Closes a tester when the run is over."""

    def __init__(self, tester: OnlineTester):
        super().__init__("close_online_test", _PRIORITY, position="after_run")
        self._tester = tester

    def __call__(self, engine: Any) -> None:
        """Closes it."""
        self._tester.close()
