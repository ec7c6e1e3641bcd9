"""Plays greedy episodes while a run learns, and keeps the best policy.

A learner that publishes (`learner.placement: server` or `standalone`, or from files) tests after
its iterations, with `TestHook`. If learners run beside their agents, the parameter server tests,
with `VersionTests`.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from relaax_like.config.models import Experiment
from relaax_like.core.metrics import Metrics
from relaax_like.core.records import TrainReturn
from relaax_like.core.roles import Publisher
from relaax_like.launch.evaluation import play_greedy
from relaax_like.launch.frozen_agents import can_play_fixed, make_frozen_host
from relaax_like.launch.local import LocalAgents, open_slots, validate_environment
from relaax_like.learn.frozen_policy import FrozenPolicy
from relaax_like.learn.hooks import LearnerHook
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.snapshot_format import State
from relaax_like.wire.closing import Closing
from relaax_like.wire.errors import ConfigError, RelaaxError, SnapshotError

logger = logging.getLogger(__name__)
# Priority of the hook: after the learner's own hooks of an iteration.
_PRIORITY = 50.0
# Seconds between two checks of a parameter server's version.
_POLL_SEC = 0.2
# Longest wait for a test that is aborted: at a run's end its weights are saved after that.
_CLOSE_SEC = 1.0
_MAX_FAILED = 3


class OnlineTester(Closing):
    """Plays with given values, in its own environments, without affecting the run's.

        with OnlineTester(experiment) as tester:
            returns, lengths = tester.test(values, version, episodes=10)

    Args:
      experiment: defines environment and algorithm.
      is_stopping: returns whether to end a test that is being played.
    """

    def __init__(self, experiment: Experiment, is_stopping: Callable[[], bool]):
        self._experiment = experiment
        self._is_stopping = is_stopping
        self._stack = contextlib.ExitStack()
        self._parts: Any = None

    def test(
        self,
        values: Sequence[np.ndarray],
        version: int,
        episodes: int,
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Plays fresh greedy episodes.

        Args:
          values: of all variables, in manifest order.
          version: of the values.
          episodes: number of episodes.

        Returns:
          Returns `[n] float64`, and lengths `[n] int64` in environment steps; None: the test was
          ended before there were as many.

        Raises:
          RelaaxError: the environment or the agents cannot be made, or the environment returned a
            wrong value.
          RelaaxError: the environment's code failed.
        """
        if self._parts is None:
            self._parts = self._open(values, version)
        fixed, slots, agents = self._parts
        fixed.set(values, version)
        played = play_greedy(self._experiment, slots, agents, episodes, self._is_stopping)
        if len(played) < episodes:
            return None
        return np.array([e.score for e in played]), np.array([e.length for e in played])

    def close(self) -> None:
        """Closes environments and agents; a later `test` makes new ones. Idempotent."""
        self._parts = None
        self._stack.close()

    def _open(self, values: Sequence[np.ndarray], version: int) -> Any:
        fixed = FrozenPolicy(values, version)
        slots = self._stack.enter_context(open_slots(self._experiment, "test"))

        def refuse(client_id: str) -> Any:
            raise RelaaxError(_describe_unsupported(self._experiment))

        host = make_frozen_host(self._experiment, refuse, fixed, "local")
        # Other runs play the same environment themselves.
        host.ranges.is_quiet = self._experiment.learner.offline is None
        agents = LocalAgents(slots, host, exploit=True)
        self._stack.callback(agents.close)
        return fixed, slots, agents


class BestReturn:
    """The best mean return of a training run so far.

    Only means of disjoint sets of episodes are compared: if episodes end a few at a time, that is
    once per window.
    """

    def __init__(self) -> None:
        self._best = -np.inf
        self._compared = 0  # episodes

    def is_beaten(self, newest: TrainReturn | None) -> bool:
        """Returns whether the newest mean is the best so far; then stores it as the best.

        False if the newest mean shares episodes with the one that was compared last, or is None.
        """
        if newest is None or newest.episodes - self._compared < newest.window:
            return False
        self._compared = newest.episodes
        was_best = newest.mean > self._best
        self._best = max(newest.mean, self._best)
        return was_best


class TestHook(LearnerHook):
    """Tests the policy periodically, and keeps a snapshot if it is the best.

    Tests every `every` iterations, and in the iteration after the training's mean return was the
    best so far; see `BestReturn`.

    Args:
      tester: plays the episodes.
      policy: has `get_values()` and `global_t`.
      publisher: saves snapshots and curves.
      every: iterations between two tests, and before the first.
      episodes: number in one test.
    """

    __test__ = False  # for pytest: this is not a test

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
        self._train_return = BestReturn()

    def __call__(self, engine: Any) -> None:
        """Tests if a test is due; `engine` is the BaseLearner."""
        was_best = self._train_return.is_beaten(self._publisher.train_return)
        if engine.updates % self._every and not was_best:
            return
        began = time.monotonic()
        values = self._policy.get_values()
        tested = self._tester.test(values, engine.updates, self._episodes)
        if tested is None:
            return
        metrics, global_t = self._publisher.metrics(), self._policy.global_t
        mean = _record_test(*tested, global_t, began, metrics, engine.logger)
        if self._best is None or mean > self._best:
            self._best = mean
            self._publisher.save_next_publication(mean)


