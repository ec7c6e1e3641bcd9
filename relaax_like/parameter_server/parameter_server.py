"""The parameter server itself: pushes are applied one after another; pulls never wait."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from relaax_like.config.combine import CombineConfig
from relaax_like.core.manifest import Manifest
from relaax_like.core.metrics import Metrics
from relaax_like.core.records import (
    NO_TABLE,
    ClientsReport,
    Counts,
    Lease,
    Publication,
    Push,
    Reply,
    RunState,
    Status,
    TableStatus,
    TrainReturn,
)
from relaax_like.core.roles import (
    GroupConnection,
    ParameterServerBackend,
    Publisher,
)
from relaax_like.parameter_server.applier import Applier
from relaax_like.parameter_server.apply_queue import ApplyQueue, FullError
from relaax_like.parameter_server.combining import Combiner
from relaax_like.parameter_server.combining.sync import GROUP
from relaax_like.parameter_server.learner_group import LearnerGroup
from relaax_like.parameter_server.learner_lease import LearnerLease
from relaax_like.parameter_server.optimizer_curves import OptimizerCurves
from relaax_like.parameter_server.push_log import PushLog
from relaax_like.parameter_server.push_validation import (
    Refused,
    validate_client_id,
    validate_counts,
    validate_push,
)
from relaax_like.parameter_server.saver import Saver
from relaax_like.parameter_server.snapshot_format import State
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.parameter_server.statistics import DEFAULT_WINDOW, Statistics
from relaax_like.parameter_server.stop_condition import StopCondition
from relaax_like.parameter_server.store import Store
from relaax_like.parameter_server.training_returns import EpisodeMeans
from relaax_like.wire import tracing
from relaax_like.wire.closing import Closing

_LOG = logging.getLogger(__name__)
# Maximum number of waiting pushes; each keeps its gradient in memory.
QUEUE_SIZE = 64
_FULL_POLL_SEC = 0.01
# combine.max_wait_sec of learners that make each update together.
_GROUP_WAIT_SEC = 10.0
# Number of records whose replay takes about a tenth of a second.
_LONG_REPLAY = 1_000


class ParameterServer(ParameterServerBackend, Publisher, Closing):
    """Applies pushes one after another and hands out complete versions. Thread-safe.

        with ParameterServer(store, snapshots=snapshots, metrics=NullMetrics()) as server:
            server.restore_latest_checkpoint()
            ...                       # serve server.push and server.pull
            server.wait_finished()

    A push is checked and waits for its turn in its caller's thread, which then applies all waiting
    pushes, one after another; each takes effect atomically. A pull never waits. A snapshot is taken
    from immutable buffers and written by another thread, while serving continues. While a journal
    is written, the death of the process loses nothing that was acknowledged. Without one, or once
    it was switched off (see `PushJournal`), it loses what was applied since the newest snapshot or,
    if a learner publishes, since the newest publication that could be written (see
    `PublishedState`).

    It owns all objects except `metrics`; `close` closes them.

    Args:
      store: values and optimizers; from now on, only the server changes it.
      metrics: the recorder.
      snapshots: where and when snapshots are written; None: nowhere.
      journal: where pushes are written before they are answered; requires `snapshots`, and that
        `restore_latest_checkpoint` is called before anything is pushed. None: nowhere.
      combine: how gradients of several clients are combined; None: each is applied at once.
      stop: what ends the training; None: nothing.
      window: number of newest episodes in mean returns, 1 or more. The same number of each slot;
        see `TrainingReturns`.
      scores_returns: snapshots are scored by the mean return of the training; False: only by
        `Publication.score` and `save_next_publication`, `save_checkpoint` and `save_judged`.
      clock: returns monotonic seconds.
      learner_lease: lease of a learner in a process of its own; None: this run has no such learner.

    Attributes:
      on_report: called with each report of `report_clients`.
      stop_requested: event that `request_stop` sets.
      get_table_status: returns the status of the learner's replay table, for `status`.
    """

    def __init__(
        self,
        store: Store,
        *,
        metrics: Metrics,
        snapshots: Snapshots | None = None,
        journal: PushLog | None = None,
        combine: CombineConfig | None = None,
        stop: StopCondition | None = None,
        window: int = DEFAULT_WINDOW,
        scores_returns: bool = True,
        clock: Callable[[], float] = time.monotonic,
        learner_lease: LearnerLease | None = None,
    ):
        combine = combine or CombineConfig()
        self._store, self._metrics = store, metrics
        self._snapshots = snapshots
        self._journal = journal or PushLog()
        self._clock, self._started = clock, clock()
        self.on_report: Callable[[ClientsReport], None] = lambda report: None
        self._stop_condition = stop or StopCondition()
        self._learner_lease = learner_lease
        self._has_granted = False
        self._statistics = Statistics(window, clock)
        self._applier = Applier(
            store,
            self._journal,
            snapshots,
            Combiner(combine, store.manifest, clock),
            self._stop_condition,
            self._statistics,
            OptimizerCurves(metrics, clock),
            learner_lease,
        )
        self._queue: ApplyQueue[Push | Publication | Counts, Reply] = ApplyQueue(
            self._applier.apply_all, QUEUE_SIZE
        )
        self._group = self._make_group(combine) if combine.method == "sync" else None
        self._next_score: float | None = None  # used by the learner's thread
        self._close_lock = threading.Lock()
        self._closed = False
        self._is_restoring = False  # also after a restore that has failed
        self.stop_requested = threading.Event()
        self.get_table_status: Callable[[], TableStatus] = TableStatus
        self._saver: Saver | None = None
        if snapshots is not None:
            self._saver = Saver(snapshots, self._applier, self._journal, clock, scores_returns)
            self._applier.note_steps = self._saver.note_steps
            self._saver.start()

    def _make_group(self, combine: CombineConfig) -> LearnerGroup:
        return LearnerGroup(
            self,
            lambda push: self.push_joint(push),
            lambda: self.updates,
            combine.max_wait_sec or _GROUP_WAIT_SEC,
        )

    # What agents use.

    @property
    def manifest(self) -> Manifest:
        """The layout of values and gradients."""
        return self._store.manifest

    @property
    def global_t(self) -> int:
        """Environment steps of all clients together."""
        return self._store.global_t

    @property
    def version(self) -> int:
        """0 for the initial values, +1 for each push or publication that changes the values."""
        return self._store.version

    @property
    def updates(self) -> int:
        """Optimizer steps so far: the number of the variable group with the most steps."""
        return max(self._store.export_state().steps.values(), default=0)

    def join_group(self, learner: str) -> GroupConnection:
        """Adds a learner to those that make each update together; see the base class."""
        return super().join_group(learner) if self._group is None else self._group.join(learner)

    @property
    def epoch(self) -> int:
        """Grows each time the parameter server starts."""
        return self._applier.epoch

    @property
    def finished(self) -> str:
        """What ended the training, or "" while it continues."""
        return self._stop_condition.reason

    @property
    def episode_means(self) -> EpisodeMeans:
        """Mean return and length of the newest episodes."""
        return self._statistics.means

    @property
    def snapshot_failures(self) -> int:
        """Number of automatic snapshots that could not be written."""
        return 0 if self._saver is None else self._saver.failures

    def push(self, push: Push, timeout_sec: float | None = None) -> Reply:
        """Applies one push; returns when it was applied, held back or dropped.

        A repeated push, with the same client, incarnation and sequence number, has no effect. It is
        answered as before or, after a later push of its client, as dropped. Once the training has
        finished, gradients, statistics and episodes are dropped, but environment steps are still
        counted.

        Args:
          push: to apply.
          timeout_sec: longest wait in the queue; None: no limit.

        Raises:
          InvalidInputError: the push is malformed or not finite, or gradients cannot update all
            variables (see `Store.prepare`); nothing took effect.
          LeasedError: the run learns from experience, and the push has a gradient or statistics.
          ServerUnavailableError: too many pushes are waiting, or the server is closing; nothing
            took effect. Or the journal has failed; the push can have taken effect.
          TimeoutError: the push was still queued at the deadline, and was withdrawn; nothing took
            effect.
        """
        if push.client_id == GROUP:
            self._statistics.count_refused("bad client id")
            raise Refused("bad client id", f"client_id: {GROUP} is reserved; choose another one")
        return self._push(push, timeout_sec)

    def push_joint(self, push: Push) -> Reply:
        """Applies a gradient that all learners have made together; see `push`."""
        return self._push(push, None)

    def _push(self, push: Push, timeout_sec: float | None) -> Reply:
        if self._applier.is_leased:
            self._applier.refuse_leased(push)
        try:
            with tracing.span("check push"):
                gradient = validate_push(push, self.manifest, self.global_t)
        except Refused as error:
            self._statistics.count_refused(error.reason)
            raise
        self._statistics.see_client(push.client_id)
        try:
            with tracing.span("wait for turn"):
                reply = self._queue.submit(replace(push, gradient=gradient), timeout_sec)
        except FullError:
            self._statistics.count_refused("busy")
            raise
        except TimeoutError:
            self._statistics.count_refused("timeout")
            raise TimeoutError(
                f"the push of {push.client_id} waited {timeout_sec:g} s in the queue and was "
                "withdrawn; it had no effect. Retry later"
            ) from None
        if reply.finished:
            self._stop_condition.note_notified(push.client_id)
        return reply

    def lease(self) -> Lease:
        """Makes the caller the run's only learner; see `Publisher`."""
        if not self._applier.is_leased and self._saver is not None:
            self._saver.save_replayed()
        return self._applier.lease()

    def grant_lease(self, holder: str, address: str) -> tuple[int, float, Lease]:
        """Makes a learner in another process the run's only one; see `LearnerLease.grant`.

        Args:
          holder: name of the learner's process, unique for each start.
          address: where the learner takes experience.

        Returns:
          The term; for how many seconds the lease is kept without a renewal; and the state to
          continue from.

        Raises:
          LeasedError: this run has no learner in a process of its own.
          ServerUnavailableError: another learner still holds the lease, or the lease could not be
            written.
        """
        if self._saver is not None and not self._has_granted:
            self._saver.save_replayed()  # a publication would not continue the journal
        self._has_granted = True
        term, lease = self._applier.grant(holder, address)
        assert self._learner_lease is not None
        return term, self._learner_lease.lease_sec, lease

    def renew_lease(self, term: int, table: TableStatus = NO_TABLE) -> None:
        """Renews a learner's lease.

        Args:
          term: of the lease.
          table: status of the learner's replay table, for `status`.

        Raises:
          LeasedError: `term` is not the newest one, or this run has no learner in a process of its
            own.
        """
        self._applier.renew(term)
        self.get_table_status = lambda: table
        if self._learner_lease is not None:
            self._statistics.see_client(self._learner_lease.holder)

    def require_lease(self, term: int) -> None:
        """Checks that a learner is the newest holder of the lease.

        Raises:
          LeasedError: `term` is not the newest one, or this run has no learner in a process of its
            own.
        """
        self._applier.require_lease(term)

    @property
    def slots(self) -> Mapping[str, np.ndarray]:
        """The optimizers' state: variable group -> `[s, n] float32`, immutable."""
        return self._store.export_state().slots

    @property
    def learner_address(self) -> tuple[str, int]:
        """Address at which the learner's process takes experience, and its term; ("", 0): none."""
        lease = self._learner_lease
        return ("", 0) if lease is None else (lease.address, lease.term)

    def get_run_state(self, reply: Reply | None = None) -> RunState:
        """Returns the run's state for a learner in another process.

        Args:
          reply: to the learner's newest publication or count; None: it has asked for the state.
        """
        reply = reply or self.pull()
        number, sequence, durable = self._applier.progress
        if reply.finished and self._learner_lease is not None:
            self._stop_condition.note_notified(self._learner_lease.holder)
        return RunState(
            **{**vars(reply), "values": None},
            number=number,
            sequence=sequence,
            durable_sequence=durable,
            best_score=self.best_score,
            train_return=self.train_return,
        )

    def publish(self, publication: Publication) -> Reply:
        """Applies a state published by the learner, atomically; see `Publisher`."""
        score, self._next_score = self._next_score, None  # for this one, even if it fails
        score = score if publication.score is None else publication.score
        validate_counts(publication)
        reply = self._submit_own(publication)
        if score is not None and reply.outcome == "applied" and self._saver is not None:
            self._applier.note_evaluation(score)  # first: the snapshot contains it
            self._saver.try_to_save(score)
            self._applier.check_evaluation()
        return reply

    def count(self, counts: Counts) -> Reply:
        """Counts steps and episodes that no publication contains; see `Publisher`."""
        validate_counts(counts)
        return self._submit_own(counts)

    @property
    def best_score(self) -> float | None:
        """Best score of the kept snapshots; None if no snapshot has a score."""
        return None if self._snapshots is None else self._snapshots.best_score

    @property
    def train_return(self) -> TrainReturn | None:
        """Training return over a full window of episodes; None before; see `Publisher`."""
        means = self._statistics.means
        if means.mean_return is None or not means.is_full:
            return None
        return TrainReturn(means.mean_return, means.return_episodes, means.episodes)

    def save_next_publication(self, score: float) -> None:
        """Saves the next publication as a snapshot with this score; see `Publisher`."""
        self._next_score = score

    def _submit_own(self, item: Publication | Counts) -> Reply:
        """Submits a publication or counts of the run's learner; waits while the queue is full."""
        while True:
            try:
                return self._queue.submit(item, None)
            except FullError:  # of other clients' items, which are soon handled
                time.sleep(_FULL_POLL_SEC)

    def count_refused(self, reason: str) -> None:
        """Counts a push that was refused before it reached `push`, or refused experience."""
        self._statistics.count_refused(reason)

    def pull(self, client_id: str = "", have_version: int | None = None) -> Reply:
        """Returns the newest values, or no values if `have_version` is still the newest.

        The returned values never change.

        Args:
          client_id: name of the client, which then counts as present; "": no client.
          have_version: version of the values that the client has; None: it has none.

        Raises:
          InvalidInputError: the name is too long or not printable.
        """
        if client_id:
            validate_client_id(client_id)
            self._statistics.see_client(client_id)
        values, global_t = self._store.read()
        if self.finished and client_id:
            self._stop_condition.note_notified(client_id)
        return Reply(
            durability=self._applier.durability,
            version=values.version,
            global_t=global_t,
            epoch=self.epoch,
            finished=self.finished,
            values=None if have_version == values.version else values,
        )

    def status(self) -> Status:
        """Returns the run's current status."""
        values, global_t = self._store.read()
        statistics, saver, snapshots = self._statistics, self._saver, self._snapshots
        mirror = None if snapshots is None else snapshots.mirror
        saved = None if saver is None else saver.saved
        means = statistics.means
        served, served_clients = statistics.served
        learner, table = self._learner_lease, self.get_table_status()
        return Status(
            global_t=global_t,
            version=values.version,
            epoch=self.epoch,
            uptime_sec=self._clock() - self._started,
            env_steps_per_sec=statistics.env_steps_per_sec,
            mean_return=means.mean_return,
            return_episodes=means.return_episodes,
            episodes=means.episodes,
            clients=statistics.clients,
            finished=self.finished,
            snapshot_global_t=saved.global_t if saved else None,
            checkpoint_dir=str(snapshots.directory) if snapshots else "",
            refused=statistics.refused,
            unlearned_steps=statistics.unlearned_steps,
            parameters=self.manifest.gradient_bytes // 4,
            durability=self._applier.durability,
            unsynced_records=self._journal.unsynced_records,
            unsynced_bytes=self._journal.unsynced_bytes,
            journal_bytes=self._journal.total_bytes,
            snapshot_age_sec=None if saver is None else saver.age_sec,
            snapshot_failures=self.snapshot_failures,
            client_list=statistics.client_list,
            held_back=sum(one.count for one in tuple(self._applier.combiner.pending.values())),
            resident_bytes=_get_resident_bytes(),
            mirrored_global_t=mirror.newest_global_t if mirror else None,
            mirror_error=mirror.error if mirror else "",
            journal_error=self._journal.failed,
            served=served,
            served_clients=served_clients,
            overdue_updates=table.overdue_updates,
            given_up_version=self._journal.given_up_version,
            given_up_step=table.given_up_step,
            table_steps=table.table_steps,
            prior_steps=table.prior_steps,
            learner_address=learner.address if learner else "",
            learner_term=learner.term if learner else 0,
            learner_silent_sec=learner.silent_sec if learner and learner.term else 0.0,
            joint_learners=0 if self._group is None else self._group.learners,
        )

    def report_clients(self, report: ClientsReport) -> None:
        """Stores an rlx server's numbers about its clients, for `status`; calls `on_report`."""
        self._statistics.take_report(report)
        self.on_report(report)

    def metrics(self) -> Metrics:
        """Returns the recorder."""
        return self._metrics

    def request_stop(self) -> None:
        """Sets `stop_requested`."""
        self.stop_requested.set()

    def wait_finished(self, timeout_sec: float | None = None) -> str:
        """Waits until the training has ended; returns what ended it, or "" on timeout."""
        return self._stop_condition.wait(timeout_sec)

    def wait_notified(self, timeout_sec: float) -> None:
        """Waits, for at most `timeout_sec`, until all present clients know of the training's end.

        While no client is present, it keeps waiting, because some might still connect.
        """
        self._stop_condition.wait_notified(self._statistics, timeout_sec)

    @property
    def has_players(self) -> bool:
        """Whether agents can still report steps after the training's end.

        Not those that have left. Plain agents do not say so; they end once they are notified.
        """
        return not self._statistics.players <= self._stop_condition.told

    def get_values(self) -> list[np.ndarray]:
        """Returns the newest values: a read-only array per variable, in manifest order."""
        return self.manifest.unpack(self._store.values.flat)

    # Checkpoints.

    def save_checkpoint(self, score: float | None = None) -> Path | None:
        """Writes a snapshot, unless the newest one has the same state; serving continues.

        Args:
          score: score of the state, which is then written in any case; None: the mean return of
            the training, if snapshots are scored by it.

        Returns:
          The snapshot's directory; None if the server keeps no snapshots.

        Raises:
          SnapshotError: the snapshot could not be written; older ones are untouched.
        """
        return None if self._saver is None else self._saver.save(score)

    def save_judged(self, judge: Callable[[State], float | None]) -> None:
        """Writes a snapshot of the current state, if `judge` returns a score; see `Saver`.

        Serving and other snapshots continue while `judge` runs. If the server keeps no snapshots,
        `judge` is not called.

        Args:
          judge: returns the score of a state; None: the state is not saved.

        Raises:
          SnapshotError: the snapshot could not be written; older ones are untouched.
          Exception: an error of `judge`.
        """
        if self._saver is None:
            return
        scores: list[float] = []

        def note(state: State) -> tuple[State, float] | None:
            score = judge(state)
            if score is None:
                return None
            scores.append(score)
            return self._applier.add_evaluation(state, score), score

        self._saver.save_judged(note)
        for score in scores:
            self._applier.note_evaluation(score)
        self._applier.check_evaluation()

    def export_state(self) -> State:
        """Returns the current values and optimizers, immutable."""
        return self._applier.export_state()

    def restore_latest_checkpoint(self) -> bool:
        """Resumes from the newest snapshot, publication and journal; to be called before serving.

        Returns:
          Whether there was a snapshot or a publication to resume from.

        Raises:
          SnapshotError: there are snapshots or publications that cannot be used, or a first
            snapshot could not be written; the server must not serve.
          InvalidInputError: a restored trainable variable is not finite, or a running statistic is
            out of range; the server must not serve.
          JournalError: records are damaged, missing, or of another model; there are records but no
            snapshot; or the journal cannot be read or written to; the server must not serve.
        """
        if self._snapshots is None or self._saver is None:
            return False
        self._is_restoring = True
        with self._saver.lock:
            state = self._snapshots.restore_latest(self.manifest)
            if state is not None:
                self._applier.import_snapshot(state, str(self._snapshots.path_of(state)))
                self._saver.note_restored(state)
            restored = self._applier.import_published(state) or state is not None
            replayed = self._applier.replay(state)
        self._is_restoring = False
        if changes := self._store.describe_changed_optimizers():
            _LOG.info(
                "optimizer settings have changed: %s; the new ones apply from version %d on",
                changes,
                self.version + 1,
            )
        if state is None:
            if self._journal.needs_snapshot:
                self.save_checkpoint()
        elif self._snapshots.mirror is not None:
            self._snapshots.mirror.offer(self._snapshots.path_of(state))
        if replayed >= _LONG_REPLAY:
            self._saver.request()  # otherwise, all of it would be replayed after another crash
        return restored

    def close(self, save: bool = True) -> None:
        """Applies queued pushes, saves, and releases the folder lock. Idempotent.

        Waits up to 60 s for the copy of the newest snapshot to the mirror.

        Args:
          save: whether to write a snapshot if anything has happened since the newest one, or since
            the start if there is none. After `restore_latest_checkpoint` has failed, none is
            written.

        Raises:
          SnapshotError: the last snapshot could not be written; everything else is done.
          JournalError: the journal could not be synced; everything else is done.
        """
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        with contextlib.ExitStack() as rest:  # in reverse order, even if one of them fails
            if self._snapshots is not None:
                rest.callback(self._snapshots.close)
            rest.callback(self._applier.close)
            rest.callback(self._journal.close)
            rest.callback(self._save_last, save)
            if self._group is not None:
                self._group.close()
            self._queue.close()
            self._applier.record_curves(now=True)

    def _save_last(self, save: bool) -> None:
        saver = self._saver
        if saver is not None:
            saver.stop()
            if save and not self._is_restoring and not saver.has_all:
                saver.save()


def _get_resident_bytes() -> int:
    """Returns the memory of this process in bytes; 0: unknown on this system."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
