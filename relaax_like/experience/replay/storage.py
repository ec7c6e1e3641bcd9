"""Storage: raw steps, each stored once, in a ring that all slots share."""

import collections
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from relaax_like.experience.replay.kernels import (
    EPISODE,
    FROM_HISTORY,
    FROM_NEXT,
    KEY,
    LAST_USED,
    NUM_LINKS,
    STATE,
    STEP,
    TAIL,
    VERSION,
    close_streams,
    count_rows,
    evict_rows,
    find_stacks,
    insert_rows,
    load_kernel,
    match_streams,
)
from relaax_like.experience.replay.row_spec import (
    Columns,
    RowSpec,
    read_available_bytes,
    validate_memory,
)
from relaax_like.experience.rollout import Arrays, Rollout
from relaax_like.wire.errors import InvalidInputError

_KIND = 3
_STREAM_COLUMNS = 6
# Groups of slots that sent segments together; the numbers of their streams are remembered.
_MAX_GROUPS = 4096


class Change(NamedTuple):
    """The result of an insertion, or of ending chains.

    Attributes:
      steps: number of new rows that are steps, which is the number of environment steps.
      added: [n] int64, ids of items that are complete now.
      removed: [m] int64, ids of items that were evicted.
    """

    steps: int
    added: np.ndarray
    removed: np.ndarray


_NO_IDS = np.empty(0, np.int64)