class VersionTests(Closing):
    """Tests a parameter server's values periodically, and keeps a snapshot if they are the best.

        with VersionTests(experiment, server):
            ...  # serve until the end

    Tests every `learner.eval_freq` versions, and when the training's mean return was the best so
    far; see `BestReturn`. A thread plays while the process serves, with the values that are current
    when a test begins. After each test the thread waits for as long as the test took, before it
    starts the next one that is due.

    A failed test is logged, and the next one is tried; after three failures in a row there are no
    more tests. A snapshot that cannot be written is logged, and does not count as a failure.

    Args:
      experiment: to test; see `make_version_tests`.
      server: provides the values; it must have snapshots.
    """

    def __init__(self, experiment: Experiment, server: ParameterServer):
        self._every = experiment.learner.eval_freq
        self._episodes = experiment.learner.num_eval_eps
        self._closing = threading.Event()
        self._tester = OnlineTester(experiment, self._closing.is_set)
        self._server = server
        self._train_return = BestReturn()
        self._train_return.is_beaten(server.train_return)  # the return before a resume
        self._thread = threading.Thread(target=self._run, name="tests", daemon=True)

    def close(self) -> None:
        """Aborts the test in progress. Idempotent.

        Waits at most a second, even if an environment does not answer: a test that ends later
        changes nothing.
        """
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SEC)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def _run(self) -> None:
        due, failed, pause_sec = self._find_due(), 0, _POLL_SEC
        while not self._closing.wait(pause_sec) and failed < _MAX_FAILED:
            pause_sec = _POLL_SEC
            was_best = self._train_return.is_beaten(self._server.train_return)
            if self._server.version < due and not was_best:
                continue
            due = self._find_due()
            began = time.monotonic()
            try:
                self._server.save_judged(self._judge)
                failed = 0
            except SnapshotError as error:  # it was played; next time the disk might have space
                logger.error("%s; training continues", error)
            except Exception as error:
                failed += 1
                self._close_tester()
                last = "; there are no more evaluations" if failed == _MAX_FAILED else ""
                logger.error("an evaluation failed: %s; training continues%s", error, last)
                logger.debug("the traceback", exc_info=error)
            pause_sec = max(_POLL_SEC, time.monotonic() - began)
        self._close_tester()

    def _close_tester(self) -> None:
        try:
            self._tester.close()
        except Exception as error:  # of an environment, which has perhaps failed before
            logger.warning("the evaluations' environment could not be closed: %s", error)

    def _find_due(self) -> int:
        """Returns the version of the next test."""
        return (self._server.version // self._every + 1) * self._every

    def _judge(self, state: State) -> float | None:
        """Plays; returns the mean return if it is the best so far."""
        began = time.monotonic()
        values = state.manifest.unpack(state.values)
        tested = self._tester.test(values, state.version, self._episodes)
        if tested is None or self._closing.is_set():
            return None
        mean = _record_test(*tested, state.global_t, began, self._server.metrics(), logger)
        best = self._server.best_score
        return mean if best is None or mean > best else None


def make_version_tests(experiment: Experiment, server: ParameterServer) -> VersionTests:
    """Makes the tests for a run with learners beside their agents.

    Raises:
      ConfigError: there is no environment, it cannot run in this process, or the algorithm's agents
        do not support evaluations, or cannot be loaded.
      InvalidInputError: the algorithm cannot use the environment's spaces.
    """
    require_environment(experiment)
    if not can_play_fixed(experiment):
        raise ConfigError(_describe_unsupported(experiment))
    validate_environment(experiment, "test")
    return VersionTests(experiment, server)


def require_environment(experiment: Experiment) -> None:
    """Checks that there is an environment for tests.

    Raises:
      ConfigError: there is no environment.
    """
    if experiment.environment is None:
        raise ConfigError(
            f"learner.eval_freq: {experiment.learner.eval_freq}, but an evaluation needs an "
            f"`environment` section; add one, or set {describe_without_tests(experiment)}"
        )


def describe_without_tests(experiment: Experiment) -> str:
    """Returns the keys to set for a run without evaluations, for errors."""
    has_target = experiment.learner.target_eval_return is not None
    return f"learner.eval_freq: 0{' and learner.target_eval_return: null' if has_target else ''}"


def _describe_unsupported(experiment: Experiment) -> str:
    return (
        f"learner.eval_freq: {experiment.learner.eval_freq}, but this algorithm's agents have "
        "several Algorithms, or act by their own code, and cannot be evaluated during training; "
        f"set {describe_without_tests(experiment)}"
    )


def _record_test(
    returns: np.ndarray,
    lengths: np.ndarray,
    global_t: int,
    began: float,
    metrics: Metrics,
    log: Any,
) -> float:
    """Records the curves of a test, and logs a line; returns the mean return."""
    mean = float(returns.mean())
    metrics.scalar("Test/Return", mean, global_t)
    metrics.scalar("Test/Episode Length", float(lengths.mean()), global_t)
    metrics.scalar("Time/Test Time", time.monotonic() - began, global_t)
    log.info(
        "evaluation at step %s: mean return %.2f over %d greedy episodes (min %.0f, max %.0f)",
        f"{global_t:,}",
        mean,
        len(returns),
        returns.min(),
        returns.max(),
    )
    return mean


class CloseHook(LearnerHook):
    """Closes a tester when the run is over."""

    def __init__(self, tester: OnlineTester):
        super().__init__("close_online_test", _PRIORITY, position="after_run")
        self._tester = tester

    def __call__(self, engine: Any) -> None:
        """Closes the tester."""
        self._tester.close()
