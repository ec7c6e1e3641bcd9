"""LearnerLoop: source -> update -> sink, with hooks.

All algorithms learn in this way, except those whose agents learn by themselves.

| where | source | update | sink |
|---|---|---|---|
| `placement: server`, `standalone` | `Collected` | `LearningPolicy` | `Publishing` |
| the same, with a plan `Replay` | `Replayed` | `LearningPolicy` | `Publishing` |
| `learner.offline` | `RecordedFiles`, `RecordedSteps` | `LearningPolicy` | `Publishing` |
| `placement: agent` | `RequestQueue`: `Collected` or `Replayed` | `Pushing` | `Pushing` |
| the same, with `combine.method: sync` | as without it | `JointPushing` | `JointPushing` |

`relaax train` learns by the same placements, in its own process or, with workers and
`placement: agent`, in theirs. The update is the policy of a `BaseLearner`, whose `train` calls the
hooks around it. Without a loop, in `start`, that learner trains with the data of its data loader,
and has no sink.
"""

import abc
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from relaax_like.core.metrics import Metrics
from relaax_like.core.records import LearnerUpdate
from relaax_like.learn.means import LAG, Means
from relaax_like.learn.update_policy import UpdatePolicy
from relaax_like.nn.device import hold_gpu
from relaax_like.wire import tracing

if TYPE_CHECKING:
    from relaax_like.learn.base_learner import BaseLearner

# Longest wait for a source before `is_over` is called again.
_WAIT_SEC = 0.5


class Source(abc.ABC):
    """Provides iterations, such as `TrainingData`; used by the learning thread.

    All have `tickets`, of the rollouts or requests that they use up. Those to learn from also have
    `env_steps`, the number of new environment steps, or of all steps of a recording, for rates; and
    `mean_version`, of the values that acted, None if another run has acted, or it is unknown. Their
    other attributes depend on the update.
    """

    def load(self) -> None:  # noqa: B027 - optional
        """Restores the data that an earlier process has left; called after `Sink.load`.

        Raises:
          RelaaxError: the data cannot be read, or do not fit this run; see `Replayed.load`.
        """

    def has_rollouts(self, iteration: Any) -> bool:
        """Returns whether there is something to learn from; otherwise, steps are only counted."""
        return True

    @abc.abstractmethod
    def get(self, done: int, timeout_sec: float) -> Any | None:
        """Waits for the next iteration.

        Args:
          done: number of iterations delivered so far; see `Sink.number`.
          timeout_sec: longest wait.

        Returns:
          The iteration; None: there was none in time, or there are no more.
        """

    def note_learned(self, number: int, iteration: Any, results: Mapping[str, Any]) -> None:  # noqa: B027 - optional
        """Receives the results of an iteration.

        Args:
          number: of the iteration.
          iteration: as returned by `get`.
          results: log variables and results of each row, by name.

        Raises:
          RelaaxError: the data handler has failed, or a result cannot be used.
        """

    def take_curves(self, sample_rate: float) -> Mapping[str, float]:
        """Returns numbers to record for the time since the last call.

        Args:
          sample_rate: steps per second of waiting, for the newest iteration.
        """
        return {}

    def take_state(self) -> dict[str, Any]:
        """Returns the data of the next iterations, which no delivery contains.

        The learner that restores it counts the steps and episodes in it; this one no longer does.
        """
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - optional
        """Restores what `take_state` returned, before anything is added.

        Raises:
          InvalidInputError: the state does not fit, such as a replay table of another size.
        """

    def close(self) -> None:  # noqa: B027 - optional
        """Stops accepting data."""


