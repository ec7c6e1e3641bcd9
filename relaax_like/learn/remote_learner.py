"""RemoteLearner: the agents' view of a learner in another process."""

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from relaax_like.bridge.collecting import CollectStream, ReleaseNotice
from relaax_like.bridge.errors import PARAMETER_SERVER
from relaax_like.core.episode_reports import to_unlearned
from relaax_like.core.manifest import Manifest
from relaax_like.core.records import MAX_EPISODES, Experience, LearnerUpdate, LearnRequest, Reply
from relaax_like.core.roles import Learner, OnUpdate
from relaax_like.learn.rollout_messages import rollout_to_bytes
from relaax_like.wire import tracing
from relaax_like.wire.backoff import draw_pause_sec
from relaax_like.wire.errors import (
    ConfigError,
    InvalidInputError,
    LeasedError,
    NotAllowedError,
    ProtocolError,
    RelaaxError,
    ServerUnavailableError,
)

logger = logging.getLogger(__name__)

# How long an agent that is being built waits for the first values.
_START_WAIT_SEC = 5.0
_MIN_PAUSE_SEC, _MAX_PAUSE_SEC = 0.2, 2.0
_MIN_RESTART_SEC, _MAX_RESTART_SEC = 1.0, 30.0
_FINISHED_PAUSE_SEC = 10.0
_WAITING_LINE_SEC = 10.0
# Requests that can wait for a stream.
_MAX_KEPT = 100_000
# Longest total wait at the end.
_STOP_SEC = 3.0


@dataclass
class _UnderWay:
    """One request that was sent.

    Attributes:
      number: of the request; None: no agent waits for its answer.
      experience: to send again to a restarted server.
      received: whether the learner has received it.
    """

    number: int | None
    experience: Experience
    received: bool = False

    @property
    def rollouts(self) -> int:
        """1, or 0 for a request with counts only."""
        return int(self.experience.rollout is not None)


