"""RequestQueue: agents' requests as a source of iterations, packed as they come."""

import contextlib
import functools
import queue
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from relaax_like.config.places import describe_error, describe_place, find_folder
from relaax_like.core.records import LearnRequest
from relaax_like.experience.collector import DataHandler, TrainingData, handle_rollout
from relaax_like.experience.holes import Dense, make_dense
from relaax_like.experience.rollout import Rollout, concatenate, stack_history
from relaax_like.experience.trajectory_files import TrajectoryGatherer
from relaax_like.learn.learner_loop import Source
from relaax_like.learn.tally import Tally
from relaax_like.wire import tracing
from relaax_like.wire.errors import ConfigError, RelaaxError


class Packed:
    """Requests that are learned from together.

    Attributes:
      requests: all with rollouts of one shape, or all without.

    Args:
      requests: as the attribute.
      data_handler: a user's changes to the rollouts; None: none.
      handled: what it has made of requests before, by their numbers.
    """

    def __init__(
        self,
        requests: Sequence[LearnRequest],
        data_handler: DataHandler | None,
        handled: dict[int, Sequence[Rollout]] | None = None,
    ):
        self.requests = requests
        self._data_handler = data_handler
        self._handled = {} if handled is None else handled

    def split(self) -> list["Packed"]:
        """Returns each request by itself."""
        return [Packed([request], self._data_handler, self._handled) for request in self.requests]

    @property
    def tickets(self) -> list[int]:
        """Numbers of the requests."""
        return [request.number for request in self.requests]

    @property
    def env_steps(self) -> int:
        """Of the rollouts, as they came."""
        rollouts = (request.rollout for request in self.requests)
        return sum(rollout.env_steps for rollout in rollouts if rollout is not None)

    @functools.cached_property
    def data(self) -> TrainingData:
        """The rollouts side by side; there are some."""
        with tracing.span("pack"):
            slots: list[int] = []
            rollouts: list[Rollout] = []
            for request in self.requests:
                if request.rollout is not None:
                    handled = self._handle(request.number, request.rollout)
                    rollouts += handled
                    slots.append(sum(rollout.slots for rollout in handled))
            rollout = concatenate(rollouts)
            firsts = np.cumsum([0, *slots])
            numbers = np.repeat(self.tickets, slots)
            indices = np.arange(firsts[-1]) - np.repeat(firsts[:-1], slots)
            return TrainingData(
                rollout=rollout,
                tickets=tuple(self.tickets),
                env_steps=rollout.env_steps,
                mean_version=float(rollout.versions.mean()),
                keys=np.stack([numbers, indices], 1),
            )

    def _handle(self, number: int, rollout: Rollout) -> Sequence[Rollout]:
        if number not in self._handled:
            with _naming_place(self._data_handler, "after_interact"):
                self._handled[number] = handle_rollout(self._data_handler, rollout)
        return self._handled[number]

    @functools.cached_property
    def dense(self) -> Dense:
        """The rollouts without holes, as the model sees them."""
        return make_dense(stack_history(self.data.rollout))

    @property
    def mean_version(self) -> float:
        """Mean over the steps of the oldest version that acted."""
        return self.data.mean_version


class RequestQueue(Source):
    """Packs what waits: a power of two of rollouts of one shape, in the order of their arrival.

    `put` and `end` may be called from any thread.

    Args:
      tally: counts the steps of each request, once.
      max_packed: most rollouts in one iteration, a power of two.
      data_handler: a user's changes to the rollouts; None: none.
      trajectories: keeps what was learned from; None: nothing is kept.
    """

    def __init__(
        self,
        tally: Tally,
        max_packed: int,
        data_handler: DataHandler | None = None,
        trajectories: TrajectoryGatherer | None = None,
    ):
        self._tally = tally
        self._data_handler = data_handler
        self._trajectories = trajectories
        self._max_packed = max_packed
        # Bounded by its users: each agent has at most one or two requests in it.
        self._queue: queue.SimpleQueue[LearnRequest | None] = queue.SimpleQueue()
        # By the thread that learns alone:
        # at most one that was read and did not fit an iteration: it is next;
        self._put_back: list[LearnRequest | None] = []
        # those of an iteration that failed, to be tried one by one.
        self._again: list[Packed] = []
        self.has_ended = False

    def put(self, request: LearnRequest) -> None:
        """Puts a request at the end of the queue."""
        self._queue.put(request)

    def end(self) -> None:
        """Ends it behind what waits."""
        self._queue.put(None)

    @property
    def waiting(self) -> int:
        """Requests that were not read, the end included."""
        return self._queue.qsize()

    def get(self, done: int, timeout_sec: float) -> Packed | None:
        """Waits for requests, however long it takes; None: the end."""
        if self._again:
            return self._again.pop(0)
        with tracing.span("wait for rollouts"):
            first = self._put_back.pop() if self._put_back else self._queue.get()
        if first is None:
            self.has_ended = True
            self.close()
            return None
        packed = Packed(self._take_more(first), self._data_handler)
        for request in packed.requests:
            self._tally.add(request.env_steps)
        return packed

    def has_rollouts(self, iteration: Packed) -> bool:
        """Returns whether the requests have rollouts; see `Source`."""
        return iteration.requests[0].rollout is not None

    def note_learned(self, number: int, iteration: Packed, results: Mapping[str, Any]) -> None:
        """Hands the data handler what came of it, and writes it to a file; see `Source`."""
        if self._data_handler is not None:
            with _naming_place(self._data_handler, "after_learn"):
                self._data_handler.after_learn(iteration.data, results)
        if self._trajectories is not None:
            self._trajectories.add(iteration.data.rollout)

    def close(self) -> None:
        """Writes what no file contains."""
        if self._trajectories is not None:
            self._trajectories.flush()

    def split(self, packed: Packed) -> None:
        """Gives each of the requests again, by itself, before all others; they were counted."""
        self._again[:0] = packed.split()

    def _take_more(self, request: LearnRequest) -> list[LearnRequest]:
        """Takes what else waits, as far as it can be packed.

        Requests without a rollout are taken together, however many there are.
        """
        batch = [request]
        if request.rollout is None:
            return self._take_more_reports(batch)
        waiting = min(self._queue.qsize() + 1, self._max_packed)
        while len(batch) < 1 << (waiting.bit_length() - 1):
            more = self._queue.get()
            if more is None or not _same_shape(more.rollout, request.rollout):
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


def _same_shape(one: Rollout | None, other: Rollout) -> bool:
    return one is not None and one.next_alive.shape == other.next_alive.shape


@contextlib.contextmanager
def _naming_place(data_handler: DataHandler | None, method: str) -> Iterator[None]:
    """Makes an error in a data handler one that names the line."""
    try:
        yield
    except RelaaxError:
        raise
    except Exception as error:
        owner = type(data_handler)
        place = describe_place(owner, method)
        raise ConfigError(describe_error(error, find_folder(owner), place)) from error
