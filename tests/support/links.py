"""Each transport of experience behind one interface, as tests/learn/test_links.py needs it.

A `Carrier` has a sender of segments, in this process, and a far end that accepts them. The far end
is a process where the product has one; it records what it accepts.
"""

import abc
import contextlib
import dataclasses
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from relaax_like.bridge.control import BridgeControl, Link
from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.plan import OnPolicy
from relaax_like.core.records import Experience, LearnerUpdate, LearnRequest
from relaax_like.core.roles import Learner
from relaax_like.experience.rollout import Rollout
from relaax_like.learn import child_learner
from relaax_like.learn.child_learner import ChildLearner
from relaax_like.learn.remote_learner import RemoteLearner
from relaax_like.wire.errors import ServerUnavailableError
from support.bridge import make_backend
from support.cluster import ROOT, freeze
from support.lines import Line
from support.link_far_end import CAPACITY, COLUMNS, MANIFEST, OLDER, STEPS, Events, find_codes
from support.rollouts import make_rollout
from support.threads import WAIT_SEC, wait_until

_ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    "OPENBLAS_NUM_THREADS": "1",
}
_FAR_END = [sys.executable, "-m", "support.link_far_end"]
# Numbers in an observation: a dozen segments fill all buffers on the way.
_WIDTH = 4096
# Segments that one sender can send in a test.
_PER_SENDER = 10_000


class Missing(Exception):
    """A transport has nothing that corresponds to what a test asks for."""


class Segment(NamedTuple):
    """The smallest unit of experience that is accepted: who sent it, and its number, from 1."""

    sender: int
    number: int

    @property
    def code(self) -> int:
        """The reward by which the far end recognises it."""
        return _PER_SENDER * self.sender + self.number

    @classmethod
    def of(cls, code: int) -> "Segment":
        """Returns the segment of a code."""
        return cls(*divmod(code, _PER_SENDER))


def make_segments(count: int, sender: int = 0, first: int = 1) -> list[Segment]:
    """Returns consecutive segments of one sender."""
    return [Segment(sender, first + index) for index in range(count)]


def _make_rollout(code: int, slots: int) -> Rollout:
    rollout = make_rollout(slots, code, STEPS)
    rewards = np.zeros_like(rollout.rewards)
    rewards[:, 0] = code
    observations = np.zeros((STEPS + 1, slots, _WIDTH), np.float32)
    return dataclasses.replace(
        rollout,
        rewards=rewards,
        inputs={"observation": observations[:-1]},
        next_inputs={"observation": observations[1:]},
    )


