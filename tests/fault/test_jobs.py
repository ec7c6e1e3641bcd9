"""A coordinator and its slaves under `kill -9`, failpoints and a full disk.

What was acknowledged is not lost, no job is done twice, and a job continues from its last version.
RELAAX_FAULT_SEEDS and RELAAX_FAULT_KILLS say how much of it is run. covers D23, D24
"""

import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import TRACE, Processes, Program, find_free_port, freeze, wait_until
from support.disks import fill, mount
from support.jobs import keep_history, make_config, read_changes
from support.time_of_day import LIBRARY, Clock

from relaax_like.addons.coordinator.client import JobsClient
from relaax_like.v1 import coordinator_pb2 as pb
from relaax_like.wire.errors import ServerUnavailableError
from relaax_like.wire.failpoints import ENVIRONMENT_VARIABLE

SEEDS = int(os.environ.get("RELAAX_FAULT_SEEDS", "1"))
KILLS = int(os.environ.get("RELAAX_FAULT_KILLS", "5"))
RELAAX = (sys.executable, "-m", "relaax_like.cli.main")
STEPS = 80
ENDED = (pb.JobInfo.DONE, pb.JobInfo.FAILED, pb.JobInfo.CANCELLED)


class Site(Processes):
    """A coordinator, two slaves, and an operator that submits all the while.

    Attributes:
      queue: folder of the coordinator.
      acknowledged: ids of the jobs whose submission was answered.
      most_jobs: number of jobs after which the operator submits no more.
      collectors: of each job.
    """

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.queue = folder / "queue"
        self.port = find_free_port()
        self.address = f"localhost:{self.port}"
        self.jobs = JobsClient(self.address, patience_sec=60.0)
        self.acknowledged: list[int] = []
        self.most_jobs = 3 * KILLS
        self.collectors = 0
        self._stop = threading.Event()
        self._operator = threading.Thread(target=self._submit, daemon=True)

    def start_coordinator(self, **env: str) -> Program:
        if not (self.queue / "jobs.db").exists():
            keep_history(self.queue)
        command = [*RELAAX, "jobs", "serve", self.queue, "--bind", self.address]
        return self.start("coordinator", [*command, "--silence-sec", 1], **env)

    def start_slave(self, name: str) -> Program:
        work = self.folder / name
        command = [sys.executable, "-m", "support.job_slave", self.address, name, work]
        return self.start(name, command, PYTHONPATH=os.pathsep.join(sys.path))

    def submit(self, number: int) -> None:
        """Submits one job more."""
        while len(self.acknowledged) < number:
            try:
                config = make_config(STEPS)
                self.acknowledged.append(self.jobs.submit("job", config, self.collectors))
            except ServerUnavailableError:
                continue

    def start_operator(self) -> None:
        self._operator.start()

    def stop_operator(self) -> None:
        self._stop.set()
        if self._operator.is_alive():
            self._operator.join()

    def list(self) -> dict[int, pb.JobInfo]:
        return {job.job: job for job in self.jobs.list()[0]}

    def measure_progress(self) -> int:
        """Returns a number that grows with each version and each job that is done."""
        return sum(job.version + 100 * (job.state in ENDED) for job in self.list().values())

    def wait_progress(self, before: int | None = None) -> None:
        """Waits until there is progress since it was measured; None: since now."""
        before = self.measure_progress() if before is None else before
        wait_until(lambda: self.measure_progress() > before, self.started)

    def wait_all_done(self) -> None:
        """Waits while there is progress, until all acknowledged jobs are done, however many."""
        while True:
            before, jobs = self.measure_progress(), self.list()
            if all(jobs[number].state in ENDED for number in self.acknowledged):
                break
            self.wait_progress(before)
        for number in self.acknowledged:
            assert jobs[number].state == pb.JobInfo.DONE, jobs[number]
            assert jobs[number].step == STEPS

    def check(self) -> None:
        """Fails unless what the queue has written, and the runs, are an undisturbed history."""
        records = read_changes(self.queue)
        assert set(self.acknowledged) <= set(records)
        for number, of_job in records.items():
            _check_records(of_job)
            if number in self.acknowledged:
                latest = self.queue / "runs" / f"job-{number}" / "latest"
                _check_run(latest, of_job)
        for program in self.started:
            assert TRACE not in program.output, program.output

    def _submit(self) -> None:
        while not self._stop.wait(0.2):
            if len(self.acknowledged) < self.most_jobs:
                self.submit(len(self.acknowledged) + 1)


def _check_records(records: list[dict[str, Any]]) -> None:
    """Fails unless a job was submitted once, done once, and never went back."""
    ops = [record["op"] for record in records]
    assert ops[0] == "submit"
    assert ops.count("submit") == 1
    outcomes = [record.get("outcome") for record in records if record["op"] == "end"]
    assert outcomes.count("done") <= 1
    if "done" in outcomes:
        assert records[-1].get("outcome") == "done"
    steps = [record["step"] for record in records if record["op"] == "version"]
    assert steps == sorted(steps)
    running = False
    for op in ops:  # each attempt begins after the end of the one before
        assert op in ("begin", "submit", "cancel") or running
        assert not (op == "begin" and running)
        running = {"begin": True, "end": False}.get(op, running)


