"""The Collector: receives rollouts of any number of slots, and returns batches."""

import bisect
import itertools
import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from relaax_like.experience.rollout import Rollout, concatenate, slice_slots
from relaax_like.wire.errors import (
    CollectorClosedError,
    CollectorFullError,
    ConfigError,
    InvalidInputError,
)

PolicyData = Mapping[str, np.ndarray]

# Shape without the slots, and dtype, of each array of a rollout.
Layout = dict[str, tuple[tuple[int, ...], np.dtype]]


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """One batch; the reader owns the arrays.

    Attributes:
      rollout: `[T, columns, ...]`; its `versions` are the oldest that acted at each step.
      tickets: of the rollouts that this batch has used up, or that were dropped since the batch
        before: none of their columns is waiting any more; ascending.
      env_steps: number of valid rows, without the first row of each column if rollouts overlap. It
        can differ from the counted environment steps, for example if a data handler makes several
        rollouts of one, or if steps were overridden.
      mean_version: mean of the version that acted, over all rows of the batch; None: another run
        has acted.
      keys: `[columns, 2] int64`: ticket (of an episode: that of its last rollout), and index of the
        column among those of its ticket.
    """

    rollout: Rollout
    tickets: tuple[int, ...]
    env_steps: int
    mean_version: float | None
    keys: np.ndarray


class DataHandler(Protocol):
    """A user's changes to experience; any object with these two methods.

    An algorithm uses a data handler if its `algorithm.py` has a function
    `make_data_handler(config)`. Environment steps are counted before the handler is called: its
    changes do not affect the counts. But with the plan `Replay`, updates are due for the steps of
    the rollouts that the handler returns.

    The methods are called in the thread that adds or learns, so possibly at the same time. If one
    of them raises an error, the learning ends.
    """

    def after_interact(self, rollout: Rollout) -> Rollout | Iterable[Rollout]:
        """Changes a rollout before it is queued, for example to relabel goals in hindsight.

        Arrays that came over the network are read-only: return a rollout with other arrays instead.

        With the plan `Replay` it cannot add `extras`: the table has no columns for them.

        With the plan `Episodes` it receives each complete episode, `[L, 1, ...]`, when that ends. A
        replay table on disk has rollouts as they arrived: the changes are made again when a
        restarted run reads them.

        Returns:
          The rollout, another one, or several, which share its ticket; at least one.
        """

    def after_learn(self, training_data: Any, policy_data: PolicyData) -> None:
        """Uses the results of an update, such as value errors for priorities.

        Args:
          training_data: the batch that was learned from; `keys` identify its columns. With the plan
            `Replay`, the minibatches (`TransitionBatch` or `SequenceBatch` of
            `relaax_like.replay`), whose `ids` and `keys` identify the steps.
          policy_data: the results of the update: its log variables, such as the means of costs and
            metrics, by name, and `Losses.rows`, `[T, k]` like the batch; with `Replay` `[U * B]`,
            or `[L, U * B]` of sequences. Only `updates`, 0, of a batch that only feeds running
            statistics (`prenormalize_steps`).
        """


def handle_rollout(data_handler: DataHandler | None, rollout: Rollout) -> Sequence[Rollout]:
    """Returns the data handler's rollouts for a rollout; without a data handler, the rollout.

    Raises:
      InvalidInputError: the data handler returned no rollout, or something else.
      Exception: an error of the data handler.
    """
    if data_handler is None:
        return [rollout]
    handled: Any = data_handler.after_interact(rollout)
    if isinstance(handled, Rollout):
        return [handled]
    name = type(data_handler).__name__
    rollouts = list(handled) if isinstance(handled, Iterable) else []  # also of a generator
    if not rollouts:
        raise InvalidInputError(
            f"data handler {name}: after_interact returned no rollouts ({handled!r:.80}), expected "
            "at least one; return the rollout itself to leave it unchanged",
            "after_interact",
        )
    for one in rollouts:
        if not isinstance(one, Rollout):
            raise InvalidInputError(
                f"data handler {name}: after_interact returned {type(handled).__name__} with "
                f"{type(one).__name__}, expected a Rollout or several; return only rollouts",
                "after_interact",
            )
    return rollouts


class Part(NamedTuple):
    """Columns that wait, or that are put into a batch.

    Attributes:
      rollout: with these columns.
      tickets: of the columns; ascending.
      first_index: of the first column, among those of the last ticket.
    """

    rollout: Rollout
    tickets: tuple[int, ...]
    first_index: int

    def split(self, columns: int) -> tuple["Part", "Part"]:
        """Returns the first columns and the rest, as views."""
        rollout, slots = self.rollout, self.rollout.slots
        return (
            self._replace(rollout=slice_slots(rollout, 0, columns)),
            self._replace(
                rollout=slice_slots(rollout, columns, slots), first_index=self.first_index + columns
            ),
        )


