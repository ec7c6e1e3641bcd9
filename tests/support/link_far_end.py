"""The far end of a link under test, as a process: it records what it accepts, and learns nothing.

    python -m support.link_far_end learner FOLDER SOCKET
    python -m support.link_far_end experience FOLDER

Only the learning is scripted, the rest is the product's own. It loads no TensorFlow. `FOLDER`
contains what it has done (`Events`) and what a test tells it to do:

    hold        accepts segments, but handles none while this file exists
    mute        says nothing about what it has handled while this file exists
    silent      does not come up while this file exists
"""

import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.core.records import (
    Experience,
    LearnerUpdate,
    LearnRequest,
    Lease,
)
from relaax_like.core.roles import Learner, OnUpdate
from relaax_like.experience.rollout import Rollout

COLUMNS, STEPS, CAPACITY = 4, 5, 16
MANIFEST = make_manifest([Variable("w", np.zeros(3, np.float32))])
# A segment with this code makes a learner send values of an older version.
OLDER = 9_999
_POLL_SEC = 0.002


class Events:
    """What has happened at the far end: lines in a file, which survive the process."""

    def __init__(self, folder: Path):
        self._path = folder / "events"
        self._start = 0

    def skip_old(self) -> None:
        """Leaves out what was written until now, from all that is read."""
        self._start = self._path.stat().st_size if self._path.exists() else 0

    def write(self, kind: str, *words: object) -> None:
        """Appends one event; from any thread or process."""
        line = " ".join(map(str, (kind, *words))) + "\n"
        with self._path.open("ab", buffering=0) as file:
            file.write(line.encode())

    def read(self, kind: str) -> list[list[str]]:
        """Returns the words of all events of a kind, in order."""
        if not self._path.exists():
            return []
        text = self._path.read_bytes()[self._start :].decode()
        lines = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
        return [words for name, *words in lines if name == kind]


def wait_while(path: Path) -> None:
    """Waits while a file exists."""
    while path.exists():
        time.sleep(_POLL_SEC)


def find_codes(rewards: np.ndarray) -> list[int]:
    """Returns the codes of the segments in an array of rewards, `[T, k, ...]`.

    A segment has its code in its first column, and 0 in all others.
    """
    return [int(code) for code in rewards[0].reshape(-1) if code]


