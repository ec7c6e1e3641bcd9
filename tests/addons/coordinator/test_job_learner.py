"""A resident slave: each job in a process of its own; the next slave continues from its version."""

import errno
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.cluster import Processes, find_free_port, wait_until
from support.jobs import PROGRAM, Session, Site, keep_history, make_config, read_changes

from relaax_like.addons.coordinator import job_learner
from relaax_like.addons.coordinator.job import MAX_REASON
from relaax_like.addons.coordinator.job_learner import JobLearner, _list_installed, _RunningJob
from relaax_like.addons.coordinator.slave import Doing
from relaax_like.addons.coordinator.tasks import TaskFail
from relaax_like.config.algorithm_folder import ENTRY_POINTS
from relaax_like.runs.processes import launcher
from relaax_like.v1 import coordinator_pb2 as pb
from relaax_like.wire.errors import (
    ConfigError,
    InvalidInputError,
    RelaaxError,
    ServerUnavailableError,
    SnapshotError,
)

LONG = 100_000  # steps that no test waits for


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path / "coordinator") as site:
        yield site


def read_history(info: pb.JobInfo) -> list[int]:
    """Returns the steps with which a job's processes began."""
    return [int(line) for line in Path(info.folder, "history.txt").read_text().splitlines()]


def find_processes() -> list[psutil.Process]:
    """Returns the processes of jobs that this test has started, directly or not."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if PROGRAM[1] in " ".join(_get_command(child))]


def _get_command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_jobs_run_one_after_another_and_their_folders_are_the_coordinators(
    site: Site, tmp_path: Path
) -> None:
    """covers D17, D23"""
    with site.learner(tmp_path / "work"):
        jobs = [site.jobs.submit(f"job-{n}", make_config(20 + n)) for n in range(3)]
        for number, job in enumerate(jobs):
            done = site.wait_state(job, "done")
            assert (done.reason, done.step) == (f"{20 + number} steps", 20 + number)
            folder = Path(done.folder)
            assert json.loads((folder / "config.yaml").read_text()) == make_config(20 + number)
            newest = max((folder / "checkpoints").iterdir())
            assert int(newest.name.split("-")[1]) == 20 + number
            assert read_history(done) == [0]
            assert (folder.parent / "latest").resolve() == folder.resolve()
        assert not (tmp_path / "work" / "job").exists()
        assert not find_processes()


def test_a_slave_that_leaves_hands_its_job_on_with_the_newest_version(
    site: Site, tmp_path: Path
) -> None:
    """covers D17, D23, D24"""
    job = site.jobs.submit("job", make_config(LONG))
    with site.learner(tmp_path / "first", "first"):
        wait_until(lambda: site.get(job).version >= 1, "a version")
    left = site.get(job)
    assert left.step > 0
    assert site.get_state(job) == "queued"
    assert not find_processes()
    with site.learner(tmp_path / "second", "second"):
        again = wait_until(lambda: _get_later(site, job, left.step), "progress")
        assert read_history(again) == [0, left.step]
        assert again.attempts == 2
        site.jobs.cancel(job)
        wait_until(lambda: not find_processes(), "the end of the process")
    assert site.get_state(job) == "cancelled"


def _get_later(site: Site, job: int, step: int) -> pb.JobInfo | None:
    info = site.get(job)
    return info if info.step > step else None


def test_a_failing_job_is_tried_three_times_and_takes_no_slave_with_it(
    site: Site, tmp_path: Path
) -> None:
    """covers D23"""
    with site.learner(tmp_path / "work"):
        exits = site.jobs.submit("exits", make_config(seed=13))
        killed = site.jobs.submit("killed", make_config(seed=14))
        fine = site.jobs.submit("fine", make_config())
        failed = site.wait_state(exits, "failed")
        assert failed.reason == "its process ended with status 3"
        assert failed.tail.endswith("error: this job never succeeds")
        assert failed.attempts == 3
        # Each attempt began with the version of the one before.
        assert read_history(failed) == [0, 5, 10]
        assert site.wait_state(killed, "failed").reason == "its process was killed by SIGKILL"
        site.wait_state(fine, "done")


def test_the_end_of_a_job_is_recorded_whatever_its_reason_consists_of(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(running: _RunningJob) -> tuple[int, str]:
        raise ConfigError("\u00fc" * 900)  # 1800 bytes

    monkeypatch.setattr(_RunningJob, "_train", fail)
    with site.learner(tmp_path / "work"):
        failed = site.wait_state(site.jobs.submit("job", make_config()), "failed")
    assert failed.reason == "\u00fc" * (MAX_REASON // 2)


def test_a_slave_has_one_folder_and_one_name(site: Site, tmp_path: Path) -> None:
    with site.learner(tmp_path / "work"):
        with pytest.raises(SnapshotError, match=r"in use by another slave \(pid"):
            JobLearner(tmp_path / "work")
    with JobLearner(tmp_path / "work") as learner:
        with pytest.raises(InvalidInputError, match=r"name: '\.\./x'"):
            learner.connect(site.address, "../x")


def test_a_guardian_that_cannot_be_started_is_one_line_and_leaves_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(term_sec: float) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(launcher, "Guardian", fail)
        with pytest.raises(
            RelaaxError, match=r"guardian: cannot start .*: Resource temporarily unavailable; end"
        ) as raised:  # which keeps the object alive, and with it the lock's file
            JobLearner(tmp_path / "work")
    with JobLearner(tmp_path / "work"):
        assert raised.value.__cause__ is not None


def test_a_version_that_cannot_be_fetched_is_logged_once(
    site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    find = site.coordinator.find_version
    problems = [ServerUnavailableError("the disk failed")] * 2

    def find_version(request: pb.GetVersionRequest) -> Path:
        if problems:
            raise problems.pop()
        return find(request)

    monkeypatch.setattr(site.coordinator, "find_version", find_version)
    first = Session(site.address, "first")
    job = site.jobs.submit("job", make_config())
    attempt = first.take_job()
    first.send_version(attempt)
    first.end(attempt, "STOPPED")
    first.close()
    with site.learner(tmp_path / "work"):
        wait_until(lambda: site.get(job).attempts == 3, "the next attempt")
    lines = [line for line in caplog.messages if "could not be fetched" in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"job {job}, attempt 2: its version could not be fetched, retrying:")
    assert lines[0].endswith(": the disk failed")


def test_a_slave_that_is_closed_starts_no_job(site: Site, tmp_path: Path) -> None:
    with site.learner(tmp_path / "work") as learner:
        pass
    task = {"job": 1, "attempt": 1, "config": make_config(), "has_version": False}
    with pytest.raises(TaskFail, match="the slave is shutting down") as caught:
        learner.deal_with_learner_start(task)
    assert caught.value.result["busy"] is True
    assert learner.get_doing() == Doing()


def test_a_start_with_a_number_that_no_job_has_is_refused_by_name(
    site: Site, tmp_path: Path
) -> None:
    start = {"job": 1, "attempt": 1, "config": make_config()}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"job": 1 << 64}, "job: 18446744073709551616, expected an integer from 1 to 1844"),
        ({"job": 0}, "job: 0, expected an integer from 1"),
        ({"job": "1"}, "job: '1', expected an integer from 1"),
        ({"attempt": True}, "attempt: True, expected an integer from 1 to 4294967295"),
        ({"attempt": 1 << 32}, "attempt: 4294967296, expected an integer from 1 to 4294967295"),
        ({"config": None}, "config: None, expected the settings of a job"),
        ({"config": {}}, "environment: this slave has no '' among its environments"),
        ({"config": {"environment": {"env": "os:X"}}}, "this slave has no 'module-os' among"),
    ]
    with site.learner(tmp_path / "work") as learner:
        wait_until(lambda: len(site.jobs.list()[1]) == 1, "the slave")
        for wrong, want in cases:
            task = site.coordinator.send_task("slave", "learner_start_task", start | wrong)
            with pytest.raises(TaskFail, match=want):
                task.result(10.0)
        assert site.coordinator.send_task("slave", "resource", {}).result(10.0)
        assert learner.slave.error is None
        assert learner.get_doing() == Doing()


def test_algorithms_with_names_that_jobs_cannot_have_are_not_offered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["good-1", "not good", "x" * 101, ".hidden"]
    points = [importlib.metadata.EntryPoint(name, "package", ENTRY_POINTS) for name in names]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    assert _list_installed() == ["good-1"]


def test_resources_are_numbers_of_gpus_and_cpus(site: Site, tmp_path: Path) -> None:
    """covers D21"""
    with site.learner(tmp_path / "work"):
        wait_until(lambda: len(site.jobs.list()[1]) == 1, "the slave")
        found = site.coordinator.send_task("slave", "resource", {}).result(10.0)
    assert found == {"gpu": len(list(Path("/dev").glob("nvidia[0-9]*"))), "cpu": os.cpu_count()}


def test_a_version_is_recorded_with_the_step_of_the_snapshot_that_it_holds(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run writes its next snapshot after the slave has seen the one before."""
    stage, staged = job_learner.stage_folder, []

    def stage_folder(run: Path, staging: Path) -> None:
        def find_last() -> int:
            return max(int(path.name.split("-")[1]) for path in run.glob("checkpoints/cp-*"))

        seen = find_last()
        wait_until(lambda: find_last() > seen or seen >= 60, "the next snapshot")
        stage(run, staging)
        snapshots = staging.glob("checkpoints/cp-*")
        staged.append(max(int(path.name.split("-")[1]) for path in snapshots))

    monkeypatch.setattr(job_learner, "stage_folder", stage_folder)
    keep_history(site.folder)
    with site.learner(tmp_path / "work"):
        job = site.jobs.submit("job", make_config(80))
        site.wait_state(job, "done")
    (records,) = read_changes(site.folder).values()
    assert [record["step"] for record in records if record["op"] == "version"] == staged
    assert len(staged) > 1


