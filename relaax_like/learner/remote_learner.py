"""RemoteLearner: what agents see of a learner in the parameter server's process."""

import itertools
import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from relaax_like.bridge.collecting import Advance, CollectStream, make_rollout_bytes
from relaax_like.bridge.service import Experience
from relaax_like.computation.learning import Learned, Learner, OnLearned, Work
from relaax_like.learner.messages import rollout_to_message
from relaax_like.wire import tracing
from relaax_like.wire.errors import (
    InvalidInputError,
    LeasedError,
    NotAllowedError,
    RelaaxError,
    ServerUnavailableError,
)

logger = logging.getLogger(__name__)

# How long an agent that is being built waits for the first values.
_START_WAIT_SEC = 5.0
_MIN_PAUSE_SEC, _MAX_PAUSE_SEC = 0.2, 2.0
_FINISHED_PAUSE_SEC = 10.0
_STOP_SEC = 2.0


@dataclass
class _UnderWay:
    """One work that was sent: its number, and what to send again; None: it was received."""

    number: int
    experience: Experience | None


class RemoteLearner(Learner):
    """Sends rollouts to the learner in the parameter server, and takes the values that come back.

        learner = RemoteLearner(lambda: link.collect_stream("rlx-1", 5.0), "rlx-1")
        learner.connect()
        processor = ComputationDataProcessor(actor, learner, metrics)

    Where the stream breaks it is opened anew, and what was not received is sent again. While the
    parameter server is away, rollouts are discarded and counted; those that it had received and not
    learned from before a restart are lost, and counted, too: their agents act on.

    Args:
      open_stream: makes a stream, not opened; may wait for the server for some seconds.
      client_id: of this process.
      on_global_t: called, from another thread, with the newest known environment steps of the run.
      on_failure: called, from another thread, when there is no use in trying again.
    """

    def __init__(
        self,
        open_stream: Callable[[], CollectStream],
        client_id: str,
        on_global_t: Callable[[int], None] = lambda global_t: None,
        on_failure: Callable[[RelaaxError], None] = lambda error: None,
    ):
        self._open_stream = open_stream
        self._client_id = client_id
        self._on_global_t = on_global_t
        self._on_failure = on_failure
        self._incarnation = time.time_ns()
        self._numbers = itertools.count(1)
        # Bounded by the agents, of whom each has at most one or two works under way.
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards what follows; held while something is sent
        self._stream: CollectStream | None = None
        self._under_way: dict[int, _UnderWay] = {}  # sequence -> work
        self._lost = 0
        # In the receiving thread alone.
        self._epoch = 0
        self._newest: Learned | None = None
        self._on_learned: OnLearned | None = None
        self._came = threading.Event()
        self._stopping = threading.Event()
        self._receiver = threading.Thread(target=self._run, name="learner", daemon=True)
        self._sender = threading.Thread(target=self._send_all, name="to learner", daemon=True)

    def connect(self) -> None:
        """Begins to connect; returns at once."""
        self._receiver.start()
        self._sender.start()

    def start(self, on_learned: OnLearned) -> None:
        """Waits a while for the first values; see `Learner`."""
        if not self._came.wait(_START_WAIT_SEC):
            raise ServerUnavailableError(
                "the parameter server has not answered yet, or does not learn yet; come back"
            )
        self._on_learned = on_learned
        assert self._newest is not None
        on_learned(self._newest)

    def submit(self, work: Work) -> None:
        """Sends work; answered as done when it cannot be sent, or is lost."""
        self._queue.put(work)

    def leave(self, agent: str) -> None:
        """Tells the server not to wait for an agent."""
        self._queue.put(Work(0, None, agent=agent, leaves=True))

    def stop(self) -> None:
        """Sends what waits, and ends; may be called twice."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._queue.put(None)
        if self._sender.is_alive():
            self._sender.join(_STOP_SEC)
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.finish(_STOP_SEC)
        if self._receiver.is_alive():
            self._receiver.join(_STOP_SEC)

    def _run(self) -> None:
        """Keeps a stream open, and takes what comes."""
        pause = _MIN_PAUSE_SEC
        while not self._stopping.is_set():
            try:
                stream = self._open()
                for advance in stream:
                    self._take(advance)
                    pause = _MIN_PAUSE_SEC
            except (LeasedError, NotAllowedError) as error:
                self._close_stream()
                self._on_failure(error)
                return
            except InvalidInputError as error:
                logger.error("a rollout was refused: %s", error)
                self._give_up_unreceived()
            except ServerUnavailableError as error:
                logger.debug("the stream of experience broke: %s", error)
            except Exception:
                logger.exception("an answer of the learner could not be taken")
            self._close_stream()
            if self._newest is not None and self._newest.finished:
                pause = _FINISHED_PAUSE_SEC  # the servers are about to end, too
            if not self._stopping.wait(random.uniform(pause / 2, pause)):
                pause = min(2 * pause, _MAX_PAUSE_SEC)

    def _open(self) -> CollectStream:
        stream = self._open_stream()
        version = None if self._newest is None else self._newest.version
        with self._lock:
            stream.open(self._incarnation, version)
            for work in self._under_way.values():
                if work.experience is not None:
                    stream.send(work.experience)
            self._stream = stream
        return stream

    def _close_stream(self) -> None:
        with self._lock:
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _take(self, advance: Advance) -> None:
        """Takes what the server says; called by the receiving thread."""
        mark = tracing.begin()
        reply, progress = advance.reply, advance.progress
        restarted = self._epoch not in (0, reply.epoch)
        self._epoch = reply.epoch
        with self._lock:
            for sequence, work in self._under_way.items():
                if sequence <= progress.received:
                    work.experience = None
            done = [
                sequence
                for sequence, work in self._under_way.items()
                if sequence <= progress.released or (restarted and work.experience is None)
            ]
            numbers = [self._under_way.pop(sequence).number for sequence in done]
            lost = sum(sequence > progress.released for sequence in done) + self._lost
            self._lost = 0
        if lost:
            logger.warning("%d rollout(s) were lost: the parameter server was away", lost)
        values = None
        if reply.values is not None and self._stream is not None:
            values = self._stream.manifest.unpack(reply.values.flat)
        self._announce(numbers, reply.version, reply.global_t, reply.finished, values)
        tracing.end("take values", mark)

    def _announce(
        self,
        numbers: Sequence[int],
        version: int,
        global_t: int,
        finished: str,
        values: Sequence[np.ndarray] | None,
    ) -> None:
        learned = Learned(numbers, version, global_t, finished, values)
        self._on_global_t(global_t)
        if values is not None:
            self._newest = learned
            self._came.set()
        if self._on_learned is not None and (numbers or values is not None or finished):
            self._on_learned(learned)

    def _give_up_unreceived(self) -> None:
        """Has agents act on whose rollouts the server does not take."""
        with self._lock:
            refused = [s for s, work in self._under_way.items() if work.experience is not None]
            numbers = [self._under_way.pop(sequence).number for sequence in refused]
        self._give_up(numbers)

    def _give_up(self, numbers: Sequence[int]) -> None:
        newest = self._newest
        if newest is not None:
            self._announce(numbers, newest.version, newest.global_t, newest.finished, None)

    # In the sending thread.

    def _send_all(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                with tracing.span("send rollout"):
                    sent = self._send(work)
            except Exception:  # this one only
                logger.exception("a rollout could not be sent to the learner")
                sent = False
            if not sent:
                self._give_up([work.number])

    def _send(self, work: Work) -> bool:
        rollout = work.rollout
        experience = Experience(
            client_id=self._client_id,
            incarnation=self._incarnation,
            sequence=next(self._numbers),
            agent=work.agent,
            columns=0 if rollout is None else rollout.slots,
            rollout=None
            if rollout is None
            else make_rollout_bytes(rollout_to_message(rollout).SerializeToString()),
            episodes=tuple(work.episodes),
            leaves=work.leaves,
        )
        with self._lock:
            if self._stream is None:
                self._lost += rollout is not None
                return False
            self._under_way[experience.sequence] = _UnderWay(work.number, experience)
            self._stream.send(experience)
        return True
