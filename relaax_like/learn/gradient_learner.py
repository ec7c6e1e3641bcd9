"""GradientLearner: learns beside its agents, by gradients for a parameter server."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from relaax_like.config.base_learner import NO_HOOKS
from relaax_like.core.manifest import Manifest, make_manifest
from relaax_like.core.metrics import Metrics
from relaax_like.core.records import LearnerUpdate, LearnRequest
from relaax_like.core.roles import Learner, OnUpdate, ParameterServerClient
from relaax_like.experience.collector import DataHandler
from relaax_like.experience.trajectory_files import TrajectoryGatherer
from relaax_like.learn.base_learner import BaseLearner
from relaax_like.learn.gradients import GradientTask
from relaax_like.learn.learner_loop import LearnerLoop
from relaax_like.learn.pushing import GradientPolicy, Pushing
from relaax_like.learn.request_queue import Packed, RequestQueue
from relaax_like.learn.tally import Tally
from relaax_like.wire import tracing
from relaax_like.wire.errors import ConfigError, RelaaxError

logger = logging.getLogger(__name__)

_FAILURE_LINE_SEC = 1.0
# Longest wait for the gradient at hand when the process ends.
_STOP_SEC = 2.0


class GradientLearner(Learner):
    """Runs a `LearnerLoop` in a thread of its own.

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
      learner: has hooks; its policy is set. None: there are none.
      data_handler: a user's changes to rollouts; None: there are none.
      trajectories: keeps what was learned from; None: nothing is kept.
    """

    def __init__(
        self,
        task: GradientTask,
        parameter_server: ParameterServerClient,
        max_packed: int = 16,
        curves: str = "Optimizer",
        on_failure: Callable[[ConfigError], None] = lambda error: None,
        learner: BaseLearner | None = None,
        data_handler: DataHandler | None = None,
        trajectories: TrajectoryGatherer | None = None,
    ):
        self._task = task
        self._parameter_server = parameter_server
        self._on_failure = on_failure
        self._has_failed = False  # for good
        task.wants_rows = data_handler is not None
        tally = Tally()
        self._queue = RequestQueue(tally, max_packed, data_handler, trajectories)
        self._sink = Pushing(parameter_server, task, tally)
        self._policy = GradientPolicy(task, self._sink)
        learner = learner or BaseLearner({"hook": NO_HOOKS}, exp_dir=".")
        learner.policy = self._policy
        self._loop = LearnerLoop(
            self._queue,
            learner,
            self._sink,
            parameter_server.metrics(),
            curves,
            records_times=False,  # there may be several: each has a part of the steps
        )
        self._thread = threading.Thread(target=self._run, name="training", daemon=True)
        self._on_update: OnUpdate = lambda learned: None
        self._failed_rollouts = 0
        self._next_failure_line = 0.0

    @property
    def manifest(self) -> Manifest:
        """The layout of the values that it hands on."""
        return make_manifest(self._task.get_variables())

    def metrics(self) -> Metrics:
        """Returns the recorder."""
        return self._parameter_server.metrics()

    def start(self, on_update: OnUpdate) -> None:
        """Fetches the values and starts to learn; see `Learner`."""
        first = self._loop.load()
        self._on_update = on_update
        on_update(first)
        self._thread.start()

    def submit(self, work: LearnRequest) -> None:
        """Puts work in the queue."""
        self._queue.put(work)

    def take_state(self) -> dict[str, Any]:
        """Returns which shapes have come to be compiled, and how many gradients; see `Learner`."""
        return {"seen": self._task.get_seen(), "gradients": self._task.num_gradients}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from there; see `Learner`."""
        self._task.set_seen(state["seen"])
        self._task.num_gradients = int(state["gradients"])

    def stop(self) -> None:
        """Ends the training loop after the work at hand; may be called twice."""
        self._queue.end()
        if self._thread.is_alive():
            self._thread.join(_STOP_SEC)
        try:
            if not self._thread.is_alive():
                self._loop.close()
        finally:
            self._task.close()
            self._parameter_server.close()

    # In the training thread.

    def _run(self) -> None:
        self._loop.run(
            is_over=lambda: self._queue.has_ended or self._has_failed,
            on_turn=self._hand_on,
            on_failure=self._handle_failure,
        )
        while not self._queue.has_ended:  # an error has ended it
            if (packed := self._queue.get(0, 0.0)) is not None:
                self._hand_on(self._sink.report(packed.tickets))

    def _hand_on(self, update: LearnerUpdate | None) -> None:
        if update is None:
            return
        with tracing.span("take values"):
            try:
                # The agents first: they may be waiting.
                self._on_update(update)
                if update.values is not None:
                    self._task.set_values(update.values)
            except Exception as error:  # this thread answers all others
                self._note_failure("after a gradient that was applied", error)

    def _handle_failure(self, packed: Packed, error: Exception) -> LearnerUpdate | None:
        """Tries each rollout separately, so that a bad one spoils no other; see `LearnerLoop`."""
        if isinstance(error, ConfigError):
            logger.debug("learning has failed", exc_info=error)
            self._has_failed = True
            # Before the agents act again: their owner ends them.
            self._on_failure(error)
            return self._sink.report(packed.tickets)
        if self._policy.pushed == packed.tickets:  # learned from: not to be tried again
            self._note_failure("after a gradient that was applied", error)
            self._hand_steps_over()
            return self._sink.report(packed.tickets, with_values=True)
        if len(packed.requests) > 1:
            self._queue.split(packed)
            return None
        self._failed_rollouts += 1
        self._note_failure(
            f"could not learn from a rollout ({self._failed_rollouts} so far)", error
        )
        # The steps were taken all the same: a training that diverges ends with its budget.
        self._hand_steps_over()
        return self._sink.report(packed.tickets)

    def _hand_steps_over(self) -> None:
        try:
            self._sink.hand_steps_over()
        except RelaaxError as error:  # they are counted later; the agents are to be answered
            self._note_failure("steps are not counted yet", error)

    def _note_failure(self, what: str, error: Exception) -> None:
        now = time.monotonic()
        if now < self._next_failure_line:
            return
        self._next_failure_line = now + _FAILURE_LINE_SEC
        logger.error(
            "%s: %s",
            what,
            error if isinstance(error, RelaaxError) else repr(error),
            exc_info=None if isinstance(error, RelaaxError) else error,
        )
