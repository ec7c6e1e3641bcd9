"""The newest returns of each slot that plays, and their mean: the training return."""

import logging
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

_LOG = logging.getLogger(__name__)
# A player that is silent for this time, or for twice its longest interval, is left out.
_SILENT_SEC = 15.0
# An episode that is longer than this, and than ten times the longest in the window, is left out.
_LONG_STEPS, _LONG_FACTOR = 10_000, 10
_MAX_NAMED = 10
_MAX_SLOTS = 65_536
_PRESENT_SEC = 1.0


class EpisodeMeans(NamedTuple):
    """Means over the newest episodes, all taken at the same moment.

    Attributes:
      mean_return: mean return over the newest episodes of each slot, the same number of each; None
        before each slot has ended one.
      mean_length: of the same episodes, in environment steps.
      return_episodes: number of episodes in these means.
      episodes: number of episodes since the start of the run.
      is_full: whether they are as many as the window asks for.
    """

    mean_return: float | None
    mean_length: float | None
    return_episodes: int
    episodes: int
    is_full: bool


@dataclass
class _Player:
    rows: list[int]  # of its slots
    seen: float
    interval: float = 0.0  # the longest between two reports
    has_left: bool = False


class TrainingReturns:
    """Averages the newest episodes of each slot, the same number of each.

    Short episodes end first: at the beginning, and where some slots play shorter episodes, the
    newest episodes of all slots together would mostly be short ones. So the mean is that over the
    newest j episodes of each slot that plays: j = min(m, fewest ended of any slot), with
    m = ceil(window / slots). A player is an agent, which plays with one or more slots.

    Players that are silent while others report are left out. So is a slot whose episode is much
    longer than all others, until it ends: an environment without a time limit must not hold up the
    mean forever. Not thread-safe.

    Args:
      window: number of episodes in the mean, rounded up to a multiple of the number of slots.
    """

    def __init__(self, window: int):
        self._window = window
        self._players: dict[str, _Player] = {}
        self._newest = 0.0  # when a player reported
        self._present: np.ndarray | None = None  # rows of players that are not silent
        self._present_at = 0.0
        self._free: list[int] = []
        self._named: set[int] = set()
        # By row: the newest episodes, in rings, and how many have ended.
        self._returns, self._lengths = np.zeros((2, 0, window))
        self._ended = np.zeros(0, np.int64)
        self._unscored = np.zeros(0, np.int64)  # first that began after the newest snapshot
        self._played = np.zeros(0)  # environment steps
        self._began = np.zeros(0)  # `_played` when the unfinished episode began

    def report(self, player: str, slots: int, env_steps: int, now: float) -> None:
        """Notes that a player has taken steps.

        Args:
          player: its name.
          slots: number of its slots; 0: it has left.
          env_steps: of all these slots, since its last report.
          now: monotonic seconds.
        """
        if player not in self._players:
            self._forget_left()
        known = self._players.setdefault(player, _Player([], now))
        known.has_left = not slots
        if known.has_left:
            self._present = None
            return
        silent_sec = now - known.seen
        known.interval = max(known.interval, silent_sec)
        known.seen = self._newest = now
        if len(known.rows) != slots or silent_sec > _SILENT_SEC:
            self._present = None  # to be found again
            self._free += known.rows[slots:]
            del known.rows[slots:]
            known.rows += self._take_rows(slots - len(known.rows))
        if known.rows:
            self._played[known.rows] += env_steps / len(known.rows)

    def end(self, player: str, slot: int, episode_return: float, length: int, now: float) -> None:
        """Adds an episode; a player that did not report its slots has those up to this one."""
        known = self._players.get(player)
        if known is None or slot >= len(known.rows):
            self.report(player, slot + 1, 0, now)
            known = self._players.get(player)
        if known is None or slot >= len(known.rows):
            return  # there are too many slots
        row = known.rows[slot]
        place = self._ended[row] % self._window
        self._returns[row, place], self._lengths[row, place] = episode_return, length
        self._ended[row] += 1
        self._began[row] = self._played[row]
        self._named.discard(row)

    def compute(self, episodes: int) -> EpisodeMeans:
        """Returns the means over the newest episodes of each slot.

        Args:
          episodes: number of episodes since the start of the run.
        """
        rows = self._find_rows()
        return self._average(rows, np.minimum(self._ended[rows], self._window), episodes)

    def take_score(self) -> float | None:
        """Returns the mean over episodes that began after the last call.

        None if they are fewer than min(window, 10).
        """
        rows = self._find_rows()
        fresh = np.clip(self._ended[rows] - self._unscored[rows], 0, self._window)
        means = self._average(rows, fresh, 0)
        self._unscored = self._ended + 1  # all slots are in the middle of an episode
        return means.mean_return if means.return_episodes >= min(self._window, 10) else None

    def export(self) -> dict[str, Any]:
        """Returns the windows of the players that count, in JSON types."""
        return {
            name: [self._export_row(row) for row in player.rows]
            for name, player in self._find_present().items()
        }

    def restore(self, saved: Mapping[str, Sequence[Mapping[str, Any]]], now: float) -> None:
        """Restores what a snapshot contains of `export`; a smaller window keeps the newest."""
        for name, slots in saved.items():
            self.report(name, len(slots), 0, now)
            for slot, one in enumerate(slots):
                for episode_return, length in zip(one["returns"], one["lengths"], strict=True):
                    self.end(name, slot, float(episode_return), int(length), now)
                row = self._players[name].rows[slot]
                self._played[row] = float(one["open"])
                self._unscored[row] = self._ended[row] + 1

    def _export_row(self, row: int) -> dict[str, Any]:
        ended = int(self._ended[row])
        places = np.arange(max(0, ended - self._window), ended) % self._window
        return {
            "returns": self._returns[row, places].tolist(),
            "lengths": self._lengths[row, places].astype(int).tolist(),
            "open": float(self._played[row] - self._began[row]),
        }

    def _take_rows(self, number: int) -> list[int]:
        """Returns cleared rows; fewer if there are too many slots."""
        arrays = ("_returns", "_lengths", "_ended", "_unscored", "_played", "_began")
        while len(self._free) < number and len(self._ended) < _MAX_SLOTS:
            rows = len(self._ended)
            added = min(max(64, rows), _MAX_SLOTS - rows)
            for name in arrays:
                array = getattr(self, name)
                more = np.zeros((added, *array.shape[1:]), array.dtype)
                setattr(self, name, np.concatenate([array, more]))
            self._free += range(rows, rows + added)
        taken, self._free = self._free[: max(number, 0)], self._free[max(number, 0) :]
        for name in arrays:
            getattr(self, name)[taken] = 0
        return taken

    def _is_silent(self, player: _Player) -> bool:
        return self._newest - player.seen > max(_SILENT_SEC, 2 * player.interval)

    @property
    def players(self) -> set[str]:
        """Names of those that have neither left nor become silent."""
        return {n for n, p in self._players.items() if not (p.has_left or self._is_silent(p))}

    def _find_present(self) -> dict[str, _Player]:
        """Returns the players that count; once all have left, as at a run's end, these."""
        heard = {name: p for name, p in self._players.items() if not self._is_silent(p)}
        return {name: p for name, p in heard.items() if not p.has_left} or heard

    def _forget_left(self) -> None:
        for name in [name for name, player in self._players.items() if player.has_left]:
            self._free += self._players.pop(name).rows

    def _find_rows(self) -> np.ndarray:
        """Returns the rows of all slots that count."""
        if self._present is None or self._newest - self._present_at > _PRESENT_SEC:
            present = self._find_present().values()
            self._present = np.array([row for p in present for row in p.rows], np.int64)
            self._present_at = self._newest
        rows = self._present
        longest = self._lengths[rows].max(initial=0)
        playing = self._played[rows] - self._began[rows]
        is_stuck = playing > max(_LONG_FACTOR * longest, _LONG_STEPS)
        for row in rows[is_stuck].tolist():
            self._name_stuck(row)
        return rows[~is_stuck]

    def _name_stuck(self, row: int) -> None:
        if row in self._named or len(self._named) >= _MAX_NAMED:
            return
        self._named.add(row)
        name, rows = next((n, p.rows) for n, p in self._players.items() if row in p.rows)
        _LOG.warning(
            "slot %d of %s has not ended an episode for %s steps; until it does, it is left out of "
            "the mean return. If it can never end, set environment.max_episode_steps",
            *(rows.index(row), name or "a client", f"{self._played[row] - self._began[row]:,.0f}"),
        )

    def _average(self, rows: np.ndarray, available: np.ndarray, episodes: int) -> EpisodeMeans:
        """Averages over the newest episodes, given how many of each row there are."""
        wanted = math.ceil(self._window / max(len(rows), 1))
        number = min(wanted, int(available.min(initial=wanted)))
        if not len(rows) or not number:
            return EpisodeMeans(None, None, 0, episodes, False)
        places = (self._ended[rows, None] - 1 - np.arange(number)) % self._window
        returns = self._returns[rows[:, None], places].ravel()
        lengths = self._lengths[rows[:, None], places].ravel()
        return EpisodeMeans(
            _compute_mean(returns), _compute_mean(lengths), len(returns), episodes, number == wanted
        )


def _compute_mean(numbers: np.ndarray) -> float:
    try:
        return math.fsum(numbers) / len(numbers)
    except OverflowError:  # returns near the largest float
        mean = 2 * math.fsum(numbers / (2 * len(numbers)))
        return max(-sys.float_info.max, min(mean, sys.float_info.max))