class RemoteLearner(Learner):
    """Sends rollouts to a learner in another process, and receives the values that it returns.

        learner = RemoteLearner(lambda: link.collect_stream("rlx-1", 5.0), "rlx-1")
        learner.connect()
        processor = ComputationDataProcessor(actor, learner, metrics)
        learner.close()

    If the stream breaks, it is reopened, and what the learner has not received, or has lost in a
    restart, is sent again; agents wait for that with at most a rollout or two each. The steps of
    rollouts that are refused are reported as not learned from.

    A learner that is a child of this process can have pushed the gradient of what it was sent, so
    nothing is sent to it again. While it is not available, rollouts are discarded and counted, and
    their environment steps are added to the next request.

    Attributes:
      lost_rollouts: number of rollouts that were discarded or lost.

    Args:
      open_stream: opens a stream; is allowed to wait for the server for some seconds.
      client_id: of this process.
      on_global_t: called, from another thread, with the newest known environment steps of the run.
      on_failure: called, from another thread, when retrying is useless.
      get_sampling_sec: returns the seconds in which this process has sampled so far, without
        waiting; called by another thread.
      is_child: whether the learner is a child of this process, which `open_stream` restarts.
        Nothing is sent to it again, because the gradient might already have been pushed.
      server: what the stream leads to, for messages.
    """

    def __init__(
        self,
        open_stream: Callable[[], CollectStream],
        client_id: str,
        on_global_t: Callable[[int], None] = lambda global_t: None,
        on_failure: Callable[[RelaaxError], None] = lambda error: None,
        get_sampling_sec: Callable[[], float] = lambda: 0.0,
        is_child: bool = False,
        server: str = PARAMETER_SERVER,
    ):
        self.lost_rollouts = 0  # written under _lock
        self._open_stream = open_stream
        self._client_id = client_id
        self._on_global_t = on_global_t
        self._on_failure = on_failure
        self._get_sampling_sec = get_sampling_sec
        self._is_child = is_child
        self.keeps_requests = not is_child
        self._server = server
        self._sampling_sec = 0.0  # reported so far; only used in the sending thread
        self._incarnation = time.time_ns()
        self._numbers = itertools.count(1)
        # Bounded by the agents, each of which has at most one or two requests in progress.
        self._queue: queue.SimpleQueue[LearnRequest | None] = queue.SimpleQueue()
        self._names: Collection[str] | None = None
        self._variables: Sequence[str] | None = None
        self._lock = threading.Lock()  # guards the following attributes
        self._stream: CollectStream | None = None
        self._is_ready = False  # whether that stream takes experience
        self._under_way: dict[int, _UnderWay] = {}  # sequence -> work
        self._uncounted = 0  # environment steps of requests that the learner does not have
        self._heard = 0.0  # monotonic time of the newest answer, or of work for an idle learner
        self._telling = threading.Lock()  # guards the next two; held while agents are notified
        self._newest: LearnerUpdate | None = None  # the newest known values and counts
        self._on_update: OnUpdate | None = None
        # Only used in the receiving thread.
        self._epoch = 0
        self._away = False
        self._released_at = self._next_line_at = time.monotonic()
        self._lost_before = 0
        self._changed = threading.Event()  # the learner has answered, or `close` was called
        self._stopping = threading.Event()
        self._receiver = threading.Thread(target=self._run, name="learner", daemon=True)
        self._sender = threading.Thread(target=self._send_all, name="to learner", daemon=True)

    def connect(
        self, names: Collection[str] | None = None, variables: Sequence[str] | None = None
    ) -> None:
        """Starts to connect; returns immediately.

        Args:
          names: of the variables whose values agents need; all others arrive as NaN; None: all.
          variables: names of the variables whose values agents receive, in this order; None: all
            of the run, in the order of its manifest.
        """
        self._names = names
        self._variables = variables
        self._receiver.start()
        self._sender.start()

    def start(self, on_update: OnUpdate) -> None:
        """Waits some seconds for the first values, or for `close`; see `Learner`.

        Raises:
          ServerUnavailableError: no values came in time, or `close` was called.
        """
        self._changed.wait(_START_WAIT_SEC)
        with self._telling:
            if self._newest is None and self._stopping.is_set():
                raise ServerUnavailableError("this process is shutting down; reconnect later")
            if self._newest is None:
                raise ServerUnavailableError(f"{self._server} is not ready; retry later")
            self._on_update = on_update
            on_update(self._newest)

    def submit(self, request: LearnRequest) -> None:
        """Sends a request; if it cannot be sent or is lost, it is answered as done."""
        self._queue.put(request)

    def wait_loaded(self, timeout_sec: float) -> bool:
        """Waits until the learner has answered once; returns whether it has."""
        self._changed.wait(timeout_sec)
        return self._newest is not None

    def leave(self, agent: str) -> None:
        """Tells the learner not to wait for an agent."""
        self._queue.put(LearnRequest(0, None, agent=agent, is_leaving=True))

    @property
    def silent_sec(self) -> float:
        """Seconds for which the learner has had work but has been silent; 0 without work."""
        with self._lock:
            return time.monotonic() - self._heard if self._under_way else 0.0

    def stop(self) -> None:
        """Does nothing: its owner calls `close`."""

    def close(self) -> None:
        """Sends waiting requests, and ends. Idempotent. Takes some seconds at most."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._changed.set()
        self._queue.put(None)
        deadline = time.monotonic() + _STOP_SEC

        def remaining_sec() -> float:
            return max(0.0, deadline - time.monotonic())

        if self._sender.is_alive():
            self._sender.join(remaining_sec())
        with self._lock:
            stream = self._stream
        if stream is None:  # the receiver is waiting for the server, and has nothing to lose
            return
        stream.finish(remaining_sec())
        self._receiver.join(remaining_sec())

    def _run(self) -> None:
        """Keeps a stream open, and processes the replies."""
        first, longest = _MIN_PAUSE_SEC, _MAX_PAUSE_SEC
        if self._is_child:
            first, longest = _MIN_RESTART_SEC, _MAX_RESTART_SEC
        failures = 0  # in a row
        while not self._stopping.is_set():
            try:
                for advance in self._open():
                    if self._take(advance):
                        failures = 0
            except (ConfigError, LeasedError, NotAllowedError) as error:
                self._close_stream()
                self._let_act_on()
                self._on_failure(error)
                return
            except InvalidInputError as error:
                logger.error("experience was refused, or a reply cannot be read: %s", error)
                if not self._is_child:
                    self._give_up_unreceived()
            except (ServerUnavailableError, ProtocolError) as error:
                self._note_away(error)
            except Exception:
                logger.exception("the stream to the learner broke")
            self._close_stream()
            finished = self._newest is not None and bool(self._newest.finished)
            if self._is_child or finished:
                self._let_act_on()
            else:
                self._note_waiting()
            if finished:
                first = longest = _FINISHED_PAUSE_SEC  # the servers are about to end, too
            self._stopping.wait(draw_pause_sec(failures, first, longest))
            failures += 1

    def _open(self) -> CollectStream:
        stream = self._open_stream()
        version = 0 if self._newest is None else self._newest.version
        with self._lock:
            self._stream = stream  # `_run` closes it even if an error is raised
            # Otherwise its first notice shows what to send again, before anything newer.
            self._is_ready = self._is_child
            if self._stopping.is_set():
                raise ServerUnavailableError("this process is shutting down; reconnect later")
            try:
                stream.open(self._incarnation, version, self._epoch, self._names)
            except InvalidInputError as error:
                raise ConfigError(str(error)) from error
        return stream

    def _close_stream(self) -> None:
        with self._lock:
            stream, self._stream = self._stream, None
            self._is_ready = False
        if stream is not None:
            stream.close()

    def _note_away(self, error: RelaaxError) -> None:
        newest = self._newest
        if self._away or newest is None or newest.finished or self._stopping.is_set():
            return
        self._away = True
        self._lost_before = self.lost_rollouts
        what = "rollouts are discarded" if self._is_child else "agents wait with their rollouts"
        logger.warning("%s; %s until it is back", error, what)

    def _take(self, advance: ReleaseNotice) -> bool:
        """Processes a notice, in the receiving thread; returns whether a request is done."""
        mark = tracing.begin()
        reply, progress = advance.reply, advance.progress
        self._epoch = reply.epoch
        with self._lock:
            done = {n: work for n, work in self._under_way.items() if n <= progress.released}
            for sequence in done:
                del self._under_way[sequence]
            for sequence, work in self._under_way.items():
                work.received = sequence <= progress.received
            self._heard = time.monotonic()
            stream = self._stream
            if stream is not None and not self._is_ready:
                for work in self._under_way.values():
                    if not work.received:
                        stream.send(work.experience)
                self._is_ready = True
        if done:
            self._released_at = self._heard
        else:
            self._note_waiting()
        if self._away:
            self._away = False
            lost = self.lost_rollouts - self._lost_before
            logger.info("%s is back; %d rollout(s) were lost", self._server, lost)
        values = None
        if reply.values is not None and stream is not None:
            values = self._select(stream.manifest, reply.values.flat)
        self._on_global_t(reply.global_t)
        self._tell(_find_numbers(done.values()), reply, values)
        tracing.end("take values", mark)
        return bool(done)

    def _note_waiting(self) -> None:
        """Reports every ten seconds that agents wait, in the receiving thread."""
        now = time.monotonic()
        with self._lock:
            waiting = sum(work.rollouts for work in self._under_way.values() if work.number)
        if not waiting:
            self._released_at = now
        since = now - self._released_at
        if since >= _WAITING_LINE_SEC and now >= self._next_line_at and not self._is_child:
            self._next_line_at = now + _WAITING_LINE_SEC
            logger.info(
                "%d rollout(s) wait for the learner; none was acknowledged for %.0f s",
                waiting,
                since,
            )

    def _select(self, manifest: Manifest, flat: np.ndarray) -> list[np.ndarray]:
        arrays = manifest.unpack(flat)
        if self._variables is None:
            return arrays
        by_name = {s.name: array for s, array in zip(manifest.segments, arrays, strict=True)}
        return [by_name[name] for name in self._variables]

    def _tell(
        self,
        numbers: Sequence[int],
        reply: Reply | None = None,
        values: Sequence[np.ndarray] | None = None,
    ) -> None:
        """Notifies agents: requests that are done, and the server's reply."""
        with self._telling:
            newest = self._newest
            if reply is not None:
                kept = newest.values if values is None and newest is not None else values
                newest = LearnerUpdate((), reply.version, reply.global_t, reply.finished, kept)
                self._newest = newest
                self._changed.set()
            if newest is not None and self._on_update is not None:
                try:
                    self._on_update(replace(newest, numbers=numbers, values=values))
                except Exception:  # not a failure of the stream
                    logger.exception("could not process a reply of the learner")

    def _let_act_on(self) -> None:
        """Lets agents keep acting; their requests are answered after reconnection, if ever."""
        with self._lock:
            numbers = _find_numbers(self._under_way.values())
            for work in self._under_way.values():
                work.number = None
            if self._is_child:
                self.lost_rollouts += sum(work.rollouts for work in self._under_way.values())
                self._under_way.clear()
        self._tell(numbers)

    def _give_up_unreceived(self) -> None:
        """Discards what was not received, since the server refuses it; its agents keep acting."""
        with self._lock:
            refused = [n for n, work in self._under_way.items() if not work.received]
            works = [self._under_way.pop(sequence) for sequence in refused]
            self.lost_rollouts += sum(work.rollouts for work in works)
        for work in works:
            self._queue.put(LearnRequest(0, None, to_unlearned(work.experience.episodes)))
        self._tell(_find_numbers(works))

    # In the sending thread.

    def _send_all(self) -> None:
        while (work := self._queue.get()) is not None:
            if self._uncounted:
                with self._lock:
                    env_steps, self._uncounted = self._uncounted + work.env_steps, 0
                work = replace(work, env_steps=env_steps)
            try:
                with tracing.span("send rollout"):
                    sent = self._send(work)
            except Exception:  # only this request fails
                logger.exception("could not send a rollout to the learner")
                sent = False
            if not sent:
                with self._lock:
                    self.lost_rollouts += work.rollout is not None
                    self._uncounted += work.env_steps
                self._tell([work.number])
        if self._uncounted:
            self._send(LearnRequest(0, None, env_steps=self._uncounted))

    def _send(self, work: LearnRequest) -> bool:
        """Sends a request; returns False if the server is not available.

        Episodes that do not fit in one message are sent before it.
        """
        rollout, episodes = work.rollout, work.episodes
        while len(episodes) > MAX_EPISODES:
            ahead, episodes = episodes[:MAX_EPISODES], episodes[MAX_EPISODES:]
            if not self._send_experience(None, agent=work.agent, episodes=tuple(ahead)):
                return False
        return self._send_experience(
            work.number,
            agent=work.agent,
            columns=0 if rollout is None else rollout.slots,
            rollout=None if rollout is None else rollout_to_bytes(rollout),
            episodes=tuple(episodes),
            is_leaving=work.is_leaving,
            is_urgent=work.is_urgent,
            env_steps=work.env_steps,
            sampling_sec=self._take_sampling_sec(),
        )

    def _take_sampling_sec(self) -> float:
        before, self._sampling_sec = self._sampling_sec, self._get_sampling_sec()
        return max(self._sampling_sec - before, 0.0)

    def _send_experience(self, number: int | None, **fields: Any) -> bool:
        experience = Experience(
            client_id=self._client_id,
            incarnation=self._incarnation,
            sequence=next(self._numbers),
            **fields,
        )
        with self._lock:
            stream = self._stream if self._is_ready else None
            if stream is None and not self._keeps(experience):
                return False
            if not self._under_way:
                self._heard = time.monotonic()
            self._under_way[experience.sequence] = _UnderWay(number, experience)
        # Without the lock, because it can wait. If the stream breaks, the next one sends it.
        if stream is not None:
            stream.send(experience)
        return True

    def _keeps(self, experience: Experience) -> bool:
        """Whether experience waits for the next stream."""
        has_ended = self._newest is not None and bool(self._newest.finished)
        is_full = len(self._under_way) >= _MAX_KEPT
        has_content = experience.rollout is not None or bool(experience.episodes)
        return self.keeps_requests and has_content and not has_ended and not is_full


def _find_numbers(works: Iterable[_UnderWay]) -> list[int]:
    """Returns the numbers of the requests whose agents wait."""
    return [work.number for work in works if work.number is not None]
