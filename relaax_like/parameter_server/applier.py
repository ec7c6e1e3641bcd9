"""The applier: applies pushes, publications and counts to a run, one after another."""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from relaax_like.core.records import (
    Counts,
    Durability,
    EpisodeReport,
    Lease,
    Outcome,
    Playing,
    Publication,
    PublishTicket,
    Push,
    Received,
    Reply,
)
from relaax_like.parameter_server.combining import Combiner, PushPlan
from relaax_like.parameter_server.dedup_table import DedupTable
from relaax_like.parameter_server.learner_lease import LearnerLease
from relaax_like.parameter_server.optimizer_curves import OptimizerCurves
from relaax_like.parameter_server.published_state import PublishedState
from relaax_like.parameter_server.push_journal import JOURNAL_INDEX
from relaax_like.parameter_server.push_log import PushLog
from relaax_like.parameter_server.push_validation import is_empty
from relaax_like.parameter_server.records import Position, Record
from relaax_like.parameter_server.snapshot_format import State
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.parameter_server.statistics import Statistics
from relaax_like.parameter_server.stop_condition import StopCondition
from relaax_like.parameter_server.store import PreparedVersion, Store
from relaax_like.wire import failpoints, tracing
from relaax_like.wire.errors import (
    InvalidInputError,
    LeasedError,
    ServerUnavailableError,
    SnapshotError,
)

_LOG = logging.getLogger(__name__)
# Keys of a snapshot's statistics.
_DEDUP, _PUBLISHED, _RECEIVED, RECIPE = "replies", "published", "received", "recipe"
_BEST_EVALUATION, _SEQUENCE = "best_evaluation", "sequence"
_FINISHED = "training has finished"