class RecordingLearner(Learner):
    """A learner that records requests, and makes version N + 1 of each."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._events = Events(folder)
        self._life = len(self._events.read("life")) + 1
        self._version = 0
        self._on_update: OnUpdate
        self._answers: queue.SimpleQueue[int] = queue.SimpleQueue()

    def start(self, on_update: OnUpdate) -> None:
        """Sends the first values."""
        self._events.write("life", self._life)
        self._on_update = on_update
        self._send((), 0)
        threading.Thread(target=self._answer_all, daemon=True).start()

    def submit(self, request: LearnRequest) -> None:
        """Records a segment, then answers it."""
        self._events.write("begun")
        wait_while(self._folder / "hold")
        assert request.rollout is not None
        (code,) = find_codes(request.rollout.rewards)
        if code == OLDER:
            self._send((request.number,), self._version - 1)
            return
        self._events.write("received", code)
        self._answers.put(request.number)

    def stop(self) -> None:
        """Does nothing: all requests have been answered."""

    def _answer_all(self) -> None:
        while True:
            number = self._answers.get()
            wait_while(self._folder / "mute")
            self._version += 1
            self._send((number,), self._version)

    def _send(self, numbers: Sequence[int], version: int) -> None:
        value = 1000 * self._life + version
        if version == self._version:
            self._events.write("version", version, value)
        values = [np.full(3, value, np.float32)]
        self._on_update(LearnerUpdate(numbers, version, 0, "", values))


def serve_learner(folder: Path, number: int) -> None:
    """Runs the far end of a `ChildLearner`."""
    from relaax_like.learn.learner_service import LearnerService

    service = LearnerService(socket.socket(fileno=number))
    wait_while(folder / "silent")
    service.serve({"one": (RecordingLearner(folder), MANIFEST)})


def serve_experience(folder: Path) -> None:
    """Runs a parameter server with an `ExperienceService` whose learner records iterations."""
    from relaax_like.bridge.control import BridgeControl
    from relaax_like.config.base_learner import NO_HOOKS
    from relaax_like.config.optimizer import OptimizerConfig
    from relaax_like.core.metrics import NullMetrics
    from relaax_like.experience.collector import Collector
    from relaax_like.learn import experience_service, rollout_barrier
    from relaax_like.learn.base_learner import BaseLearner
    from relaax_like.learn.collected import Collected
    from relaax_like.learn.learner_loop import LearnerLoop
    from relaax_like.learn.publishing import Publishing
    from relaax_like.learn.tally import Tally
    from relaax_like.parameter_server.parameter_server import ParameterServer
    from relaax_like.parameter_server.snapshots import Snapshots
    from relaax_like.parameter_server.store import Store
    from relaax_like.wire.errors import CollectorFullError

    # No agent is released because the machine is slow.
    rollout_barrier._MIN_SILENCE_SEC = rollout_barrier._MAX_SILENCE_SEC = 600.0
    experience_service._POLL_SEC = 0.05
    events = Events(folder)
    life = len(events.read("life")) + 1
    first = np.full(3, 1000 * life, np.float32)
    manifest = make_manifest([Variable("w", first)])
    store = Store(
        manifest,
        manifest.pack([first]),
        {"default": OptimizerConfig(name="adam", learning_rate=0.1)},
    )
    snapshots = Snapshots(folder / "checkpoints", 3, 0)
    server = ParameterServer(store, metrics=NullMetrics(), snapshots=snapshots)
    server.restore_latest_checkpoint()

    class RecordingSource(Collected):
        """Records what is accepted, and how often there is no room."""

        def conform(self, rollout: Rollout) -> Rollout:
            return rollout

        def add(self, rollout: Rollout, *rest: Any) -> int:
            try:
                ticket = super().add(rollout, *rest)
            except CollectorFullError:
                events.write("full")
                raise
            events.write("accepted", *find_codes(rollout.rewards))
            return ticket

    class NumberingPolicy:
        """All values are the number of the update, and 1000 times that of the life."""

        def load(self, lease: Lease) -> None:
            self._lease, self._number = lease, lease.number
            events.write("life", life)
            values = manifest.unpack(lease.values)
            events.write("version", lease.version, int(values[0][0]))

        def data_preprocess(self, data: Any) -> Any:
            return data

        def forward(self, data: Any) -> dict[str, float]:
            wait_while(folder / "hold")
            self._number += 1
            return {}

        def get_flat(self) -> np.ndarray:
            return manifest.pack([np.full(3, 1000 * life + self._number, np.float32)])

        def get_optimizers(self) -> Any:
            steps = dict.fromkeys(self._lease.steps, self._number)
            return SimpleNamespace(slots=self._lease.slots, steps=steps)

    class RecordingSink(Publishing):
        """Records what was published."""

        def deliver(self, iteration: Any) -> LearnerUpdate:
            update = super().deliver(iteration)
            for code in find_codes(iteration.rollout.rewards):
                events.write("received", code)
            assert update.values is not None
            events.write("version", update.version, int(update.values[0][0]))
            return update

    def make_learner() -> LearnerLoop[Collected]:
        policy: Any = NumberingPolicy()
        base = BaseLearner({"hook": NO_HOOKS}, exp_dir=folder)
        base.policy = policy
        tally = Tally()
        collector, layout = Collector(STEPS, COLUMNS, capacity=CAPACITY), cast(Any, None)
        source = RecordingSource(collector, tally, layout)
        return LearnerLoop(source, base, RecordingSink(server, policy, tally))

    service = experience_service.ExperienceService(make_learner, COLUMNS, 1 << 24)

    class Sink:
        """The service, which says nothing while it is mute."""

        max_rollout_bytes = service.max_rollout_bytes

        def add(self, experience: Experience) -> None:
            service.add(experience)

        def wait(self, *arguments: object) -> object:
            wait_while(folder / "mute")
            return service.wait(*arguments)  # type: ignore[arg-type]

        def wake(self) -> None:
            service.wake()

    grpc_server, port = BridgeControl().create_server("127.0.0.1:0", server, None, Sink())  # type: ignore[arg-type]
    grpc_server.start()
    service.start()
    events.write("port", port)
    sys.stdin.read()  # until the test ends
    os._exit(0)


def main() -> None:
    """Runs one far end."""
    kind, folder, *rest = sys.argv[1:]
    if kind == "learner":
        serve_learner(Path(folder), int(rest[0]))
    else:
        serve_experience(Path(folder))


if __name__ == "__main__":
    main()