def _find_children(folder: Path) -> list[int]:
    """Returns the far ends of a folder that are children of this process."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if str(folder) in child.cmdline():
                found.append(child.pid)
    return found


class Carrier(abc.ABC):
    """One transport, with a sender of segments and a far end that accepts them.

    What a transport does not have raises `Missing`.

    Attributes:
      most_under_way: segments that can be under way at a far end that is held.
      capacity: segments that a far end that is held accepts at most.
    """

    most_under_way = 8
    capacity = CAPACITY // COLUMNS + 1  # one is being learned from

    def __init__(self, folder: Path, senders: int = 1):
        self.folder = folder
        self.events = Events(folder)
        self.senders = senders

    @abc.abstractmethod
    def start(self) -> None:
        """Starts both ends; returns when segments can be sent."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the sender's end, as the product does; can be called twice."""

    @abc.abstractmethod
    def tear_down(self) -> None:
        """Removes everything that is left at the end of a test."""

    # Segments.

    @abc.abstractmethod
    def send(self, segment: Segment, slots: int = COLUMNS) -> None:
        """Sends one segment."""

    def send_much(self) -> None:
        """Sends more than all buffers on the way can take."""
        for segment in make_segments(12):
            self.send(segment)

    @abc.abstractmethod
    def send_through(self, first: int) -> list[Segment]:
        """Sends segments of sender 0 until one is handled; returns all of them.

        Those before the last one were sent while there was no connection.
        """

    @abc.abstractmethod
    def wait_under_way(self, count: int) -> None:
        """Waits until so many segments have reached the far end, or as many as it has room for.

        It is held. Where the product does not show more, the first one is enough.
        """

    def received(self) -> list[Segment]:
        """Returns what the far end has handled, in order."""
        return [Segment.of(int(code)) for (code,) in self.events.read("received")]

    def wait_received(self, count: int) -> None:
        """Waits until the far end has handled so many segments."""
        wait_until(lambda: len(self.received()) >= count, f"{count} segments")

    def accepted(self) -> list[Segment]:
        """Returns what the far end has accepted, whether or not it was handled."""
        raise Missing("what a far end has accepted cannot be observed")

    def was_full(self) -> bool:
        """Returns whether the far end has refused a segment because there was no room."""
        raise Missing("no far end refuses anything")

    def answered(self) -> list[Segment]:
        """Returns the segments that the sender was notified about, in order."""
        raise Missing("the far end does not answer")

    def answered_early(self) -> list[Segment]:
        """Returns the segments that the far end had not handled when their answers arrived."""
        raise Missing("the far end does not answer")

    def get_log_notices(self) -> list[str]:
        """Returns what the answers say about where accepted segments are."""
        raise Missing("answers do not say whether an accepted segment is in a log or in memory")

    def lost(self) -> int:
        """Returns the number of segments that were counted as lost."""
        return 0

    def send_of_earlier_incarnation(self, segment: Segment) -> None:
        """Sends a segment as an earlier incarnation of the sender; raises what the far end says."""
        raise Missing("senders have no incarnations")

    # Values.

    def publish(self) -> None:
        """Makes the far end publish values of the next version."""
        raise NotImplementedError

    def publish_older(self) -> None:
        """Makes values of an older version arrive after the newest ones."""
        raise Missing("versions of one source arrive in the order in which it makes them")

    @abc.abstractmethod
    def seen(self) -> list[tuple[int, float]]:
        """Returns version and first value of all values that arrived, in order."""

    @abc.abstractmethod
    def newest(self) -> tuple[int, float]:
        """Returns version and first value of the newest values at their source."""

    def wait_newest(self, more_than: int = 0) -> None:
        """Waits until the newest values have arrived, and more than so many in all."""
        wait_until(
            lambda: len(self.seen()) > more_than and self.seen()[-1] == self.newest(),
            "the newest values",
        )

    # What happens to the far end.

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Makes the far end accept segments without handling them, as far as it has room."""
        raise Missing("a sender waits with the far end")

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Makes the far end do nothing at all: not even its protocol's threads run."""
        with self.held():
            yield

    def muted(self) -> contextlib.AbstractContextManager[None]:
        """Makes the far end handle segments without answering."""
        raise Missing("an answer cannot be lost")

    @contextlib.contextmanager
    def _existing(self, name: str) -> Iterator[None]:
        path = self.folder / name
        path.touch()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    def cut(self) -> None:
        """Breaks the connection; both ends continue to run."""
        raise Missing("no connection can break while both ends run")

    def mend(self) -> None:
        """Makes connections possible again."""
        raise Missing("no connection can break while both ends run")

    def is_away(self) -> bool:
        """Returns whether the sender knows that there is no connection."""
        raise Missing("no connection can break while both ends run")

    def restart_far_end(self, forgets: bool = False) -> None:
        """Kills the far end, and waits for the one that replaces it.

        Args:
          forgets: the new one begins with the first version again, where it would continue.
        """
        raise Missing("the far end is in the sender's process and ends with it")

    # The end.

    def make_waiter(self) -> Callable[[], object]:
        """Returns a call that waits for a far end that never comes up; instead of `start`."""
        raise Missing("nothing ever waits: the far end is there as soon as the sender is")

    def begin_start(self) -> Callable[[], None]:
        """Starts, and stops before there is a process; returns a call that lets it be started."""
        raise Missing("no process is started")

    def find_pids(self) -> list[int]:
        """Returns the processes that this end has started and that have not been reaped."""
        return []


