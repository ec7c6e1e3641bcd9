"""RemotePublisher: publishes from a learner's own process, while it holds the lease of the run."""

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from relaax_like.bridge.publishing import MAX_EPISODES, PublisherStub
from relaax_like.core.manifest import Manifest
from relaax_like.core.metrics import Metrics
from relaax_like.core.records import (
    Counts,
    Lease,
    Publication,
    PublishTicket,
    Reply,
    RunState,
    TableStatus,
    TrainReturn,
    Values,
)
from relaax_like.core.roles import Publisher
from relaax_like.wire.backoff import draw_pause_sec
from relaax_like.wire.errors import LeasedError, RelaaxError, ServerUnavailableError

logger = logging.getLogger(__name__)

_MIN_PAUSE_SEC, _MAX_PAUSE_SEC = 0.1, 2.0
# A lease is renewed this many times while it lasts.
_RENEWALS = 6
# Longest wait for the parameter server once the training has finished.
_FINISHED_SEC = 5.0


class RemotePublisher(Publisher):
    """The parameter server as a learner in a process of its own uses it.

        publisher = RemotePublisher(link.publisher_stub(), holder, manifest, metrics)
        publisher.address = "localhost:7005"
        lease = publisher.lease()           # waits until no other learner holds it
        publisher.publish(publication)      # waits while the server cannot be reached

    Each item, a publication or counts, takes effect once: it has a number, and is sent again until
    it is answered. If a crashed server has lost the newest ones, the next one contains what they
    counted, and the learner continues. A learner that could not renew its lease for half of its
    time publishes nothing until it has; one that has lost its lease ends.

    If it publishes ahead, `publish` sends a publication in the background, and returns before the
    answer; the next call waits for it. Until then, `global_t` and the result of `publish` assume
    that it takes effect, but agents get the values, and the result names their version, only
    afterwards. An error is raised by the next call of `publish`, `count` or `wait_published`.

    `publish`, `count`, `lease` and `wait_published` are called by one thread at a time.

    Attributes:
      term: of the lease; 0 before `lease`.
      address: where this learner takes experience; set before `lease`.
      get_table_status: returns the status of the replay table; set before `lease`.

    Args:
      stub: the calls to the parameter server.
      holder: name of this start of the learner; unique.
      manifest: of the model.
      metrics: the recorder.
      on_lost: called once, from any thread, when this learner has lost the lease.
      on_global_t: called with the newest environment steps of the run.
      publishes_ahead: see above. For learners whose agents do not wait for a publication.
      clock: returns monotonic seconds.
    """

    def __init__(
        self,
        stub: PublisherStub,
        holder: str,
        manifest: Manifest,
        metrics: Metrics,
        on_lost: Callable[[RelaaxError], None] = lambda error: None,
        on_global_t: Callable[[int], None] = lambda global_t: None,
        publishes_ahead: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.term = 0
        self.address = ""
        self.get_table_status: Callable[[], TableStatus] = TableStatus
        self._stub = stub
        self._holder = holder
        self._manifest = manifest
        self._metrics = metrics
        self._on_lost = on_lost
        self._on_global_t = on_global_t
        self._clock = clock
        self._lease_sec = 0.0
        self._score: float | None = None
        self._sequence = 0  # of the newest item
        # Number of an item, and what it counted: a crash of the server could lose it.
        self._unsafe: deque[tuple[int, Counts]] = deque()
        self._newest: Publication | None = None
        self._sender = ThreadPoolExecutor(1, "publisher") if publishes_ahead else None
        self._sending: Future[Reply] | None = None  # not waited for yet
        self._changed = threading.Condition()  # guards all that follows
        self._state = RunState()
        self._ahead = (0, 0)  # number and steps of the publication that is sent in the background
        self._values: Values | None = None
        self._usable_until = 0.0
        self._heard = clock()
        self._lost: RelaaxError | None = None
        self._closed = False
        self._renewer = threading.Thread(target=self._renew_all, name="lease", daemon=True)

    # What the learner uses.

    def lease(self) -> Lease:
        """Becomes the run's only learner.

        Waits while another one holds the lease, or the parameter server cannot be reached.

        Raises:
          ServerUnavailableError: `close` was called.
          InvalidInputError: the run has a different model; see `PublisherStub.acquire` for others.
          LeasedError: the run has no learner in a process of its own.
          NotAllowedError, ProtocolError: see `PublisherStub`.
        """
        for attempt in itertools.count():
            began = self._clock()
            try:
                term, lease_sec, lease, state = self._stub.acquire(
                    self._holder, self.address, self._manifest
                )
                break
            except ServerUnavailableError as error:
                log = logger.info if attempt == 0 else logger.debug
                log("%s", error)
                self._pause(attempt)
        self._sequence, self._lease_sec = state.sequence, lease_sec
        with self._changed:
            self.term = term
            self._state, self._heard = state, self._clock()
            self._values = Values(version=state.version, flat=lease.values)
            self._usable_until = began + lease_sec / 2
        self._on_global_t(state.global_t)
        if not self._renewer.is_alive():
            self._renewer.start()
        return lease

    def publish(self, publication: Publication) -> Reply:
        """Publishes values; see `Publisher`. Waits while the server cannot be reached.

        Raises:
          LeasedError: this learner has lost the lease.
          InvalidInputError: the server refuses it, such as values that are not finite.
          NotAllowedError, ProtocolError: see `PublisherStub`.
          ServerUnavailableError: this learner is closing; or the training has finished, and the
            server cannot be reached for some seconds.
        """
        self.wait_published()
        score, self._score = self._score, None
        self._newest = replace(publication, score=score)
        if self._sender is None or self.finished:
            return self._send(self._newest)
        with self._changed:
            state = self._state
            self._ahead = (self._sequence + 1, publication.env_steps)
            global_t = self._get_global_t()
        self._sending = self._sender.submit(self._send, self._newest)
        return Reply(
            outcome="applied",
            version=state.version,  # agents get no newer values yet
            global_t=global_t,
            epoch=state.epoch,
            finished=state.finished,
        )

    def count(self, counts: Counts) -> Reply:
        """Counts steps and episodes; waits and raises the same as `publish`."""
        self.wait_published()
        return self._send(counts)

    def wait_published(self) -> None:
        """Waits until the newest publication has been answered; raises its error, as `publish`."""
        sending, self._sending = self._sending, None
        if sending is not None:
            try:
                sending.result()
            finally:
                with self._changed:
                    self._ahead = (0, 0)

    @property
    def silent_sec(self) -> float:
        """Seconds since the parameter server's newest answer; before the first, since the start."""
        with self._changed:
            return self._clock() - self._heard

    @property
    def state(self) -> RunState:
        """The newest known state of the run."""
        with self._changed:
            return self._state

    @property
    def global_t(self) -> int:
        """Environment steps of the run, as far as known, with those that are being published."""
        with self._changed:
            return self._get_global_t()

    @property
    def finished(self) -> str:
        """What ended the training, as far as known; "": it has not ended."""
        return self.state.finished

    @property
    def best_score(self) -> float | None:
        """Best score of the kept snapshots, as of the newest answer."""
        return self.state.best_score

    @property
    def train_return(self) -> TrainReturn | None:
        """Training return as of the newest answer."""
        return self.state.train_return

    def save_next_publication(self, score: float) -> None:
        """Makes the server save the next publication as a snapshot with this score."""
        self._score = score

    def metrics(self) -> Metrics:
        """Returns the recorder."""
        return self._metrics

    # What agents get.

    def pull(self, have_version: int | None = None) -> Reply:
        """Returns the newest values that the parameter server has; see `ParameterServerBackend`.

        Raises:
          ServerUnavailableError: there are no values yet, because `lease` has not returned.
        """
        with self._changed:
            state, values, term = self._state, self._values, self.term
        if values is None:
            raise ServerUnavailableError("the learner does not hold the lease yet; retry later")
        return Reply(
            version=values.version,
            global_t=state.global_t,
            epoch=term,
            finished=state.finished,
            values=None if have_version == values.version else values,
        )

    def close(self) -> None:
        """Ends all waits; the lease runs out. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._sender is not None:
            self._sender.shutdown(wait=False)

    def _send(self, item: Publication | Counts) -> Reply:
        """Sends an item, in parts if it has many episodes, until it has taken effect.

        If the server has lost earlier items, their steps and episodes are added. The first part has
        all but the other episodes: if this process ends before they are sent, only they are lost.
        """
        if len(item.episodes) > MAX_EPISODES:
            first, rest = item.episodes[:MAX_EPISODES], item.episodes[MAX_EPISODES:]
            reply = self._send(replace(item, episodes=first))
            newest = self._send(Counts(env_steps=0, episodes=rest, received=item.received))
            return replace(newest, outcome=reply.outcome, reason=reply.reason)
        self._sequence += 1
        while True:
            counted = Counts(env_steps=item.env_steps, episodes=item.episodes)
            state = self._call(self._give_number(item))
            if state.sequence >= self._sequence:
                self._unsafe.append((self._sequence, counted))
                break
            # The server has crashed, and lost what follows its newest number.
            item = self._merge(item, state.sequence)
            if len(item.episodes) > MAX_EPISODES:
                self._sequence -= 1  # the first part gets this number
                return self._send(item)
        while self._unsafe and self._unsafe[0][0] <= state.durable_sequence:
            self._unsafe.popleft()
        outcome = state.outcome
        # If its answer was lost, and it was sent again, the outcome is "nothing".
        if isinstance(item, Publication) and (outcome == "applied" or not state.finished):
            outcome = "applied"
            with self._changed:
                self._values = Values(version=state.version, flat=item.values)
        return replace(state, outcome=outcome)

    def _merge(self, item: Publication | Counts, newest: int) -> Publication | Counts:
        """Returns an item that also has what the server lost, with the newest values."""
        lost = [one for number, one in self._unsafe if newest < number < self._sequence]
        logger.warning(
            "the parameter server continues without the newest %d publication(s) or counts; the "
            "steps and episodes in them are sent again, with the newest values",
            len(lost),
        )
        self._unsafe = deque(one for one in self._unsafe if one[0] <= newest)
        self._sequence = newest + 1
        base: Publication | Counts = item
        if isinstance(item, Counts) and self._newest is not None:
            base = replace(self._newest, score=None, received=item.received)
        env_steps = item.env_steps + sum(one.env_steps for one in lost)
        if self._ahead[0]:
            with self._changed:
                self._ahead = (self._sequence, env_steps)
        return replace(
            base,
            env_steps=env_steps,
            episodes=(*(episode for one in lost for episode in one.episodes), *item.episodes),
        )

    def _give_number(self, item: Publication | Counts) -> Publication | Counts:
        ticket = PublishTicket(self.term, self._sequence)
        if isinstance(item, Publication):
            return replace(item, ticket=ticket, number=self.state.number + 1)
        return replace(item, ticket=ticket)

    def _get_global_t(self) -> int:
        sequence, steps = self._ahead
        return self._state.global_t + (steps if self._state.sequence < sequence else 0)

    def _call(self, item: Publication | Counts) -> RunState:
        since = self._clock()
        for attempt in itertools.count():
            self._wait_usable()
            try:
                state = self._stub.publish(item)
            except LeasedError as error:
                self._note_lost(error)
                raise
            except ServerUnavailableError:
                if self.finished and self._clock() - since > _FINISHED_SEC:
                    raise
                self._pause(attempt)
            else:
                self._take(state)
                return state
        raise AssertionError("unreachable")

    def _wait_usable(self) -> None:
        """Waits until the lease was renewed recently enough.

        Raises:
          LeasedError: this learner has lost the lease.
          ServerUnavailableError: `close` was called.
        """
        with self._changed:
            while self._lost is None and not self._closed and self._clock() >= self._usable_until:
                self._changed.wait(0.1)
            if self._lost is not None:
                raise self._lost
            if self._closed:
                raise ServerUnavailableError("this learner is closing")

    def _pause(self, attempt: int) -> None:
        pause = draw_pause_sec(attempt, _MIN_PAUSE_SEC, _MAX_PAUSE_SEC)
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._lost is not None, pause)
            if self._closed:
                raise ServerUnavailableError("this learner is closing")

    def _take(self, state: RunState) -> None:
        with self._changed:
            self._heard = self._clock()
            # The renewing thread asks at the same time: an older answer can come later.
            if (state.epoch, state.sequence) >= (self._state.epoch, self._state.sequence):
                self._state = state
        self._on_global_t(state.global_t)

    def _note_lost(self, error: RelaaxError) -> None:
        with self._changed:
            first, self._lost = self._lost is None, self._lost or error
            self._changed.notify_all()
        if first:
            self._on_lost(error)

    # In the renewing thread.

    def _renew_all(self) -> None:
        while True:
            with self._changed:
                if self._changed.wait_for(
                    lambda: self._closed or self._lost is not None, self._lease_sec / _RENEWALS
                ):
                    return
            began = self._clock()
            try:
                state = self._stub.renew(self.term, self.get_table_status(), self._lease_sec / 2)
            except LeasedError as error:
                self._note_lost(error)
                return
            except RelaaxError as error:
                logger.debug("the lease was not renewed: %s", error)
                continue
            self._take(state)
            with self._changed:
                self._usable_until = began + self._lease_sec / 2
                self._changed.notify_all()
