"""RequestQueue: agents' requests as a source of iterations, for the learner beside them."""

import abc
import contextlib
import logging
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from relaax_like.core.episode_reports import pack_reports, unpack_reports
from relaax_like.core.records import LearnRequest
from relaax_like.experience.collector import Collector, DataHandler, TrainingData
from relaax_like.experience.trajectory_files import TrajectoryGatherer
from relaax_like.learn.data_handlers import locate_handler_errors
from relaax_like.learn.learner_loop import Source
from relaax_like.learn.rollout_barrier import RolloutBarrier
from relaax_like.learn.tally import Tally
from relaax_like.wire import tracing

logger = logging.getLogger(__name__)

_TOO_OLD_LINE_SEC = 10.0


@dataclass(frozen=True)
class Requests:
    """Requests that are answered, although nothing was learned from them.

    Attributes:
      tickets: numbers of the requests.
      wants_values: whether a sink that pushes gradients pushes the pending counts and answers with
        the newest values; False: the answer only lets the agents continue.
      error: why their rollouts could not be used; None: no error.
      env_steps: always 0: no steps are learned from.
      mean_version: always None; see `Iteration`.
    """

    tickets: Sequence[int]
    wants_values: bool = True
    error: Exception | None = None
    env_steps: int = 0
    mean_version: float | None = None


class RequestSource(Source):
    """Takes agents' requests in the order of their arrival.

    `put` and `end` can be called from any thread; all else belongs to the learning thread.

    Attributes:
      has_ended: whether everything before `end` was returned.
    """

    def __init__(self) -> None:
        self.has_ended = False
        # Bounded by its users: each agent has a few requests in it.
        self._queue: queue.SimpleQueue[LearnRequest | None] = queue.SimpleQueue()
        self._finished = False
        self._has_read_end = False

    def put(self, request: LearnRequest) -> None:
        """Puts a request at the end of the queue."""
        self._queue.put(request)

    def end(self) -> None:
        """Ends the queue after the waiting requests."""
        self._queue.put(None)

    @property
    def waiting(self) -> int:
        """Number of requests that were not read, including the end."""
        return self._queue.qsize()

    def finish(self) -> None:
        """Ends the learning: from now on, requests are only counted."""
        self._finished = True

    def get(self, done: int, timeout_sec: float) -> Any | None:
        """Waits for the next iteration, or for requests to answer without one; see `Source`."""
        deadline = time.monotonic() + timeout_sec
        while True:
            self._read()
            found = self._find()
            if found is not None or self.has_ended:
                return found
            try:
                with tracing.span("wait for rollouts"):
                    request = self._queue.get(timeout=max(deadline - time.monotonic(), 0.0))
            except queue.Empty:
                return None
            self._take_or_end(request)

    def has_rollouts(self, iteration: Any) -> bool:
        """Returns whether there is something to learn from; see `Source`.

        Raises:
          Exception: the error of rollouts that could not be used.
        """
        if not isinstance(iteration, Requests):
            return True
        if iteration.error is not None:
            raise iteration.error
        return False

    @abc.abstractmethod
    def _find(self) -> Any | None:
        """Returns the next iteration or requests; None: nothing yet."""

    @abc.abstractmethod
    def _take(self, request: LearnRequest) -> None:
        """Takes a request from the queue."""

    @abc.abstractmethod
    def _may_read(self) -> bool:
        """Returns whether to take another request before something is returned."""

    def _read(self) -> None:
        """Reads all requests in the queue, without waiting."""
        with contextlib.suppress(queue.Empty):
            while not self._has_read_end and self._may_read():
                self._take_or_end(self._queue.get_nowait())

    def _take_or_end(self, request: LearnRequest | None) -> None:
        if request is None:
            self._has_read_end = True
        else:
            self._take(request)