class _LearnerCarrier(Carrier):
    """A transport that agents see as a `Learner`."""

    def __init__(self, folder: Path, senders: int = 1):
        super().__init__(folder, senders)
        self._learner: Learner
        self._lock = threading.Lock()  # guards the lists
        self._numbers: dict[int, Segment] = {}
        self._answered: list[Segment] = []
        self._early: list[Segment] = []
        self._seen: list[tuple[int, float]] = []
        self._published = 0

    def _start_learner(self) -> None:
        self._learner.start(self._take)

    def _take(self, update: LearnerUpdate) -> None:
        received = self.received() if update.numbers else []
        with self._lock:
            if update.values is not None:
                self._seen.append((update.version, float(update.values[0].flat[0])))
            done = [self._numbers[number] for number in update.numbers]
            self._early += [segment for segment in done if segment not in received]
            self._answered += done

    def send(self, segment: Segment, slots: int = COLUMNS) -> None:
        with self._lock:
            number = len(self._numbers) + 1
            self._numbers[number] = segment
        rollout = _make_rollout(segment.code, slots)
        agent = f"agent-{segment.sender}"
        self._learner.submit(LearnRequest(number, rollout, (), rollout.env_steps, agent))

    def send_through(self, first: int) -> list[Segment]:
        sent: list[Segment] = []
        while not sent or sent[-1] not in self.received():
            segment = Segment(0, first + len(sent))
            self.send(segment)
            sent.append(segment)
            self._wait_answered(segment)
            time.sleep(0.01)  # while there is no connection, answers are immediate
        return sent

    def answered(self) -> list[Segment]:
        with self._lock:
            return list(self._answered)

    def answered_early(self) -> list[Segment]:
        with self._lock:
            return list(self._early)

    def _wait_answered(self, segment: Segment) -> None:
        wait_until(lambda: segment in self.answered(), f"the answer to {segment}")

    def seen(self) -> list[tuple[int, float]]:
        with self._lock:
            return list(self._seen)

    def publish(self) -> None:
        self._published += 1
        self.send(Segment(9, self._published))

    def newest(self) -> tuple[int, float]:
        version, value = Events(self.folder).read("version")[-1]
        return int(version), float(value)


class DirectCarrier(_LearnerCarrier):
    """`SerialLearner`: the sender calls the learner, which learns before it returns."""

    def __init__(self, folder: Path, senders: int = 1):
        super().__init__(folder, senders)
        # They load TensorFlow.
        from relaax_like.learn.serial_learner import SerialLearner
        from support.learning import PlainPolicy, make_plain_learner, make_plain_server

        self._server = make_plain_server()
        self._policy = PlainPolicy()
        learner = make_plain_learner(self._server, self._policy, COLUMNS, CAPACITY)
        self._learner = SerialLearner(learner)

    def start(self) -> None:
        self._start_learner()

    def close(self) -> None:
        self._learner.stop()

    def tear_down(self) -> None:
        self._policy.gate.set()
        self._server.close()

    def received(self) -> list[Segment]:
        iterations = list(self._policy.rewards)
        return [Segment.of(code) for rewards in iterations for code in find_codes(rewards)]

    def newest(self) -> tuple[int, float]:
        values = self._server.pull().values
        assert values is not None
        return values.version, float(self._server.manifest.unpack(values.flat)[0].flat[0])

    def wait_under_way(self, count: int) -> None:
        pass  # it was handled before `send` returned

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        self._policy.gate.clear()
        try:
            yield
        finally:
            self._policy.gate.set()


class _RecordingGradients:
    """Records rollouts in the place of a `CompiledAlgorithm`; all gradients are ones."""

    statistics: tuple[str, ...] = ()
    wants_rows = is_joint = False

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.begun, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def set_values(self, values: Sequence[np.ndarray]) -> None:
        self._shapes = [value.shape for value in values]

    def make_arguments(self, rollout: Rollout, next_alive: np.ndarray) -> dict[str, np.ndarray]:
        return {"rewards": rollout.rewards, "next_alive": {"alive": next_alive}}

    def compute_updates(self, draw: object, *, rewards: np.ndarray, **_: object) -> Iterator[Any]:
        from support.learning import make_gradient  # loads TensorFlow

        self.begun.set()
        assert self.gate.wait(WAIT_SEC)
        self.codes += find_codes(rewards)
        yield make_gradient([np.ones(shape, np.float32) for shape in self._shapes])

    def review(self, numbers: Mapping[str, Any], updates: int) -> None:
        pass

    def close(self) -> None:
        pass