class Collector:
    """Queues rollouts, first in, first out, and returns batches of a fixed or a minimum size.

        collector = Collector(steps=32, columns=64, capacity=256)
        ticket = collector.add(rollout)                              # from any thread
        training_data = collector.get_training_data(timeout_sec=1.0) # in the learner's thread
        policy_data = learner.run(training_data)
        collector.handle_data_after_learn(policy_data)

    A column is the T steps of one slot. A batch consists of complete rollouts or parts of them, in
    the order of their arrival; the remaining columns wait for the next batch. Arrays are copied
    once, into the batch, when they are taken, not when they are added; a batch that is one rollout,
    or a part of one, is not copied at all. So a rollout must not be changed after it was added, and
    one waiting column keeps the memory of its complete rollout. Everything is lost with the
    process.

    With `max_columns` a batch consists of complete rollouts: the fewest that have `columns`, or
    twice, four times ... as many rollouts, if they are waiting and have at most `max_columns`. So
    batches grow with the agents, but have few different shapes.

    Thread-safe: many threads can add, one can take.

    Attributes:
      columns: number of columns of each batch, or their minimum.
      data_handler: as the argument.
      num_added: number of columns ever added; with a data handler, those that it returned.
      num_taken: number of columns ever taken.
    """

    def __init__(
        self,
        steps: int,
        columns: int,
        *,
        capacity: int,
        max_columns: int | None = None,
        data_handler: DataHandler | None = None,
        overlap: bool = False,
    ):
        """Starts empty.

        Args:
          steps: T of each rollout.
          columns: number of columns of each batch; with `max_columns` the minimum.
          capacity: number of columns that can wait, at least `columns`; one rollout more, while
            there is no complete batch.
          max_columns: maximum number of columns of each batch, unless fewer rollouts would not have
            `columns`; None: each batch has exactly `columns`.
          data_handler: applies a user's changes; None: no changes.
          overlap: whether the first row of each column was already in another one.

        Raises:
          ConfigError: steps or columns is below 1, or capacity is below columns.
        """
        for name, value, least in (
            ("steps", steps, 1),
            ("columns", columns, 1),
            ("capacity", capacity, columns),
        ):
            if value < least:
                raise ConfigError(f"collector: {name} {value}, expected {least} or more")
        self._steps = steps
        self.columns = columns
        self._max_columns = max_columns
        self._capacity = capacity
        self.data_handler = data_handler
        self._overlap = overlap
        self._latest: TrainingData | None = None  # belongs to the thread that takes
        # Guards the following. While it is held, no user's code runs and nothing is copied.
        self._changed = threading.Condition()
        self._layout: Layout | None = None
        self._waiting: deque[Part] = deque()
        self._last_ticket = 0
        # Ticket -> number of its parts that are in no batch; at 0, the next batch contains it.
        self._open: Counter[int] = Counter()
        self.num_added = 0
        self.num_taken = 0
        self._closed = False

    @property
    def waiting_columns(self) -> int:
        """Number of columns that are not in a batch yet."""
        with self._changed:
            return self.num_added - self.num_taken

    @property
    def has_batch(self) -> bool:
        """Whether a complete batch is waiting."""
        with self._changed:
            return self._has_batch()

    def add(self, rollout: Rollout) -> int:
        """Adds a rollout to the queue; never waits.

        Args:
          rollout: T steps of any number of slots, with the same names, shapes and dtypes as the
            first one.

        Returns:
          The rollout's ticket, 1, 2, 3 ...; see `TrainingData.tickets`.

        Raises:
          InvalidInputError: the rollout, or one that the data handler returned, has another number
            of steps, has arrays with different numbers of slots, or differs from the first one; or
            the data handler returned no rollout, or something else.
          CollectorFullError: too many columns are waiting. A rollout that is added again later
            passes through the data handler again.
          CollectorClosedError: after `close`.
          Exception: an error of the data handler.
        """
        return self.add_exps_list([rollout])[0]

    def add_exps_list(self, exps: Sequence[Rollout]) -> list[int]:
        """Adds several rollouts, all or none of them; see `add`.

        Returns:
          One ticket for each rollout.
        """
        handled = [handle_rollout(self.data_handler, rollout) for rollout in exps]
        layouts = [self._find_layout(part) for parts in handled for part in parts]
        added = sum(part.slots for parts in handled for part in parts)
        with self._changed:
            self._validate_open()
            first = self._layout
            for layout in layouts:
                first = first or layout
                validate_layout(layout, first)
            self._validate_room(added)
            self._layout = first
            tickets = [self._append(parts) for parts in handled]
            if self._has_batch():
                self._changed.notify_all()
        return tickets

    def get_training_data(self, timeout_sec: float | None = 0.0) -> TrainingData | None:
        """Takes the next batch.

        Args:
          timeout_sec: longest wait for a complete one; None: until `close`.

        Returns:
          The batch; None if there was none in time, or none is left after `close`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has_batch(), timeout_sec)
            if not self._has_batch():
                return None
            parts = self._take_parts()
            tickets = self._take_tickets()
        rollout = self._join([part.rollout for part in parts])
        training_data = TrainingData(
            rollout=rollout,
            tickets=tickets,
            env_steps=rollout.env_steps - self._overlap * rollout.slots,
            mean_version=_find_mean_version(parts),
            keys=_make_keys(parts),
        )
        if self.data_handler is not None:
            self._latest = training_data
        return training_data

    def handle_data_after_learn(self, policy_data: PolicyData | None) -> None:
        """Passes the results of the batch that was taken last to the data handler.

        Args:
          policy_data: name -> array; None or empty: no results.

        Raises:
          InvalidInputError: no batch was taken yet.
          Exception: an error of the data handler.
        """
        if self.data_handler is None or not policy_data:
            return
        if self._latest is None:
            raise InvalidInputError(
                "policy_data: handle_data_after_learn was called before any training data was "
                "taken; call get_training_data first"
            )
        self.data_handler.after_learn(self._latest, policy_data)

    def forget(self, agents: Sequence[int]) -> None:
        """Forgets slots that send nothing more, given by the first number of `Rollout.starts`.

        Here there is nothing to forget: waiting rollouts stay.
        """

    def get_state(self) -> dict[str, Any]:
        """Returns the waiting rollouts, not copied, and the counts."""
        with self._changed:
            waiting = [
                {**part._asdict(), "rollout": dict(vars(part.rollout))} for part in self._waiting
            ]
            return {
                "waiting": waiting,
                "last_ticket": self._last_ticket,
                "num_added": self.num_added,
                "num_taken": self.num_taken,
            }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned; discards what was waiting before.

        Raises:
          InvalidInputError: the rollouts have another number of steps than this collector's.
        """
        parts = [
            Part(Rollout(**part["rollout"]), tuple(part["tickets"]), part["first_index"])
            for part in state["waiting"]
        ]
        layouts = [self._find_layout(part.rollout) for part in parts]
        with self._changed:
            self._layout = layouts[0] if layouts else None
            self._waiting = deque(parts)
            self._open = Counter(ticket for part in parts for ticket in part.tickets)
            self._last_ticket = int(state["last_ticket"])
            self.num_added, self.num_taken = int(state["num_added"]), int(state["num_taken"])

    def close(self) -> None:
        """Stops accepting rollouts, and wakes waiters. Idempotent.

        Complete batches can still be taken. Then `waiting_columns` are the remaining columns.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _has_batch(self) -> bool:
        return self.num_added - self.num_taken >= self.columns

    def _validate_room(self, added: int) -> None:
        waiting = self.num_added - self.num_taken
        # Without a batch that can be taken, there would never be room for a large rollout.
        if waiting + added <= self._capacity or waiting < self.columns:
            return
        raise CollectorFullError(
            f"{waiting} column(s) are waiting, and {added} more would exceed capacity, which is "
            f"{self._capacity}; add them again after training data has been taken, or raise "
            "capacity"
        )

    def _validate_open(self) -> None:
        if self._closed:
            raise CollectorClosedError(
                "the collector is closed and takes no more rollouts; create a new one"
            )

    # Overridden for other kinds of columns.

    def _find_layout(self, rollout: Rollout) -> Layout:
        return find_layout(rollout, self._steps)

    def _append(self, rollouts: Sequence[Rollout]) -> int:
        """Adds the rollouts of one ticket as columns; returns the ticket."""
        self._last_ticket += 1
        index = 0
        for rollout in rollouts:
            self._put(Part(rollout, (self._last_ticket,), index))
            index += rollout.slots
        return self._last_ticket

    def _join(self, rollouts: Sequence[Rollout]) -> Rollout:
        """Makes a batch of the columns of some parts."""
        return concatenate(rollouts)

    # Common to all kinds of columns.

    def _put(self, part: Part) -> None:
        self._waiting.append(part)
        self._open.update(part.tickets)
        self.num_added += part.rollout.slots

    def _take_parts(self) -> list[Part]:
        """Removes and returns the columns of one batch."""
        if self._max_columns is not None:
            return self._take_whole_parts(self._max_columns)
        parts, missing = [], self.columns
        while missing:
            part = self._waiting.popleft()
            if part.rollout.slots > missing:
                part, rest = part.split(missing)
                self._waiting.appendleft(rest)
                self._open.update(rest.tickets)
            parts.append(part)
            self._open.subtract(part.tickets)
            missing -= part.rollout.slots
        self.num_taken += self.columns
        return parts

    def _take_whole_parts(self, max_columns: int) -> list[Part]:
        """Takes the fewest rollouts that make a batch, or a doubling of their number.

        The rollouts that a data handler returned for one rollout are not separated.
        """
        sums = list(itertools.accumulate(part.rollout.slots for part in self._waiting))
        tickets = [part.tickets for part in self._waiting]
        ends = [i for i in range(len(tickets)) if tickets[i : i + 1] != tickets[i + 1 : i + 2]]
        columns = [sums[end] for end in ends]
        number = bisect.bisect_left(columns, self.columns) + 1
        while 2 * number <= len(columns) and columns[2 * number - 1] <= max_columns:
            number *= 2
        parts = [self._waiting.popleft() for _ in range(ends[number - 1] + 1)]
        for part in parts:
            self._open.subtract(part.tickets)
        self.num_taken += columns[number - 1]
        return parts

    def _take_tickets(self) -> tuple[int, ...]:
        """Returns the tickets of which nothing is waiting any more, each once."""
        used_up = sorted(ticket for ticket, parts in self._open.items() if not parts)
        for ticket in used_up:
            del self._open[ticket]
        return tuple(used_up)


def _make_keys(parts: Sequence[Part]) -> np.ndarray:
    """Returns `[columns, 2] int64`, ticket and index."""
    keys = np.empty((sum(part.rollout.slots for part in parts), 2), np.int64)
    start = 0
    for part in parts:
        stop = start + part.rollout.slots
        keys[start:stop, 0] = part.tickets[-1]
        keys[start:stop, 1] = part.first_index + np.arange(stop - start)
        start = stop
    return keys


def _find_mean_version(parts: Sequence[Part]) -> float:
    rows = [part.rollout.next_alive.size for part in parts]
    return float(np.average([part.rollout.versions.mean() for part in parts], weights=rows))


def find_layout(rollout: Rollout, steps: int) -> Layout:
    """Checks that all arrays of a rollout have `steps` steps and the same slots.

    Returns:
      Field -> shape without steps and slots, and dtype.

    Raises:
      InvalidInputError: an array has another number of steps or slots, or there are no slots; the
        error names the field.
    """
    if rollout.next_alive.ndim != 2 or not rollout.slots:
        raise InvalidInputError(
            f"next_alive has shape {list(rollout.next_alive.shape)}, expected [{steps}, k] with "
            "at least one slot",
            "next_alive",
        )
    leading = (steps, rollout.slots)
    layout: Layout = {}

    def add(field: str, array: np.ndarray, axes: tuple[int, ...]) -> None:
        if array.shape[: len(axes)] != axes:
            raise InvalidInputError(
                f"{field} has shape {list(array.shape)}, expected [{', '.join(map(str, axes))}, "
                f"...] in a rollout of {steps} step(s) and {rollout.slots} slot(s)",
                field,
            )
        layout[field] = (array.shape[len(axes) :], array.dtype)

    for field in ("inputs", "next_inputs", "actions", "extras"):
        for name, array in getattr(rollout, field).items():
            add(f"{field}[{name!r}]", array, leading)
    for field in ("next_alive", "rewards", "log_prob"):
        add(field, getattr(rollout, field), leading)
    for name, array in rollout.states.items():
        add(f"states[{name!r}]", array, leading[1:])
    for name, array in rollout.history.items():
        field = f"history[{name!r}]"
        add(field, array, (len(array), rollout.slots))
        shape, dtype = layout[field]
        layout[field] = (len(array), *shape), dtype
    add("versions", rollout.versions, leading[:1])
    if rollout.starts is not None:
        add("starts", rollout.starts, leading[1:])
    if rollout.valid is not None and rollout.valid.shape != leading:
        raise InvalidInputError(
            f"valid has shape {list(rollout.valid.shape)}, expected {list(leading)} like "
            "next_alive",
            "valid",
        )
    return layout


def validate_layout(layout: Layout, first: Layout) -> None:
    """Checks that a rollout's layout is that of the first rollout.

    Raises:
      InvalidInputError: the layouts differ; the error names the first field.
    """
    if layout == first:
        return
    for field in (*first, *layout):
        if layout.get(field) == first.get(field):
            continue
        if field not in layout:
            difference = "is missing, but the first rollout had it"
        elif field not in first:
            difference = "was not in the first rollout"
        else:
            (shape, dtype), (want_shape, want_dtype) = layout[field], first[field]
            difference = (
                f"is {dtype} of {list(shape)} in each slot, expected {want_dtype} of "
                f"{list(want_shape)} as in the first rollout"
            )
        raise InvalidInputError(
            f"{field} {difference}; all rollouts of a collector, including those that a data "
            "handler returns, must have the same arrays, shapes and dtypes",
            field,
        )
