"""Complete episodes: assembled from the rollouts that agents send, and padded to one length."""

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relaax_like.experience.collector import (
    Collector,
    DataHandler,
    Layout,
    Part,
    find_layout,
    handle_rollout,
    validate_layout,
)
from relaax_like.experience.rollout import (
    ALIVE,
    Rollout,
    combine,
    get_valid,
    slice_steps,
)
from relaax_like.wire.errors import CollectorFullError, ConfigError, InvalidInputError

logger = logging.getLogger(__name__)

# Maximum number of slots whose unfinished episode is kept, and bytes of all of these; the one that
# has been silent for the longest time is dropped first.
_MAX_UNFINISHED = 10_000
_MAX_BYTES = 4 << 30


@dataclass
class _Unfinished:
    """The unfinished episode of a slot.

    Attributes:
      rollouts: `[t, 1, ...]` each, one after another.
      tickets: of each.
      following: number of the episode, and of its next step.
      num_bytes: of the rollouts.
    """

    rollouts: list[Rollout] = field(default_factory=list)
    tickets: list[int] = field(default_factory=list)
    following: tuple[int, int] = (0, 0)
    num_bytes: int = 0

    @property
    def length(self) -> int:
        return sum(len(rollout.next_alive) for rollout in self.rollouts)


class EpisodeCollector(Collector):
    """A Collector whose columns are complete episodes, in the order in which they end.

        collector = EpisodeCollector(steps=32, episodes=16, capacity=64, max_steps=1_000)
        collector.add(rollout)                           # of slots with `Rollout.starts`
        training_data = collector.get_training_data()    # `[T, 16, ...]`; see `join_columns`

    If several slots play at once, short episodes end first, so batches are biased towards them. The
    values that act can change during an episode: see `versions`.

    An episode with missing steps, as after the loss of a rollout, is dropped completely; unfinished
    ones are lost with the process. A data handler receives complete episodes, `[L, 1, ...]`.

    Attributes:
      dropped_steps: number of steps that were dropped, because other steps of their episodes were
        missing, their slots were forgotten, too many episodes were unfinished, the data handler
        failed, or what it returned was refused.
    """

    def __init__(
        self,
        steps: int,
        episodes: int,
        *,
        capacity: int,
        max_steps: int,
        data_handler: DataHandler | None = None,
    ):
        """Starts empty.

        Args:
          steps: batch lengths are this times a power of two; rollouts can have other lengths.
          episodes: number of episodes in each batch.
          capacity: number of waiting episodes at which nothing more is accepted, at least
            `episodes`.
          max_steps: a longer episode is cut off at the end of a rollout, as if it were truncated
            there; the rest counts as another episode.
          data_handler: applies a user's changes; None: no changes.

        Raises:
          ConfigError: steps, episodes or max_steps is below 1, or capacity is below episodes.
        """
        for name, value in (("episodes", episodes), ("max_steps", max_steps)):
            if value < 1:
                raise ConfigError(f"collector: {name} {value}, expected 1 or more")
        super().__init__(steps, episodes, capacity=capacity, data_handler=data_handler)
        self.dropped_steps = 0
        self._max_steps = max_steps
        self._arriving: Layout | None = None  # of rollouts, before a data handler
        self._unfinished: dict[int, _Unfinished] = {}  # by slot; the newest at the end
        self._num_bytes = 0  # of all of them
        self._is_too_large = False  # whether they have ever been

    def get_state(self) -> dict[str, Any]:
        """Returns waiting and unfinished episodes, not copied, and the counts of `Collector`."""
        with self._changed:
            unfinished = [
                {
                    "slot": slot,
                    "rollouts": [dict(vars(rollout)) for rollout in known.rollouts],
                    "tickets": known.tickets,
                    "following": list(known.following),
                }
                for slot, known in self._unfinished.items()
            ]
            return {**super().get_state(), "unfinished": unfinished}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned; see `Collector`."""
        super().set_state(state)
        with self._changed:
            self._unfinished = {
                int(known["slot"]): _Unfinished(
                    [Rollout(**rollout) for rollout in known["rollouts"]],
                    list(known["tickets"]),
                    tuple(known["following"]),
                    sum(_count_bytes(Rollout(**rollout)) for rollout in known["rollouts"]),
                )
                for known in state["unfinished"]
            }
            self._num_bytes = sum(known.num_bytes for known in self._unfinished.values())
            for known in self._unfinished.values():
                self._open.update(known.tickets)

    def add_exps_list(self, exps: Sequence[Rollout]) -> list[int]:
        """Adds several rollouts, all or none of them, unless a data handler fails.

        Unlike those of `Collector.add`, the rollouts can have any number of steps.

        Raises:
          InvalidInputError: a rollout has no `starts` `[k, 3]`, or arrays with different numbers of
            steps or slots; a rollout or episode differs from the first one; or the data handler
            returned no rollout, or something else.
          CollectorFullError, CollectorClosedError: see `Collector.add`.
          Exception: raised by the data handler. If it fails, or if what it returned is refused, the
            rollouts have been added, but the episodes that ended in them, and were not queued yet,
            are dropped.
        """
        if not exps:
            return []
        layouts = [_validate(rollout) for rollout in exps]
        tickets: list[int] = []
        ended: list[_Unfinished] = []
        with self._changed:
            self._validate_open()
            for layout in layouts:
                validate_layout(layout, self._arriving or layout)
            self._validate_room(0)
            self._arriving = self._arriving or layouts[0]
            for rollout in exps:
                self._last_ticket += 1
                tickets.append(self._last_ticket)
                self._open[self._last_ticket] = 0
                ended += self._add_steps(rollout)
        index = 0
        while ended:
            # While the lock is held, nothing is copied, and no user's code runs.
            try:
                episode = join_steps(ended[0].rollouts)
                handled = handle_rollout(self.data_handler, episode)
                layouts = [find_layout(part, len(part.next_alive)) for part in handled]
                with self._changed:
                    first = self._layout or layouts[0]
                    for layout in layouts:
                        validate_layout(layout, first)
                    self._layout = first
                    index = self._queue(handled, ended[0].tickets, index)
                    del ended[0]
            except Exception:
                with self._changed:
                    for lost in ended:
                        self._drop(lost)
                raise
        return tickets

    def _queue(self, handled: Sequence[Rollout], tickets: Sequence[int], index: int) -> int:
        """Queues the parts of an episode; returns the next part's index. Under the lock."""
        used = tuple(sorted(set(tickets)))
        for part in handled:
            if part.env_steps:
                self._put(Part(part, used, index))
                index += part.slots
        self._open.subtract(tickets)
        if self._has_batch():
            self._changed.notify_all()
        return index

    def forget(self, agents: Sequence[int]) -> None:
        """Drops the unfinished episodes of slots that send nothing more; see `Collector`."""
        with self._changed:
            for agent in agents:
                if (known := self._take(agent)) is not None:
                    self._drop(known)

    def _find_layout(self, rollout: Rollout) -> Layout:
        return find_layout(rollout, len(rollout.next_alive))

    def _validate_room(self, added: int) -> None:
        waiting = self.num_added - self.num_taken
        if waiting >= self._capacity:
            raise CollectorFullError(
                f"{waiting} episode(s) are waiting, and capacity is {self._capacity}; add the "
                "rollouts again after training data has been taken, or raise capacity"
            )

    def _add_steps(self, rollout: Rollout) -> list[_Unfinished]:
        """Adds the steps of all slots; returns the episodes that end, the first to end first."""
        assert rollout.starts is not None
        ended: list[tuple[int, _Unfinished]] = []
        for slot, agent in enumerate(rollout.starts[:, 0].tolist()):
            ended += self._add_slot(agent, rollout, slot)
        ended.sort(key=lambda one: one[0])
        return [episode for _, episode in ended]

    def _add_slot(
        self, agent: int, rollout: Rollout, slot: int
    ) -> Iterator[tuple[int, _Unfinished]]:
        """Adds a slot's steps; yields last row + 1, and the episode, for each that ends."""
        for start, stop in find_borders(rollout.next_alive[:, slot]):
            part = slice_steps(rollout, slot, start, stop)
            assert part.starts is not None
            _, episode, step = part.starts[0].tolist()
            known = self._take(agent)
            if known is None or known.following != (episode, step):
                if known is not None:
                    self._drop(known)
                if step:  # the steps before it are not known
                    self._note_dropped(stop - start)
                    continue
                known = _Unfinished()
            has_ended = part.next_alive[-1, 0] != ALIVE
            if not has_ended and (rollout.slots > 1 or start):
                part = _copy(part)  # must not keep the memory of the other steps
            known.rollouts.append(part)
            known.tickets.append(self._last_ticket)
            known.num_bytes += _count_bytes(part)
            known.following = (episode, step + stop - start)
            self._open[self._last_ticket] += 1
            if has_ended:
                yield stop, known
                continue
            if known.length >= self._max_steps:
                yield stop, known
                known = _Unfinished(following=known.following)
            self._unfinished[agent] = known
            self._num_bytes += known.num_bytes
            self._make_room()

    def _take(self, agent: int) -> _Unfinished | None:
        """Removes and returns the unfinished episode of a slot."""
        known = self._unfinished.pop(agent, None)
        if known is not None:
            self._num_bytes -= known.num_bytes
        return known

    def _make_room(self) -> None:
        """Drops the episodes that have been silent for the longest, if there are too many."""
        while self._unfinished and (
            len(self._unfinished) > _MAX_UNFINISHED or self._num_bytes > _MAX_BYTES
        ):
            if self._num_bytes > _MAX_BYTES and not self._is_too_large:
                self._is_too_large = True
                logger.warning(
                    "%d unfinished episodes have %.0f MB, but at most %.0f MB are kept: dropping "
                    "those that have been silent for the longest time; lower max_steps of the "
                    "plan, or make observations smaller",
                    len(self._unfinished),
                    self._num_bytes / 1e6,
                    _MAX_BYTES / 1e6,
                )
            dropped = self._take(next(iter(self._unfinished)))
            assert dropped is not None
            self._drop(dropped)

    def _drop(self, episode: _Unfinished) -> None:
        self._open.subtract(episode.tickets)
        self._note_dropped(episode.length)

    def _note_dropped(self, steps: int) -> None:
        if not self.dropped_steps:
            logger.info(
                "dropping an episode that cannot be completed, as after a crash or when its "
                "client disconnects, or that a data handler cannot use; later ones are dropped "
                "without a log line"
            )
        self.dropped_steps += steps

    def _join(self, rollouts: Sequence[Rollout]) -> Rollout:
        length = self._steps
        while length < max(len(rollout.next_alive) for rollout in rollouts):
            length *= 2
        return join_columns(rollouts, length)


