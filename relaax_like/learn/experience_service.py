"""ExperienceService: learns from other processes' rollouts (`placement: server, standalone`)."""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from relaax_like.core.episode_reports import validate_reports
from relaax_like.core.records import (
    Experience,
    LearnerUpdate,
    Origin,
    StreamProgress,
    TableStatus,
)
from relaax_like.core.roles import ExperienceSink
from relaax_like.experience.magnitudes import validate_rollout
from relaax_like.experience.rollout import Rollout
from relaax_like.learn.rollout_barrier import RolloutBarrier
from relaax_like.learn.rollout_messages import bytes_to_rollout
from relaax_like.wire.errors import (
    CollectorClosedError,
    CollectorFullError,
    ConfigError,
    InvalidInputError,
    RelaaxError,
    ServerUnavailableError,
)

if TYPE_CHECKING:  # It imports TensorFlow.
    from relaax_like.learn.agent_source import AgentSource
    from relaax_like.learn.learner_loop import LearnerLoop

logger = logging.getLogger(__name__)

# How long a client's rollout waits for space; then its stream ends, and it can retry.
_ROOM_SEC = 10.0
_POLL_SEC = 0.5
# Wait for the current iteration; a supervisor might kill the process seconds after its SIGTERM.
_STOP_SEC = 2.0
# Number of clients that are remembered; of those without work in progress, the one that has been
# silent for the longest time is forgotten first.
_MAX_CLIENTS = 1_000
_NAME_LENGTH = 200
_MAX_EPISODE_LENGTH = 1 << 40
# Number of environment steps that a message can count in addition to those of its rollout.
_MAX_MORE_STEPS = 1 << 32
_CLOSING = "the learner is closing; reconnect later"


@dataclass
class _Client:
    """One client: its newest incarnation, and its work in progress.

    Attributes:
      incarnation: of the client.
      received: sequence number up to which everything was accepted.
      counted: sequence number up to which the steps were counted by an earlier start.
      pending: sequence number -> ticket of a rollout for which an agent waits.
      slots: agent -> the first numbers of `Rollout.starts` of its newest rollout.
    """

    incarnation: int
    received: int = 0
    counted: int = 0
    pending: dict[int, int] = field(default_factory=dict)  # sequence -> ticket
    slots: dict[str, Sequence[int]] = field(default_factory=dict)

    @property
    def progress(self) -> StreamProgress:
        released = min(self.pending) - 1 if self.pending else self.received
        return StreamProgress(self.received, released)


def log_failure(error: Exception) -> None:
    """Logs why learning has failed; with a stack trace unless it is one of our own errors."""
    traceback = None if isinstance(error, RelaaxError) else error
    logger.error("learning has failed: %s", error, exc_info=traceback)


