"""The coordinator: how long a free slave waits for its next job, and what an idle slave costs.

    python -m benchmarks.jobs [--slaves 100] [--jobs 1000]

A coordinator in a process of its own, and 100 protocol sessions of slaves in another one. 1 000
jobs are submitted first; then the slaves join. A job of these sessions ends at once: the session
answers the task, reports the end, and polls again. Measured is the time from the answer to the
report of an end, or from the first poll, to the arrival of the next job.

`idle` is the resident set of `relaax jobs work` while it waits, without its guardian process.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.report import report
from relaax_like.addons.coordinator.client import CoordinatorLink, JobsClient
from relaax_like.addons.coordinator.job import FORMAT
from relaax_like.v1 import coordinator_pb2 as pb
from relaax_like.wire.errors import ServerUnavailableError

CONFIG: dict[str, Any] = {
    "algorithm": {"name": "policy_gradient", "state_size": 4, "num_actions": 2},
    "environment": {"program": "OpenAI_Gym", "env": "CartPole-v1"},
}
RELAAX = (sys.executable, "-m", "relaax_like.cli.main", "jobs")
_IDLE_SEC = 5.0


@contextlib.contextmanager
def start(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Starts `relaax jobs`, and ends it."""
    command = [*RELAAX, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def wait_for(process: subprocess.Popen[str], text: str) -> str:
    """Returns the first line with a text."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            # What comes later must not fill the pipe.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return line
    raise AssertionError(f"{process.args!r} ended without {text!r}")


class Session(threading.Thread):
    """One slave's messages. Its jobs end at once.

    Attributes:
      waits: seconds from being free to each job.
    """

    def __init__(self, address: str, number: int, stop: threading.Event):
        super().__init__(daemon=True)
        self.waits: list[float] = []
        self._link = CoordinatorLink(address)
        self._name: dict[str, Any] = {"slave": f"slave-{number}", "incarnation": number + 1}
        self._stopping = stop

    def run(self) -> None:
        """Polls, and ends what comes."""
        sequence = last_task = coordinator = 0
        free = time.perf_counter()
        while not self._stopping.is_set():
            sequence += 1
            request = pb.PollRequest(
                format=FORMAT,
                sequence=sequence,
                algorithms=[CONFIG["algorithm"]["name"]],
                environments=[CONFIG["environment"]["program"]],
                coordinator=coordinator,
                last_task=last_task,
                wait_ms=2000,
                runs_jobs=True,
                **self._name,
            )
            with contextlib.suppress(ServerUnavailableError):
                reply = self._link.call(self._link.stub.Poll, request)
                coordinator = reply.coordinator
                for task in reply.tasks:
                    last_task = task.id
                    self.waits.append(time.perf_counter() - free)
                    self._end(coordinator, task)
                    free = time.perf_counter()
        self._link.close()

    def _end(self, coordinator: int, task: pb.Task) -> None:
        payload = json.loads(task.payload)
        result = pb.TaskResult(task=task.id, coordinator=coordinator, ok=True, payload="{}")
        attempt = pb.Attempt(job=payload["job"], attempt=payload["attempt"])
        ended = pb.Ended(attempt=attempt, outcome="DONE")
        request = pb.ReportRequest(format=FORMAT, results=[result], ended=ended, **self._name)
        assert self._link.call(self._link.stub.Report, request).accepted


def measure_starts(address: str, slaves: int, jobs: int) -> dict[str, Any]:
    """Returns the row of the sessions."""
    with JobsClient(address) as client:
        began = time.perf_counter()
        for _ in range(jobs):
            client.submit("job", CONFIG)
        submitting = time.perf_counter() - began
        stop = threading.Event()
        sessions = [Session(address, number, stop) for number in range(slaves)]
        began = time.perf_counter()
        for session in sessions:
            session.start()
        while sum(len(session.waits) for session in sessions) < jobs:
            time.sleep(0.01)
        working = time.perf_counter() - began
        stop.set()
        for session in sessions:
            session.join()
        done = sum(job.state == pb.JobInfo.DONE for job in client.list()[0])
    waits = 1e3 * np.array([wait for session in sessions for wait in session.waits])
    return {
        "slaves": slaves,
        "jobs": jobs,
        "done": done,
        "submitted/s": jobs / submitting,
        "done/s": jobs / working,
        "start p50 ms": float(np.percentile(waits, 50)),
        "p99 ms": float(np.percentile(waits, 99)),
        "max ms": float(waits.max()),
    }


def measure_idle(address: str, folder: Path) -> float:
    """Returns the megabytes of a slave that waits."""
    with start("work", address, "--name", "idle", "--work", folder / "work") as slave:
        wait_for(slave, "is connected")
        time.sleep(_IDLE_SEC)
        return float(psutil.Process(slave.pid).memory_info().rss / 1e6)


def main(argv: Sequence[str] = ()) -> None:
    """Measures both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slaves", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1000)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with start("serve", folder / "queue", "--bind", "localhost:0") as coordinator:
            line = wait_for(coordinator, "coordinator on")
            address = line.split("coordinator on ")[1].split(";")[0]
            row = measure_starts(address, arguments.slaves, arguments.jobs)
            row["idle MB"] = measure_idle(address, folder)
            row["coordinator MB"] = psutil.Process(coordinator.pid).memory_info().rss / 1e6
    report("jobs that end at once", [row])


if __name__ == "__main__":
    main(sys.argv[1:])