def _validate(rollout: Rollout) -> Layout:
    """Checks that a rollout has the starts of its slots; returns its layout.

    Raises:
      InvalidInputError: starts are missing or have a wrong shape, or an array has another number of
        steps or slots.
    """
    layout = find_layout(rollout, len(rollout.next_alive))
    if rollout.starts is None:
        raise InvalidInputError(
            "starts: missing, expected [k, 3] int64, because the plan Episodes separates episodes "
            "by them; send them with each rollout, see `Rollout.starts`"
        )
    if rollout.starts.shape != (rollout.next_alive.shape[1], 3):
        raise InvalidInputError(
            f"starts: shape {list(rollout.starts.shape)}, expected "
            f"[{rollout.next_alive.shape[1]}, 3], see `Rollout.starts`"
        )
    return layout


def _count_bytes(rollout: Rollout) -> int:
    """Returns the bytes of all arrays; inputs and next inputs usually share one array."""
    total = 0
    for value in vars(rollout).values():
        arrays = value.values() if isinstance(value, Mapping) else [value]
        total += sum(array.nbytes for array in arrays if array is not None)
    for name, array in rollout.inputs.items():
        if array.base is not None and array.base is rollout.next_inputs[name].base:
            total -= array.nbytes
    return total


def _copy(rollout: Rollout) -> Rollout:
    """Returns a rollout with its own arrays."""
    copy = np.copy
    return combine([rollout], rows=copy, slots=copy, history=copy, versions=copy)


