"""Hostile clients of a learner in a process of its own: what they do to an honest client.

A parameter server and a `relaax-learner` (dqn, `learner.placement: standalone`) are processes of
their own. The honest client sends a rollout of 16 steps and 4 slots every 50 ms over one stream;
`round` is the time until the learner has acknowledged it. Beside it a process of its own does one
kind of harm, with the lowest priority, to the learner's port:

- `garbage`: connects, sends noise or half of an HTTP/2 hello, and connects again;
- `wrong rollouts`: damaged ones, with NaN, of another shape, without their values;
- `wrong names`: streams of clients and agents whose names have 2 MB, or cannot be printed;
- `too large`: messages of 100 MB, compressed to 100 kB;
- `half rollouts`: 300 streams that have sent a quarter of a rollout of 2 MB, and then nothing;
- `cancelled`: streams that are cancelled after a moment;
- `open streams`: 300 streams that say nothing, and get all values;
- `idle`: 500 TCP connections and 500 HTTP/2 ones that say nothing;
- `a neighbour`: none; it computes;

or to the service of the parameter server that the learner uses:

- `old terms`: leases, renewals and publications of a learner that does not hold the lease;
- `half publications`: 300 calls that have sent half of a publication of an old term.

`published` is the number of publications that arrived meanwhile. `resident` is the memory of the
learner and of the parameter server afterwards.
"""

import contextlib
import dataclasses
import itertools
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil

from benchmarks import harms
from benchmarks.cluster import find_free_ports
from benchmarks.joint import make_rollout
from benchmarks.report import report
from relaax_like.bridge.control import BridgeControl, Link
from relaax_like.core.records import Experience
from relaax_like.learn.rollout_messages import rollout_to_bytes
from relaax_like.v1 import experience_pb2, publisher_pb2
from relaax_like.wire.errors import RelaaxError, ServerUnavailableError

MODULE = "benchmarks.hostile_learner"
CONFIG = Path(__file__).parents[1] / "algorithms" / "dqn" / "dqn.yaml"
COLLECT = "/relaax.v1.Experience/Collect"
PUBLISHER = "/relaax.v1.Publisher/"
PERIOD_SEC = 0.05
STEPS, SLOTS, STATE, ACTIONS = 16, 4, 4, 2
_START_SEC = 120.0


class Harm(harms.Harm):
    """What a hostile process knows.

    Attributes:
      server: a channel to the parameter server.
      fingerprint: of the model.
    """

    def __init__(self, address: str, server_address: str):
        super().__init__(address)
        self.server = harms.Harm(server_address)
        with BridgeControl().connect(server_address) as link:
            manifest = link.wait(10.0)
        self.fingerprint = manifest.fingerprint
        self.publication_bytes = 3 * manifest.total_bytes  # with two slots of Adam


def make_bytes(**arrays: Any) -> bytes:
    """Returns a rollout as bytes, with other arrays in place of some of its own."""
    rollout = make_rollout(STEPS, SLOTS, STATE, ACTIONS)
    return rollout_to_bytes(dataclasses.replace(rollout, **arrays)).tobytes()


def pack(data: bytes = b"", **fields: Any) -> bytes:
    """Returns a message of a stream, with a rollout."""
    good: dict[str, Any] = {"client_id": "hostile", "incarnation": 1, "rollout_bytes": len(data)}
    header = experience_pb2.ExperienceHeader(first_chunk=data, **{**good, **fields})
    return experience_pb2.ExperienceRequest(header=header).SerializeToString()


def send_wrong_rollouts(harm: Harm) -> Iterator[None]:
    """One stream after another."""
    shape = (STEPS, SLOTS)
    wrong = [
        make_bytes()[:-100],
        harms.NOISE,
        make_bytes(rewards=np.full((*shape, 1), np.nan, np.float32)),
        make_bytes(rewards=np.zeros((STEPS, 3, 1), np.float32)),
        make_bytes(actions={"action": np.full(shape, 7)}),
        make_bytes(inputs={}, next_inputs={}),
    ]
    for data in itertools.cycle(wrong):
        harm.send(COLLECT, pack(), pack(data, sequence=1, columns=SLOTS))
        yield