class Storage:
    """Stores steps in a ring of rows; see `kernels` for what a row is, and how rows are linked.

        storage = Storage(RowSpec.from_rollout(rollout), capacity=1_000_000)
        storage.start(Transitions(n_step=3).rule)
        change = storage.insert(rollout)

    A segment continues its slot's *chain* if agent, episode and step are those that follow the
    newest row of the slot; otherwise, as after the loss of a segment, a gap ends the chain. Holes
    are not stored: they are gaps, too. Where `next_inputs` are not the inputs of the next row of
    the segment, the chain is cut in the same way; between segments, only the numbers are compared.
    The last observation before each end takes a row. Segments without `starts` continue nothing,
    and nothing continues them.

    Rows get the same ids, and tables the same content, when the same segments are inserted in the
    same order into an empty storage, with the same other calls in between.

    Not thread-safe; `Table` has the lock.

    Attributes:
      spec: as the argument.
      capacity: number of rows.
      observations: name -> [capacity + max_streams, ...]; behind the rows are the newest
        observation of each stream.
      actions: name -> [capacity, ...].
      rewards: [capacity, r] float32.
      log_prob: [capacity] float32.
      extras: name -> [capacity, ...].
      links: [capacity, 8] int64.
      keys: [capacity, 3] int64, a part of `links`: agent, episode, step.
      versions: [capacity] int64, a part of `links`.
      streams: [max_streams, 6] int64; for its columns and those of `links` see `kernels`.
      oldest_id: id of the oldest row that was not evicted.
      next_id: id of the row that is inserted next; no id is used twice.

    Args:
      spec: columns of the rows.
      capacity: number of rows, 2 or more; each step takes one, each last observation before an end
        or a gap, and, with a history, each earlier observation of a segment that begins a chain
        within an episode.
      history: name of an input -> number of observations that the model sees at once, 2 or more;
        the storage has each observation once, and `take_observations` joins them on the last axis.
      max_streams: number of slots whose chains segments can continue, 1 or more; for one more slot,
        the chain of the slot that was silent for the longest time is ended, as at a gap.
      available_bytes: memory that the table must fit into; None: what the machine has available, if
        that is known.

    Raises:
      ConfigError: the table does not fit into memory.
    """

    def __init__(
        self,
        spec: RowSpec,
        capacity: int,
        *,
        history: Mapping[str, int] | None = None,
        max_streams: int = 1024,
        available_bytes: int | None = None,
    ):
        self._available_bytes = available_bytes
        self.spec = spec
        self.capacity = capacity
        self._history = history = dict(history or {})
        self._max_streams = max_streams
        self.validate_memory(0)
        # Zeros: memory that nobody has written to is not taken from the machine.
        self.observations = _allocate(spec.observations, capacity + max_streams)
        self.actions = _allocate(spec.actions, capacity)
        self.rewards = np.zeros((capacity, spec.num_rewards), np.float32)
        self.log_prob = np.zeros(capacity, np.float32)
        self.extras = _allocate(spec.extras, capacity)
        self.links = _allocate_lines(capacity)
        self.keys = self.links[:, KEY:VERSION]
        self.versions = self.links[:, VERSION]
        self.streams = np.zeros((max_streams, _STREAM_COLUMNS), np.int64)
        self.streams[:, TAIL] = -1
        self.oldest_id = 0
        self.next_id = 0
        self._reach = max(history.values(), default=1) - 1
        self._now = 0
        self._numbers: dict[int, int] = {}  # agent -> stream
        self._groups: dict[bytes, np.ndarray] = {}  # agents of a segment -> streams
        self._count_rows = load_kernel(count_rows)
        self._match_streams = load_kernel(match_streams)
        self._insert_rows = load_kernel(insert_rows)
        self._close_streams = load_kernel(close_streams)
        self._evict_rows = load_kernel(evict_rows)
        self._find_stacks = load_kernel(find_stacks)
        self.start((0, 1))

    @property
    def num_rows(self) -> int:
        """Number of rows in the storage."""
        return self.next_id - self.oldest_id

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays of rows and streams."""
        return self.capacity * self.spec.row_bytes + self._streams_bytes

    @property
    def _streams_bytes(self) -> int:
        return self._max_streams * (self.spec.observation_bytes + 8 * _STREAM_COLUMNS)

    def validate_memory(self, selector_bytes: int) -> None:
        """Checks that the table fits into memory.

        Args:
          selector_bytes: bytes that a selector needs for each row.

        Raises:
          ConfigError: the table does not fit; the error names needed and available memory.
        """
        available = self._available_bytes
        validate_memory(
            self.spec,
            self.capacity,
            self.num_bytes + self.capacity * selector_bytes,
            self._streams_bytes,
            read_available_bytes() if available is None else available,
        )

    def start(self, rule: tuple[int, int]) -> None:
        """Sets which rows are items; call it before the first insertion.

        Args:
          rule: number of steps that must follow an item in the same chain, unless the chain ends
            before, until it is complete; and the period: an item begins at every so many steps of a
            chain.
        """
        assert self.next_id == 0, "rows were inserted already"
        lookahead, period = rule
        self._rule = np.array(rule)
        most_pending = -(-(lookahead + 1) // period)
        self._pending = np.zeros((self._max_streams, most_pending), np.int64)

    def insert(self, rollout: Rollout) -> Change:
        """Adds the steps of a segment, `[T, k]`; first evicts rows to make room for them.

        Args:
          rollout: the segment; its arrays are copied.

        Returns:
          The new rows, and the items that were completed or evicted.

        Raises:
          InvalidInputError: the segment is empty, or does not fit the spec, the history, the
            capacity or `max_streams`, or two slots have the same number; nothing was changed.
        """
        next_alive, valid, differs, steps, finals, upper = self.validate(rollout)
        length, width = next_alive.shape
        closes = rollout.starts is None
        removed = self._make_room(upper)
        added: list[np.ndarray] = []
        if rollout.starts is None:
            starts = np.zeros((width, 3), np.int64)
            starts[:, 0] = -1
            slots, streams, pending = self._make_scratch(width)
        else:
            starts = np.ascontiguousarray(rollout.starts, np.int64)
            slots = self._find_streams(starts, added)
            streams, pending = self.streams, self._pending
        joins, closing = np.empty(width, np.bool_), np.empty(width, np.int64)
        num_closing = self._match_streams(
            valid, slots, starts, streams, self.oldest_id, joins, closing
        )
        if num_closing:
            added.append(self._close(closing[:num_closing]))
        num_history = self._reach if rollout.history else 0
        rows = steps + finals + width * num_history
        sources = np.empty((rows, 2), np.int64)
        complete = np.empty(length * width + width * pending.shape[1], np.int64)
        versions = np.ascontiguousarray(rollout.versions, np.int64)
        self._now += 1
        rows, found = self._insert_rows(
            *(next_alive, valid, differs, joins, slots, starts, versions, num_history, closes),
            *(self.next_id, self.oldest_id, self.capacity, self._reach, self._now, self._rule),
            *(self.links, streams, pending, sources, complete),
        )
        self._write(rollout, sources[:rows], steps)
        if not closes:
            self._write_tails(rollout, slots)
        self.next_id += rows
        added.append(complete[:found])
        items = added[0] if len(added) == 1 else np.concatenate(added)
        return Change(steps, items, removed)

    def close_streams(self, agents: Sequence[int]) -> Change:
        """Ends the chains of slots that send nothing more, as at a gap; unknown ones are ignored.

        Args:
          agents: numbers of the slots, the first column of `Rollout.starts`.

        Returns:
          The new rows, and the items that were completed or evicted.
        """
        slots = [self._numbers[agent] for agent in agents if agent in self._numbers]
        removed = self._make_room(len(slots)) if slots else _NO_IDS
        return Change(0, self._close(np.array(slots, np.int64)), removed)

    def take(
        self, arrays: Arrays, rows: np.ndarray, shape: tuple[int, ...]
    ) -> dict[str, np.ndarray]:
        """Copies rows of columns.

        Args:
          arrays: name -> [capacity, ...], or `observations`.
          rows: [N] int64, positions.
          shape: leading axes of the result, of N elements.

        Returns:
          Name -> [*shape, ...].
        """
        return {
            name: array.take(rows, 0).reshape(*shape, *array.shape[1:])
            for name, array in arrays.items()
        }

    def take_observations(
        self, tokens: np.ndarray, shape: tuple[int, ...], places: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Copies observations, joined with earlier ones if the storage has a history.

        Args:
          tokens: [N] int64, ids of rows, or numbers of the column `FOLLOWING` of `links`.
          shape: leading axes of the result, of N elements.
          places: [N] int64, positions of these observations; None: unknown.

        Returns:
          Name -> [*shape, ...].
        """
        if places is not None and not self._reach:
            return self.take(self.observations, places, shape)
        taken = {}
        most = self._reach + 1
        stacks = np.empty((tokens.size, most), np.int64)
        self._find_stacks(tokens, self.oldest_id, self.capacity, self.links, self.streams, stacks)
        for name, array in self.observations.items():
            number = self._history.get(name, 1)
            if number == 1:
                newest = array.take(stacks[:, -1], 0)
                taken[name] = newest.reshape(*shape, *array.shape[1:])
                continue
            *outer, depth = array.shape[1:]
            stacked = np.empty((tokens.size, *outer, number, depth), array.dtype)
            for age in range(number):
                stacked[..., number - 1 - age, :] = array.take(stacks[:, most - 1 - age], 0)
            taken[name] = stacked.reshape(*shape, *outer, number * depth)
        return taken

    def read_states(self, rows: np.ndarray) -> np.ndarray:
        """Returns the kinds of the rows at positions `[...]`, such as `kernels.TERMINATED`."""
        return self.links[rows, STATE] & _KIND

    def get_state(self) -> dict[str, Any]:
        """Returns all that is needed to continue bit-identically: rows, links and streams.

        Columns are views: copy or write them before the storage changes.
        """
        used = min(self.next_id, self.capacity)
        open_streams = np.flatnonzero(self.streams[:, TAIL] >= self.oldest_id)
        return {
            "capacity": self.capacity,
            "oldest_id": self.oldest_id,
            "next_id": self.next_id,
            "now": self._now,
            "rule": self._rule,
            "history": dict(self._history),
            "spec": self._describe_columns(),
            "columns": {name: array[:used] for name, array in self._list_columns()},
            "tails": {
                name: a[self.capacity + open_streams] for name, a in self.observations.items()
            },
            "streams": self.streams.copy(),
            "pending": self._pending.copy(),
            "agents": np.array(list(self._numbers.items()), np.int64).reshape(-1, 2),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned; the storage must be empty before.

        Raises:
          InvalidInputError: the state is that of a storage of another size, or with another
            history, other columns or other items, and the error names the first difference;
            nothing was changed.
          KeyError, TypeError, ValueError: the state is incomplete or damaged; some of the storage
            can have changed.
        """
        lookahead, period = (int(number) for number in state["rule"])
        history = {name: int(number) for name, number in dict(state["history"]).items()}
        lookahead_name = "lookahead of items (n_step - 1, or sequence_steps - burn_in_steps - 1)"
        for name, mine, theirs in (
            ("capacity", self.capacity, int(state["capacity"])),
            (lookahead_name, int(self._rule[0]), lookahead),
            ("period of items", int(self._rule[1]), period),
            ("max_streams", len(self.streams), len(state["streams"])),
            *_pair_values("history of", self._history, history),
            *_pair_values("column", self._describe_columns(), dict(state["spec"])),
        ):
            if mine != theirs:
                raise InvalidInputError(
                    f"replay: {name} is {theirs} in the saved table, and {mine} in this one; "
                    "resume with the same settings, or start with an empty table",
                    name.partition(" ")[0],
                )
        self.oldest_id, self.next_id = int(state["oldest_id"]), int(state["next_id"])
        self._now = int(state["now"])
        for name, array in self._list_columns():
            saved = state["columns"][name]
            array[: len(saved)] = saved
        self.streams[:] = state["streams"]
        self._pending[:] = state["pending"]
        open_streams = np.flatnonzero(self.streams[:, TAIL] >= self.oldest_id)
        for name, array in self.observations.items():
            array[self.capacity + open_streams] = state["tails"][name]
        self._numbers = {int(agent): int(stream) for agent, stream in state["agents"]}
        self._groups = {}

    def _describe_columns(self) -> dict[str, str]:
        """Returns dtype and shape of each column."""
        return {name: f"{a.dtype} {list(a.shape[1:])}" for name, a in self._list_columns()}

    def _list_columns(self) -> list[tuple[str, np.ndarray]]:
        named = [("observations", self.observations), ("actions", self.actions)]
        named.append(("extras", self.extras))
        columns = [(f"{kind}/{n}", array) for kind, arrays in named for n, array in arrays.items()]
        others = ("rewards", "log_prob", "links")
        return [*columns, *((name, getattr(self, name)) for name in others)]

    def validate(
        self, rollout: Rollout
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, int, int, int]:
        """Checks that `insert` would accept a segment, and counts the rows that it needs.

        Returns:
          See `measure`.

        Raises:
          InvalidInputError: see `insert`.
        """
        measured = self.measure(rollout)
        self._validate_size(measured[-1], *rollout.next_alive.shape)
        self._validate_agents(rollout.starts)
        return measured

    def measure(self, rollout: Rollout) -> tuple[np.ndarray, np.ndarray, np.ndarray, int, int, int]:
        """Counts the rows that a segment needs, in a storage of any size.

        Returns:
          `next_alive` float32, `valid` bool, and where the next row does not follow, bool, each
          `[T, k]`; numbers of rows that are steps, of observations that nothing follows, and the
          largest number of rows that the segment can take.

        Raises:
          InvalidInputError: the segment is empty, or does not fit the spec or the history.
        """
        self.spec.validate(rollout)
        self._validate_history(rollout)
        next_alive = np.ascontiguousarray(rollout.next_alive, np.float32)
        length, width = next_alive.shape
        valid = rollout.valid
        if valid is None:
            valid = _make_flags(next_alive.shape, True)
        valid = np.ascontiguousarray(valid, np.bool_)
        differs = _find_differences(rollout) if length > 1 else valid
        closes = rollout.starts is None
        steps, finals = self._count_rows(next_alive, valid, differs, closes)
        num_history = self._reach if rollout.history else 0
        # Each stream that is not continued takes a row, and so does one that is given up for it.
        upper = steps + finals + width * (2 + num_history)
        return next_alive, valid, differs, steps, finals, upper

    def _validate_size(self, upper: int, length: int, width: int) -> None:
        if upper > self.capacity:
            raise InvalidInputError(
                f"replay: a segment of {length} step(s) of {width} slot(s) takes up to {upper} "
                f"rows, but capacity is {self.capacity}; raise capacity, or send fewer steps "
                "(rollout_steps) or slots at once",
                "capacity",
            )
        if width > self._max_streams:
            raise InvalidInputError(
                f"replay: a segment has {width} slots, but max_streams of Storage is "
                f"{self._max_streams}; connect with fewer slots, or raise max_streams (in a run, "
                "it is fixed)",
                "max_streams",
            )

    def _make_room(self, num_rows: int) -> np.ndarray:
        """Evicts the oldest rows, as many as needed; returns the ids of the items that are lost."""
        oldest = self.oldest_id
        new_oldest = max(oldest, self.next_id + num_rows - self.capacity)
        number = new_oldest - oldest
        if not number:
            return _NO_IDS
        removed = np.empty(min(number * (1 + self._reach), self.num_rows), np.int64)
        found = self._evict_rows(
            oldest, new_oldest, self.capacity, self._reach, self.links, removed
        )
        self.oldest_id = new_oldest
        return removed[:found]

    def _validate_agents(self, starts: np.ndarray | None) -> None:
        if starts is None or starts[:, 0].tobytes() in self._groups:
            return
        agents = starts[:, 0].tolist()
        if len(set(agents)) < len(agents):
            twice = collections.Counter(agents).most_common(1)[0][0]
            raise InvalidInputError(
                f"starts: several slots have the number {twice}, expected a different number for "
                "each slot; number the slots with make_agent_ids"
            )

    def _validate_history(self, rollout: Rollout) -> None:
        if not rollout.history:
            return
        for name, number in self._history.items():
            shape = [number - 1, rollout.slots, *self.spec.observations[name].shape]
            found = list(rollout.history[name].shape) if name in rollout.history else None
            if found != shape:
                what = "is missing" if found is None else f"has shape {found}"
                raise InvalidInputError(
                    f"history[{name!r}] {what}, expected an array of shape {shape}; do server and "
                    "agents have the same algorithm.observation_history?",
                    "history",
                )

    def _find_streams(self, starts: np.ndarray, added: list[np.ndarray]) -> np.ndarray:
        """Returns the stream of each slot, `[k]`; appends items of streams that end to `added`."""
        agents = starts[:, 0]
        known = self._groups.get(agents.tobytes())
        if known is not None:
            return known
        numbers = [self._numbers.get(agent, -1) for agent in agents.tolist()]
        for place, agent in enumerate(agents.tolist()):
            if numbers[place] < 0:
                numbers[place] = self._assign(agent, {n for n in numbers if n >= 0}, added)
        slots = np.array(numbers, np.int64)
        if len(self._groups) >= _MAX_GROUPS:
            self._groups.clear()
        self._groups[agents.tobytes()] = slots
        return slots

    def _assign(self, agent: int, taken: set[int], added: list[np.ndarray]) -> int:
        """Returns a stream for a new agent: a free one, or the one that was silent longest."""
        if len(self._numbers) < self._max_streams:
            number = len(self._numbers)
        else:
            used = self.streams[:, LAST_USED].copy()
            used[list(taken)] = np.iinfo(np.int64).max
            number = int(used.argmin())
            added.append(self._close(np.array([number])))
            del self._numbers[next(a for a, n in self._numbers.items() if n == number)]
            self._groups.clear()
        self.streams[number, [EPISODE, STEP]] = -1
        self._numbers[agent] = number
        return number

    def _close(self, closing: np.ndarray) -> np.ndarray:
        """Ends the chains of streams; returns the ids of items that are complete now."""
        sources = np.empty(len(closing), np.int64)
        complete = np.empty(len(closing) * self._pending.shape[1], np.int64)
        rows, found = self._close_streams(
            *(closing, len(closing), self.next_id, self.oldest_id, self.capacity, self._reach),
            *(self.links, self.streams, self._pending, sources, complete),
        )
        positions = (self.next_id + np.arange(rows)) % self.capacity
        for array in self.observations.values():
            array[positions] = array[self.capacity + sources[:rows]]
        self.next_id += rows
        return complete[:found]

    def _make_scratch(self, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns streams of a segment that continues nothing: numbers, streams, pending items."""
        streams = np.zeros((width, _STREAM_COLUMNS), np.int64)
        streams[:, TAIL] = -1
        return np.arange(width), streams, np.zeros((width, self._pending.shape[1]), np.int64)

    def _write(self, rollout: Rollout, sources: np.ndarray, steps: int) -> None:
        """Copies the columns of new rows, whose links are written already."""
        length, width = rollout.next_alive.shape
        number, start = len(sources), self.next_id % self.capacity
        stop = start + number
        pairs = self._list_sources(rollout)
        if steps == number == length * width and stop <= self.capacity:
            for array, source in pairs:
                array[start:stop] = source.reshape(number, *array.shape[1:])
            return
        places = np.ascontiguousarray(sources[:, 1])
        # Up to the end of the ring, and the rest from its beginning on.
        parts = [(start, min(stop, self.capacity), 0)]
        if stop > self.capacity:
            parts.append((0, stop - self.capacity, self.capacity - start))
        for array, source in pairs:
            flat = source.reshape(-1, *array.shape[1:])
            for first, last, skipped in parts:
                # Observations alone, too: their other columns are never read.
                origin = places[skipped : skipped + last - first]
                flat.take(origin, 0, out=array[first:last], mode="clip")
        if steps < number:
            positions = np.arange(start, stop) % self.capacity
            self._write_observations(rollout, sources, positions)

    def _write_observations(
        self, rollout: Rollout, sources: np.ndarray, positions: np.ndarray
    ) -> None:
        """Copies the observations of rows that are not steps."""
        kinds = sources[:, 0]
        finals = np.flatnonzero(kinds == FROM_NEXT)
        rows, origin = positions[finals], sources[finals, 1]
        for name, array in self.observations.items():
            array[rows] = rollout.next_inputs[name].reshape(-1, *array.shape[1:])[origin]
        if not self._reach:
            return
        earlier = np.flatnonzero(kinds == FROM_HISTORY)
        rows, origin = positions[earlier], sources[earlier, 1]
        width = rollout.slots
        for name, number in self._history.items() if len(earlier) else ():
            # An input with fewer earlier ones than others; the first rows are never read.
            skipped = (self._reach + 1 - number) * width
            array = self.observations[name]
            flat = rollout.history[name].reshape(-1, *array.shape[1:])
            array[rows] = flat[np.maximum(origin - skipped, origin % width)]

    def _list_sources(self, rollout: Rollout) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns columns, and the arrays `[T, k, ...]` that fill them."""
        pairs = [(self.observations[name], array) for name, array in rollout.inputs.items()]
        pairs += [(self.actions[name], array) for name, array in rollout.actions.items()]
        pairs += [(self.extras[name], array) for name, array in rollout.extras.items()]
        return [*pairs, (self.rewards, rollout.rewards), (self.log_prob, rollout.log_prob)]

    def _write_tails(self, rollout: Rollout, slots: np.ndarray) -> None:
        """Copies the newest observation of each slot whose chain is open."""
        if len(slots) == 1:  # the common case, without arrays of numbers
            stream = int(slots[0])
            if self.streams[stream, TAIL] >= 0:
                for name, array in self.observations.items():
                    array[self.capacity + stream] = rollout.next_inputs[name][-1, 0]
            return
        open_slots = np.flatnonzero(self.streams[slots, TAIL] >= 0)
        streams = self.capacity + slots[open_slots]
        for name, array in self.observations.items():
            array[streams] = rollout.next_inputs[name][-1].take(open_slots, 0)


def _allocate(columns: Columns, rows: int) -> dict[str, np.ndarray]:
    return {name: np.zeros((rows, *one.shape), one.base) for name, one in columns.items()}


def _allocate_lines(rows: int) -> np.ndarray:
    """Returns zeros, `[rows, NUM_LINKS]` int64, of which each row is one line of the cache."""
    line = 8 * NUM_LINKS
    memory = np.zeros(line * (rows + 1), np.uint8)
    start = -memory.ctypes.data % line
    return memory[start : start + line * rows].view(np.int64).reshape(rows, NUM_LINKS)


def _pair_values(
    label: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]
) -> list[tuple[str, Any, Any]]:
    """Returns names, and both values of each, which are "missing" where there are none."""
    return [
        (f"{label} {name!r}", mine.get(name, "missing"), theirs.get(name, "missing"))
        for name in sorted(mine.keys() | theirs.keys())
    ]


def _find_differences(rollout: Rollout) -> np.ndarray:
    """Returns where `next_inputs` are not the inputs of the next row, `[T, k] bool`.

    The last row is False.
    """
    pairs = [(array, rollout.next_inputs[name]) for name, array in rollout.inputs.items()]
    apart = [
        (inputs, following) for inputs, following in pairs if not _is_shifted(inputs, following)
    ]
    if not apart:
        return _make_flags(rollout.next_alive.shape, False)
    differs = np.zeros(rollout.next_alive.shape, np.bool_)
    for inputs, following in apart:
        axes = tuple(range(2, inputs.ndim))
        differs[:-1] |= (following[:-1] != inputs[1:]).any(axes)
    return differs


@functools.lru_cache(64)
def _make_flags(shape: tuple[int, ...], value: bool) -> np.ndarray:
    """Returns a constant array, read-only."""
    flags = np.full(shape, value)
    flags.flags.writeable = False
    return flags


def _is_shifted(inputs: np.ndarray, following: np.ndarray) -> bool:
    """Returns whether both are views of one array, one row apart."""
    if inputs.base is None or inputs.base is not following.base:
        return False
    return inputs.strides == following.strides and (
        following.ctypes.data == inputs.ctypes.data + inputs.strides[0]
    )