def test_a_version_that_is_too_large_is_refused_and_training_continues(tmp_path: Path) -> None:
    with Site(tmp_path / "coordinator", max_version_bytes=100) as site:
        with site.learner(tmp_path / "work"):
            job = site.jobs.submit("job", make_config(20))
            failed = site.wait_state(job, "failed")
    assert "accepts at most 100 (--max-version-mb)" in failed.reason
    assert failed.version == 0


def test_killed_slaves_leave_no_process_and_open_no_port(tmp_path: Path) -> None:
    """covers D14, D24"""
    with Processes(tmp_path) as processes, Site(tmp_path / "coordinator", silence_sec=2.0) as site:
        code = (
            "import sys; from pathlib import Path;"
            "from relaax_like.addons.coordinator.job_learner import JobLearner;"
            "learner = JobLearner(Path(sys.argv[2]), sys.argv[3:]).__enter__();"
            "learner.connect(sys.argv[1], 'slave').ended.wait()"
        )
        slave = processes.start(
            "slave", [sys.executable, "-c", code, site.address, tmp_path / "work", *PROGRAM]
        )
        job = site.jobs.submit("job", make_config(LONG))
        wait_until(lambda: site.get(job).version >= 1, slave)
        alive = [psutil.Process(slave.pid), *psutil.Process(slave.pid).children(recursive=True)]
        assert len(alive) >= 3  # the slave, its guardian, the job
        kinds = [one.status for process in alive for one in process.net_connections("inet")]
        assert kinds
        assert psutil.CONN_LISTEN not in kinds
        slave.stop(signal.SIGKILL)
        processes.assert_nothing_left()
        step = site.wait_state(job, "queued").step
        with site.learner(tmp_path / "work", "other"):
            again = wait_until(lambda: _get_later(site, job, step), "progress")
            assert read_history(again) == [0, step]