class Sink(abc.ABC):
    """Receives results; used by the learning thread.

    Attributes:
      number: of iterations delivered in the whole run, after `load`; `Pushing`: by this start of
        the learner.
      lock: held from an update to its delivery, and by `load`. Reentrant.
    """

    number: int = 0
    lock: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()

    @abc.abstractmethod
    def load(self) -> LearnerUpdate:
        """Makes the update continue with the newest values, and returns them."""

    def refresh(self, newest: LearnerUpdate) -> LearnerUpdate:
        """Updates the counts to include those of the run's other learners."""
        return newest

    @abc.abstractmethod
    def deliver(self, iteration: Any) -> LearnerUpdate:
        """Delivers the update of an iteration, with the steps and episodes to be counted.

        Returns:
          The new values; its `numbers` are the tickets that were used up.

        Raises:
          RelaaxError: see `Publisher.publish`.
        """

    @abc.abstractmethod
    def count(self, iteration: Any | None = None) -> LearnerUpdate | None:
        """Counts what has been accepted since the last call, although nothing was learned.

        Args:
          iteration: whose tickets the result contains; None: no iteration.

        Returns:
          The new counts; None: there was nothing to count.

        Raises:
          RelaaxError: see `Publisher.count` and `ParameterServerClient.push_pull`.
        """

    def take_state(self) -> dict[str, Any]:
        """Returns the update's state that no delivery contains."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - optional
        """Restores what `take_state` returned; after `load`."""

    def close(self) -> LearnerUpdate | None:
        """Closes the sink; returns the counts that it has delivered, if any.

        Raises:
          RelaaxError: see `count`.
        """
        return None


SourceT = TypeVar("SourceT", bound=Source)
OnTurn = Callable[[LearnerUpdate | None], None]
OnFailure = Callable[[Any, Exception], LearnerUpdate | None]


def _raise(iteration: Any, error: Exception) -> LearnerUpdate | None:
    raise error


class LearnerLoop(Generic[SourceT]):
    """Takes iterations from a source, updates a BaseLearner, and delivers the results to a sink.

        loop = LearnerLoop(source, base_learner, sink, metrics)
        first = loop.load()
        loop.run(is_over, on_turn)
        loop.close()

    All methods are called by one thread at a time.

    Attributes:
      source: as the argument.
      newest: the newest delivery, or newer counts without values; available after `load`.

    Args:
      source: provides iterations.
      learner: updates the policy, with its hooks.
      sink: receives the results.
      metrics: recorder of the curves; None: no curves.
      curves: prefix of the names of the log variables' curves.
      records_times: whether to record curves of where the time went.
    """

    def __init__(
        self,
        source: SourceT,
        learner: "BaseLearner",
        sink: Sink,
        metrics: Metrics | None = None,
        curves: str = "Optimizer",
        records_times: bool = True,
    ):
        self.source = source
        self._learner = learner
        self._sink = sink
        self._means = None if metrics is None else Means(metrics)
        self._curves = curves
        self._records_times = records_times
        self.newest = LearnerUpdate((), 0, 0, "", None)
        self._loaded = False
        self._learned_at = 0.0

    @property
    def iteration(self) -> int:
        """Number of the newest iteration, 0 before the first; see `Sink.number`."""
        return self._sink.number

    def load(self) -> LearnerUpdate:
        """Continues with the newest values, calls the hooks of before_run, and returns the values.

        With a sink that publishes, this learner becomes the run's only one.

        Raises:
          ConfigError: the values belong to another model, or the data that an earlier process has
            left do not fit this run; see `Replayed.load`.
          InvalidInputError: the run has another model or optimizer, and the sink publishes.
          JournalError: the log of a replay table is damaged, or cannot be used.
          ServerUnavailableError: the parameter server is not available.
          Exception: another error of the source, the sink or a hook.
        """
        with self._sink.lock:
            first = self._sink.load()
        self.source.load()
        self._take(first)
        self._learner.call_hook("before_run")
        self._loaded = True
        self.source.take_curves(0.0)  # from now on
        self._learned_at = time.monotonic()
        return first

    def run(
        self,
        is_over: Callable[[], bool],
        on_turn: OnTurn = lambda update: None,
        on_failure: OnFailure = _raise,
        timeout_sec: float = _WAIT_SEC,
    ) -> None:
        """Learns from one iteration after another; those without rollouts are only counted.

        Args:
          is_over: called before each turn; True ends the loop.
          on_turn: called in each turn, with the new values as soon as they are available, or None.
          on_failure: called with an iteration that could not be learned from, or whose results
            could not be processed, and the error; returns the argument for `on_turn`. The default
            raises the error.
          timeout_sec: longest wait for the source in a turn.

        Raises:
          Exception: what `on_turn` or `on_failure` raises; or an error of `Source.get`.
        """
        while True:
            self._refresh()
            if is_over():
                return
            iteration = self.source.get(self._sink.number, timeout_sec)
            if iteration is None:
                on_turn(None)
                continue
            try:
                if self.source.has_rollouts(iteration) and not self.newest.finished:
                    self._learn_from(iteration, on_turn)
                else:
                    on_turn(self.count(iteration))
            except Exception as error:
                update = on_failure(iteration, error)
                if update is not None:
                    self._take(update)
                on_turn(update)

    def learn(self, timeout_sec: float = 0.0) -> LearnerUpdate | None:
        """Learns from the next iteration; returns None if there is none in time.

        Raises:
          ConfigError: the algorithm's code fails, as it would each time, and nothing was delivered;
            or the data handler has failed.
          InvalidInputError, NotFiniteError: the iteration could not be learned from; nothing was
            delivered.
          Exception: another error of the source, the sink or a hook.
        """
        self._refresh()
        iteration = self.source.get(self._sink.number, timeout_sec)
        return None if iteration is None else self._learn_from(iteration, lambda update: None)

    def count(self, iteration: Any | None = None) -> LearnerUpdate | None:
        """Counts what has been accepted since the last delivery; see `Sink`.

        Raises:
          RelaaxError: see `Publisher.count` and `ParameterServerClient.push_pull`.
        """
        update = self._sink.count(iteration)
        if update is not None:
            self._take(update)
        return update

    def take_state(self) -> dict[str, Any]:
        """Returns the state of source and sink that no delivery contains."""
        return {**self.source.take_state(), **self._sink.take_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `take_state` returned; call it after `load`, before anything is added.

        Raises:
          InvalidInputError: the state does not fit this run; see `Source.set_state`.
        """
        self.source.set_state(state)
        self._sink.set_state(state)

    def close(self) -> None:
        """Closes source and sink, which counts the rest, and calls the hooks of after_run.

        Idempotent. Before `load` has returned, only the source is closed.

        Raises:
          RelaaxError: the rest could not be counted; the hooks were called.
          Exception: an error of a hook.
        """
        self.source.close()
        if self._loaded:
            self._loaded = False
            try:
                update = self._sink.close()
                if update is not None:
                    self._take(update)
                if self._means is not None:
                    self._means.record()
            finally:
                self._learner.call_hook("after_run")

    def _refresh(self) -> None:
        update = self._sink.refresh(self.newest)
        if update is not self.newest:
            self._take(update)

    def _learn_from(self, iteration: Any, on_turn: OnTurn) -> LearnerUpdate:
        began = time.monotonic()
        version = self.newest.version
        with self._sink.lock:
            with tracing.span("update"), hold_gpu():  # others learn in threads of their own
                self._learner.train(iteration)
            update = self._sink.deliver(iteration)
        variables, kept = self._learner.log_variables, self._learner.log_buffer
        self._take(update)
        times = self._measure(began, iteration.env_steps)
        sample_rate = times["Time/Sample Rate"]
        on_turn(update)
        rows = getattr(self._learner.policy, "rows", {})
        results = {name: np.asarray(y) for name, y in variables.items()}
        self.source.note_learned(self._sink.number, iteration, {**results, **rows})
        is_recording = getattr(self._learner.policy, "is_recording", True)
        if is_recording and isinstance(self._learner.policy, UpdatePolicy):
            self._learner.policy.review(variables)
        if self._means is not None and is_recording:
            # A hook that empties the log buffer records its own curves.
            curves = {f"{self._curves}/{name}": kept[name] for name in variables if name in kept}
            times = times if self._records_times else {}
            if iteration.mean_version is not None:
                times[LAG] = version - iteration.mean_version
            rates = self.source.take_curves(sample_rate)  # also resets the source's counts
            if not self._records_times:
                rates = {}
            self._means.add({**curves, **times, **rates})
        return update

    def _take(self, update: LearnerUpdate) -> None:
        """Updates the counts to what was counted, which can differ from what was learned from."""
        self.newest = update
        self._learner.resume_from(self._sink.number, update.global_t)

    def _measure(self, began: float, env_steps: int) -> dict[str, float]:
        """Returns the parts of an iteration's time."""
        now = time.monotonic()
        sampling, learning = began - self._learned_at, now - began
        self._learned_at = now
        return {
            "Time/Sample Time": sampling,
            "Time/Sample Rate": env_steps / max(sampling, 1e-9),
            "Time/Optimize Time": learning,
            "Time/Timesteps per Iteration": env_steps,
            "Time/Timesteps per Second": env_steps / max(sampling + learning, 1e-9),
        }
