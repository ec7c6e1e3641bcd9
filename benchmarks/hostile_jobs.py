"""Hostile clients of a coordinator: what they do to an honest slave and an honest operator.

The honest process polls as a slave, and every 50 ms reports a job's end, takes the next one and
answers it; it also lists one job. `round` is the time of these four calls. Beside it a process of
its own does one kind of harm, with the lowest priority:

- `garbage`: connects, sends noise or half of an HTTP/2 hello, and connects again;
- `wrong jobs`: submissions with paths, of 64 KiB of nested lists, and damaged messages;
- `too large`: messages of 100 MB, compressed to 100 kB;
- `half versions`: 300 streams that have announced a version, and then say nothing;
- `strange slaves`: polls of 1 000 names, each of which waits 10 s;
- `stale results`: ends and versions of attempts that it does not have;
- `strange names`: reports and farewells of slaves whose names a terminal would obey;
- `cancelled`: polls that are cancelled after a moment;
- `idle`: 500 TCP connections and 500 HTTP/2 ones that say nothing;
- `a neighbour`: none; it computes.

`resident` is the coordinator's memory afterwards. Without tokens every one of these calls reaches
the coordinator; with tokens they end before it.
"""

import contextlib
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import psutil

from benchmarks import harms
from benchmarks.harms import Harm
from benchmarks.jobs import CONFIG, start, wait_for
from benchmarks.report import report
from relaax_like.addons.coordinator.client import CoordinatorLink, JobsClient
from relaax_like.addons.coordinator.job import FORMAT
from relaax_like.v1 import coordinator_pb2 as pb

SERVICE = "/relaax.v1.Coordinator/"
PERIOD_SEC = 0.05


def send_wrong_jobs(harm: Harm) -> Iterator[None]:
    """One submission after another."""
    wrong = [json.dumps({**CONFIG, "run_dir": "/"}), "[" * 60_000, json.dumps({"algorithm": 1})]
    messages = [
        pb.SubmitRequest(format=FORMAT, key="k" * 16, name="x", config=one).SerializeToString()
        for one in wrong
    ]
    yield from harm.send_each(SERVICE + "Submit", [*messages, b"\xff" * 10_000])


def send_too_large(harm: Harm) -> Iterator[None]:
    """A server that unpacked it would have to hold it."""
    while True:
        harm.send(SERVICE + "SendVersion", bytes(100_000_000), compression=grpc.Compression.Gzip)
        yield


def hold_half_versions(harm: Harm) -> Iterator[None]:
    """Streams that stay as they are."""
    header = pb.VersionHeader(format=FORMAT, slave="x", files=1, bytes=1000)
    message = pb.VersionPart(header=header).SerializeToString()
    yield from harm.hold(SERVICE + "SendVersion", lambda number: iter([message]))


def send_strange_slaves(harm: Harm) -> Iterator[None]:
    """Polls that wait."""
    calls = []
    for number in itertools.count():
        request = pb.PollRequest(
            format=FORMAT, slave=f"strange-{number % 1000}", incarnation=1, sequence=1 + number
        )
        request.wait_ms = 10_000
        calls.append(harm.call(SERVICE + "Poll", iter([request.SerializeToString()])))
        del calls[:-1000]
        yield


def send_stale_results(harm: Harm) -> Iterator[None]:
    """Ends and versions of attempts that are not its own."""
    for number in itertools.count(1):
        attempt = pb.Attempt(job=number, attempt=1)
        ended = pb.Ended(attempt=attempt, outcome="DONE", tail="x" * 16_000)
        request = pb.ReportRequest(format=FORMAT, slave="honest", incarnation=9, ended=ended)
        harm.send(SERVICE + "Report", request.SerializeToString())
        header = pb.VersionHeader(format=FORMAT, slave="stale", attempt=attempt)
        harm.send(SERVICE + "SendVersion", pb.VersionPart(header=header).SerializeToString())
        yield


def send_strange_names(harm: Harm) -> Iterator[None]:
    """Names that would be lines of the log."""
    ended = pb.Ended(attempt=pb.Attempt(job=1, attempt=1), outcome="DONE")
    name = "\x1b[2J\nattempt 1 of job 1: DONE"
    report = pb.ReportRequest(format=FORMAT, slave=name, ended=ended).SerializeToString()
    leave = pb.LeaveRequest(format=FORMAT, slave=name).SerializeToString()
    while True:
        harm.send(SERVICE + "Report", report)
        harm.send(SERVICE + "Leave", leave)
        yield


