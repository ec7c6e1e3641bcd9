"""Whole episodes: put together from the rollouts that agents send, and padded to one length."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relaax_like.experience.collector import Collector, DataHandler, Layout, Part, find_layout
from relaax_like.experience.rollout import (
    ALIVE,
    Arrays,
    Rollout,
    get_valid,
    join_starts,
    slice_steps,
)
from relaax_like.wire.errors import CollectorFullError, ConfigError, InvalidInputError

# Slots whose unfinished episode is kept; the one that was heard of the longest ago goes first.
_MAX_UNFINISHED = 10_000
# A slot of the run, and which of the rollouts that a data handler has made of one.
_Key = tuple[int, int]


@dataclass
class _Unfinished:
    """What there is of a slot's episode.

    Attributes:
      rollouts: `[t, 1, ...]` each, one after another.
      tickets: of each.
      following: number of the episode, and of the step that comes next.
    """

    rollouts: list[Rollout] = field(default_factory=list)
    tickets: list[int] = field(default_factory=list)
    following: tuple[int, int] = (0, 0)

    @property
    def length(self) -> int:
        return sum(len(rollout.next_alive) for rollout in self.rollouts)


class EpisodeCollector(Collector):
    """A Collector whose columns are whole episodes, in the order in which they end.

        collector = EpisodeCollector(steps=32, episodes=16, capacity=64, max_steps=1_000)
        collector.add(rollout)                           # of slots with `Rollout.starts`
        training_data = collector.get_training_data()    # `[T, 16, ...]`; see `join_columns`

    Where several slots play at once, short episodes end first, so that a batch has more of them
    than those slots play. The values that act may change during an episode: see `versions`.

    An episode of which steps are missing, as after the loss of a rollout, is dropped as a whole;
    unfinished ones are lost with the process.

    Attributes:
      dropped_steps: steps that no episode could be made of.
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
        """Begins empty.

        Args:
          steps: the lengths of batches are doublings of it; rollouts may have other lengths.
          episodes: of each batch.
          capacity: episodes from which on nothing more is taken, at least `episodes`.
          max_steps: an episode that is longer is cut off at the end of a rollout, as if it were
            truncated there; what follows counts as another one.
          data_handler: a user's changes; None: none.

        Raises:
          ConfigError: a number is too small.
        """
        super().__init__(steps, episodes, capacity=capacity, data_handler=data_handler)
        if max_steps < 1:
            raise ConfigError(f"collector: max_steps {max_steps}, expected 1 or more")
        self.dropped_steps = 0
        self._max_steps = max_steps
        self._unfinished: dict[_Key, _Unfinished] = {}  # the newest at the end

    def get_state(self) -> dict[str, Any]:
        """Returns what waits, what is not finished, and the counts."""
        with self._changed:
            unfinished = [
                {
                    "key": list(key),
                    "rollouts": [dict(vars(rollout)) for rollout in known.rollouts],
                    "tickets": known.tickets,
                    "following": list(known.following),
                }
                for key, known in self._unfinished.items()
            ]
            return {**super().get_state(), "unfinished": unfinished}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `get_state` returned; see `Collector`."""
        super().set_state(state)
        with self._changed:
            self._unfinished = {
                tuple(known["key"]): _Unfinished(
                    [Rollout(**rollout) for rollout in known["rollouts"]],
                    list(known["tickets"]),
                    tuple(known["following"]),
                )
                for known in state["unfinished"]
            }
            for known in self._unfinished.values():
                self._open.update(known.tickets)

    def _find_layout(self, rollout: Rollout) -> Layout:
        if rollout.starts is None:
            raise InvalidInputError(
                "starts: missing, but the plan is Episodes, which tells episodes by them; a data "
                "handler keeps them with dataclasses.replace(rollout, ...)",
                "starts",
            )
        return find_layout(rollout, len(rollout.next_alive))

    def _validate_room(self, added: int) -> None:
        waiting = self._num_added - self._num_taken
        if waiting >= self._capacity:
            raise CollectorFullError(
                f"{waiting} episodes are waiting, and capacity is {self._capacity}; add the "
                "rollout again after training data has been taken, or raise capacity"
            )

    def _append(self, rollouts: Sequence[Rollout]) -> int:
        self._last_ticket += 1
        self._open[self._last_ticket] = 0
        copies: dict[int, int] = {}
        ended: list[tuple[int, _Unfinished]] = []  # step of the rollout, and the episode
        for rollout in rollouts:
            assert rollout.starts is not None, "_find_layout has found them"
            for slot, agent in enumerate(rollout.starts[:, 0].tolist()):
                copy = copies[agent] = copies.get(agent, -1) + 1
                ended += self._add_slot((agent, copy), rollout, slot)
        ended.sort(key=lambda one: one[0])
        index = 0
        for _, episode in ended:
            self._open.subtract(episode.tickets)  # counted again as one part
            joined = join_steps(episode.rollouts)
            if joined.env_steps:
                self._put(Part(joined, tuple(sorted(set(episode.tickets))), index))
                index += 1
        return self._last_ticket

    def _add_slot(
        self, key: _Key, rollout: Rollout, slot: int
    ) -> Iterator[tuple[int, _Unfinished]]:
        """Adds a slot's steps; gives the episodes that end, and where."""
        for start, stop in find_borders(rollout.next_alive[:, slot]):
            part = slice_steps(rollout, slot, start, stop)
            assert part.starts is not None
            _, episode, step = part.starts[0].tolist()
            known = self._unfinished.pop(key, None)
            if known is None or known.following != (episode, step):
                if known is not None:
                    self._drop(known)
                if step:  # what came before it is not known
                    self.dropped_steps += stop - start
                    continue
                known = _Unfinished()
            known.rollouts.append(part)
            known.tickets.append(self._last_ticket)
            known.following = (episode, step + stop - start)
            self._open[self._last_ticket] += 1
            if part.next_alive[-1, 0] != ALIVE:
                yield stop, known
                continue
            if known.length >= self._max_steps:
                yield stop, known
                known = _Unfinished(following=known.following)
            self._unfinished[key] = known
            if len(self._unfinished) > _MAX_UNFINISHED:
                self._drop(self._unfinished.pop(next(iter(self._unfinished))))

    def _drop(self, episode: _Unfinished) -> None:
        self._open.subtract(episode.tickets)
        self.dropped_steps += episode.length

    def _join(self, rollouts: Sequence[Rollout]) -> Rollout:
        length = self._steps
        while length < max(len(rollout.next_alive) for rollout in rollouts):
            length *= 2
        return join_columns(rollouts, length)


