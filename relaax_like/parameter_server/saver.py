"""Saver: writes snapshots while the server serves: by time, by steps, or on request."""

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from relaax_like.parameter_server.applier import Applier
from relaax_like.parameter_server.push_journal import JOURNAL_INDEX
from relaax_like.parameter_server.push_log import PushLog
from relaax_like.parameter_server.snapshot_format import State
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.wire import failpoints, tracing
from relaax_like.wire.errors import SnapshotError

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Saved:
    """The newest snapshot.

    Attributes:
      path: its directory.
      global_t: environment steps of its state.
      records: number of records that had taken effect in this process by then.
      at: seconds of the clock when it was verified; None: it is from an earlier process.
      score: of the snapshot; None: no score.
    """

    path: Path
    global_t: int
    records: int
    at: float | None = None
    score: float | None = None


class Saver:
    """Writes snapshots, one at a time; then drops unneeded journal segments. Thread-safe.

    Args:
      snapshots: where and when snapshots are written; the caller closes this object.
      applier: has the state.
      journal: the journal whose segments are dropped.
      clock: returns monotonic seconds.
      scores_returns: as the argument of `ParameterServer`.

    Attributes:
      lock: held during a save, including the disk; never for serving.
      saved: the newest snapshot; None: there is none.
      failures: number of automatic snapshots that could not be written.
    """

    def __init__(
        self,
        snapshots: Snapshots,
        applier: Applier,
        journal: PushLog,
        clock: Callable[[], float],
        scores_returns: bool,
    ):
        self.saved: Saved | None = None
        self.failures = 0
        self._snapshots = snapshots
        self._applier = applier
        self._journal = journal
        self._clock = clock
        self._scores_returns = scores_returns
        self.lock = threading.Lock()
        self._attempted_t = 0  # global_t of the newest attempt
        self._due = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def age_sec(self) -> float | None:
        """Seconds since the newest snapshot was verified; None: this process has written none."""
        saved = self.saved
        return None if saved is None or saved.at is None else self._clock() - saved.at

    @property
    def has_all(self) -> bool:
        """Whether nothing has happened since the newest snapshot (or the start, without any)."""
        return self._applier.records == (self.saved.records if self.saved else 0)

    def start(self) -> None:
        """Begins to save by time and by steps, as configured."""
        if self._snapshots.every_sec or self._snapshots.every_env_steps:
            self._thread = threading.Thread(target=self._loop, name="snapshots", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stops saving automatically; waits for an automatic snapshot that is being written."""
        self._stopping.set()
        self._due.set()
        if self._thread is not None:
            self._thread.join()

    def note_restored(self, state: State) -> None:
        """Notes that the newest snapshot is the restored one, of an earlier process."""
        path = self._snapshots.path_of(state)
        self.saved = Saved(path, state.global_t, self._applier.records, score=state.score)
        self._attempted_t = state.global_t

    def note_steps(self, global_t: int) -> None:
        """Requests a snapshot if enough steps have been taken; returns at once."""
        every = self._snapshots.every_env_steps
        if every is not None and global_t - self._attempted_t >= every:
            self.request()

    def request(self) -> None:
        """Requests a snapshot soon, if snapshots are written automatically; returns at once."""
        self._due.set()

    def save(self, score: float | None = None) -> Path:
        """Writes a snapshot, unless the newest one has the same state and there is no score.

        Pushes wait for it while the journal is given up, which then resumes.

        Args:
          score: of the snapshot; None: the mean return since the last one, if snapshots are scored
            by it. If there is none, and the newest snapshot is of the same values and steps, its
            score is kept.

        Returns:
          The snapshot's directory.

        Raises:
          SnapshotError: the snapshot could not be written; older ones are untouched.
        """
        # A journal that was given up resumes after a state that contains everything.
        is_given_up = self._journal.given_up_version is not None
        with self.lock, self._applier.lock if is_given_up else contextlib.nullcontext():
            state, records = self._applier.export()
            self._attempted_t = state.global_t
            if score is not None or self.saved is None or self.saved.records != records:
                if score is None and self._scores_returns:
                    score = self._applier.statistics.take_score()
                if score is None and self.saved is not None:
                    # It replaces the newest snapshot, for example to add what an evaluation found.
                    is_same = self.saved.path == self._snapshots.path_of(state)
                    score = self.saved.score if is_same else None
                self._write(state, records, score)
            if is_given_up:
                self._journal.resume()
            assert self.saved is not None
            return self.saved.path

    def save_judged(self, judge: Callable[[State], tuple[State, float] | None]) -> None:
        """Judges the current state, which can take a long time, and then writes it.

        Other states can be saved meanwhile. If one of them is newer, the judged state counts as an
        older snapshot, so it is not always kept, and it is not mirrored.

        Args:
          judge: returns the state with its score in the statistics, and the score; None: it is not
            saved.

        Raises:
          SnapshotError: the snapshot could not be written; older ones are untouched.
          Exception: an error of `judge`.
        """
        with self.lock:
            state, records = self._applier.export()
        judged = judge(state)
        if judged is None:
            return
        state, score = judged
        with self.lock:
            if self.saved is None or self.saved.records <= records:
                self._write(state, records, score)
            else:
                self._snapshots.save(state, score, newest=self.saved.path.name)

    def try_to_save(self, score: float | None = None) -> None:
        """Writes a snapshot; a failure is logged and counted."""
        try:
            self.save(score)
        except SnapshotError as error:
            self.failures += 1
            _LOG.error("%s; training continues", error)

    def save_replayed(self) -> None:
        """Writes a snapshot if the newest one lacks changes, such as replayed records.

        Without any snapshot, none is written. Publications are not journaled, so they cannot
        continue a journal.
        """
        if self.saved is not None and not self.has_all:
            self.try_to_save()

    def _write(self, state: State, records: int, score: float | None) -> None:
        """Writes the newest state."""
        with tracing.span("snapshot write"):
            path = self._snapshots.save(state, score)
        self.saved = Saved(path, state.global_t, records, self._clock(), score)
        failpoints.hit("ps.after_snapshot_before_drop")
        if JOURNAL_INDEX in state.statistics:
            self._journal.end_snapshot(state.statistics[JOURNAL_INDEX])
        if self._snapshots.mirror is not None:
            self._snapshots.mirror.offer(path)

    def _loop(self) -> None:
        every_sec = self._snapshots.every_sec
        due = self._clock() + (every_sec or 0)
        while True:
            self._due.wait(None if every_sec is None else max(0.0, due - self._clock()))
            self._due.clear()
            if self._stopping.is_set():
                return
            self._save_if_moved()
            due = self._clock() + (every_sec or 0)

    def _save_if_moved(self) -> None:
        if self.has_all:
            return
        try:
            self.try_to_save()
        except Exception:
            self.failures += 1
            _LOG.exception("a snapshot failed; training continues")