def _check_run(run: Path, records: list[dict[str, Any]]) -> None:
    """Fails unless the last attempt continued from the newest version before it."""
    begins = [index for index, record in enumerate(records) if record["op"] == "begin"]
    before = [record["step"] for record in records[: begins[-1]] if record["op"] == "version"]
    history = [int(line) for line in (run / "history.txt").read_text().splitlines()]
    assert history[-1] == (before[-1] if before else 0)
    steps = {0} | {record["step"] for record in records if record["op"] == "version"}
    assert set(history) <= steps
    newest = max((run / "checkpoints").glob("cp-*"))
    assert int(newest.name.split("-")[1]) == STEPS
    assert (newest / "values.npy").read_bytes() == STEPS.to_bytes(8, "little") * 100


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as site:
        yield site
        site.stop_operator()
        for program in reversed(site.started):
            if program.alive:
                program.stop()
        site.jobs.close()
    site.assert_nothing_left()
    assert not list(tmp_path.rglob(".tmp-*"))


@pytest.mark.slow
@pytest.mark.parametrize("collectors", [0, 2])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_killed_again_and_again(site: Site, seed: int, collectors: int) -> None:
    """covers D23, D26"""
    draw = random.Random(seed)
    site.collectors = collectors
    programs = {"coordinator": site.start_coordinator()}
    names = [f"slave-{number}" for number in range(1, 3 + collectors)]
    programs |= {name: site.start_slave(name) for name in names}
    site.start_operator()
    for _ in range(KILLS):
        site.wait_progress()
        name = draw.choice(["coordinator", *names])
        threading.Event().wait(draw.uniform(0.0, 0.2))  # anywhere between two versions
        programs[name].stop(signal.SIGKILL)
        programs[name] = (
            site.start_coordinator() if name == "coordinator" else site.start_slave(name)
        )
    site.stop_operator()
    site.submit(3)
    site.wait_all_done()
    site.check()
    for number in site.acknowledged if collectors else ():
        played = site.queue / "runs" / f"job-{number}" / "latest" / "played.txt"
        lines = played.read_text().splitlines()
        assert len(set(lines)) == len(lines) >= STEPS  # each step was counted once


# Point -> a number of times after which it is still reached here.
POINTS = {
    "jobs.before_journal": 10,
    "jobs.after_journal": 10,
    "jobs.in_version": 4,
    "jobs.after_version": 4,
}


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("point", POINTS if SEEDS > 1 else list(POINTS)[1::2])
def test_killed_at_a_failpoint(site: Site, point: str, seed: int) -> None:
    at = random.Random(f"{point} {seed}").randint(1, POINTS[point])
    coordinator = site.start_coordinator(**{ENVIRONMENT_VARIABLE: f"{point}=kill@{at}"})
    site.start_slave("slave-1")
    site.most_jobs = 3
    site.start_operator()
    assert coordinator.wait() == -signal.SIGKILL
    site.start_coordinator()
    site.stop_operator()
    site.submit(2)
    site.wait_all_done()
    site.check()


def test_a_full_disk_under_the_coordinator(site: Site) -> None:
    with mount(site.queue, "size=2m"):
        site.start_coordinator()
        slave = site.start_slave("slave-1")
        site.submit(1)
        site.wait_progress()
        filler = fill(site.queue)
        slave.wait_for("no version was sent: .*No space left on device|could not be sent")
        assert "database or disk is full" in submit_until_refused(site)
        filler.unlink()
        del site.acknowledged[2:]  # the others are cancelled: they take too long
        for number in set(site.list()) - set(site.acknowledged):
            site.jobs.cancel(number)
        site.wait_all_done()
        for program in reversed(site.started):
            program.stop()
        site.check()


def submit_until_refused(site: Site) -> str:
    """Submits as much as fits into the disk's last block; returns why the next one was refused."""
    with JobsClient(site.address, patience_sec=0.0) as jobs:
        for _ in range(200):
            try:
                site.acknowledged.append(jobs.submit("job", make_config(STEPS)))
            except ServerUnavailableError as error:
                return str(error)
    return "nothing was refused"


@pytest.mark.slow
@pytest.mark.skipif(
    not LIBRARY.is_file() and not os.environ.get("RELAAX_REQUIRE_FAKETIME"),
    reason="there is no libfaketime (Debian: faketime)",
)
def test_a_time_of_day_that_jumps_under_the_coordinator(site: Site, tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    coordinator = site.start_coordinator(**clock.env)
    site.start_slave("slave-1")
    site.most_jobs = 3
    site.start_operator()
    for offset in ("+3d", "-400d", "+4000d", "-1"):
        clock.set(offset)
        site.most_jobs = len(site.acknowledged) + 3  # the slave is never without a job
        site.wait_progress()
    coordinator.stop(signal.SIGKILL)
    clock.set("-4000d")
    site.start_coordinator(**clock.env)
    site.stop_operator()
    site.submit(3)
    site.wait_all_done()
    site.check()


def test_a_slave_that_was_stopped_does_nothing_when_it_continues(site: Site) -> None:
    """SIGSTOP: the coordinator gives its job to another slave, and refuses what it sends later."""
    site.start_coordinator()
    slave = site.start_slave("slave-1")
    site.submit(1)
    (number,) = site.acknowledged
    site.wait_progress()
    freeze(slave.pid)
    wait_until(lambda: site.list()[number].state == pb.JobInfo.QUEUED, site.started)
    site.start_slave("slave-2")
    site.wait_all_done()
    slave.send(signal.SIGCONT)
    slave.wait_for("not the newest attempt|its result was not recorded")
    site.submit(2)
    site.wait_all_done()
    site.check()
