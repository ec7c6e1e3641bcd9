"""The parameter server itself: pushes wait for turns at the store, pulls for nothing."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import numpy as np

from relaax_like.config.combine import CombineConfig
from relaax_like.core.manifest import Manifest
from relaax_like.core.metrics import Metrics
from relaax_like.core.records import (
    ClientsReport,
    Counts,
    Episode,
    Lease,
    Outcome,
    Publication,
    Push,
    Received,
    Reply,
    Status,
    TrainReturn,
)
from relaax_like.core.roles import ParameterServerBackend, Publisher
from relaax_like.parameter_server.apply_queue import ApplyQueue, ClosedError, FullError
from relaax_like.parameter_server.combining import Combiner, Plan
from relaax_like.parameter_server.dedup_table import CachedReply, DedupTable
from relaax_like.parameter_server.mirror import Mirror
from relaax_like.parameter_server.optimizer_curves import OptimizerCurves
from relaax_like.parameter_server.published_state import PublishedState
from relaax_like.parameter_server.push_journal import JOURNAL_INDEX
from relaax_like.parameter_server.push_log import PushLog
from relaax_like.parameter_server.push_validation import (
    Refused,
    is_empty,
    validate_client_id,
    validate_counts,
    validate_push,
)
from relaax_like.parameter_server.records import Position, Record
from relaax_like.parameter_server.saver import Saver
from relaax_like.parameter_server.served_clients import ServedClients
from relaax_like.parameter_server.snapshot_format import State
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.parameter_server.statistics import DEFAULT_WINDOW, EpisodeMeans, Statistics
from relaax_like.parameter_server.stop_condition import StopCondition, Target
from relaax_like.parameter_server.store import PreparedVersion, Store
from relaax_like.wire import failpoints, tracing
from relaax_like.wire.errors import (
    ConfigError,
    InvalidInputError,
    LeasedError,
    ServerUnavailableError,
    SnapshotError,
)

_LOG = logging.getLogger(__name__)
# Pushes that wait for their turn; each holds its gradient in memory.
QUEUE_SIZE = 64
# How long the tutorial's plain calls, which carry no deadline, are allowed to take.
_PLAIN_CALL_SEC = 60.0
_PLAIN_CLIENT = "plain"
_FULL_POLL_SEC = 0.01
# At the end: for the newest snapshot to be copied.
_MIRROR_SEC = 60.0
# Keys of a snapshot's statistics.
_DEDUP, _PUBLISHED, _RECEIVED, RECIPE = "replies", "published", "received", "recipe"
_BEST_EVALUATION = "best_evaluation"
FINISHED = "training has finished"
# Records whose replay takes a tenth of a second.
_LONG_REPLAY = 1_000


class ParameterServer(ParameterServerBackend, Publisher):
    """Applies pushes one after another and hands out complete versions. Thread-safe.

        with ParameterServer(store, snapshots=snapshots, metrics=NullMetrics()) as server:
            server.restore_latest_checkpoint()
            ...                       # serve server.push and server.pull
            server.wait_finished()

    A push is checked and waits for its turn in its caller's thread, which then applies all waiting
    pushes, one after another; each takes effect as a whole. A pull never waits. A snapshot is taken
    of immutable buffers and written by another thread, while serving continues. With a journal, a
    crash costs nothing that was acknowledged; without one, what was applied since the newest
    snapshot.
    """

    def __init__(
        self,
        store: Store,
        *,
        snapshots: Snapshots | None = None,
        journal: PushLog | None = None,
        mirror: Mirror | None = None,
        metrics: Metrics,
        combine: CombineConfig | None = None,
        max_global_step: int | None = None,
        target: Target | None = None,
        target_score: float | None = None,
        max_episodes: int | None = None,
        snapshot_every_sec: float | None = None,
        snapshot_every_env_steps: int | None = None,
        scores_returns: bool = True,
        recipe: str = "",
        clock: Callable[[], float] = time.monotonic,
        queue_size: int = QUEUE_SIZE,
    ):
        """Starts to serve. Takes over all but `metrics`; `close` closes what must be closed.

        Args:
          store: values and optimizers; only the server applies to it from now on.
          snapshots: where checkpoints go; None keeps none.
          journal: where pushes go before they are answered; needs `restore_latest_checkpoint` to be
            called before anything is pushed. None: nowhere.
          mirror: where each snapshot is copied to; None: nowhere.
          metrics: the recorder.
          combine: what happens to gradients that come together; None: each is applied at once.
          max_global_step: environment steps after which the training ends; None: no limit.
          target: mean return that ends the training; None: none does.
          target_score: score of a snapshot that ends the training; None: none does.
          max_episodes: training episodes after which the training ends; None: no limit.
          snapshot_every_sec: seconds between two snapshots; None: not by time.
          snapshot_every_env_steps: environment steps between two; None: not by steps.
          scores_returns: snapshots are scored by the mean return of the training; False: only by
            `save_next_publication`, `save_checkpoint` and `save_judged`.
          recipe: what the initial values were made from; noted in snapshots, under `RECIPE`.
          clock: seconds, never going back.
          queue_size: pushes that can wait; one more is refused as busy.

        Raises:
          ConfigError: a number that makes no sense, or intervals without a place for snapshots.
        """
        _validate_numbers(max_global_step, snapshot_every_sec, snapshot_every_env_steps, queue_size)
        if snapshots is None and (snapshot_every_sec or snapshot_every_env_steps):
            raise ConfigError("snapshots are configured, but there is no checkpoint directory")
        self._store = store
        self._snapshots = snapshots
        self._journal = journal or PushLog()
        self._mirror = mirror
        self._metrics = metrics
        self._clock = clock
        self._started = clock()
        # Without a folder that counts starts, the time of day grows from start to start.
        self._epoch = snapshots.epoch if snapshots else time.time_ns() // 1_000_000
        self._statistics = Statistics(target.episodes if target else DEFAULT_WINDOW, clock)
        self._served = ServedClients(clock)
        self._curves = OptimizerCurves(metrics, clock)
        self._dedup = DedupTable()  # written under _record_lock
        self._combiner = Combiner(combine or CombineConfig(), store.manifest, clock)
        self._combiner.begin(store.values, {})
        self._stop_condition = StopCondition(max_global_step, target, target_score, max_episodes)

        self._queue: ApplyQueue[Push | Publication | Counts, Reply] = ApplyQueue(
            self._apply_all, queue_size
        )
        self._leased = False
        self._publications = None if snapshots is None else PublishedState(snapshots.directory)
        self._next_score: float | None = None  # used by the learner's thread
        # Best mean return of an evaluation; written under _record_lock.
        self._best_evaluation: float | None = None
        self._scores_returns = scores_returns
        self._recipe = recipe
        # Number of the newest publication, and what it contains; written under _record_lock.
        self._published = 0
        self._received: Mapping[str, Received] = {}
        self._close_lock = threading.Lock()
        self._closed = False
        # Held while a record takes effect, so that store and statistics are read as one.
        self._record_lock = threading.Lock()
        self._records = 0  # that took effect since the start
        self._first_version = store.version  # that this start began with
        self.stop_requested = threading.Event()

        self._check_finished()
        self._saver: Saver | None = None
        if snapshots is not None:
            self._saver = Saver(
                snapshots,
                self._export,
                lambda: self._records,
                self._compute_score,
                journal=self._journal,
                mirror=mirror,
                every_sec=snapshot_every_sec,
                every_env_steps=snapshot_every_env_steps,
                clock=clock,
            )
            self._saver.start()

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
        """0 for the initial values, +1 for each gradient, statistics, or both at once."""
        return self._store.version

    @property
    def epoch(self) -> int:
        """Grows each time the parameter server starts."""
        return self._epoch

    @property
    def finished(self) -> str:
        """What ended the training, or "" while it continues."""
        return self._stop_condition.reason

    @property
    def episode_means(self) -> EpisodeMeans:
        """Of the newest episodes."""
        return self._statistics.means

    @property
    def snapshot_failures(self) -> int:
        """Snapshots that nobody asked for and that could not be written."""
        return 0 if self._saver is None else self._saver.failures

    def push(self, push: Push, timeout_sec: float | None = None) -> Reply:
        """Applies one record and waits until it has taken effect.

        A push that comes again, with the same client, incarnation and sequence number, is answered
        as before and takes no effect. Once the training has finished, gradients, statistics and
        episodes are dropped, but environment steps are still counted.

        Raises:
          InvalidInputError: malformed or not finite; nothing took effect.
          ServerUnavailableError: too many pushes wait, or the server closes; nothing took effect.
          TimeoutError: it had not been taken in time, and was withdrawn; nothing took effect.
        """
        if self._leased and _moves_values(push):
            self._refuse_leased()
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
        except ClosedError:
            raise ServerUnavailableError(
                "the parameter server is closing; reconnect later"
            ) from None
        except FullError:
            self._statistics.count_refused("busy")
            raise ServerUnavailableError(
                f"the parameter server is busy: {self._queue.size} pushes are queued; retry later"
            ) from None
        except TimeoutError:
            self._statistics.count_refused("timeout")
            raise TimeoutError(
                f"the push of {push.client_id} waited {timeout_sec:g} s in the queue and was "
                "withdrawn; it had no effect"
            ) from None
        if reply.finished:
            self._stop_condition.note_notified(push.client_id)
        return reply

    def lease(self) -> Lease:
        """Makes the caller the run's only learner; see `Publisher`."""
        if not self._leased and self._saver is not None:
            self._saver.save_replayed()
        with self._record_lock:
            self._leased = True
            state = self._store.export_state()
            return Lease(
                number=self._published,
                manifest=state.manifest,
                values=state.values,
                slots=state.slots,
                slot_names=state.slot_names,
                steps=state.steps,
                version=state.version,
                global_t=state.global_t,
                finished=self.finished,
                received=self._received,
            )

    def publish(self, publication: Publication) -> Reply:
        """Applies a state published by the learner, atomically; see `Publisher`."""
        score, self._next_score = self._next_score, None  # of this one, whatever becomes of it
        validate_counts(publication)
        reply = self._submit_own(publication)
        if score is not None and reply.outcome == "applied" and self._saver is not None:
            self._saver.try_to_save(score)
            self._note_evaluation(score)
        return reply

    def count(self, counts: Counts) -> Reply:
        """Counts what no publication contains; see `Publisher`."""
        validate_counts(counts)
        return self._submit_own(counts)

    @property
    def best_score(self) -> float | None:
        """Best score of the snapshots that are kept; None: none has one."""
        return None if self._snapshots is None else self._snapshots.best_score

    @property
    def train_return(self) -> TrainReturn | None:
        """How the training does; see `Publisher`."""
        means = self._statistics.means
        if means.mean_return is None or not self._statistics.is_window_full:
            return None
        return TrainReturn(means.mean_return, means.return_episodes, means.episodes)

    def save_next_publication(self, score: float) -> None:
        """Writes the next publication to a snapshot, with this score; see `Publisher`."""
        self._next_score = score

    def _submit_own(self, item: Publication | Counts) -> Reply:
        """Submits what the learner in this process has."""
        while True:
            try:
                return self._queue.submit(item, None)
            except FullError:  # of what others count; they do not wait for long
                time.sleep(_FULL_POLL_SEC)
            except ClosedError:
                raise ServerUnavailableError("the parameter server is closing") from None

    def _refuse_leased(self) -> NoReturn:
        self._statistics.count_refused("leased")
        raise LeasedError(
            "this run learns in the server (learner.placement: server); send experience "
            "instead of gradients and statistics"
        )

    def count_refused(self, reason: str) -> None:
        """Counts a push that was refused before it came to `push`."""
        self._statistics.count_refused(reason)

    def pull(self, client_id: str = "", have_version: int | None = None) -> Reply:
        """Returns the newest values, or none when `have_version` is still the newest.

        The values stay as they are for as long as they are held.
        """
        if client_id:
            validate_client_id(client_id)
            self._statistics.see_client(client_id)
        values, global_t = self._store.read()
        if self.finished and client_id:
            self._stop_condition.note_notified(client_id)
        return Reply(
            version=values.version,
            global_t=global_t,
            epoch=self._epoch,
            finished=self.finished,
            values=None if have_version == values.version else values,
        )

    def status(self) -> Status:
        """Returns the numbers of this moment."""
        values, global_t = self._store.read()
        statistics, saver = self._statistics, self._saver
        saved = None if saver is None else saver.saved
        means = statistics.means
        served, served_clients = self._served.find()
        return Status(
            global_t=global_t,
            version=values.version,
            epoch=self._epoch,
            uptime_sec=self._clock() - self._started,
            env_steps_per_sec=statistics.env_steps_per_sec,
            mean_return=means.mean_return,
            return_episodes=means.return_episodes,
            episodes=means.episodes,
            clients=statistics.clients,
            finished=self.finished,
            snapshot_global_t=saved.global_t if saved else None,
            checkpoint_dir=str(self._snapshots.directory) if self._snapshots else "",
            refused=statistics.refused,
            parameters=self.manifest.gradient_bytes // 4,
            durability=self._journal.durability,
            unsynced_records=self._journal.unsynced_records,
            unsynced_bytes=self._journal.unsynced_bytes,
            journal_bytes=self._journal.total_bytes,
            snapshot_age_sec=None if saver is None else saver.age_sec,
            snapshot_failures=self.snapshot_failures,
            client_list=statistics.client_list,
            held_back=sum(one.count for one in tuple(self._combiner.pending.values())),
            resident_bytes=_get_resident_bytes(),
            mirrored_global_t=None if self._mirror is None else self._mirror.status.newest_global_t,
            mirror_error="" if self._mirror is None else self._mirror.status.error,
            journal_error=self._journal.failed,
            served=served,
            served_clients=served_clients,
        )

    def report_clients(self, report: ClientsReport) -> None:
        """Takes an rlx server's numbers about its clients, for `status`."""
        self._served.take(report)

    def metrics(self) -> Metrics:
        """Returns the recorder."""
        return self._metrics

    def request_stop(self) -> None:
        """Sets `stop_requested`."""
        self.stop_requested.set()

    def wait_finished(self, timeout_sec: float | None = None) -> str:
        """Waits until the training has ended; returns what ended it, or "" after the time."""
        return self._stop_condition.wait(timeout_sec)

    def wait_notified(self, timeout_sec: float) -> None:
        """Waits until all present clients have been notified that the training has ended.

        If there is no client yet, it waits for the full time: some might be on their way.
        """
        self._stop_condition.wait_notified(self._statistics, timeout_sec)

    # The tutorial's plain calls. They carry no id: each call takes effect once.

    def increment_global_t(self, n: int = 1) -> int:
        """Counts `n` environment steps and returns `global_t`."""
        return self.push(Push(client_id=_PLAIN_CLIENT, env_steps=n), _PLAIN_CALL_SEC).global_t

    def apply_gradients(self, gradients: Sequence[np.ndarray]) -> None:
        """Applies one gradient: a float32 array per trainable variable, in manifest order.

        Raises:
          InvalidInputError: wrong count, shape or dtype, or not finite; nothing took effect.
        """
        flat = self.manifest.pack(gradients, gradient=True)
        push = Push(
            client_id=_PLAIN_CLIENT,
            gradient=flat,
            gradient_version=self.version,
            fingerprint=self.manifest.fingerprint,
        )
        self.push(push, _PLAIN_CALL_SEC)

    def get_values(self) -> list[np.ndarray]:
        """Returns the newest values: a read-only array per variable, in manifest order."""
        return self.manifest.unpack(self._store.values.flat)

    # Checkpoints.

    def save_checkpoint(self, score: float | None = None) -> Path | None:
        """Writes a snapshot, unless the newest one is of this very state; serving continues.

        Args:
          score: of the state; None: the mean return of the training, if snapshots are scored by it.

        Returns:
          Its directory; None when there is no place for snapshots.

        Raises:
          SnapshotError: it could not be written; the older ones are untouched.
        """
        return None if self._saver is None else self._saver.save(score)

    def save_judged(self, judge: Callable[[State], float | None]) -> None:
        """Writes a snapshot of the current state, if `judge` gives it a score.

        Serving continues, and so do other snapshots, however long that takes. Without a place for
        snapshots nothing is judged.

        Raises:
          SnapshotError: it could not be written; the older ones are untouched.
        """
        if self._saver is None:
            return
        scores: list[float] = []

        def note(state: State) -> float | None:
            score = judge(state)
            if score is not None:
                scores.append(score)
            return score

        self._saver.save_judged(note)
        for score in scores:
            self._note_evaluation(score)

    def _note_evaluation(self, score: float) -> None:
        """Takes note of the mean return of an evaluation whose snapshot is kept."""
        with self._record_lock:
            best = self._best_evaluation
            self._best_evaluation = score if best is None else max(best, score)
            self._records += 1  # the newest snapshot does not have it
        self._stop_condition.check_score(self._best_evaluation)

    def export_state(self) -> State:
        """Returns values and optimizers of this moment, immutable."""
        with self._record_lock:
            return self._store.export_state()

    def _export(self) -> tuple[State, int]:
        """Returns the state of this moment and how many records it has, as `Saver` wants it."""
        with self._record_lock:
            state = self._store.export_state()
            statistics = self._export_statistics()
            if (index := self._journal.begin_snapshot()) is not None:
                statistics[JOURNAL_INDEX] = index
            held = self._combiner.pending.items()
            pending = {groups: (one.total, one.count) for groups, one in held}
            return replace(state, statistics=statistics, pending=pending), self._records

    def _export_statistics(self) -> dict[str, Any]:
        return {
            **self._statistics.to_dict(),
            _DEDUP: self._dedup.to_dict(),
            _PUBLISHED: self._published,
            _RECEIVED: {client_id: list(one) for client_id, one in self._received.items()},
            RECIPE: self._recipe,
            _BEST_EVALUATION: self._best_evaluation,
        }

    def _compute_score(self) -> float | None:
        """Returns by what the best snapshots are chosen: the mean return over a whole window."""
        if not self._scores_returns or not self._statistics.is_window_full:
            return None
        return self._statistics.mean_return

    def restore_latest_checkpoint(self) -> bool:
        """Resumes from the newest snapshot and the journal. Must be called before serving.

        Returns:
          False when there is neither, nor anything that a learner has published.

        Raises:
          SnapshotError: there are snapshots, but none that fits; nothing has changed.
          JournalError: records are damaged or missing; the server must not serve.
        """
        if self._snapshots is None or self._saver is None:
            return False
        with self._saver.hold():
            state = self._snapshots.restore_latest(self.manifest)
            if state is not None:
                self._import(state)
            restored = self._import_published(state) or state is not None
            self._stop_condition.check_score(self._best_evaluation)
            start = None
            if state is not None:
                index = int(state.statistics.get(JOURNAL_INDEX, 0))
                start = Position(index, self.version, self.global_t)
            replayed = self._replay(self._journal.replay(start))
            if dropped := self._combiner.drop_unsupported_pending():
                _LOG.warning(
                    "dropping %d held-back gradients, because combine.method is no longer avg",
                    dropped,
                )
        if changes := self._store.describe_changed_optimizers():
            _LOG.info(
                "optimizer settings have changed: %s; the new ones apply from version %d on",
                changes,
                self.version + 1,
            )
        if state is None:
            if self._journal.needs_snapshot:
                self.save_checkpoint()
        elif self._mirror is not None:
            self._mirror.offer(self._snapshots.path_of(state))
        if replayed >= _LONG_REPLAY:
            self._saver.request()  # else one more crash would have all of it replayed again
        return restored

    def _import_published(self, snapshot: State | None) -> bool:
        """Resumes from what a learner has published since the newest snapshot, if it has."""
        assert self._publications is not None
        published = self._publications.read(self._store.export_state())
        if published is None or (snapshot is not None and _age(published) <= _age(snapshot)):
            return False
        with self._record_lock:
            self._take_up(published)
            self._records += 1  # what the newest snapshot does not have
            self._check_finished()
        _LOG.info("restored publication %d, step %d", self._published, self.global_t)
        return True

    def _take_up(self, state: State) -> None:
        self._store.import_state(state)
        self._first_version = state.version
        self._statistics.restore(state.statistics)
        self._dedup.restore(state.statistics.get(_DEDUP, {}))
        self._published = int(state.statistics.get(_PUBLISHED, 0))
        self._best_evaluation = state.statistics.get(_BEST_EVALUATION)
        self._received = _read_received(state.statistics.get(_RECEIVED, {}))

    def _import(self, state: State) -> None:
        assert self._saver is not None
        with self._record_lock:
            self._take_up(state)
            self._combiner.begin(self._store.values, state.pending)
            self._saver.note_restored(state)
            self._check_finished()

    def _replay(self, records: Iterable[Record]) -> int:
        """Applies the journal's records again; returns how many there are."""
        count = 0
        for record in records:
            push = record.push
            plan = self._combiner.replan(record.outcome, record.takes_pending, push, record.reason)
            prepared = self._prepare(plan, push, record)
            # Checked when the records were read.
            assert (prepared.version, prepared.global_t) == (record.version, record.global_t)
            self._commit(prepared, push, plan)
            count += 1
            failpoints.hit("ps.in_replay")
        self._first_version = self.version
        if count:
            _LOG.info("replayed %d pushes of the journal", count)
        return count

    def close(self, save: bool = True) -> None:
        """Applies queued pushes, saves, and releases the folder lock. Idempotent.

        Nothing is saved when nothing happened since the newest snapshot (or the start).

        Raises:
          SnapshotError: the last snapshot could not be written; everything else is done.
          JournalError: the journal could not be synced; everything else is done.
        """
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        with contextlib.ExitStack() as rest:  # in the other order, whatever becomes of each
            for part in (self._snapshots, self._publications):
                if part is not None:
                    rest.callback(part.close)
            if self._mirror is not None:
                rest.callback(self._mirror.close, _MIRROR_SEC)
            rest.callback(self._journal.close)
            rest.callback(self._save_last, save)
            self._queue.close()
            self._record_metrics(now=True)

    def _save_last(self, save: bool) -> None:
        saver = self._saver
        if saver is not None:
            saver.stop()
            if save and not saver.has_all:
                saver.save()

    def __enter__(self) -> "ParameterServer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # In the thread that has the turn.

    def _apply_all(
        self, pushes: Sequence[Push | Publication | Counts]
    ) -> Sequence[Reply | Exception]:
        """Applies pushes one after another; none is answered before all can be."""
        replies: list[Reply | Exception] = []
        with tracing.span("apply"):
            for push in pushes:
                try:
                    if isinstance(push, Publication):
                        replies.append(self._apply_publish(push))
                    elif isinstance(push, Counts):
                        replies.append(self._apply_counts(push))
                    else:
                        replies.append(self._apply(push))
                except (ServerUnavailableError, InvalidInputError, LeasedError) as error:
                    replies.append(error)  # said by the journal, to the learner, or since a lease
                except Exception as error:  # out of memory, ...: this push only
                    _LOG.exception("a push failed")
                    replies.append(error)
            try:
                self._journal.settle()
            except ServerUnavailableError as error:
                return [error] * len(pushes)
            self._record_metrics()
        return replies

    def _apply(self, push: Push) -> Reply:
        if (late := self._dedup.find_lateness(push)) is not None:
            self._statistics.count_refused("late")
            return self._drop(late)
        if (known := self._dedup.find(push)) is not None:
            self._journal.require_sound()
            return self._make_reply(known)
        if self.finished:
            return self._apply_finished(push)
        if push.gradient is not None and self._is_lost(push):
            self._statistics.count_refused("lost version")
            return self._drop(
                f"version {push.gradient_version} of epoch {push.gradient_epoch or 'unknown'} "
                f"was lost in a restart, which continued from version {self._first_version}; "
                "pull first",
            )
        if is_empty(push):  # somebody asks for values
            return self._answer_nothing()
        plan = self._combiner.plan(push)
        if plan.outcome == "dropped":
            self._statistics.count_refused("stale")
        return self._apply_planned(push, plan)

    def _apply_finished(self, push: Push) -> Reply:
        """Counts the steps of a push that comes after the training's end; drops the rest of it."""
        reason = "" if push.gradient is None else FINISHED
        if not push.env_steps:
            return self._drop(reason) if reason else self._answer_nothing()
        steps = replace(push, gradient=None, statistics={}, groups=(), episodes=())
        outcome: Outcome = "dropped" if reason else "nothing"
        return self._apply_planned(steps, Plan(outcome=outcome, reason=reason))

    def _apply_planned(self, push: Push, plan: Plan) -> Reply:
        staleness = self._store.version - push.gradient_version
        with self._record_lock:
            if self._leased and _moves_values(push):  # while it waited
                self._refuse_leased()
            # The steps that can fail come first.
            prepared = self._prepare(plan, push)
            failpoints.hit("ps.before_journal")
            with tracing.span("journal"):
                self._journal.append(
                    Record(
                        replace(push, gradient=plan.gradient),
                        prepared.learning_rates,
                        prepared.version,
                        prepared.global_t,
                        plan.outcome,
                        plan.takes_pending,
                        plan.reason,
                        prepared.optimizers,
                    )
                )
            failpoints.hit("ps.after_journal_before_apply")
            answered = self._commit(prepared, push, plan)
        if push.gradient is not None:
            self._curves.add_gradient(staleness)
            self._statistics.add_gradient(push.client_id, staleness)
        if self._saver is not None:
            self._saver.note_steps(self._store.global_t)
        failpoints.hit("ps.after_apply_before_reply")
        return self._make_reply(answered)

    def _apply_publish(self, publish: Publication) -> Reply:
        if publish.number <= self._published:
            return self._answer_nothing()
        if self.finished:
            counts = Counts(env_steps=publish.env_steps, received=publish.received)
            return self._apply_counts(counts)
        with self._record_lock:
            prepared = self._store.prepare_publish(publish)
            self._store.commit(prepared)
            self._published = publish.number
            self._note_counted(publish.env_steps, publish.episodes, publish.received)
        self._curves.add_publish()
        failpoints.hit("ps.after_publish")
        if self._saver is not None:
            self._saver.note_steps(self._store.global_t)
        return self._make_reply(CachedReply("applied", prepared.version, prepared.global_t))

    def _apply_counts(self, counts: Counts) -> Reply:
        episodes = () if self.finished else counts.episodes  # the mean return ended the training
        if counts.env_steps or episodes:
            with self._record_lock:
                self._store.commit(self._store.prepare(None, counts.env_steps))
                self._note_counted(counts.env_steps, episodes, counts.received)
        return self._answer_nothing()

    def _note_counted(
        self, env_steps: int, episodes: Sequence[Episode], received: Mapping[str, Received]
    ) -> None:
        """Counts what the learner in this process has accepted; under the record lock."""
        self._received = received
        self._statistics.add(env_steps, episodes)
        self._records += 1
        self._check_finished()
        if self._publications is not None:
            state = self._store.export_state()
            self._publications.write(replace(state, statistics=self._export_statistics()))

    def _prepare(self, plan: Plan, push: Push, record: Record | None = None) -> PreparedVersion:
        """Computes what a push leads to; with what its record says, where it is replayed."""
        return self._store.prepare(
            plan.effective,
            push.env_steps,
            push.statistics,
            () if plan.effective is None else push.groups,
            None if record is None else record.learning_rates,
            None if record is None else record.optimizers,
        )

    def _commit(self, prepared: PreparedVersion, push: Push, plan: Plan) -> CachedReply:
        """Applies a push; returns what it is answered with, now and when it is sent again."""
        self._store.commit(prepared)
        self._combiner.note(plan, push.groups, self._store.values)
        self._statistics.add(push.env_steps, push.episodes)
        answered = CachedReply(plan.outcome, prepared.version, prepared.global_t, plan.reason)
        self._dedup.note(push, answered)
        self._records += 1
        self._check_finished()
        return answered

    def _is_lost(self, push: Push) -> bool:
        """Returns whether the gradient belongs to values that a restart has taken back."""
        if push.gradient_epoch not in (0, self._epoch):
            return push.gradient_version > self._first_version
        return push.gradient_version > self._store.version

    def _drop(self, reason: str) -> Reply:
        return self._make_reply(CachedReply("dropped", self.version, self.global_t, reason))

    def _answer_nothing(self) -> Reply:
        return self._make_reply(CachedReply("nothing", self.version, self.global_t))

    def _make_reply(self, answered: CachedReply) -> Reply:
        return Reply(
            outcome=answered.outcome,
            reason=answered.reason,
            durability=self._journal.durability,
            version=answered.version,
            global_t=answered.global_t,
            epoch=self._epoch,
            finished=self.finished,
        )

    def _check_finished(self) -> None:
        self._stop_condition.check(self.global_t, self._statistics)

    def _record_metrics(self, now: bool = False) -> None:
        counts = vars(self._combiner.counts)
        self._curves.record(self.global_t, self._store.compute_learning_rates, counts, now)


def _read_received(data: Mapping[str, Any]) -> dict[str, Received]:
    """Reads what a snapshot, or a publication, contains of clients' experience.

    Raises:
      SnapshotError: it is something else.
    """
    try:
        return {str(name): Received(*map(int, one)) for name, one in data.items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise SnapshotError(f"its list of received experience cannot be read: {error}") from None


def _age(state: State) -> tuple[int, int]:
    """Returns what grows from state to state: steps can be counted without a new version."""
    return state.version, state.global_t


def _get_resident_bytes() -> int:
    """Returns the memory of this process, or 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _moves_values(push: Push) -> bool:
    return push.gradient is not None or bool(push.statistics)


def _validate_numbers(
    max_global_step: int | None,
    snapshot_every_sec: float | None,
    snapshot_every_env_steps: int | None,
    queue_size: int,
) -> None:
    for name, number in (
        ("max_global_step", max_global_step),
        ("snapshot_every_sec", snapshot_every_sec),
        ("snapshot_every_env_steps", snapshot_every_env_steps),
        ("queue_size", queue_size),
    ):
        if number is not None and not number > 0:
            raise ConfigError(f"{name}: {number}, expected more than 0")
