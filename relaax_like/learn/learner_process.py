"""LearnerProcess: a learner beside the agents, in a process of its own.

The agents' event loop shares its interpreter with nobody then: a gradient costs it nothing but the
sending of the rollout.
"""

import logging
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from relaax_like.core.records import LearnerUpdate, LearnRequest
from relaax_like.core.roles import Learner, OnUpdate
from relaax_like.learn.channel import Channel
from relaax_like.learn.child import start_child
from relaax_like.learn.messages import message_to_update, request_to_message
from relaax_like.v1 import learner_pb2
from relaax_like.wire import tracing
from relaax_like.wire.errors import ServerUnavailableError

logger = logging.getLogger(__name__)

# How long an agent that is being built waits for the learner to come up.
_START_WAIT_SEC = 5.0
# The learner finishes the gradient at hand when it is stopped.
_STOP_SEC = 3.0
_MIN_RESTART_SEC, _MAX_RESTART_SEC = 1.0, 30.0
# A learner with work that says nothing for so long hangs. Its first gradient takes seconds.
_SILENCE_SEC = 120.0

_Channel = Channel[learner_pb2.LearnerRequest, learner_pb2.Learned]


class LearnerProcess:
    """Starts a program that learns, starts it again when it dies, and talks to it.

        process = LearnerProcess([sys.executable, "-m", "relaax_like.launch.learner_main", ...])
        process.start()
        processor = ComputationDataProcessor(actor, process.learner("RL"), metrics)
        ...
        process.stop()

    What was under way when it died is lost: the agents are told as if it had been learned from. One
    that hangs, with work and without an answer for two minutes, is killed.

    Args:
      argv: the program; the number of its socket is added to it. It is to end when that is closed.
      environment: variables of the program's environment; None: those of this process.
      on_global_t: called, from another thread, with the newest known environment steps of the run.
      on_failure: called, from another thread, when it ended with a status of `fatal`: it is not
        started again.
      fatal: exit statuses with which it would only end again.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str] | None = None,
        on_global_t: Callable[[int], None] = lambda global_t: None,
        on_failure: Callable[[int], None] = lambda status: None,
        fatal: Sequence[int] = (),
    ):
        self._argv = list(argv)
        self._environment = environment
        self._on_global_t = on_global_t
        self._on_failure = on_failure
        self._fatal = fatal
        self._learners: dict[str, _RemoteLearner] = {}
        # Bounded by the agents, of whom each has at most one or two works under way.
        self._queue: queue.SimpleQueue[tuple[str, LearnRequest] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards what follows, up to _lost
        self._channel: _Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._loaded = False  # the process has said something
        self._under_way: dict[str, set[int]] = {}
        self._heard = 0.0  # monotonic time of the newest answer, or of work for an idle learner
        self._lost = 0  # works that nobody learned from, since the last answer to one
        self._has_come_up = threading.Event()
        self._stopping = threading.Event()
        self._receiver = threading.Thread(target=self._run, name="learner", daemon=True)
        self._sender = threading.Thread(target=self._send_all, name="to learner", daemon=True)
        self._watcher = threading.Thread(target=self._watch, name="learner watch", daemon=True)

    @property
    def pid(self) -> int | None:
        """Of the process at this moment; None: there is none."""
        with self._lock:
            return None if self._process is None else self._process.pid

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    def learner(self, task: str) -> Learner:
        """Returns one task's view of the process; to be called once for each, before agents act."""
        return self._get_learner(task)

    def start(self) -> None:
        """Starts the process, without waiting for it."""
        self._receiver.start()
        self._sender.start()
        self._watcher.start()

    def wait_loaded(self, timeout_sec: float) -> bool:
        """Waits until the learner has come up once; returns whether it has."""
        return self._has_come_up.wait(timeout_sec)

    def stop(self) -> None:
        """Lets the process finish what was handed over, and ends it; can be called twice.

        A learner's `start` that waits for it raises ServerUnavailableError.
        """
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._queue.put(None)
        with self._lock:
            learners = list(self._learners.values())
            # One that is still being loaded has nothing to finish, and cannot hear of the end.
            patience = _STOP_SEC if self._loaded else 0.0
        for learner in learners:
            learner.wake()
        if not self._receiver.is_alive():
            return
        self._receiver.join(patience)
        with self._lock:
            if self._process is not None:
                self._process.kill()
        self._receiver.join(_STOP_SEC)

    def submit(self, task: str, work: LearnRequest) -> None:
        """Hands work over without waiting."""
        self._queue.put((task, work))

    def _get_learner(self, task: str) -> "_RemoteLearner":
        with self._lock:
            return self._learners.setdefault(task, _RemoteLearner(self, task))

    def _run(self) -> None:
        """Keeps a process running, and takes what it sends."""
        pause = _MIN_RESTART_SEC
        while not self._stopping.is_set():
            channel = self._start_process()
            if channel is not None and self._receive_all(channel):
                pause = _MIN_RESTART_SEC
            status = self._end_process(channel)
            if status in self._fatal:
                self._on_failure(status)
                return
            if not self._stopping.wait(pause):
                pause = min(2 * pause, _MAX_RESTART_SEC)

    def _start_process(self) -> _Channel | None:
        try:
            process, stream = start_child(self._argv, self._environment, "learner")
        except OSError as error:
            logger.error("cannot start the learner's process: %s; retrying", error)
            return None
        channel: _Channel = Channel(stream, learner_pb2.Learned)
        with self._lock:
            if not self._stopping.is_set():
                self._process, self._channel, self._loaded = process, channel, False
                return channel
        # `stop` looked for a process to end before there was this one.
        process.kill()
        channel.close()
        process.wait()
        return None

    def _receive_all(self, channel: _Channel) -> bool:
        """Takes answers until the process has gone; returns whether any work was answered."""
        answered = False
        while (message := channel.receive()) is not None:
            answered = answered or bool(message.numbers)
            mark = tracing.begin()
            try:
                self._take(message)
            except Exception:  # this thread also sees to it that there is a process
                logger.exception("could not process a reply of the learner")
            tracing.end("take values", mark)
        return answered

    def _take(self, message: learner_pb2.Learned) -> None:
        learned = message_to_update(message)
        with self._lock:
            self._under_way.setdefault(message.task, set()).difference_update(learned.numbers)
            self._heard, self._loaded = time.monotonic(), True
            self._has_come_up.set()
            lost = self._lost if learned.numbers else 0
            self._lost -= lost
        if lost:
            logger.warning("the learner is back; %d rollout(s) were lost in the meantime", lost)
        self._on_global_t(learned.global_t)
        self._get_learner(message.task).take(learned)

    def _end_process(self, channel: _Channel | None) -> int:
        """Waits for the end, and answers what will not be answered any more; returns the status."""
        with self._lock:
            process, self._process, self._channel = self._process, None, None
            lost, self._under_way = self._under_way, {}
            self._lost += sum(map(len, lost.values()))
        if channel is not None:
            channel.close()
        status = 0 if process is None else process.wait()
        if not self._stopping.is_set() and process is not None:
            logger.error(
                "the learner's process ended with status %d; %d rollout(s) in flight are lost",
                status,
                sum(map(len, lost.values())),
            )
        for task, numbers in lost.items():
            self._get_learner(task).give_up(sorted(numbers))
        return status

    def _send_all(self) -> None:
        while (item := self._queue.get()) is not None:
            task, work = item
            with self._lock:
                channel = self._channel
                if channel is None:
                    self._lost += work.rollout is not None
                else:
                    if not any(self._under_way.values()):
                        self._heard = time.monotonic()
                    self._under_way.setdefault(task, set()).add(work.number)
            if channel is None:
                self._get_learner(task).give_up([work.number])
                continue
            mark = tracing.begin()
            try:
                self._send(channel, learner_pb2.LearnerRequest(work=request_to_message(work, task)))
            except Exception:  # this rollout only
                logger.exception("could not send a rollout to the learner")
                with self._lock:
                    self._under_way.setdefault(task, set()).discard(work.number)
                self._get_learner(task).give_up([work.number])
            tracing.end("send rollout", mark)
        with self._lock:
            channel = self._channel
        if channel is not None:
            self._send(channel, learner_pb2.LearnerRequest(stop=learner_pb2.Stop()))

    def _watch(self) -> None:
        while not self._stopping.wait(_SILENCE_SEC / 10):
            with self._lock:
                silent = time.monotonic() - self._heard
                if not any(self._under_way.values()) or silent < _SILENCE_SEC:
                    continue
                logger.error("no message from the learner for %.0f s; killing it", silent)
                if self._process is not None:
                    self._process.kill()

    def _send(self, channel: _Channel, message: learner_pb2.LearnerRequest) -> None:
        try:
            channel.send(message)
        except OSError:  # it has gone: the receiver notices, too, and sees to what was under way
            pass


