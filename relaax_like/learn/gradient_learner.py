"""GradientLearner: learns beside its agents, by sending gradients to a parameter server."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from relaax_like.config.base_learner import NO_HOOKS, BaseLearnerConfig
from relaax_like.config.plan import LearningPlan
from relaax_like.core.manifest import Manifest, make_manifest
from relaax_like.core.metrics import Metrics
from relaax_like.core.records import LearnerUpdate, LearnRequest
from relaax_like.core.roles import Learner, OnUpdate, ParameterServerClient
from relaax_like.experience.collector import TrainingData
from relaax_like.learn.base_learner import BaseLearner
from relaax_like.learn.gradients import CompiledGradients
from relaax_like.learn.joint_pushing import JointPushing
from relaax_like.learn.learner_loop import LearnerLoop
from relaax_like.learn.pushing import Pushing
from relaax_like.learn.replayed import ReplayIteration
from relaax_like.learn.request_queue import RequestQueue, Requests
from relaax_like.wire import tracing
from relaax_like.wire.errors import ConfigError, RelaaxError

logger = logging.getLogger(__name__)

_FAILURE_LINE_SEC = 1.0
_WAIT_SEC = 0.5
# Longest wait for the current gradient when the process ends.
_STOP_SEC = 2.0


class GradientLearner(Learner):
    """Learns from agents' rollouts in its own thread, and pushes gradients to a parameter server.

        queue = RequestQueue(source, waits=True)
        learner = GradientLearner(compiled, plan, parameter_server, queue)
        learner.start(on_update)
        learner.submit(LearnRequest(1, rollout))
        learner.stop()

    Rollouts are collected until they make an iteration of the plan, its gradients are pushed one
    after another, and the returned values are passed to the agents. With the plan `OnPolicy`, an
    agent whose rollout does not complete an iteration waits for it, unless the agents that do not
    wait cannot complete it either. With a plan `Replay`, rollouts are put into a table, from which
    iterations are drawn; see `RequestQueue`. An iteration that cannot be learned from is skipped,
    and logged at most once a second.

    An error that each iteration would raise, such as one in the algorithm's code, ends the
    learning: requests are still answered, but without new values.

    Args:
      compiled: computes gradients, or this learner's part of them if all learners make each update
        together; used only by the training thread.
      plan: of an iteration.
      parameter_server: receives the gradients; used only by the training thread.
      requests: takes the agents' requests; its source is that of the plan.
      seed: of the orders of minibatches.
      curves: prefix of the names of the costs' curves.
      on_failure: called once, from the training thread, when learning has ended with an error,
        before the agents are notified.
      learner: with hooks; its policy is set here. None: no hooks.

    Raises:
      ConfigError: see `UpdatePolicy`.
    """

    keeps_requests = False

    def __init__(
        self,
        compiled: CompiledGradients,
        plan: LearningPlan,
        parameter_server: ParameterServerClient,
        requests: RequestQueue,
        *,
        seed: int = 0,
        curves: str = "Optimizer",
        on_failure: Callable[[ConfigError], None] = lambda error: None,
        learner: BaseLearner | None = None,
    ):
        self._compiled = compiled
        self._parameter_server = parameter_server
        self._on_failure = on_failure
        self._has_failed = False  # permanently
        compiled.wants_rows = requests.source.data_handler is not None
        make_sink = JointPushing if compiled.is_joint else Pushing
        self._sink = make_sink(parameter_server, compiled, requests.source.tally, plan, seed)
        self._queue = requests
        requests.get_version = lambda: parameter_server.version
        learner = learner or BaseLearner(BaseLearnerConfig(hook=NO_HOOKS), exp_dir=".")
        learner.policy = self._sink
        self._loop = LearnerLoop(
            self._queue,
            learner,
            self._sink,
            parameter_server.metrics(),
            curves,
            records_times=False,  # each of several learners has only a part of the steps
        )
        self._thread = threading.Thread(target=self._run, name="training", daemon=True)
        self._on_update: OnUpdate = lambda learned: None
        self._failures = 0
        self._next_failure_line = 0.0

    @property
    def manifest(self) -> Manifest:
        """The layout of the values that agents receive."""
        return make_manifest(self._compiled.get_variables())

    def metrics(self) -> Metrics:
        """Returns the recorder."""
        return self._parameter_server.metrics()

    def start(self, on_update: OnUpdate) -> None:
        """Fetches the values and starts to learn; see `Learner`.

        Raises:
          ConfigError: the values belong to another model, or the run's learners do not make updates
            together, although this one does.
          ServerUnavailableError: the parameter server is not available, or has too many learners.
          RelaaxError: another error of the connection, such as NotAllowedError.
          Exception: an error of a hook of before_run.
        """
        first = self._loop.load()
        self._on_update = on_update
        on_update(first)
        if isinstance(self._sink, JointPushing):
            self._sink.join()
        self._thread.start()

    def submit(self, request: LearnRequest) -> None:
        """Adds a request to the queue."""
        self._queue.put(request)

    def leave(self, agent: str) -> None:
        """Stops waiting for an agent's rollouts; see `Learner`."""
        self._queue.put(LearnRequest(0, None, agent=agent, is_leaving=True))

    def take_state(self) -> dict[str, Any]:
        """Returns waiting rollouts, and other state that depends on the past; see `Learner`.

        This includes which shapes have been compiled, and the number of gradients.
        """
        return {
            "seen": self._compiled.get_seen(),
            "gradients": self._compiled.num_gradients,
            "loop": self._loop.take_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores a state; see `Learner`."""
        self._compiled.set_seen(state["seen"])
        self._compiled.num_gradients = int(state["gradients"])
        self._loop.set_state(state["loop"])

    def stop(self) -> None:
        """Ends the training loop after the current update, and closes the client. Idempotent.

        Waits for the update for some seconds at most, and until background compilation ends. The
        applied updates of an iteration stay, and its steps are counted with the last of them.

        Raises:
          Exception: see `Learner.stop`.
        """
        self._sink.is_ending = True
        self._queue.end()
        if self._thread.is_alive():
            self._thread.join(_STOP_SEC)
        if isinstance(self._sink, JointPushing):
            self._sink.disconnect()  # also ends a wait for the other learners
            if self._thread.is_alive():
                self._thread.join(_STOP_SEC)
        try:
            if not self._thread.is_alive():
                self._loop.close()
        finally:
            self._compiled.close()
            self._parameter_server.close()

    # In the training thread.

    def _run(self) -> None:
        self._loop.run(
            is_over=lambda: self._queue.has_ended or self._has_failed,
            on_turn=self._hand_on,
            on_failure=self._handle_failure,
        )
        self._queue.finish()
        while not self._queue.has_ended:  # an error has ended it
            if (requests := self._queue.get(0, _WAIT_SEC)) is not None:
                self._hand_on(self._sink.report(requests.tickets))

    def _hand_on(self, update: LearnerUpdate | None) -> None:
        if update is None:
            return
        if update.finished:
            self._queue.finish()
        with tracing.span("take values"):
            try:
                # The agents first: they might be waiting.
                self._on_update(update)
                if update.values is not None:
                    self._compiled.set_values(update.values)
            except Exception as error:  # this thread answers all agents
                self._note_failure("could not take over the values after an iteration", error)

    def _handle_failure(
        self, iteration: TrainingData | ReplayIteration | Requests, error: Exception
    ) -> LearnerUpdate | None:
        """Skips an iteration, except for its pushed gradients; see `LearnerLoop`."""
        if isinstance(error, ConfigError):
            logger.debug("learning has failed", exc_info=error)
            self._has_failed = True
            # Before the agents continue: their owner ends them.
            self._on_failure(error)
            return self._sink.report(iteration.tickets)
        if not isinstance(iteration, Requests) and self._sink.has_pushed:
            self._note_failure("an iteration failed after gradients of it were applied", error)
        else:
            self._failures += 1
            what = f"could not learn from an iteration ({self._failures} so far)"
            self._note_failure(what, error)
        # The steps were taken nevertheless: a run that diverges ends with its budget.
        try:
            self._sink.hand_counts_over()
        except RelaaxError as again:  # they are counted later; the agents must be answered
            self._note_failure("steps are not counted yet", again)
        return self._sink.report(iteration.tickets, with_values=self._sink.has_pushed)

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