class RequestQueue(RequestSource):
    """Collects agents' requests until they make an iteration; see `RequestSource`.

    Args:
      collector: makes iterations; used only by the learning thread.
      tally: counts the steps and episodes of each request, once.
      holding: decides which agents wait for an iteration that is not complete.
      data_handler: the collector's, to name its code in errors.
      trajectories: writes what was learned from; None: nothing is written.
      max_lag: maximum number of versions between the oldest step of an iteration and the values
        that would learn from it; older iterations are dropped, and counted. None: no limit.
      get_version: returns the version of the values that learn.
    """

    def __init__(
        self,
        collector: Collector,
        tally: Tally,
        holding: RolloutBarrier,
        data_handler: DataHandler | None = None,
        trajectories: TrajectoryGatherer | None = None,
        max_lag: int | None = None,
        get_version: Callable[[], int] = lambda: 0,
    ):
        super().__init__()
        self._collector = collector
        self._tally = tally
        self._holding = holding
        self._data_handler = data_handler
        self._trajectories = trajectories
        self._max_lag = max_lag
        self._get_version = get_version
        self._numbers: dict[int, int] = {}  # ticket -> number of a request that waits for it
        self._slots: dict[str, Sequence[int]] = {}  # agent -> slots of its newest rollout
        self._reports: list[int] = []  # numbers of requests to be answered with the newest values
        self._taken: Sequence[int] = ()  # tickets of the iteration that was returned last
        self._failed: Requests | None = None
        self._dropped = 0
        self._next_line = 0.0

    def get(self, done: int, timeout_sec: float) -> TrainingData | Requests | None:
        """Waits for the next iteration, or for requests to answer without one; see `Source`."""
        self._holding.release(self._taken)
        self._taken = ()
        return super().get(done, timeout_sec)

    def has_rollouts(self, iteration: TrainingData | Requests) -> bool:
        """Returns whether there is something to learn from that is not too old; see `Source`.

        Raises:
          Exception: the error of rollouts that could not be used.
        """
        if not super().has_rollouts(iteration) or isinstance(iteration, Requests):
            return False
        if self._max_lag is None:
            return True
        lag = self._get_version() - int(iteration.rollout.versions.min())
        if lag <= self._max_lag:
            return True
        self._dropped += 1
        if time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _TOO_OLD_LINE_SEC
            logger.warning(
                "an iteration was dropped (%d so far): its oldest step is %d version(s) old, but "
                "learner.max_lag is %d",
                self._dropped,
                lag,
                self._max_lag,
            )
        return False

    def note_learned(
        self, number: int, iteration: TrainingData, results: Mapping[str, Any]
    ) -> None:
        """Passes the results to the data handler, and writes the iteration; see `Source`.

        Raises:
          ConfigError: the data handler has failed; the error names the line.
        """
        with locate_handler_errors(self._data_handler, "after_learn"):
            self._collector.handle_data_after_learn(results)
        if self._trajectories is not None:
            self._trajectories.add(iteration.rollout)

    def take_state(self) -> dict[str, Any]:
        """Returns the waiting rollouts, and removes the counts from this source; see `Source`."""
        counts = self._tally.take()
        return {
            "collector": self._collector.get_state(),
            "env_steps": counts.env_steps,
            "episodes": pack_reports(counts.episodes),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `take_state` returned; see `Source`."""
        self._collector.set_state(state["collector"])
        episodes = unpack_reports(state["episodes"])
        self._tally.add(int(state["env_steps"]), episodes)

    def close(self) -> None:
        """Writes the steps that are not in a file yet."""
        if self._trajectories is not None:
            self._trajectories.flush()

    def _may_read(self) -> bool:
        return self._failed is None

    def _take(self, request: LearnRequest) -> None:
        if request.is_leaving:
            self._holding.leave(request.agent)
            self._collector.forget(self._slots.pop(request.agent, ()))
            return
        rollout = request.rollout
        self._tally.add(request.env_steps, request.episodes)
        if rollout is None or self._finished:
            self._reports.append(request.number)
            return
        try:
            with tracing.span("pack"), locate_handler_errors(self._data_handler, "after_interact"):
                ticket = self._collector.add(rollout)
        except Exception as error:
            self._failed = Requests((request.number,), error=error)
            return
        self._numbers[ticket] = request.number
        self._holding.add(request.agent, ticket, rollout.slots)
        if rollout.starts is not None:
            self._slots[request.agent] = rollout.starts[:, 0].tolist()

    def _find(self) -> TrainingData | Requests | None:
        """Returns the next iteration or requests; None: nothing yet."""
        if self._failed is not None:
            failed, self._failed = self._failed, None
            return failed
        if self._finished:
            self._reports += self._release(list(self._numbers))
        if self._reports:
            reports, self._reports = self._reports, []
            return Requests(reports)
        try:
            data = None if self._finished else self._collector.get_training_data()
        except Exception as error:  # such as too little memory for the joined arrays
            return Requests(self._release(list(self._numbers)), error=error)
        if data is not None:
            self._taken = data.tickets
            numbers = (self._numbers.pop(ticket, None) for ticket in data.tickets)
            return replace(data, tickets=tuple(n for n in numbers if n is not None))
        if self._has_read_end:
            released = list(self._numbers)
        else:
            missing = self._collector.columns - self._collector.waiting_columns
            released = self._holding.find_released(missing)
        if released:
            return Requests(self._release(released), wants_values=False)
        if self._has_read_end:
            self.has_ended = True
        return None

    def _release(self, tickets: Sequence[int]) -> list[int]:
        """Releases agents; returns the numbers of the requests to answer."""
        self._holding.release(tickets)
        numbers = (self._numbers.pop(ticket, None) for ticket in tickets)
        return [number for number in numbers if number is not None]