def send_and_cancel(harm: Harm) -> Iterator[None]:
    """Sixteen polls under way, each cancelled when its turn comes again."""
    polls = (
        pb.PollRequest(format=FORMAT, slave="flighty", sequence=number, wait_ms=10_000)
        for number in itertools.count(1)
    )
    yield from harm.start_and_cancel(SERVICE + "Poll", (poll.SerializeToString() for poll in polls))


HARMS: dict[str, Callable[[Harm], Iterator[None]]] = {
    "garbage": harms.send_garbage,
    "wrong jobs": send_wrong_jobs,
    "too large": send_too_large,
    "half versions": hold_half_versions,
    "strange slaves": send_strange_slaves,
    "stale results": send_stale_results,
    "strange names": send_strange_names,
    "cancelled": send_and_cancel,
    "idle": harms.stay_idle,
    "a neighbour": harms.compute,
}


class Honest:
    """A slave whose jobs end at once, and the operator who submits them."""

    def __init__(self, address: str):
        self._link = CoordinatorLink(address)
        self._jobs = JobsClient(address)
        self._name: dict[str, Any] = {"slave": "honest", "incarnation": 1}
        self._sequence = self._last_task = self._coordinator = 0

    def work(self, seconds: float) -> tuple[list[float], int]:
        """Returns the seconds of each round, and the number of jobs that were done."""
        rounds: list[float] = []
        done = 0
        for _ in range(int(seconds / PERIOD_SEC)):
            begun = time.perf_counter()
            job = self._jobs.submit("job", CONFIG)
            done += self._end(self._poll())
            assert self._jobs.list(job)
            rounds.append(time.perf_counter() - begun)
            if sum(rounds) > 3 * seconds:
                break  # so slow that it shows
            time.sleep(max(0.0, PERIOD_SEC - rounds[-1]))
        return rounds, done

    def close(self) -> None:
        """Closes the connections."""
        self._link.close()
        self._jobs.close()

    def _poll(self) -> Sequence[pb.Task]:
        self._sequence += 1
        request = pb.PollRequest(
            format=FORMAT,
            sequence=self._sequence,
            algorithms=[CONFIG["algorithm"]["name"]],
            environments=[CONFIG["environment"]["program"]],
            coordinator=self._coordinator,
            last_task=self._last_task,
            wait_ms=2000,
            runs_jobs=True,
            **self._name,
        )
        reply = self._link.call(self._link.stub.Poll, request)
        self._coordinator = reply.coordinator
        return list(reply.tasks)

    def _end(self, tasks: Sequence[pb.Task]) -> int:
        done = 0
        for task in tasks:
            self._last_task = task.id
            payload = json.loads(task.payload)
            attempt = pb.Attempt(job=payload["job"], attempt=payload["attempt"])
            result = pb.TaskResult(
                task=task.id, coordinator=self._coordinator, ok=True, payload="{}"
            )
            ended = pb.Ended(attempt=attempt, outcome="DONE")
            request = pb.ReportRequest(format=FORMAT, results=[result], ended=ended, **self._name)
            done += self._link.call(self._link.stub.Report, request).accepted
        return done


def measure(name: str, seconds: float, folder: Path) -> dict[str, Any]:
    """Returns the row of one kind of harm, or of none."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(start("serve", folder, "--bind", "localhost:0"))
        address = wait_for(server, "coordinator on").split("coordinator on ")[1].split(";")[0]
        honest = stack.enter_context(contextlib.closing(Honest(address)))
        honest.work(0.5)
        harm = None
        if name in HARMS:
            harm = harms.start(stack, "benchmarks.hostile_jobs", name, address)
        rounds, done = honest.work(seconds)
        resident = psutil.Process(server.pid).memory_info().rss
        did = harms.end(harm)
    return {
        "beside": name,
        "which did": did,
        "rounds": len(rounds),
        "jobs done": done,
        **harms.summarize(rounds),
        "MB resident": resident / 1e6,
    }


def main(seconds: float) -> None:
    """Measures all kinds, between two measurements of none."""
    with tempfile.TemporaryDirectory() as place:
        rows = [
            measure(name, seconds, Path(place) / str(number))
            for number, name in enumerate((harms.NOBODY, *HARMS, harms.NOBODY))
        ]
    report("hostile clients of a coordinator", rows)


if __name__ == "__main__":
    if sys.argv[1:2] == [harms.ROLE]:
        harms.run(HARMS, sys.argv[2], Harm(sys.argv[3]))
    else:
        main(float(sys.argv[1]) if sys.argv[1:] else 10.0)