class Applier:
    """The state of a run, and the operations that change it.

    One thread at a time calls `apply_all` and `record_curves`, and before that the methods that
    restore a state (`import_...`, `replay`); any thread can call everything else. A change holds
    the lock until store, statistics and the table of replies all contain it, so that a
    snapshot has all of it or nothing.

    Args:
      store: values and optimizers.
      push_log: where pushes are written before they take effect.
      snapshots: in whose folder the newest publication is written; None: nowhere.
      combiner: decides what happens to gradients of several clients.
      stop_condition: what ends the training.
      statistics: statistics of episodes, clients and refusals.
      curves: of the optimizers.
      learner_lease: lease of a learner in a process of its own; None: this run has no such learner.

    Attributes:
      combiner, statistics: as the arguments.
      epoch: number of this start of the server.
      lock: held while a record takes effect; while another thread holds it, pushes wait.
      note_steps: called with `global_t` after each push and publication that took effect.
    """

    def __init__(
        self,
        store: Store,
        push_log: PushLog,
        snapshots: Snapshots | None,
        combiner: Combiner,
        stop_condition: StopCondition,
        statistics: Statistics,
        curves: OptimizerCurves,
        learner_lease: LearnerLease | None = None,
    ):
        self._store = store
        self._push_log = push_log
        self._stop_condition = stop_condition
        self.combiner = combiner
        self.statistics = statistics
        self._curves = curves
        self._publications: PublishedState | None = None
        # Without a folder that counts starts, the time is used, which also grows.
        self.epoch, self._recipe = time.time_ns() // 1_000_000, ""
        if snapshots is not None:
            self.epoch, self._recipe = snapshots.epoch, snapshots.recipe
            self._publications = PublishedState(snapshots.directory)
        self.note_steps: Callable[[int], None] = lambda global_t: None
        # Guards all attributes below. A thread can hold it, and then export the state.
        self.lock = threading.RLock()
        self._dedup = DedupTable()
        self._records = 0
        self._first_version = store.version  # at this start of the server
        self._leased = False
        self._learner_lease = learner_lease
        self._sequence = self._durable = 0  # newest one that took effect, that a crash leaves
        self._published = 0  # number of the newest publication
        self._received: Mapping[str, Received] = {}  # what it contains
        self._best_evaluation: float | None = None
        self.combiner.begin(store.values, {})
        self._check_finished()

    @property
    def records(self) -> int:
        """Number of changes that took effect since the start."""
        return self._records

    @property
    def is_leased(self) -> bool:
        """Whether the run learns in one place, so that gradients and statistics are refused.

        True once a learner in this process has the lease, and always if the run has a learner in a
        process of its own.
        """
        return self._leased or self._learner_lease is not None

    def lease(self) -> Lease:
        """Makes the caller the run's only learner; see `Publisher`."""
        with self.lock:
            self._leased = True
            return self._make_lease()

    def grant(self, holder: str, address: str) -> tuple[int, Lease]:
        """Makes a learner in another process the run's only one; returns its term, and the state.

        Raises:
          LeasedError: this run has no learner in a process of its own.
          ServerUnavailableError: another learner still holds the lease, or the lease could not be
            written.
        """
        with self.lock:
            term = self._get_learner_lease().grant(holder, address)
            return term, self._make_lease()

    def renew(self, term: int) -> None:
        """Renews the lease of a learner in another process.

        Raises:
          LeasedError: `term` is not the newest one, or this run has no learner in a process of its
            own.
        """
        with self.lock:
            self._get_learner_lease().renew(term)

    def require_lease(self, term: int) -> None:
        """Checks that a learner in another process is the newest holder of the lease.

        Raises:
          LeasedError: `term` is not the newest one, or this run has no learner in a process of its
            own.
        """
        with self.lock:
            self._get_learner_lease().require(term)

    @property
    def progress(self) -> tuple[int, int, int]:
        """Number of the newest publication; sequences of the newest and newest durable tickets."""
        with self.lock:
            return self._published, self._sequence, self._durable

    def _get_learner_lease(self) -> LearnerLease:
        if self._learner_lease is None:
            raise LeasedError(
                "this run has no learner in a process of its own; set learner.placement to "
                "standalone for both the parameter server and the learner"
            )
        return self._learner_lease

    def _make_lease(self) -> Lease:
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
            finished=self._stop_condition.reason,
            received=self._received,
        )

    def apply_all(
        self, pushes: Sequence[Push | Publication | Counts]
    ) -> Sequence[Reply | Exception]:
        """Applies pushes, publications and counts one after another.

        Returns:
          For each of them its reply, or the exception for its caller.
        """
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
                    replies.append(error)  # from the journal, for the learner, or due to a lease
                except Exception as error:  # out of memory, ...: this push only
                    _LOG.exception("a push, or a publication or count of the learner, failed")
                    replies.append(error)
            try:
                self._push_log.settle()
            except ServerUnavailableError as error:
                return [error] * len(pushes)
            self.record_curves()
        return replies

    def _apply(self, push: Push) -> Reply:
        if (late := self._dedup.find_lateness(push)) is not None:
            self.statistics.count_refused("late")
            return self._drop(late)
        if (known := self._dedup.find(push)) is not None:
            self._push_log.require_sound()
            return self._answer(known.outcome, known, known.reason)
        if self._stop_condition.reason:
            return self._apply_finished(push)
        if push.gradient is not None and self._is_lost(push):
            self.statistics.count_refused("lost version")
            return self._drop(self._describe_lost(push))
        if is_empty(push):  # it only requests values
            return self._answer_nothing()
        plan = self.combiner.plan(push)
        if plan.outcome == "dropped":
            self.statistics.count_refused("stale")
        return self._apply_planned(push, plan)

    def _apply_finished(self, push: Push) -> Reply:
        """Counts the steps of a push after the training's end, and who plays; drops the rest."""
        reason = "" if push.gradient is None else _FINISHED
        players = _select_players(push.episodes)
        if not push.env_steps and not players:
            return self._drop(reason) if reason else self._answer_nothing()
        steps = replace(push, gradient=None, statistics={}, groups=(), episodes=players)
        outcome: Outcome = "dropped" if reason else "nothing"
        return self._apply_planned(steps, PushPlan(outcome=outcome, reason=reason))

    def _apply_planned(self, push: Push, plan: PushPlan) -> Reply:
        staleness = self._store.version - push.gradient_version
        with self.lock:
            if self.is_leased:  # while it waited
                self.refuse_leased(push)
            # The steps that can fail come first.
            prepared = self._prepare(plan, push)
            failpoints.hit("ps.before_journal")
            with tracing.span("journal"):
                self._push_log.append(
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
            reply = self._commit(prepared, push, plan)
        if push.gradient is not None:
            self._curves.add_gradient(staleness)
            self.statistics.add_gradient(push.client_id, staleness)
        self.note_steps(self._store.global_t)
        failpoints.hit("ps.after_apply_before_reply")
        return reply

    def _apply_publish(self, publish: Publication) -> Reply:
        if publish.ticket is None and publish.number <= self._published:
            return self._answer_nothing()
        if self._stop_condition.reason:
            return self._apply_counts(publish)
        with self.lock:
            if not self._is_next(publish.ticket):
                return self._answer_nothing()
            failpoints.hit("ps.before_publish")
            prepared = self._store.prepare_publish(publish)
            self._store.commit(prepared)
            self._published = publish.number
            self._note_counted(publish)
        self._curves.add_publish()
        failpoints.hit("ps.after_publish")
        self.note_steps(self._store.global_t)
        return self._answer("applied", prepared)

    def _apply_counts(self, counts: Publication | Counts) -> Reply:
        is_over = bool(self._stop_condition.reason)
        episodes = _select_players(counts.episodes) if is_over else counts.episodes
        with self.lock:
            if self._is_next(counts.ticket) and (counts.env_steps or episodes or counts.ticket):
                self._store.commit(self._store.prepare(None, counts.env_steps))
                self._note_counted(replace(counts, episodes=tuple(episodes)))
        return self._answer_nothing()

    def _is_next(self, ticket: PublishTicket | None) -> bool:
        """Returns whether a learner's publication or count is to take effect; under the lock.

        Raises:
          LeasedError: the ticket's term is not the newest one, or this run has no learner in a
            process of its own.
        """
        if ticket is None:
            return True
        self._get_learner_lease().require(ticket.term)
        return ticket.sequence == self._sequence + 1

    def _note_counted(self, counts: Publication | Counts) -> None:
        """Counts what the learner has accepted, and writes the state; under the lock."""
        self._received = counts.received
        if counts.ticket is not None:
            self._sequence = counts.ticket.sequence
        self.statistics.add(counts.env_steps, counts.episodes)
        self._records += 1
        self._check_finished()
        if self._publications is not None and self._publications.is_due:
            state = self._store.export_state()
            state = replace(state, statistics=self._export_statistics())
            if self._publications.write(state):
                self._durable = self._sequence

    def _prepare(self, plan: PushPlan, push: Push, record: Record | None = None) -> PreparedVersion:
        """Computes the result of a push; if it is replayed, with the settings in its record."""
        return self._store.prepare(
            plan.effective,
            push.env_steps,
            push.statistics,
            () if plan.effective is None else push.groups,
            None if record is None else record.learning_rates,
            None if record is None else record.optimizers,
        )

    def _commit(self, prepared: PreparedVersion, push: Push, plan: PushPlan) -> Reply:
        """Makes a push take effect; returns its answer, which a retry gets, too."""
        self._store.commit(prepared)
        self.combiner.note(plan, push.groups, self._store.values)
        # The tutorial's plain calls, which have no number, are not those of a player.
        sender = push.client_id if push.sequence else ""
        self.statistics.add(push.env_steps, push.episodes, sender)
        self._records += 1
        self._check_finished()
        reply = self._answer(plan.outcome, prepared, plan.reason)
        self._dedup.note(push, reply)
        return reply

    def _is_lost(self, push: Push) -> bool:
        """Returns whether the values of the gradient do not exist here, as after a restart."""
        if push.gradient_epoch not in (0, self.epoch):
            return push.gradient_version > self._first_version
        return push.gradient_version > self._store.version

    def _describe_lost(self, push: Push) -> str:
        version = push.gradient_version
        if push.gradient_epoch in (0, self.epoch):
            return (
                f"version {version} does not exist, the newest is {self._store.version}; pull first"
            )
        return (
            f"version {version} of epoch {push.gradient_epoch} was lost in a restart, which "
            f"continued from version {self._first_version}; pull first"
        )

    def _drop(self, reason: str) -> Reply:
        return self._answer("dropped", self._store, reason)

    def _answer_nothing(self) -> Reply:
        return self._answer("nothing", self._store)

    def _answer(
        self, outcome: Outcome, at: Store | PreparedVersion | Reply, reason: str = ""
    ) -> Reply:
        return Reply(
            outcome=outcome,
            reason=reason,
            durability=self.durability,
            version=at.version,
            global_t=at.global_t,
            epoch=self.epoch,
            finished=self._stop_condition.reason,
        )

    def _check_finished(self) -> None:
        self._stop_condition.check(self._store.global_t, self.statistics)

    def close(self) -> None:
        """Closes the file of the newest publication. Idempotent."""
        if self._publications is not None:
            self._publications.close()

    def record_curves(self, now: bool = False) -> None:
        """Records a point of each curve if there was an update, and it is time or `now` is True."""
        counts = vars(self.combiner.counts)
        self._curves.record(self._store.global_t, self._store.compute_learning_rates, counts, now)

    def import_published(self, snapshot: State | None) -> bool:
        """Resumes from the newest publication, if it is newer than the newest snapshot.

        Args:
          snapshot: the newest snapshot; None: there is none.

        Returns:
          Whether there is such a publication.

        Raises:
          SnapshotError: a publication has another format, or its contents cannot be restored.
          InvalidInputError: a trainable variable is not finite, or a running statistic is out of
            range.
        """
        if self._publications is None:
            return False
        published = self._publications.read(self._store.export_state())
        if published is None or (snapshot is not None and published.age <= snapshot.age):
            return False
        with self.lock:
            self._take_up(published, "the newest publication")
            # Gradients that a snapshot holds back belong to the values before the publication.
            dropped = sum(one.count for one in self.combiner.pending.values())
            self.combiner.begin(self._store.values, {})
            self._records += 1  # what the newest snapshot does not have
            self._check_finished()
            self.check_evaluation()
        _LOG.info("restored publication %d, step %d", self._published, self._store.global_t)
        if dropped:
            _LOG.warning(
                "dropping held-back gradients, because the restored publication is newer: %d",
                dropped,
            )
        return True

    def _take_up(self, state: State, place: str) -> None:
        """Restores the state of a snapshot or publication; `place` names it, for errors."""
        self._store.import_state(state, place)
        self._first_version = state.version
        self.statistics.restore(state.statistics)
        self._dedup.restore(state.statistics.get(_DEDUP, {}), place)
        self._published = int(state.statistics.get(_PUBLISHED, 0))
        self._sequence = self._durable = int(state.statistics.get(_SEQUENCE, 0))
        self._best_evaluation = state.statistics.get(_BEST_EVALUATION)
        self._received = _read_received(state.statistics.get(_RECEIVED, {}), place)

    def import_snapshot(self, state: State, place: str = "the snapshot") -> None:
        """Resumes from a snapshot.

        Args:
          state: of the snapshot.
          place: the snapshot's directory, for errors.

        Raises:
          SnapshotError: the state has another layout or other optimizers, or cannot be read.
          InvalidInputError: a trainable variable is not finite, or a running statistic is out of
            range.
        """
        with self.lock:
            self._take_up(state, place)
            self.combiner.begin(self._store.values, state.pending)
            self._check_finished()
            self.check_evaluation()

    def replay(self, snapshot: State | None) -> int:
        """Replays the journal's records since a snapshot; returns their number.

        Args:
          snapshot: from which the state was restored; None: there is none.

        Raises:
          JournalError: see `PushLog.replay`; the server must not serve.
        """
        start = None
        if snapshot is not None:
            index = int(snapshot.statistics.get(JOURNAL_INDEX, 0))
            start = Position(index, self._store.version, self._store.global_t)
        count = 0
        for record in self._push_log.replay(start):
            push = record.push
            plan = self.combiner.replan(record.outcome, record.takes_pending, push, record.reason)
            prepared = self._prepare(plan, push, record)
            # Checked when the records were read.
            assert (prepared.version, prepared.global_t) == (record.version, record.global_t)
            self._commit(prepared, push, plan)
            count += 1
            failpoints.hit("ps.in_replay")
        self._first_version = self._store.version
        if count:
            self.statistics.restart_speed()
            _LOG.info("replayed %d pushes of the journal", count)
        if dropped := self.combiner.drop_unsupported_pending():
            _LOG.warning(
                "dropping held-back gradients, because combine.method is no longer avg: %d", dropped
            )
        return count

    def export_state(self) -> State:
        """Returns the current values and optimizers, immutable."""
        with self.lock:
            return self._store.export_state()

    def note_evaluation(self, score: float) -> None:
        """Notes the mean return of an evaluation, for later states and `check_evaluation`.

        A number that is not finite is ignored, as in `Snapshots.save`.
        """
        if not math.isfinite(score):  # no snapshot can contain it
            return
        with self.lock:
            best = self._best_evaluation
            self._best_evaluation = score if best is None else max(best, score)
            self._records += 1  # the newest snapshot does not have it

    def add_evaluation(self, state: State, score: float) -> State:
        """Returns an exported state whose best evaluation includes this mean return.

        A number that is not finite is ignored, as in `note_evaluation`.
        """
        if not math.isfinite(score):
            return state
        best = state.statistics.get(_BEST_EVALUATION)
        best = score if best is None else max(best, score)
        return replace(state, statistics={**state.statistics, _BEST_EVALUATION: best})

    def check_evaluation(self) -> None:
        """Ends the training if the best evaluation so far reaches the target."""
        self._stop_condition.check_score(self._best_evaluation)

    @property
    def durability(self) -> Durability:
        """What a crash of the server can lose; see `Reply`."""
        publications = self._publications
        if self.is_leased and publications is not None and not publications.failed:
            return "publication"
        return self._push_log.durability

    def refuse_leased(self, push: Push) -> None:
        """Refuses a push that would change the values; for a run that `is_leased`.

        Raises:
          LeasedError: the push has a gradient or statistics.
        """
        if push.gradient is None and not push.statistics:
            return
        self.statistics.count_refused("leased")
        raise LeasedError(
            "this run learns in one place (learner.placement: server or standalone); send "
            "experience instead of gradients and statistics, that is, start the agents with the "
            "same learner.placement"
        )

    def export(self) -> tuple[State, int]:
        """Returns the state and the number of changes so far, as `Saver` requires them."""
        with self.lock:
            state = self._store.export_state()
            statistics = self._export_statistics()
            if (index := self._push_log.begin_snapshot()) is not None:
                statistics[JOURNAL_INDEX] = index
            held = self.combiner.pending.items()
            pending = {groups: (one.total, one.count) for groups, one in held}
            return replace(state, statistics=statistics, pending=pending), self._records

    def _export_statistics(self) -> dict[str, Any]:
        return {
            **self.statistics.to_dict(),
            _DEDUP: self._dedup.to_dict(),
            _PUBLISHED: self._published,
            _SEQUENCE: self._sequence,
            _RECEIVED: {client_id: list(one) for client_id, one in self._received.items()},
            RECIPE: self._recipe,
            _BEST_EVALUATION: self._best_evaluation,
        }


def _read_received(data: Mapping[str, Any], place: str) -> dict[str, Received]:
    """Reads how much of the clients' experience a snapshot, or a publication, contains.

    Args:
      data: client id -> the fields of `Received`.
      place: the snapshot or publication, for errors.

    Raises:
      SnapshotError: the data is invalid.
    """
    try:
        return {str(name): Received(*map(int, one)) for name, one in data.items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise SnapshotError(
            f"{place}: the list of received experience cannot be read: {error}; it was written by "
            "another version of relaax_like. Resume with that version, or use another "
            "checkpoint_dir (and mirror_url, if it is set)"
        ) from None


def _select_players(reports: Sequence[EpisodeReport]) -> tuple[Playing, ...]:
    """Returns who plays or has left; episodes would change the mean that ended the training."""
    return tuple(one for one in reports if isinstance(one, Playing))
