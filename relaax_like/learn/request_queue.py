"""RequestQueue: agents' requests as a source of iterations, for the learner beside them."""

import contextlib
import logging
import queue
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from relaax_like.core.records import LearnRequest
from relaax_like.experience.collector import TrainingData
from relaax_like.learn.agent_source import AgentSource
from relaax_like.learn.learner_loop import Source
from relaax_like.learn.replayed import ReplayIteration
from relaax_like.learn.rollout_barrier import RolloutBarrier
from relaax_like.wire import tracing
from relaax_like.wire.errors import CollectorFullError

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
    """

    tickets: Sequence[int]
    wants_values: bool = True
    error: Exception | None = None


class RequestQueue(Source):
    """Passes agents' requests, in the order of their arrival, to a source of their rollouts.

    A request is answered once its rollout has been learned from; if the source is a replay table,
    once the table has it: immediately, unless the learner is too far behind.

    `put` and `end` can be called from any thread; all else belongs to the learning thread.

    Attributes:
      source: as the argument.
      has_ended: whether everything before `end` was returned.
      get_version: returns the version of the values that learn; for `max_lag`.

    Args:
      source: takes the rollouts, in this process only; has no log.
      waits: whether agents wait for an iteration that is not complete; see `RolloutBarrier`.
      holds_agents: whether agents whose rollouts are in a replay table are only answered when no
        minibatch is due any more. Then what agents see does not depend on the clock.
      max_lag: maximum number of versions between the oldest step of an iteration and the values
        that would learn from it; older iterations are dropped, and counted. None: no limit. Not
        used with a replay table.
    """

    def __init__(
        self,
        source: AgentSource,
        waits: bool = False,
        holds_agents: bool = False,
        max_lag: int | None = None,
    ):
        self.source = source
        self.has_ended = False
        self.get_version: Callable[[], int] = lambda: 0
        self._holding = RolloutBarrier(waits)
        self._answers_first = not (source.holds_agents or holds_agents)
        self._max_lag = max_lag
        # Bounded by its users: each agent has a few requests in it.
        self._queue: queue.SimpleQueue[LearnRequest | None] = queue.SimpleQueue()
        self._finished = False
        self._has_read_end = False
        self._numbers: dict[int, int] = {}  # ticket -> number of a request that waits for it
        self._held: deque[LearnRequest] = deque()  # for which there was no room
        self._slots: dict[str, Sequence[int]] = {}  # agent -> slots of its newest rollout
        self._reports: list[int] = []  # numbers of requests to be answered with the newest values
        self._taken: Sequence[int] = ()  # tickets of the iteration that was returned last
        self._failed: Requests | None = None
        self._dropped = 0
        self._next_line = 0.0

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

    def get(
        self, done: int, timeout_sec: float
    ) -> TrainingData | ReplayIteration | Requests | None:
        """Waits for the next iteration, or for requests to answer without one; see `Source`."""
        self._holding.release(self._taken)
        self._taken = ()
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

    def has_rollouts(self, iteration: TrainingData | ReplayIteration | Requests) -> bool:
        """Returns whether there is something to learn from that is not too old; see `Source`.

        Raises:
          Exception: the error of rollouts that could not be used.
        """
        if isinstance(iteration, Requests):
            if iteration.error is not None:
                raise iteration.error
            return False
        if self._max_lag is None or not isinstance(iteration, TrainingData):
            return True
        lag = self.get_version() - int(iteration.rollout.versions.min())
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

    def note_learned(self, number: int, iteration: Any, results: Mapping[str, Any]) -> None:
        """Passes the results to the source; see `Source`, also for the errors."""
        self.source.note_learned(number, iteration, results)

    def take_state(self) -> dict[str, Any]:
        """Returns the source's state, and removes what is to be counted; see `Source`."""
        return self.source.take_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `take_state` returned; see `Source`."""
        self.source.set_state(state)

    def close(self) -> None:
        """Closes the source."""
        self.source.close()

    def _read(self) -> None:
        """Reads all requests in the queue, without waiting, while they can be taken."""
        with contextlib.suppress(queue.Empty):
            while not (self._has_read_end or self._failed is not None or self._held):
                self._take_or_end(self._queue.get_nowait())

    def _take_or_end(self, request: LearnRequest | None) -> None:
        if request is None:
            self._has_read_end = True
        elif request.is_leaving:
            self._holding.leave(request.agent)
            self.source.forget(self._slots.pop(request.agent, ()))
        elif request.rollout is None or self._finished:
            self._report(request)
        else:
            self._insert(request)

    def _report(self, request: LearnRequest) -> None:
        self.source.add_counts(request.env_steps, request.episodes)
        self._reports.append(request.number)

    def _insert(self, request: LearnRequest) -> None:
        rollout = request.rollout
        assert rollout is not None
        try:
            with tracing.span("pack"):
                ticket = self.source.add(
                    self.source.conform(rollout),
                    request.episodes,
                    request.env_steps,
                    is_urgent=request.is_urgent,
                )
        except CollectorFullError:
            self._held.append(request)
        except Exception as error:
            self.source.add_counts(request.env_steps, request.episodes)
            self._failed = Requests((request.number,), error=error)
        else:
            self._numbers[ticket] = request.number
            self._holding.add(request.agent, ticket, rollout.slots)
            if rollout.starts is not None:
                self._slots[request.agent] = rollout.starts[:, 0].tolist()

    def _find(self) -> TrainingData | ReplayIteration | Requests | None:
        """Returns the next iteration or requests; None: nothing yet."""
        if self._failed is not None:
            failed, self._failed = self._failed, None
            return failed
        if self._finished:
            while self._held:
                self._report(self._held.popleft())
            self._reports += self._release_all()
        if self._reports:
            reports, self._reports = self._reports, []
            return Requests(reports)
        held, self._held = self._held, deque()
        for request in held:
            self._insert(request)
        if self._numbers and self._answers_first:
            return Requests(self._release_all(), wants_values=False)
        if not self._finished and self.source.has_iteration:
            return self._get_iteration()
        if self._has_read_end:
            released = list(self._numbers)
        else:
            released = self._holding.find_released(self.source.missing_columns)
        if released:
            return Requests(self._release(released), wants_values=False)
        if self._has_read_end:
            self.has_ended = True
        return None

    def _get_iteration(self) -> TrainingData | ReplayIteration | Requests:
        try:
            iteration = self.source.get(0, timeout_sec=0.0)
        except Exception as error:  # such as one of `compute_rewards`, or too little memory
            return Requests(self._release_all(), error=error)
        if iteration is None or not self.source.has_rollouts(iteration):
            return Requests(self._release_all())  # whose steps are counted now
        tickets: Sequence[int] = ()  # those of a replay table are answered apart
        if self.source.holds_agents:
            self._taken = tickets = iteration.tickets
        return replace(iteration, tickets=tuple(self._pop_numbers(tickets)))

    def _release_all(self) -> list[int]:
        return self._release(list(self._numbers))

    def _release(self, tickets: Sequence[int]) -> list[int]:
        """Releases agents; returns the numbers of the requests to answer."""
        self._holding.release(tickets)
        return self._pop_numbers(tickets)

    def _pop_numbers(self, tickets: Sequence[int]) -> list[int]:
        numbers = (self._numbers.pop(ticket, None) for ticket in tickets)
        return [number for number in numbers if number is not None]