class ThreadCarrier(_LearnerCarrier):
    """`GradientLearner`: a queue, and a thread that learns and pushes."""

    def __init__(self, folder: Path, senders: int = 1):
        super().__init__(folder, senders)
        from relaax_like.learn.gradient_learner import GradientLearner  # loads TensorFlow

        from .requests import make_requests

        self._server = make_backend()
        self._recording = _RecordingGradients()
        client = InProcessClient(self._server)
        plan = OnPolicy(rollout_steps=STEPS)
        self._learner = GradientLearner(self._recording, plan, client, make_requests(plan))  # type: ignore[arg-type]

    def start(self) -> None:
        self._start_learner()

    def close(self) -> None:
        self._learner.stop()

    def tear_down(self) -> None:
        self._recording.gate.set()
        self._server.close()

    def received(self) -> list[Segment]:
        return [Segment.of(code) for code in list(self._recording.codes)]

    def newest(self) -> tuple[int, float]:
        values = self._server.pull().values
        assert values is not None
        return values.version, float(self._server.manifest.unpack(values.flat)[0].flat[0])

    def publish(self) -> None:
        super().publish()
        self.wait_received(self._published)  # else it packs several into one version

    def wait_under_way(self, count: int) -> None:
        assert self._recording.begun.wait(WAIT_SEC)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self._recording.gate.clear()
        try:
            yield
        finally:
            self._recording.gate.set()


class PairCarrier(_LearnerCarrier):
    """`ChildLearner` and `LearnerService`: a pair of sockets to a process of the rlx server."""

    def __init__(self, folder: Path, senders: int = 1):
        super().__init__(folder, senders)
        self._child = ChildLearner([*_FAR_END, "learner", str(folder)], _ENVIRONMENT)

    def start(self) -> None:
        self._connect()
        self._start_learner()

    def _connect(self) -> None:
        self._child.start()
        self._learner = self._child.learner("one", MANIFEST)

    def close(self) -> None:
        self._child.stop()

    def tear_down(self) -> None:
        for pid in self.find_pids():  # that a fault has left
            os.kill(pid, signal.SIGKILL)

    def find_pids(self) -> list[int]:
        return _find_children(self.folder)

    def held(self) -> contextlib.AbstractContextManager[None]:
        return self._existing("hold")

    def muted(self) -> contextlib.AbstractContextManager[None]:
        return self._existing("mute")

    def wait_under_way(self, count: int) -> None:
        wait_until(lambda: bool(self.events.read("begun")), "a segment")

    def lost(self) -> int:
        return sum(remote.lost_rollouts for remote in self._child._learners)

    def publish_older(self) -> None:
        self.send(Segment.of(OLDER))
        self._wait_answered(Segment.of(OLDER))

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        (pid,) = self.find_pids()
        freeze(pid)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def restart_far_end(self, forgets: bool = False) -> None:
        lives = len(self.events.read("life"))
        os.kill(*self.find_pids(), signal.SIGKILL)
        wait_until(lambda: len(self.events.read("life")) > lives, "another process")

    def make_waiter(self) -> Callable[[], object]:
        (self.folder / "silent").touch()
        self._connect()
        wait_until(lambda: bool(self.find_pids()), "the process")
        return self._start_learner

    def begin_start(self) -> Callable[[], None]:
        begun, gate, done = threading.Event(), threading.Event(), threading.Event()
        start_child = child_learner._Child

        def start_late(*arguments: Any) -> Any:
            begun.set()
            assert gate.wait(WAIT_SEC)
            try:
                return start_child(*arguments)
            finally:
                done.set()

        def go_on() -> None:
            gate.set()
            assert done.wait(WAIT_SEC)

        child_learner._Child = start_late  # type: ignore[assignment,misc]
        try:
            threading.Thread(target=self._child.start, daemon=True).start()
            assert begun.wait(WAIT_SEC)
        finally:
            child_learner._Child = start_child  # type: ignore[misc]
        return go_on