def send_wrong_names(harm: Harm) -> Iterator[None]:
    """One stream after another; what they count would be published with the name."""
    for number in itertools.count():
        long = f"{number}" + "x" * 2_000_000
        for field, name in (("client_id", long), ("client_id", f"\0{number}"), ("agent", long)):
            fields: dict[str, Any] = {field: name}
            harm.send(COLLECT, pack(**fields), pack(sequence=1, env_steps=1, **fields))
            yield


def send_too_large(harm: Harm) -> Iterator[None]:
    """A server that unpacked it would have to hold it."""
    while True:
        harm.send(COLLECT, bytes(100_000_000), compression=grpc.Compression.Gzip)
        yield


def hold_half_rollouts(harm: Harm) -> Iterator[None]:
    """Streams that stay as they are."""
    chunk = experience_pb2.ExperienceRequest(chunk=bytes(500_000)).SerializeToString()

    def make_half(number: int) -> Iterator[bytes]:
        name = f"half-{number}"
        yield pack(client_id=name)
        yield pack(client_id=name, sequence=1, columns=SLOTS, rollout_bytes=2_000_000)
        yield chunk

    yield from harm.hold(COLLECT, make_half, channels=10)


def send_and_cancel(harm: Harm) -> Iterator[None]:
    """Sixteen streams under way, each cancelled when its turn comes again."""
    names = (f"flighty-{number}" for number in itertools.count())
    yield from harm.start_and_cancel(COLLECT, (pack(client_id=name) for name in names))


def hold_streams(harm: Harm) -> Iterator[None]:
    """Streams that stay as they are."""
    yield from harm.hold(COLLECT, lambda n: iter([pack(client_id=f"silent-{n}")]), channels=10)


def send_old_terms(harm: Harm) -> Iterator[None]:
    """One call after another."""
    acquire = publisher_pb2.AcquireRequest(
        format=1, holder="stranger", address="localhost:1", fingerprint=harm.fingerprint
    )
    renew = publisher_pb2.RenewRequest(term=0)
    counts = publisher_pb2.PublishHeader(term=0, sequence=1, env_steps=1)
    publish = publisher_pb2.PublishPart(header=counts)
    calls = [("Acquire", acquire), ("Renew", renew), ("Publish", publish)]
    for method, message in itertools.cycle(calls):
        harm.server.send(PUBLISHER + method, message.SerializeToString())
        yield