class _RemoteLearner(Learner):
    """One task's learner in a `LearnerProcess`."""

    def __init__(self, process: LearnerProcess, task: str):
        self._process = process
        self._task = task
        self._on_update: OnUpdate | None = None
        self._newest: LearnerUpdate | None = None
        self._changed = threading.Event()  # values have arrived, or the process is being stopped

    def start(self, on_update: OnUpdate) -> None:
        """Waits a while for the first values, or for the end of the process; see `Learner`."""
        if not self._process.is_stopping:
            self._changed.wait(_START_WAIT_SEC)
        newest = self._newest
        if newest is None and self._process.is_stopping:
            raise ServerUnavailableError("this process is shutting down; reconnect later")
        if newest is None:
            raise ServerUnavailableError(
                "the learner is not ready, or is waiting for the parameter server; retry later"
            )
        self._on_update = on_update
        on_update(newest)

    def submit(self, work: LearnRequest) -> None:
        """Sends work; answered as done, if the process dies meanwhile."""
        self._process.submit(self._task, work)

    def stop(self) -> None:
        """Does nothing: the process is stopped as a whole."""

    def take(self, learned: LearnerUpdate) -> None:
        """Takes an answer; called by one thread."""
        if learned.values is not None:
            self._newest = learned
        self._changed.set()
        if self._on_update is not None:
            self._on_update(learned)

    def wake(self) -> None:
        """Wakes callers of `start`, because the process is being stopped."""
        self._changed.set()

    def give_up(self, numbers: Sequence[int]) -> None:
        """Tells agents that nobody will learn from their works."""
        newest = self._newest
        assert newest is not None, "work without a learner that has ever come up"
        self.take(LearnerUpdate(numbers, newest.version, newest.global_t, newest.finished, None))