class ExperienceService(ExperienceSink):
    """Collects experience from clients, and learns from it in its own thread.

        service = ExperienceService(make_learner, columns=8, max_rollout_bytes=1 << 20)
        service.start()
        BridgeControl().create_server(address, parameter_server, experience=service)
        service.stop()

    A rollout takes effect once, even if it is sent repeatedly: each publication records which
    experience it contains, and the next process continues from there. Rollouts that were received
    but not learned from are lost with the process, unless they are sent again, or a replay table
    has a log; their environment steps, once published, are not counted again.

    Args:
      make_learner: called in the thread, because it might import TensorFlow.
      columns: minimum number of rollouts of one slot, or episodes, in an iteration.
      max_rollout_bytes: longest serialised rollout that is accepted.
      on_failure: called, from that thread or from one that adds experience, when learning has
        permanently failed; by default logs the error.
      waits: whether agents wait for an incomplete iteration; False: only for complete ones.
      name: of the Algorithm, for log lines; "": the only one.
      has_others: whether other Algorithms of the run learn, too. Then no agent waits for an
        incomplete iteration: an agent that waits for one Algorithm would delay the others.
    """

    def __init__(
        self,
        make_learner: Callable[[], "LearnerLoop[AgentSource]"],
        columns: int,
        max_rollout_bytes: int,
        on_failure: Callable[[Exception], None] = log_failure,
        waits: bool = True,
        name: str = "",
        has_others: bool = False,
    ):
        self._make_learner = make_learner
        self._columns = columns
        self._max_rollout_bytes = max_rollout_bytes
        self._on_failure = on_failure
        self._changed = threading.Condition()  # guards all that follows, and notifies of changes
        self._source: AgentSource | None = None  # once the learner is loaded
        self._waits = waits
        self._holding = RolloutBarrier(waits and not has_others)
        self._of_name = f" of {name}" if name else ""
        self._clients: dict[str, _Client] = {}
        self._by_ticket: dict[int, tuple[_Client, int]] = {}
        self._learned_columns = 0
        self._version = 0
        self._finished = False
        self._stopping = False  # nothing more is accepted; earlier requests can still be answered
        self._stopped = False  # nor can earlier requests be answered
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)

    @property
    def max_rollout_bytes(self) -> int:
        """Longest serialised rollout that is accepted."""
        return self._max_rollout_bytes

    @property
    def version(self) -> int | None:
        """Version of the learner's newest values; see `ExperienceSink`."""
        with self._changed:
            return None if self._source is None else self._version

    @property
    def table_status(self) -> TableStatus:
        """Status of the replay table, if there is one, once the learner is loaded."""
        with self._changed:
            source = self._source
        return TableStatus() if source is None else source.table_status

    def start(self) -> None:
        """Loads the learner, and starts to learn; returns immediately."""
        self._thread.start()

    def stop(self, timeout_sec: float | None = _STOP_SEC) -> None:
        """Stops learning after the current iteration, and logs what was not learned from.

        Agents are not notified of publications after `timeout_sec`. A second call does not wait,
        nor does a call before the learner is loaded: see `join`.

        Args:
          timeout_sec: longest wait; None: until the learning thread has ended.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            learns = self._source is not None and not self._stopped
        if learns:  # otherwise there is nothing to lose
            self._thread.join(timeout_sec)
        self._end_news()

    def join(self) -> None:
        """Waits for the thread's end after `stop`, even while the learner is still being made."""
        if self._thread.is_alive():
            self._thread.join()

    @property
    def has_agents(self) -> bool:
        """Whether there are agents that have sent a rollout, and have not left or been forgotten.

        See `RolloutBarrier`, which forgets silent agents.
        """
        with self._changed:
            return not self._holding.is_empty

    def add(self, experience: Experience) -> None:
        """Adds experience; see `ExperienceSink`."""
        _validate_name(experience.agent)
        validate_reports(experience.episodes)
        source = self._wait_for_source()
        rollout = None
        if experience.rollout is not None and not self._is_known(experience):
            rollout = source.conform(bytes_to_rollout(experience.rollout))
            validate_rollout(rollout)
            if rollout.slots != experience.columns:
                raise InvalidInputError(
                    f"columns: {experience.columns}, expected {rollout.slots}, the slots of the "
                    "rollout"
                )
        _validate_env_steps(experience.env_steps, 0 if rollout is None else rollout.env_steps)
        _validate_sampling_sec(experience.sampling_sec)
        deadline = time.monotonic() + _ROOM_SEC
        try:
            while not self._try_to_add(source, experience, rollout):
                if time.monotonic() > deadline:
                    raise ServerUnavailableError(
                        f"experience: the learner had no room for it for {_ROOM_SEC:g} s, because "
                        "it or its disk is behind, or it is closing; retry later"
                    )
                self._wait_for_change()
        except ConfigError as error:
            self._on_failure(error)
            raise ServerUnavailableError(_CLOSING) from error

    def wait(
        self,
        client_id: str,
        incarnation: int,
        seen: StreamProgress,
        version: int,
        timeout_sec: float,
        is_over: Callable[[], bool] = lambda: False,
    ) -> StreamProgress:
        """Waits for progress of a client; see `ExperienceSink`."""

        def progress() -> StreamProgress:
            client = self._clients.get(client_id)
            if client is None or client.incarnation != incarnation:
                return StreamProgress()
            return client.progress

        with self._changed:
            self._changed.wait_for(
                lambda: progress() != seen or self._version > version or self._stopped or is_over(),
                timeout_sec,
            )
            newest = progress()
            if self._stopped and newest == seen:
                raise ServerUnavailableError(_CLOSING)
            return newest

    def wake(self) -> None:
        """Wakes all waiters so that they re-check their condition; see `ExperienceSink`."""
        with self._changed:
            self._changed.notify_all()

    def _end_news(self) -> None:
        with self._changed:
            self._stopping = self._stopped = True
            self._changed.notify_all()

    def _wait_for_source(self) -> "AgentSource":
        while (source := self._source) is None:
            self._wait_for_change()
        return source

    def _wait_for_change(self) -> None:
        with self._changed:
            if self._stopped:
                raise ServerUnavailableError(_CLOSING)
            self._changed.wait(_POLL_SEC)

    def _is_known(self, experience: Experience) -> bool:
        with self._changed:
            return experience.sequence <= self._get_client(experience).received

    def _try_to_add(
        self, source: "AgentSource", experience: Experience, rollout: Rollout | None
    ) -> bool:
        """Adds experience once; False: the source takes none now, or the service is stopping.

        Raises:
          ConfigError: the data handler has failed, as it would again; the service stops.
        """
        with self._changed:
            if self._stopping:
                return False
            client = self._get_client(experience)
            if experience.sequence <= client.received:
                return True
            agent = f"{experience.client_id}/{experience.agent}"
            origin = Origin(experience.client_id, experience.incarnation, experience.sequence)
            env_steps, episodes = experience.env_steps, experience.episodes
            if experience.sequence <= client.counted:
                env_steps, episodes = 0, ()
            if experience.is_leaving:
                self._holding.leave(agent)
                source.forget(client.slots.pop(experience.agent, ()))
            ticket = None
            try:
                if rollout is None or self._finished:
                    source.add_counts(env_steps, episodes, origin)
                else:
                    ticket = source.add(rollout, episodes, env_steps, origin, experience.is_urgent)
            except (CollectorFullError, CollectorClosedError):
                return False
            except ConfigError:
                self._end_news()
                raise
            if rollout is not None and ticket is not None:
                self._holding.add(agent, ticket, experience.columns)
                if rollout.starts is not None:
                    client.slots[experience.agent] = rollout.starts[:, 0].tolist()
                self._by_ticket[ticket] = (client, experience.sequence)
                client.pending[experience.sequence] = ticket
                if not source.holds_agents:
                    self._release([ticket])
            source.add_sampling(experience.client_id, experience.sampling_sec)
            client.received = experience.sequence
            self._release_vain()
            self._changed.notify_all()
            return True

    def _get_client(self, experience: Experience) -> _Client:
        client = self._clients.pop(experience.client_id, None)
        if client is None or client.incarnation < experience.incarnation:
            if client is not None and self._source is not None:  # its earlier incarnation has ended
                for slots in client.slots.values():
                    self._source.forget(slots)
            client = _Client(experience.incarnation)
        self._clients[experience.client_id] = client  # the newest at the end
        if client.incarnation > experience.incarnation:
            raise InvalidInputError(
                f"experience: incarnation {experience.incarnation} of client "
                f"{experience.client_id}, but incarnation {client.incarnation} has started since; "
                "stop one of the two processes, or give it another client id",
                "incarnation",
            )
        if len(self._clients) > _MAX_CLIENTS:
            idle = (name for name, known in self._clients.items() if not known.pending)
            del self._clients[next(idle, next(iter(self._clients)))]
        return client

    def _release_vain(self) -> None:
        """Releases agents that would wait forever."""
        if self._source is None:
            return
        # Agents of the iteration that is being learned from wait for its values, and send nothing
        # until then: meanwhile, no agent waits in vain.
        missing = self._columns - (self._source.added_columns - self._learned_columns)
        if missing > 0:
            self._release(self._holding.find_released(missing))

    def _release(self, tickets: Sequence[int]) -> None:
        self._holding.release(tickets)
        for ticket in tickets:
            client, sequence = self._by_ticket.pop(ticket, (None, 0))
            if client is not None:
                client.pending.pop(sequence, None)

    # In the learner's thread.

    def _run(self) -> None:
        try:
            self._learn_all()
        except Exception as error:
            if self._stopping and isinstance(error, ServerUnavailableError):
                logger.info("updates that were not published are lost: %s", error)
                return
            self._end_news()
            self._on_failure(error)

    def _learn_all(self) -> None:
        loop = self._make_learner()
        first = loop.load()
        with self._changed:
            self._source, self._version = loop.source, first.version
            self._finished = bool(first.finished)
            for client_id, known in loop.source.tally.received.items():
                # If agents wait for their rollouts, the values contain exactly those up to
                # `learned`. Otherwise they can contain any, and none must be used again.
                received = known.learned if self._waits else known.counted
                self._clients[client_id] = _Client(known.incarnation, received, known.counted)
            self._changed.notify_all()
        what = (
            f"{self._columns} {'rollout(s)' if self._waits else 'episode(s)'}{self._of_name} at a "
            "time"
        )
        if not loop.source.holds_agents:
            what = f"from a replay table{self._of_name}"
        logger.info("learning, %s", what)

        def take(learned: LearnerUpdate | None) -> None:
            self._take(learned, bool(loop.newest.finished))

        loop.run(lambda: self._stopping or self._finished, take, timeout_sec=_POLL_SEC)
        while not self._stopping:  # agents still report their last steps
            loop.count()
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, _POLL_SEC)
        loop.close()
        if waiting := loop.source.waiting_columns:
            what = "rollout(s) of one slot" if self._waits else "episode(s)"
            logger.info("%d %s%s were received but not learned from", waiting, what, self._of_name)

    def _take(self, learned: LearnerUpdate | None, finished: bool) -> None:
        """Takes the result of a turn of the loop, and whether the training has finished."""
        with self._changed:
            self._finished = finished
            if learned is not None:
                self._version = learned.version
                assert self._source is not None
                self._learned_columns = self._source.taken_columns
                # The agent of a rollout that extends into the next iteration waits for that
                # iteration.
                self._release(learned.numbers)
            self._release_vain()
            if self._finished:
                self._release(list(self._by_ticket))
            self._changed.notify_all()


def _validate_env_steps(env_steps: int, in_rollout: int) -> None:
    if not 0 <= env_steps <= in_rollout + _MAX_MORE_STEPS:
        raise InvalidInputError(
            f"env_steps: {env_steps}, expected 0 to {in_rollout} (those of the rollout) + 2^32"
        )


def _validate_sampling_sec(seconds: float) -> None:
    if not 0.0 <= seconds < math.inf:
        raise InvalidInputError(
            f"sampling_sec: {seconds}, expected a finite number of seconds, 0 or more"
        )


def _validate_name(agent: str) -> None:
    if len(agent) > _NAME_LENGTH or not (agent.isprintable() or not agent):
        raise InvalidInputError(
            f"agent: {agent[:60]!r}, expected at most {_NAME_LENGTH} printable characters"
        )