def hold_half_publications(harm: Harm) -> Iterator[None]:
    """Calls that stay as they are."""
    header = publisher_pb2.PublishHeader(term=0, sequence=1, number=1)
    half = bytes(min(harm.publication_bytes // 2, 500_000))
    parts = [publisher_pb2.PublishPart(header=header), publisher_pb2.PublishPart(chunk=half)]
    messages = [part.SerializeToString() for part in parts]
    yield from harm.server.hold(PUBLISHER + "Publish", lambda n: iter(messages), channels=10)


HARMS: dict[str, Callable[[Harm], Iterator[None]]] = {
    "garbage": harms.send_garbage,
    "wrong rollouts": send_wrong_rollouts,
    "wrong names": send_wrong_names,
    "too large": send_too_large,
    "half rollouts": hold_half_rollouts,
    "cancelled": send_and_cancel,
    "open streams": hold_streams,
    "old terms": send_old_terms,
    "half publications": hold_half_publications,
    "idle": harms.stay_idle,
    "a neighbour": harms.compute,
}


class Honest:
    """A client whose rollouts are acknowledged one after another."""

    def __init__(self, link: Link):
        self._stream = link.collect_stream("honest", _START_SEC)
        self._stream.open(incarnation=1, have_version=0, have_epoch=0)
        self._data = make_bytes()
        self._sequence = 0
        self._changed = threading.Condition()  # guards what follows
        self._received = -1
        self._error: RelaaxError | None = None
        threading.Thread(target=self._read, daemon=True).start()
        self._wait(0, _START_SEC)

    def work(self, seconds: float) -> list[float]:
        """Returns the seconds of each round.

        Raises:
          RelaaxError: the stream has ended.
        """
        rounds: list[float] = []
        for _ in range(int(seconds / PERIOD_SEC)):
            begun = time.perf_counter()
            self._sequence += 1
            self._stream.send(
                Experience(
                    client_id="honest",
                    incarnation=1,
                    sequence=self._sequence,
                    agent="agent",
                    columns=SLOTS,
                    rollout=np.frombuffer(self._data, np.uint8),
                    env_steps=STEPS * SLOTS,
                )
            )
            self._wait(self._sequence, 3 * seconds)
            rounds.append(time.perf_counter() - begun)
            if sum(rounds) > 3 * seconds:
                break  # so slow that it shows
            time.sleep(max(0.0, PERIOD_SEC - rounds[-1]))
        return rounds

    def close(self) -> None:
        """Ends the stream."""
        self._stream.close()

    def _wait(self, sequence: int, timeout_sec: float) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._received >= sequence or self._error is not None, timeout_sec
            )
            if self._error is not None:
                raise self._error

    def _read(self) -> None:
        try:
            for notice in self._stream:
                with self._changed:
                    self._received = notice.progress.received
                    self._changed.notify_all()
        except RelaaxError as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()


def connect(link: Link) -> Honest:
    """Returns an honest client, once the learner has loaded its model."""
    end = time.monotonic() + _START_SEC
    while True:
        try:
            return Honest(link)
        except ServerUnavailableError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


@contextlib.contextmanager
def start_run(folder: Path) -> Iterator[tuple[list[int], str, str]]:
    """Starts a parameter server and a learner; gives their process ids and addresses."""
    ps, learner = (f"localhost:{port}" for port in find_free_ports(2))
    sets = [
        f"run_dir={folder}",
        f"relaax-parameter-server.bind={ps}",
        f"relaax-rlx-server.parameter_server={ps}",
        f"learner.bind={learner}",
        "learner.placement=standalone",
        "learner.target_return=null",
        "learner.eval_freq=0",
        f"algorithm.state_size={STATE}",
        f"algorithm.num_actions={ACTIONS}",
        "algorithm.max_global_step=1000000000",
        f"algorithm.rollout_steps={STEPS}",
        "algorithm.warm_up_steps=64",
        "algorithm.updates_per_step=0.05",
        "algorithm.updates_at_once=32",
    ]
    arguments = ["--config", str(CONFIG), *(f"--set={one}" for one in sets)]
    with open(folder.with_suffix(".log"), "wb") as log:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "relaax_like.cli.servers", role, *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            for role in ("parameter_server", "learner")
        ]
        try:
            yield [process.pid for process in processes], learner, ps
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait(20)


def measure(name: str, seconds: float, folder: Path) -> dict[str, Any]:
    """Returns the row of one kind of harm, or of none."""
    with contextlib.ExitStack() as stack:
        (server, learner), address, server_address = stack.enter_context(start_run(folder))
        link = stack.enter_context(BridgeControl().connect(address))
        server_link = stack.enter_context(BridgeControl().connect(server_address))
        honest = stack.enter_context(contextlib.closing(connect(link)))
        while server_link.status().version < 3:  # until everything is compiled
            honest.work(0.5)
        harm = None
        if name in HARMS:
            harm = harms.start(stack, MODULE, name, address, server_address)
        before = server_link.status().version
        rounds, ended = [seconds], "no"
        try:
            rounds = honest.work(seconds)
        except RelaaxError as error:
            ended = str(error)
        published = server_link.status().version - before
        did = harms.end(harm)
        resident = [
            psutil.Process(one).memory_info().rss / 1e6 if psutil.pid_exists(one) else 0.0
            for one in (learner, server)
        ]
    return {
        "beside": name,
        "which did": did,
        "rounds": len(rounds),
        **harms.summarize(rounds),
        "published": published,
        "MB resident": " ".join(f"{one:.0f}" for one in resident),
        "ended": ended,
    }


def main(seconds: float) -> None:
    """Measures all kinds, between two measurements of none."""
    with tempfile.TemporaryDirectory() as place:
        rows = [
            measure(name, seconds, Path(place) / str(number))
            for number, name in enumerate((harms.NOBODY, *HARMS, harms.NOBODY))
        ]
    report("hostile clients of a learner", rows)


if __name__ == "__main__":
    if sys.argv[1:2] == [harms.ROLE]:
        harms.run(HARMS, sys.argv[2], Harm(*sys.argv[3:]))
    else:
        main(float(sys.argv[1]) if sys.argv[1:] else 10.0)