class Server:
    """A parameter server's process that takes experience. It can serve several tests in turn.

    Attributes:
      port: where it listens.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, unless it runs."""
        if self._process is not None:
            return
        events = Events(self.folder)
        started = len(events.read("port"))
        self._process = subprocess.Popen(
            [*_FAR_END, "experience", str(self.folder)], env=_ENVIRONMENT, stdin=subprocess.PIPE
        )
        wait_until(lambda: len(events.read("port")) > started, "the server")
        self.port = int(events.read("port")[-1][0])

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process is not None
        return self._process.pid

    def kill(self, forgets: bool = False) -> None:
        """Kills it as `kill -9` does, if it runs.

        Args:
          forgets: the next one begins again with the first version.
        """
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process = None
        if forgets:
            shutil.rmtree(self.folder / "checkpoints", ignore_errors=True)


class GrpcCarrier(_LearnerCarrier):
    """`RemoteLearner` and `ExperienceService`: a gRPC stream to the parameter server's process."""

    _client_numbers = itertools.count(1)

    def __init__(self, folder: Path, senders: int = 1, server: Server | None = None):
        self._server = server or Server(folder)
        super().__init__(self._server.folder, senders)
        self.events.skip_old()
        self._client_id = f"client-{next(self._client_numbers)}"
        self._stack = contextlib.ExitStack()
        self._link: Link | None = None
        self._remote = RemoteLearner(self._open_stream, self._client_id)
        self._learner = self._remote

    def start(self) -> None:
        self._connect()
        self._remote.connect()
        self._start_learner()

    def close(self) -> None:
        self._remote.close()

    def tear_down(self) -> None:
        self._stack.close()
        if len(self.received()) + self.lost() < len(self._numbers):
            self._server.kill(forgets=True)  # what is under way would reach it in another test

    def accepted(self) -> list[Segment]:
        return [Segment.of(int(code)) for (code,) in self.events.read("accepted")]

    def was_full(self) -> bool:
        return bool(self.events.read("full"))

    def held(self) -> contextlib.AbstractContextManager[None]:
        return self._existing("hold")

    def muted(self) -> contextlib.AbstractContextManager[None]:
        return self._existing("mute")

    def wait_under_way(self, count: int) -> None:
        count = min(count, self.capacity)
        wait_until(lambda: len(self.accepted()) >= count, f"{count} accepted segments")

    def lost(self) -> int:
        return self._remote.lost_rollouts

    def send_of_earlier_incarnation(self, segment: Segment) -> None:
        assert self._link is not None
        stream = self._link.collect_stream(self._client_id, WAIT_SEC)
        stream.open(incarnation=1, have_version=0, have_epoch=0)
        try:
            stream.send(Experience(client_id=self._client_id, incarnation=1, sequence=1))
            for _ in stream:
                pass
        finally:
            stream.close()

    def cut(self) -> None:
        self._line.refuse()

    def mend(self) -> None:
        self._line.mend()

    def is_away(self) -> bool:
        return self._remote._stream is None

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        freeze(self._server.pid)
        try:
            yield
        finally:
            os.kill(self._server.pid, signal.SIGCONT)

    def restart_far_end(self, forgets: bool = False) -> None:
        self._line.close()  # before the kill, or it would connect to nobody
        self._server.kill(forgets)
        self._connect()

    def make_waiter(self) -> Callable[[], object]:
        self._remote.connect()
        return self._start_learner

    def _connect(self) -> None:
        self._server.start()
        self._line = Line(self._server.port)
        self._stack.callback(self._line.close)
        self._link = BridgeControl().connect(f"127.0.0.1:{self._line.port}")
        self._stack.callback(self._link.close)

    def _open_stream(self) -> Any:
        if self._link is None:
            raise ServerUnavailableError("there is no server")
        return self._link.collect_stream(self._client_id, 0.5)


CARRIERS: Mapping[str, type[Carrier]] = {
    "direct call": DirectCarrier,
    "thread": ThreadCarrier,
    "socket pair": PairCarrier,
    "gRPC": GrpcCarrier,
}
