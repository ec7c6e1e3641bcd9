"""JobQueue: all jobs of a coordinator, in a database on disk.

    FOLDER/lock     locked while a coordinator lives
    FOLDER/jobs.db  all jobs: SQLite, with a write-ahead log beside it

A change is written before it takes effect, and before it is acknowledged: if the coordinator is
killed, no acknowledged submission and no recorded end of a job is lost.
"""

import dataclasses
import itertools
import json
import logging
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path

from relaax_like.addons.coordinator.job import (
    FORMAT,
    MAX_FAILURES,
    MAX_LOSSES,
    Attempt,
    Job,
    JobState,
)
from relaax_like.wire import failpoints
from relaax_like.wire.errors import (
    ConfigError,
    InvalidInputError,
    JournalError,
    ServerUnavailableError,
)

logger = logging.getLogger(__name__)

FILE_NAME = "jobs.db"
_KIND = zlib.crc32(b"relaax jobs") >> 1  # SQLite has signed numbers
# Jobs that have ended and are still listed.
_MAX_ENDED = 10_000


class QueueFullError(InvalidInputError):
    """There are too many jobs that have not ended, or too many slaves."""


class JobQueue:
    """Keeps the jobs of one folder, and writes each change. Not thread-safe.

        queue = JobQueue(folder)
        job = queue.submit(key, "walk", config, algorithm, environment)
        attempt = queue.begin(job, "slave-1")
        queue.add_version(attempt, step=1000)
        queue.end(attempt, State.DONE, "finished", tail)
        queue.close()

    Each change raises ServerUnavailableError, and has no effect, if it cannot be written.

    Args:
      folder: folder of the coordinator; locked by the caller.
      max_jobs: maximum number of jobs that have not ended.

    Raises:
      ConfigError: the file is of another program or of another version of relaax_like, or is
        damaged.
      JournalError: the file cannot be read or written.
    """

    def __init__(self, folder: Path, max_jobs: int = 10_000):
        self._max_jobs = max_jobs
        self._path = folder / FILE_NAME
        self._jobs: dict[int, Job] = {}  # in the order of their ids
        self._by_key: dict[str, int] = {}
        self._open: set[int] = set()  # ids of the jobs that have not ended
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Calls come from several threads, one at a time.
            self._database = sqlite3.connect(self._path, check_same_thread=False)
            try:
                self._read()
            except BaseException:
                self._database.close()
                raise
        except (OSError, sqlite3.OperationalError) as error:
            raise JournalError(
                f"{self._path}: cannot hold a queue: {error}; make sure that this user can read "
                "and write there and that the disk has space, or choose another folder"
            ) from error
        except (sqlite3.DatabaseError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{self._path}: not a file of jobs, or damaged ({type(error).__name__}: "
                f"{error!s:.200}); restore the coordinator's folder from a backup, or choose "
                "another folder"
            ) from None

    def __iter__(self) -> Iterator[Job]:
        """Yields all jobs in the order of their ids."""
        return iter(self._jobs.values())

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, job_id: int) -> Job | None:
        """Returns a job; None: no job has this id."""
        return self._jobs.get(job_id)

    def list_after(self, job_id: int, most: int) -> list[Job]:
        """Returns at most `most` jobs with ids above `job_id`, in the order of their ids."""
        after = (job for job in self._jobs.values() if job.id > job_id)
        return list(itertools.islice(after, most))

    def list_queued(self) -> list[Job]:
        """Returns the jobs that wait for a slave, in the order of their ids."""
        return [job for job in self._jobs.values() if job.state is JobState.QUEUED]

    def submit(
        self,
        key: str,
        name: str,
        config: str,
        algorithm: str,
        environment: str,
        collectors: int = 0,
    ) -> Job:
        """Adds a job; with a key that was used before, returns the job with this key.

        Args:
          key: see `Job`.
          name: see `Job`.
          config: see `Job`.
          algorithm: see `Job`.
          environment: see `Job`.
          collectors: see `Job`.

        Raises:
          QueueFullError: there are too many jobs that have not ended.
          ServerUnavailableError: the queue cannot be written.
        """
        if (known := self._by_key.get(key)) is not None:
            return self._jobs[known]
        if len(self._open) >= self._max_jobs:
            raise QueueFullError(
                f"jobs that wait or run: {len(self._open)}, and this coordinator accepts at most "
                f"{self._max_jobs} (--max-jobs); wait until some have ended, or cancel some"
            )
        number = max(self._jobs, default=0) + 1
        job = Job(number, key, name, config, algorithm, environment, collectors)
        self._write(job)
        self._add(job)
        return job

    def begin(self, job: Job, slave: str) -> Attempt:
        """Assigns a queued job to a slave; returns the new attempt."""
        assert job.state is JobState.QUEUED, job
        self._change(job, state=JobState.RUNNING, attempts=job.attempts + 1, slave=slave, reason="")
        return job.attempt

    def add_version(self, attempt: Attempt, step: int) -> int:
        """Records that a new version is on the disk; returns its number."""
        job = self._get_running(attempt)
        self._change(job, version=job.version + 1, step=step, losses=0)
        return job.version

    def end(self, attempt: Attempt, state: JobState, reason: str, tail: str) -> None:
        """Ends an attempt.

        Args:
          attempt: the newest attempt of a running job.
          state: DONE: the job has ended; FAILED: it is queued again, but ends at the third failure;
            QUEUED: the slave was lost, left or was busy, and the job is queued again, but ends as
            FAILED after `MAX_LOSSES` of these without a new version in between.
          reason: why the attempt ended.
          tail: end of its output.
        """
        job = self._get_running(attempt)
        failures = job.failures + (state is JobState.FAILED)
        losses = job.losses + (state is JobState.QUEUED)
        if state is not JobState.DONE:
            state = JobState.QUEUED
            if failures >= MAX_FAILURES:
                state = JobState.FAILED
            elif losses >= MAX_LOSSES:
                state = JobState.FAILED
                reason = f"lost {losses} slaves in a row without a new version: {reason}"
        tail = tail or job.tail
        self._change(job, state=state, failures=failures, losses=losses, reason=reason, tail=tail)

    def set_collectors(self, job: Job, collectors: int) -> None:
        """Changes the number of collectors of a job that has not ended."""
        self._change(job, collectors=collectors)

    def cancel(self, job: Job) -> None:
        """Cancels a job that has not ended; results of its attempt are refused from now on."""
        assert not job.state.has_ended, job
        self._change(job, state=JobState.CANCELLED, reason="cancelled")

    def is_newest(self, attempt: Attempt) -> bool:
        """Returns whether an attempt is the newest of a job that is running."""
        job = self._jobs.get(attempt.job)
        return job is not None and job.state is JobState.RUNNING and job.attempt == attempt

    def close(self) -> None:
        """Closes the file; an error is logged."""
        try:
            self._database.close()
        except sqlite3.Error as error:
            logger.error("%s: %s", self._path, error)

    def _get_running(self, attempt: Attempt) -> Job:
        assert self.is_newest(attempt), attempt
        return self._jobs[attempt.job]

    def _read(self) -> None:
        """Reads the file of jobs, or makes one.

        Raises:
          ConfigError: the file is of another program or version.
          ValueError, LookupError, TypeError, AttributeError: a job is damaged.
          sqlite3.Error: the file is damaged, or cannot be read or written.
        """
        database = self._database
        (kind,) = database.execute("PRAGMA application_id").fetchone()
        (found,) = database.execute("PRAGMA user_version").fetchone()
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        is_new = (kind, found, tables) == (0, 0, 0)
        if not is_new and (kind, found) != (_KIND, FORMAT):
            what = f"jobs of format {found}" if kind == _KIND else "another program's file"
            raise ConfigError(
                f"{self._path}: {what}, but this version reads jobs of format {FORMAT}; use the "
                "version of relaax_like that wrote it, or another folder"
            )
        # What is committed survives the end of the process; a power cut can take the newest.
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        if is_new:
            with database:
                database.execute("BEGIN")
                database.execute(
                    "CREATE TABLE jobs (id INTEGER PRIMARY KEY, job TEXT, crc INTEGER)"
                )
                database.execute(f"PRAGMA application_id = {_KIND}")
                database.execute(f"PRAGMA user_version = {FORMAT}")
        for job_id, text, crc in database.execute("SELECT id, job, crc FROM jobs ORDER BY id"):
            if zlib.crc32(text.encode()) != crc:
                raise ValueError(f"job {job_id} has another checksum")
            fields = json.loads(text)
            self._add(Job(**{**fields, "state": JobState(fields["state"])}))

    def _add(self, job: Job) -> None:
        self._jobs[job.id] = job
        self._by_key[job.key] = job.id
        if not job.state.has_ended:
            self._open.add(job.id)

    def _change(self, job: Job, **fields: object) -> None:
        """Writes a job with other fields; then they take effect."""
        new = dataclasses.replace(job, **fields)  # type: ignore[arg-type]
        oldest = None
        if new.state.has_ended:
            new.config = ""
            if len(self._jobs) - len(self._open) >= _MAX_ENDED:
                oldest = next(one for one in self._jobs.values() if one.state.has_ended)
        self._write(new, oldest)
        vars(job).update(vars(new))
        if job.state.has_ended:
            self._open.discard(job.id)
        if oldest is not None:
            del self._jobs[oldest.id], self._by_key[oldest.key]

    def _write(self, job: Job, oldest: Job | None = None) -> None:
        """Writes a job, and removes the oldest one that has ended, if there is any to remove.

        Raises:
          ServerUnavailableError: the file cannot be written; it has not changed.
        """
        text = json.dumps(dataclasses.asdict(job))
        row = (job.id, text, zlib.crc32(text.encode()))
        failpoints.hit("jobs.before_journal")
        try:
            with self._database:
                self._database.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)", row)
                if oldest is not None:
                    self._database.execute("DELETE FROM jobs WHERE id = ?", (oldest.id,))
        except sqlite3.Error as error:
            raise ServerUnavailableError(f"the queue cannot be written: {error}") from error
        failpoints.hit("jobs.after_journal")