def find_borders(next_alive: np.ndarray) -> Iterator[tuple[int, int]]:
    """Gives first step, and one behind the last, of each episode of a slot; `next_alive: [T]`."""
    start = 0
    for last in np.flatnonzero(next_alive != ALIVE).tolist():
        yield start, last + 1
        start = last + 1
    if start < len(next_alive):
        yield start, len(next_alive)


def join_steps(rollouts: Sequence[Rollout]) -> Rollout:
    """Puts rollouts of the same slots one after another: `[T1 + T2 + ..., k, ...]`."""
    if len(rollouts) == 1:
        return rollouts[0]

    def join(name: str) -> dict[str, np.ndarray]:
        parts = [getattr(rollout, name) for rollout in rollouts]
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}

    has_holes = any(rollout.valid is not None for rollout in rollouts)
    return Rollout(
        inputs=join("inputs"),
        next_inputs=join("next_inputs"),
        next_alive=np.concatenate([r.next_alive for r in rollouts]),
        rewards=np.concatenate([r.rewards for r in rollouts]),
        actions=join("actions"),
        log_prob=np.concatenate([r.log_prob for r in rollouts]),
        states=rollouts[0].states,
        versions=np.concatenate([r.versions for r in rollouts]),
        valid=np.concatenate([get_valid(r) for r in rollouts]) if has_holes else None,
        starts=rollouts[0].starts,
        extras=join("extras"),
    )


def join_columns(rollouts: Sequence[Rollout], length: int) -> Rollout:
    """Puts rollouts of different lengths side by side: `[length, k1 + k2 + ..., ...]`.

    Behind the end of each are zeros, which are not valid. `versions` are the oldest of each step.

    Args:
      rollouts: at least one; none is longer than `length`.
      length: T.
    """
    slots = [rollout.slots for rollout in rollouts]
    stops = np.cumsum(slots)
    places = list(zip(rollouts, stops - slots, stops, strict=True))

    def pad(arrays: Sequence[np.ndarray]) -> np.ndarray:
        padded = np.zeros((length, stops[-1], *arrays[0].shape[2:]), arrays[0].dtype)
        for array, (_, start, stop) in zip(arrays, places, strict=True):
            padded[: len(array), start:stop] = array
        return padded

    def pad_all(name: str) -> Arrays:
        parts = [getattr(rollout, name) for rollout in rollouts]
        return {key: pad([part[key] for part in parts]) for key in parts[0]}

    versions = np.full(length, max(rollout.versions.max() for rollout in rollouts))
    for rollout in rollouts:
        oldest = versions[: len(rollout.versions)]
        np.minimum(oldest, rollout.versions, out=oldest)
    states = [rollout.states for rollout in rollouts]
    return Rollout(
        inputs=pad_all("inputs"),
        next_inputs=pad_all("next_inputs"),
        next_alive=pad([rollout.next_alive for rollout in rollouts]),
        rewards=pad([rollout.rewards for rollout in rollouts]),
        actions=pad_all("actions"),
        log_prob=pad([rollout.log_prob for rollout in rollouts]),
        states={key: np.concatenate([part[key] for part in states]) for key in states[0]},
        versions=versions,
        valid=pad([get_valid(rollout) for rollout in rollouts]),
        starts=join_starts(rollouts),
        extras=pad_all("extras"),
    )
