"""The queue: what is acknowledged is on disk, and every attempt counts once. covers D23"""

import contextlib
import dataclasses
import shutil
import sqlite3
from pathlib import Path

import pytest

from relaax_like.addons.coordinator import job_queue
from relaax_like.addons.coordinator.job import MAX_FAILURES, MAX_LOSSES, Attempt, Job, JobState
from relaax_like.addons.coordinator.job_queue import JobQueue, QueueFullError
from relaax_like.wire.errors import ConfigError, JournalError, ServerUnavailableError

KEY = "0123456789abcdef"


def submit(queue: JobQueue, number: int = 0) -> Job:
    return queue.submit(f"{KEY}{number}", "name", "{}", "ppo", "OpenAI_Gym")


def crash(folder: Path, tmp_path: Path) -> JobQueue:
    """Opens what `kill -9` would leave now: all that was written, without a close."""
    left = tmp_path / f"left-{len(list(tmp_path.iterdir()))}"
    shutil.copytree(folder, left)
    return JobQueue(left)


def test_everything_survives_a_crash_after_each_change(tmp_path: Path) -> None:
    folder = tmp_path / "queue"
    queue = JobQueue(folder)

    def check() -> None:
        again = crash(folder, tmp_path)
        assert list(again) == list(queue)
        assert again.submit("x" * 16, "new", "{}", "a", "b").id == len(queue) + 1
        again.close()

    first, second, third = (submit(queue, number) for number in range(3))
    check()
    attempt = queue.begin(first, "slave-1")
    check()
    assert queue.add_version(attempt, 100) == 1
    check()
    queue.end(attempt, JobState.DONE, "finished", "the tail")
    check()
    queue.cancel(second)
    check()
    queue.end(queue.begin(third, "slave-2"), JobState.FAILED, "status 3", "error: x")
    check()
    assert [job.state for job in queue] == [JobState.DONE, JobState.CANCELLED, JobState.QUEUED]
    assert (first.version, first.step, first.tail, first.config) == (1, 100, "the tail", "")
    queue.close()
    reopened = JobQueue(folder)
    assert list(reopened) == list(queue)
    reopened.close()


def test_the_same_key_is_the_same_job_also_after_a_restart(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path)
    job = submit(queue)
    assert submit(queue) is job
    queue.close()
    queue = JobQueue(tmp_path)
    assert submit(queue).id == job.id
    assert len(queue) == 1
    queue.close()


def test_a_job_is_retried_twice_and_then_failed_with_its_tail(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path)
    job = submit(queue)
    for number in range(1, MAX_FAILURES + 1):
        assert job.state is JobState.QUEUED
        attempt = queue.begin(job, "slave")
        assert attempt == Attempt(job.id, number)
        queue.end(attempt, JobState.FAILED, f"reason {number}", f"tail {number}")
    assert (job.state, job.reason, job.tail) == (JobState.FAILED, "reason 3", "tail 3")
    assert not queue.is_newest(attempt)
    queue.close()


def test_a_lost_slave_is_no_failure_of_the_job_unless_many_are_lost_in_a_row(
    tmp_path: Path,
) -> None:
    queue = JobQueue(tmp_path)
    job = submit(queue)
    for _ in range(MAX_LOSSES - 1):
        queue.end(queue.begin(job, "slave"), JobState.QUEUED, "lost", "")
    attempt = queue.begin(job, "slave")
    queue.add_version(attempt, 1)  # there was progress
    queue.end(attempt, JobState.QUEUED, "lost", "")
    for _ in range(MAX_LOSSES - 1):
        assert job.state is JobState.QUEUED
        queue.end(queue.begin(job, "slave"), JobState.QUEUED, "lost", "")
    assert job.state is JobState.FAILED
    assert "lost 20 slaves in a row" in job.reason
    queue.close()


def test_too_many_jobs_are_refused_until_some_end(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path, max_jobs=2)
    first, _ = submit(queue, 1), submit(queue, 2)
    with pytest.raises(QueueFullError, match=r"wait or run: 2, and .*cancel some"):
        submit(queue, 3)
    queue.cancel(first)
    assert submit(queue, 3).id == 3
    queue.close()


def test_old_ends_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_queue, "_MAX_ENDED", 4)
    queue = JobQueue(tmp_path)
    for number in range(40):
        queue.cancel(submit(queue, number))
    assert [job.id for job in queue] == [37, 38, 39, 40]
    again = crash(tmp_path, tmp_path.parent)
    assert list(again) == list(queue)
    assert submit(again, 99).id == 41
    again.close()
    queue.close()


def test_a_change_that_cannot_be_written_has_no_effect(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path)
    job = submit(queue)
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as other, other:
        other.execute("CREATE TRIGGER t BEFORE INSERT ON jobs BEGIN SELECT RAISE(ABORT, 'no'); END")
    before = dataclasses.replace(job)
    with pytest.raises(ServerUnavailableError, match="the queue cannot be written: no"):
        queue.begin(job, "slave")
    with pytest.raises(ServerUnavailableError):
        submit(queue, 1)
    assert list(queue) == [job] == [before]
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as other, other:
        other.execute("DROP TRIGGER t")
    assert queue.begin(job, "slave") == Attempt(1, 1)
    assert submit(queue, 1).id == 2
    queue.close()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("PRAGMA user_version = 3", "jobs of format 3, but this version reads jobs of format 2"),
        ("PRAGMA application_id = 7", "another program's file, but this version reads"),
        ("UPDATE jobs SET job = replace(job, 'ppo', 'pqo')", "damaged .* another checksum"),
        ("UPDATE jobs SET job = NULL", "not a file of jobs, or damaged"),
        ("DROP TABLE jobs", "jobs.db"),
    ],
)
def test_a_newer_foreign_or_damaged_queue_is_refused_by_name(
    tmp_path: Path, change: str, text: str
) -> None:
    queue = JobQueue(tmp_path)
    submit(queue)
    queue.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as database, database:
        database.execute(change)
    with pytest.raises((ConfigError, JournalError), match=text):
        JobQueue(tmp_path)


@pytest.mark.parametrize("content", [b"x" * 5000, b"SQLite format 3\0" + bytes(4096)])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "jobs.db").write_bytes(content)
    with pytest.raises(ConfigError, match=r"jobs\.db: not a file of jobs, or damaged"):
        JobQueue(tmp_path)
    assert (tmp_path / "jobs.db").read_bytes() == content


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").mkdir()
    with pytest.raises(JournalError, match=r"jobs\.db: cannot hold a queue"):
        JobQueue(tmp_path)