def test_a_slave_waits_for_a_coordinator_and_survives_its_restart(tmp_path: Path) -> None:
    """covers D24"""
    port = find_free_port()
    with JobLearner(tmp_path / "work", PROGRAM) as learner:
        slave = learner.connect(f"localhost:{port}", "slave")
        wait_until(lambda: not slave._is_reachable, "the failed connection")
        with Site(tmp_path / "coordinator", port=port) as site:
            job = site.jobs.submit("job", make_config(400))
            wait_until(lambda: site.get(job).version >= 1, "a version")
        assert not slave.ended.is_set()
        with Site(tmp_path / "coordinator", port=port) as site:
            done = site.wait_state(job, "done")
            assert (done.attempts, done.step) == (1, 400)
            assert read_history(done) == [0]


def test_an_idle_slave_has_not_loaded_tensorflow() -> None:
    """covers D14"""
    code = "import sys, relaax_like.launch.slave; print(' '.join(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "relaax_like.addons.coordinator.job_learner" in loaded
    assert not loaded & {"tensorflow", "keras", "numba", "relaax_like.nn", "relaax_like.algorithm"}


def test_the_next_job_waits_until_the_one_before_is_over(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is acknowledged, and the next job assigned, before the slave has cleaned up."""
    report = job_learner.LearnerSlave.report_end

    def report_slowly(*arguments: object) -> bool:
        accepted = report(*arguments)  # type: ignore[arg-type]
        time.sleep(0.2)
        return accepted

    monkeypatch.setattr(job_learner.LearnerSlave, "report_end", report_slowly)
    with site.learner(tmp_path / "work"):
        jobs = [site.jobs.submit("job", make_config()) for _ in range(3)]
        for job in jobs:
            assert site.wait_state(job, "done").attempts == 1
