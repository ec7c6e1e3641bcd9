"""GradientLearner: computes gradients of rollouts, and pushes them to a parameter server."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from relaax_like.core.metrics import Metrics
from relaax_like.core.moments import Moments
from relaax_like.core.records import LearnerUpdate, LearnRequest
from relaax_like.core.roles import Learner, OnUpdate, ParameterServerClient
from relaax_like.experience.holes import cut_ends, make_dense
from relaax_like.experience.rollout import Rollout, concatenate, get_rows
from relaax_like.learn.computation_task import ComputationTask
from relaax_like.learn.means import LAG, Means
from relaax_like.wire import tracing
from relaax_like.wire.errors import ConfigError, RelaaxError

logger = logging.getLogger(__name__)

_FAILURE_LINE_SEC = 1.0
# Longest wait for the gradient at hand when the process ends.
_STOP_SEC = 2.0


class GradientLearner(Learner):
    """Learns in a thread of its own.

        learner = GradientLearner(task, parameter_server)
        learner.start(on_update)
        learner.submit(LearnRequest(1, rollout))
        learner.stop()

    Rollouts that wait are packed side by side, one gradient of their mean is pushed, and the values
    that come back are handed on. A rollout that cannot be learned from is logged and skipped.

    An error that each rollout would raise, such as one in the algorithm's code, ends the learning:
    requests are still answered, but without new values.

    Args:
      task: computes gradients; used by the training thread alone.
      parameter_server: where gradients go to; used by the training thread alone.
      max_packed: most rollouts in one gradient, a power of two.
      curves: what the names of its costs' curves begin with.
      on_failure: called once, from the training thread, when learning has ended with an error; the
        agents are notified after it.
    """

    def __init__(
        self,
        task: ComputationTask,
        parameter_server: ParameterServerClient,
        max_packed: int = 16,
        curves: str = "Optimizer",
        on_failure: Callable[[ConfigError], None] = lambda error: None,
    ):
        self._task = task
        self._parameter_server = parameter_server
        self._max_packed = max_packed
        self._curves = curves
        self._on_failure = on_failure
        self._has_failed = False  # for good
        # Bounded by its users: each agent has at most one or two works in it.
        self._queue: queue.SimpleQueue[LearnRequest | None] = queue.SimpleQueue()
        # At most one that was read and did not fit a batch: it is next. Training thread only.
        self._put_back: list[LearnRequest | None] = []
        self._thread = threading.Thread(target=self._training_loop, name="training", daemon=True)
        self._on_update: OnUpdate = lambda learned: None
        self._means = Means(parameter_server.metrics())
        self._counted: set[int] = set()  # numbers of the batch at hand whose steps were counted
        self._failed_rollouts = 0
        self._next_failure_line = 0.0

    def metrics(self) -> Metrics:
        """Returns the recorder."""
        return self._parameter_server.metrics()

    def start(self, on_update: OnUpdate) -> None:
        """Fetches the values and starts to learn; see `Learner`."""
        values = self._parameter_server.get_values()
        try:
            self._task.set_values(values)
        except ValueError as error:  # InvalidInputError is one
            raise ConfigError(
                f"the parameter server's values do not fit the model: {error}; use the same "
                "configuration for both servers"
            ) from error
        self._on_update = on_update
        self._announce((), values)
        self._thread.start()

    def submit(self, work: LearnRequest) -> None:
        """Puts work in the queue."""
        self._queue.put(work)

    def take_state(self) -> dict[str, Any]:
        """Returns which shapes have come to be compiled; see `Learner`."""
        return {"seen": self._task.get_seen()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from there; see `Learner`."""
        self._task.set_seen(state["seen"])

    def stop(self) -> None:
        """Ends the training loop after the work at hand; may be called twice."""
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(_STOP_SEC)
        if not self._thread.is_alive():
            self._means.record()
        self._task.close()
        self._parameter_server.close()

    def _training_loop(self) -> None:
        mark = tracing.begin()
        while (work := self._get_next()) is not None:
            tracing.end("wait for rollouts", mark)
            self._counted.clear()
            self._try_to_learn(self._take_more(work))
            mark = tracing.begin()

    def _get_next(self) -> LearnRequest | None:
        """Waits for the next request; None: the end."""
        return self._put_back.pop() if self._put_back else self._queue.get()

    def _try_to_learn(self, batch: Sequence[LearnRequest]) -> None:
        """Learns from a batch; when that fails, from each rollout alone, so that one spoils one."""
        if self._has_failed:
            self._announce([work.number for work in batch], None)
            return
        try:
            self._learn(batch)
        except ConfigError as error:
            logger.debug("learning has failed", exc_info=error)
            self._has_failed = True
            # Before the agents act again: their owner ends them.
            self._on_failure(error)
            self._announce([work.number for work in batch], None)
        except Exception as error:
            if len(batch) > 1:
                for work in batch:
                    self._try_to_learn([work])
                return
            self._failed_rollouts += 1
            self._note_failure(error)
            # The steps were taken all the same: a training that diverges ends with its budget.
            self._count(batch)
            self._announce((batch[0].number,), None)

    def _note_failure(self, error: Exception) -> None:
        now = time.monotonic()
        if now < self._next_failure_line:
            return
        self._next_failure_line = now + _FAILURE_LINE_SEC
        logger.error(
            "could not learn from a rollout (%d so far): %s",
            self._failed_rollouts,
            error if isinstance(error, RelaaxError) else repr(error),
            exc_info=None if isinstance(error, RelaaxError) else error,
        )

    def _take_more(self, work: LearnRequest) -> list[LearnRequest]:
        """Takes what else waits, as far as it can be packed: a power of two, of the same shape.

        Works without a rollout are taken together, however many there are.
        """
        batch = [work]
        if work.rollout is None:
            return self._take_more_reports(batch)
        waiting = min(self._queue.qsize() + 1, self._max_packed)
        while len(batch) < 1 << (waiting.bit_length() - 1):
            more = self._queue.get()
            if more is None or more.rollout is None or not _same_shape(more.rollout, work.rollout):
                self._put_back.append(more)
                break
            batch.append(more)
        # Half of a broken-off batch may have an odd size; any size is right, some are quicker.
        return batch

    def _take_more_reports(self, batch: list[LearnRequest]) -> list[LearnRequest]:
        for _ in range(self._queue.qsize()):
            more = self._queue.get()
            if more is None or more.rollout is not None:
                self._put_back.append(more)
                break
            batch.append(more)
        return batch

    def _learn(self, batch: Sequence[LearnRequest]) -> None:
        server = self._parameter_server
        numbers = [work.number for work in batch]
        rollouts = [work.rollout for work in batch if work.rollout is not None]
        if not rollouts or server.finished:  # then a gradient would be dropped
            self._add_episodes(batch)
            self._count(batch)
            self._take_values(numbers, server.push_pull())
            return
        mark = tracing.begin()
        rollout = make_dense(concatenate(rollouts)).rollout
        alive = cut_ends(rollout)
        mark = tracing.end("pack", mark)
        gradients, costs = self._task.compute_gradients(
            **self._task.make_arguments(rollout, alive), global_t=server.global_t
        )
        mark = tracing.end("gradient", mark)
        for name in self._task.statistics:
            rows = get_rows(rollout, rollout.inputs[name])
            server.add_statistics(name, Moments.of(rows))
        self._add_episodes(batch)
        self._count(batch)
        lag = server.version - float(rollout.versions.mean())
        values = server.push_pull(gradients)
        mark = tracing.end("push-pull", mark)
        try:
            self._take_values(numbers, values)
            tracing.end("take values", mark)
            means = {f"{self._curves}/{name}": y for name, y in costs.items()}
            self._means.add({**means, LAG: lag})
        except Exception:  # it has been learned from: not to be tried again
            logger.exception("after a gradient that was applied")

    def _count(self, batch: Sequence[LearnRequest]) -> None:
        """Counts the steps of each request once, also when it is tried again by itself.

        Those of a push that was refused are sent with the next one.
        """
        new = [work for work in batch if work.number not in self._counted]
        self._counted.update(work.number for work in new)
        self._parameter_server.increment_global_t(sum(work.env_steps for work in new))

    def _add_episodes(self, batch: Sequence[LearnRequest]) -> None:
        for work in batch:
            for episode in work.episodes:
                self._parameter_server.add_episode(episode.episode_return, episode.length)

    def _take_values(self, numbers: Sequence[int], values: Sequence[np.ndarray]) -> None:
        # The agents first: they may be waiting.
        self._announce(numbers, values)
        self._task.set_values(values)

    def _announce(self, numbers: Sequence[int], values: Sequence[np.ndarray] | None) -> None:
        server = self._parameter_server
        self._on_update(
            LearnerUpdate(numbers, server.version, server.global_t, server.finished, values)
        )


def _same_shape(one: Rollout, other: Rollout) -> bool:
    return one.next_alive.shape == other.next_alive.shape
