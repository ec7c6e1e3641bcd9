"""A coordinator in this process, slaves of it, and jobs that are valid."""

import contextlib
import json
import sqlite3
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from relaax_like.addons.coordinator.client import CoordinatorLink, JobsClient
from relaax_like.addons.coordinator.coordinator import Coordinator
from relaax_like.addons.coordinator.job import FORMAT
from relaax_like.addons.coordinator.job_learner import JobLearner
from relaax_like.addons.coordinator.job_queue import JobQueue
from relaax_like.addons.coordinator.servicer import create_coordinator_server
from relaax_like.config.address import Address
from relaax_like.v1 import coordinator_pb2 as pb
from relaax_like.wire.security import ClientSecurity, ServerSecurity
from support.cluster import wait_until

PROGRAM = (sys.executable, str(Path(__file__).with_name("job_program.py")))
ALGORITHM, ENVIRONMENT = "ppo", "OpenAI_Gym"


def make_config(steps: int = 20, seed: int = 0) -> dict[str, Any]:
    """Returns the settings of a job that `job_program` runs for so many steps."""
    return {
        "seed": seed,
        "algorithm": {"name": ALGORITHM, "max_global_step": steps},
        "environment": {"program": ENVIRONMENT, "env": "CartPole-v1"},
    }


class Clock:
    """Monotonic seconds that a test can turn forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


class Site:
    """A coordinator on a free port of this machine. A context manager.

    Attributes:
      folder: of the coordinator.
      coordinator: the object behind the port.
      address: HOST:PORT.
    """

    def __init__(
        self,
        folder: Path,
        security: ServerSecurity | None = None,
        client: ClientSecurity | None = None,
        port: int = 0,
        **options: Any,
    ):
        self.folder = folder
        self.coordinator = Coordinator(folder, **options)
        self._server, self.port = create_coordinator_server(
            Address("127.0.0.1", port), self.coordinator, security
        )
        self._server.start()
        self.address = f"localhost:{self.port}"
        self.jobs = JobsClient(self.address, client)

    def close(self) -> None:
        self.jobs.close()
        self.coordinator.close()
        self._server.stop(grace=0.5).wait()

    def __enter__(self) -> "Site":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, job: int) -> pb.JobInfo:
        """Returns a job in full."""
        return self.jobs.list(job)[0][0]

    def get_state(self, job: int) -> str:
        """Returns the name of a job's state."""
        return pb.JobInfo.State.Name(self.get(job).state).lower()

    def wait_state(self, job: int, state: str) -> pb.JobInfo:
        """Waits until a job is in a state."""
        wait_until(lambda: self.get_state(job) == state, f"job {job}: {state}")
        return self.get(job)

    @contextlib.contextmanager
    def learner(self, folder: Path, name: str = "slave") -> Iterator[JobLearner]:
        """Connects a resident slave that runs `job_program`."""
        with JobLearner(folder, PROGRAM) as learner:
            learner.connect(self.address, name)
            yield learner


def to_message(attempt: tuple[int, ...]) -> pb.Attempt:
    """Returns (job, number) of an attempt, or (job, number, collector), as a message."""
    return pb.Attempt(**dict(zip(("job", "attempt", "collector"), attempt, strict=False)))


