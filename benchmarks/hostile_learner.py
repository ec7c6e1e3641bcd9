"""Hostile clients of a learner in a process of its own: what they do to an honest rlx server.

The honest process sends one step of experience every 10 ms over one stream, and waits until the
learner has it in the log of its replay table, from which dqn learns meanwhile. `round` is the time
of this. Beside it a process of its own does the kinds of harm of `benchmarks.hostile` to the
learner's port, with the lowest priority, or:

- `wrong experience`: streams with damaged rollouts, foreign layouts and noise, one after another;
- `half experience`: 300 streams that have said who they are, and then nothing.

`resident` is the learner's memory afterwards.
"""

import contextlib
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

from benchmarks.cluster import find_free_ports
from benchmarks.report import report
from relaax_like.bridge.control import BridgeControl
from relaax_like.core.records import Experience
from relaax_like.experience.rollout import Rollout
from relaax_like.learn.rollout_messages import rollout_to_bytes
from relaax_like.wire.errors import ServerUnavailableError

DQN = Path(__file__).parents[1] / "algorithms" / "dqn" / "dqn.yaml"
COLLECT = "/relaax.v1.Experience/Collect"
PERIOD_SEC = 0.01
NOBODY = "nobody"
SETS = (
    "learner.placement=standalone",
    "learner.eval_freq=0",
    "algorithm.max_global_step=1000000000",
    "algorithm.state_size=4",
    "algorithm.num_actions=2",
    "algorithm.updates_per_step=0.1",
    "algorithm.updates_at_once=4",
)


def send_wrong_experience(harm: Any) -> Iterator[None]:
    """One stream after another."""
    from benchmarks.hostile import NOISE

    for data in itertools.cycle([NOISE[:1000], b"", b"\x0a\x03abc", b"\xff" * 10_000]):
        with contextlib.suppress(grpc.RpcError):
            list(_open_stream(harm.channel)(iter([data, NOISE]), timeout=30))
        yield


def hold_half_experience(harm: Any) -> Iterator[None]:
    """Streams that stay as they are."""
    forever = threading.Event()

    def wait() -> Iterator[bytes]:
        yield b"\x0a\x00"
        forever.wait()

    calls = [_open_stream(harm.channel)(wait()) for _ in range(300)]
    while calls:
        time.sleep(1)
        yield


HARMS: dict[str, Callable[[Any], Iterator[None]]] = {
    "wrong experience": send_wrong_experience,
    "half experience": hold_half_experience,
}


def _open_stream(channel: grpc.Channel) -> Callable[..., Any]:
    return channel.stream_stream(COLLECT, request_serializer=bytes, response_deserializer=bytes)


class Honest:
    """Sends steps of one agent, whose episodes have five of them.

    Args:
      address: of the learner.
    """

    def __init__(self, address: str):
        self._link = BridgeControl().connect(address)
        self._stream = self._link.collect_stream("honest", 60.0)
        self._stream.open(1, 0, 0)
        self._received = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, sequence: int) -> float:
        """Sends a step; returns the seconds until the learner has it."""
        began = time.perf_counter()
        self._stream.send(_make_experience(sequence))
        with self._changed:
            if not self._changed.wait_for(lambda: self._received >= sequence, 60.0):
                raise RuntimeError("the learner has not taken a step for 60 s")
        return time.perf_counter() - began

    def close(self) -> None:
        """Closes stream and link."""
        self._stream.close()
        self._link.close()

    def _read(self) -> None:
        with contextlib.suppress(ServerUnavailableError):
            for notice in self._stream:
                with self._changed:
                    self._received = notice.progress.received
                    self._changed.notify_all()


def _make_experience(sequence: int) -> Experience:
    episode, step = divmod(sequence - 1, 5)
    observations = np.full((2, 1, 4), sequence % 100, np.float32)
    rollout = Rollout(
        inputs={"observation": observations[:-1]},
        next_inputs={"observation": observations[1:]},
        next_alive=np.array([[0.0 if step == 4 else 1.0]], np.float32),
        rewards=np.ones((1, 1, 1), np.float32),
        actions={"action": np.zeros((1, 1), np.int64)},
        log_prob=np.zeros((1, 1), np.float32),
        states={},
        versions=np.zeros(1, np.int64),
        starts=np.array([[1, episode, step]]),
    )
    return Experience(
        client_id="honest",
        incarnation=1,
        sequence=sequence,
        agent="a",
        columns=1,
        rollout=rollout_to_bytes(rollout),
        env_steps=1,
    )


def measure(name: str, seconds: float) -> dict[str, Any]:
    """Returns the row of one kind of harm, or of none."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        ps, port = find_free_ports(2)
        address = f"127.0.0.1:{port}"
        sets = [
            *SETS,
            f"run_dir={folder}",
            f"relaax-parameter-server.bind=127.0.0.1:{ps}",
            f"relaax-rlx-server.parameter_server=127.0.0.1:{ps}",
            f"learner.bind={address}",
        ]
        flags = [part for one in sets for part in ("--set", one)]
        programs = ("relaax-parameter-server", "relaax-learner")
        processes = []
        for program in programs:
            command = [str(Path(sys.executable).with_name(program)), "--config", str(DQN), *flags]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        honest = Honest(address)
        numbers = itertools.count(1)
        for _ in range(1_200):  # the table is warm, and its updates are compiled
            honest.send(next(numbers))
        did = "-"
        if name != NOBODY:
            command = [sys.executable, "-m", "benchmarks.hostile", "harm", name, address, "inf"]
            harm = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.callback(harm.wait)
            stack.callback(harm.kill)
            assert harm.stdout is not None
            assert harm.stdout.readline() == "ready\n", f"{name}: it did not begin"
        rounds: list[float] = []
        for _ in range(int(seconds / PERIOD_SEC)):
            rounds.append(honest.send(next(numbers)))
            if sum(rounds) > 3 * seconds:
                break  # so slow that it shows
            time.sleep(max(0.0, PERIOD_SEC - rounds[-1]))
        resident = psutil.Process(processes[1].pid).memory_info().rss
        if name != NOBODY:
            did = harm.communicate()[0].strip()
        honest.close()
    return {
        "beside": name,
        "which did": did,
        "steps": len(rounds),
        "p50 ms": 1e3 * float(np.percentile(rounds, 50)),
        "p99 ms": 1e3 * float(np.percentile(rounds, 99)),
        "max ms": 1e3 * max(rounds),
        "MB resident": resident / 1e6,
    }


def main(seconds: float, names: list[str]) -> None:
    """Measures all kinds, between two measurements of none."""
    rows = [measure(name, seconds) for name in (NOBODY, *names, NOBODY)]
    report("hostile clients of a learner", rows)