def find_borders(next_alive: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yields the first step, and the last step + 1, of each episode, including an unfinished one.

    Args:
      next_alive: of one slot, `[T]`.
    """
    start = 0
    for last in np.flatnonzero(next_alive != ALIVE).tolist():
        yield start, last + 1
        start = last + 1
    if start < len(next_alive):
        yield start, len(next_alive)


def join_steps(rollouts: Sequence[Rollout]) -> Rollout:
    """Joins rollouts of the same slots one after another: `[T1 + T2 + ..., k, ...]`.

    A single one is returned itself.
    """
    if len(rollouts) == 1:
        return rollouts[0]

    def join(*arrays: np.ndarray) -> np.ndarray:
        return np.concatenate(arrays)

    def take_first(*arrays: np.ndarray) -> np.ndarray:
        return arrays[0]

    return combine(rollouts, rows=join, slots=take_first, history=take_first, versions=join)


def join_columns(rollouts: Sequence[Rollout], length: int) -> Rollout:
    """Joins rollouts of different lengths side by side: `[length, k1 + k2 + ..., ...]`.

    Each is padded with rows of zeros, which are not valid. `versions` are the oldest of each step.

    Args:
      rollouts: at least one; none is longer than `length`.
      length: T.
    """
    slots = [rollout.slots for rollout in rollouts]
    stops = np.cumsum(slots)
    places = list(zip(rollouts, stops - slots, stops, strict=True))

    def pad(*arrays: np.ndarray) -> np.ndarray:
        padded = np.zeros((length, stops[-1], *arrays[0].shape[2:]), arrays[0].dtype)
        for array, (_, start, stop) in zip(arrays, places, strict=True):
            padded[: len(array), start:stop] = array
        return padded

    def find_oldest(*arrays: np.ndarray) -> np.ndarray:
        versions = np.full(length, max(array.max() for array in arrays))
        for array in arrays:
            oldest = versions[: len(array)]
            np.minimum(oldest, array, out=oldest)
        return versions

    joined = combine(
        rollouts,
        rows=pad,
        slots=lambda *arrays: np.concatenate(arrays),
        history=lambda *arrays: np.concatenate(arrays, 1),
        versions=find_oldest,
    )
    return dataclasses.replace(joined, valid=pad(*map(get_valid, rollouts)))