class Session:
    """The messages of one slave, sent by hand.

    Attributes:
      link: the connection.
    """

    def __init__(self, address: str, name: str = "slave", incarnation: int = 1, **options: Any):
        self.link = CoordinatorLink(address, **options)
        self.name = name
        self.incarnation = incarnation
        self.sequence = 0
        self.coordinator = 0
        self.last_task = 0

    def poll(
        self, running: tuple[int, ...] | None = None, wait_ms: int = 0, **fields: Any
    ) -> list[pb.Task]:
        """Polls once; returns the tasks."""
        self.sequence += 1
        good: dict[str, Any] = {
            "format": FORMAT,
            "algorithms": [ALGORITHM],
            "environments": [ENVIRONMENT],
            "runs_jobs": True,
            "sequence": self.sequence,
            "coordinator": self.coordinator,
            "last_task": self.last_task,
            "wait_ms": wait_ms,
        }
        request = pb.PollRequest(**{**good, **self._name(), **fields})
        if running is not None:
            request.running.CopyFrom(to_message(running))
        reply = self.link.call(self.link.stub.Poll, request)
        if self.coordinator != reply.coordinator:
            self.coordinator, self.last_task = reply.coordinator, 0
        for task in reply.tasks:
            self.last_task = task.id
        return list(reply.tasks)

    def answer(self, task: pb.Task, ok: bool = True, payload: str = "{}") -> None:
        """Reports the result of a task."""
        result = pb.TaskResult(task=task.id, coordinator=self.coordinator, ok=ok, payload=payload)
        self.report(results=[result])

    def report(self, **fields: Any) -> bool:
        """Reports; returns whether the end of an attempt was recorded."""
        request = pb.ReportRequest(format=FORMAT, **self._name(), **fields)
        return bool(self.link.call(self.link.stub.Report, request).accepted)

    def end(self, attempt: tuple[int, ...], outcome: str = "DONE", tail: str = "") -> bool:
        """Reports the end of an attempt."""
        return self.report(
            ended=pb.Ended(
                attempt=to_message(attempt), outcome=outcome, reason="it ended", tail=tail
            )
        )

    def send_version(self, attempt: tuple[int, int], content: bytes = b"x", step: int = 1) -> int:
        """Sends a version with one file."""
        header = pb.VersionHeader(
            format=FORMAT, files=1, bytes=len(content), step=step, **self._name()
        )
        header.attempt.job, header.attempt.attempt = attempt
        file = pb.VersionFile(path="run/file", bytes=len(content), crc=zlib.crc32(content))
        parts = [
            pb.VersionPart(header=header),
            pb.VersionPart(file=file),
            pb.VersionPart(chunk=content),
        ]
        return int(self.link.call(self.link.stub.SendVersion, iter(parts)).version)

    def take_job(self, **fields: Any) -> tuple[int, int]:
        """Polls until a job comes, and confirms its start; returns its attempt."""
        payload = self.take_task("learner_start_task", **fields)
        return payload["job"], payload["attempt"]

    def take_task(self, name: str, answer: str = "{}", **fields: Any) -> dict[str, Any]:
        """Polls until a task of this name comes, and answers it; returns its payload."""
        tasks = wait_until(lambda: self.poll(**fields), "a task")
        assert [task.name for task in tasks] == [name]
        self.answer(tasks[0], payload=answer)
        return dict(json.loads(tasks[0].payload))

    def leave(self) -> None:
        """Leaves the coordinator."""
        self.link.call(self.link.stub.Leave, pb.LeaveRequest(format=FORMAT, **self._name()))

    def close(self) -> None:
        self.link.close()

    def _name(self) -> dict[str, Any]:
        return {"slave": self.name, "incarnation": self.incarnation}


def keep_history(folder: Path) -> None:
    """Makes a queue's file keep each state of each job, in the transaction that writes it."""
    if not (folder / "jobs.db").exists():
        JobQueue(folder).close()
    with contextlib.closing(sqlite3.connect(folder / "jobs.db")) as database, database:
        database.execute("CREATE TABLE history (job TEXT)")
        database.execute(
            "CREATE TRIGGER keep AFTER INSERT ON jobs "
            "BEGIN INSERT INTO history VALUES (new.job); END"
        )


def read_changes(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Returns what has changed each job since `keep_history`: its id -> operations, in order."""
    with contextlib.closing(sqlite3.connect(folder / "jobs.db")) as database:
        rows = database.execute("SELECT job FROM history ORDER BY rowid").fetchall()
    records: dict[int, list[dict[str, Any]]] = {}
    before: dict[int, dict[str, Any]] = {}
    for (text,) in rows:
        job = json.loads(text)
        records.setdefault(job["id"], []).append(_name_change(before.get(job["id"]), job))
        before[job["id"]] = job
    return records


def _name_change(before: dict[str, Any] | None, job: dict[str, Any]) -> dict[str, Any]:
    """Returns what has changed a job: an operation, and its step or outcome."""
    if before is None:
        assert (job["state"], job["attempts"], job["version"]) == ("queued", 0, 0)
        return {"op": "submit"}
    changed = {name for name, value in job.items() if value != before[name]}
    if "attempts" in changed:
        assert job["attempts"] == before["attempts"] + 1
        assert (before["state"], job["state"]) == ("queued", "running")
        return {"op": "begin"}
    if "version" in changed:
        assert job["version"] == before["version"] + 1
        assert changed <= {"version", "step", "losses"}
        return {"op": "version", "step": job["step"]}
    assert "state" in changed
    if job["state"] == "cancelled":
        return {"op": "cancel"}
    assert before["state"] == "running"
    return {"op": "end", "outcome": job["state"]}
