"""JobQueue: all jobs of a coordinator, and a journal of what happened to them.

    FOLDER/lock                     locked while a coordinator lives
    FOLDER/queue/jobs.json          all jobs, up to a record of the journal
    FOLDER/queue/journal-INDEX.log  what happened since, a JSON object per record
    FOLDER/queue-head               up to where the journal has been synced

A record is written before it takes effect, and before it is acknowledged: if the coordinator is
killed, no acknowledged submission and no recorded end of a job is lost.
"""

import dataclasses
import itertools
import json
import logging
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from relaax_like.coordinator.job import (
    FORMAT,
    MAX_FAILURES,
    MAX_LOSSES,
    Attempt,
    Job,
    State,
)
from relaax_like.journal.head import JournalHead, path_of_head
from relaax_like.journal.journal import Journal
from relaax_like.journal.reader import DamagedJournalError, JournalReader
from relaax_like.wire import failpoints
from relaax_like.wire.errors import (
    ConfigError,
    InvalidInputError,
    JournalError,
    ServerUnavailableError,
)
from relaax_like.wire.syncing import TEMPORARY, replace_file

logger = logging.getLogger(__name__)

QUEUE_FOLDER = "queue"
_KIND = "relaax jobs"
_FINGERPRINT = zlib.crc32(_KIND.encode())
_STATE_NAME = "jobs.json"
# Records after which the state is written again, so that the next start reads few.
_COMPACT_RECORDS = 10_000
# Jobs that have ended and are still listed.
_MAX_ENDED = 10_000


class QueueFullError(InvalidInputError):
    """There are too many jobs that have not ended."""


class JobQueue:
    """Keeps the jobs of one folder, and journals each change. Not thread-safe.

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
      ConfigError: the files are of another program or of another version of relaax_like, or the
        file of jobs is damaged.
      JournalError: the journal is damaged or of another version of relaax_like, or a file cannot be
        read or written.
    """

    def __init__(self, folder: Path, max_jobs: int = 10_000):
        self._max_jobs = max_jobs
        self._folder = folder / QUEUE_FOLDER
        self._jobs: dict[int, Job] = {}  # in the order of their ids
        self._by_key: dict[str, int] = {}
        self._open_jobs = 0
        self._ended = 0
        self._next_id = 1
        self._records = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            first = self._read_state()
        except OSError as error:
            raise JournalError(
                f"{self._folder}: cannot hold a queue: {error}; make sure that this user can read "
                "and write there and that the disk has space, or choose another folder"
            ) from error
        head = JournalHead(path_of_head(self._folder))
        reader = JournalReader(self._folder, _FINGERPRINT, first, head)
        try:
            for index, payload in reader:
                self._replay(index, bytes(payload))
        except DamagedJournalError as error:
            raise JournalError(
                f"{error.damage}. Restore the coordinator's folder from a backup, or choose "
                "another folder"
            ) from None
        if reader.torn:
            logger.warning("%s; truncating the queue's journal there", reader.torn)
        self._journal = Journal(
            self._folder, reader.next_index, fingerprint=_FINGERPRINT, head=head
        )
        self._records = reader.next_index - first

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
        return [job for job in self._jobs.values() if job.state is State.QUEUED]

    def submit(self, key: str, name: str, config: str, algorithm: str, environment: str) -> Job:
        """Adds a job; with a key that was used before, returns the job with this key.

        Args:
          key: see `Job`.
          name: see `Job`.
          config: see `Job`.
          algorithm: see `Job`.
          environment: see `Job`.

        Raises:
          QueueFullError: there are too many jobs that have not ended.
          ServerUnavailableError: the queue cannot be written.
        """
        if (known := self._by_key.get(key)) is not None:
            return self._jobs[known]
        if self._open_jobs >= self._max_jobs:
            raise QueueFullError(
                f"jobs that wait or run: {self._open_jobs}, and this coordinator accepts at most "
                f"{self._max_jobs} (--max-jobs); wait until some have ended, or cancel some"
            )
        job_id = self._next_id
        self._write(
            "submit",
            job=job_id,
            key=key,
            name=name,
            config=config,
            algorithm=algorithm,
            environment=environment,
        )
        return self._jobs[job_id]

    def begin(self, job: Job, slave: str) -> Attempt:
        """Assigns a queued job to a slave; returns the new attempt."""
        assert job.state is State.QUEUED, job
        self._write("begin", job=job.id, slave=slave)
        return job.attempt

    def add_version(self, attempt: Attempt, step: int) -> int:
        """Records that a new version is on the disk; returns its number."""
        job = self._get_running(attempt)
        self._write("version", job=job.id, step=step)
        return job.version

    def end(self, attempt: Attempt, state: State, reason: str, tail: str) -> None:
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
        self._write("end", job=job.id, outcome=state, reason=reason, tail=tail)

    def cancel(self, job: Job) -> None:
        """Cancels a job that has not ended; results of its attempt are refused from now on."""
        assert not job.state.has_ended, job
        self._write("cancel", job=job.id)

    def is_newest(self, attempt: Attempt) -> bool:
        """Returns whether an attempt is the newest of a job that is running."""
        job = self._jobs.get(attempt.job)
        return job is not None and job.state is State.RUNNING and job.attempt == attempt

    def close(self) -> None:
        """Syncs and closes the journal; an error is logged."""
        try:
            self._journal.close()
        except JournalError as error:
            logger.error("%s", error)

    def _get_running(self, attempt: Attempt) -> Job:
        assert self.is_newest(attempt), attempt
        return self._jobs[attempt.job]

    # Records.

    def _write(self, op: str, **fields: Any) -> None:
        record = {"op": op, **fields}
        failpoints.hit("jobs.before_journal")
        try:
            self._journal.append([json.dumps(record).encode()])
        except JournalError as error:
            raise ServerUnavailableError(f"the queue cannot be written: {error}") from error
        failpoints.hit("jobs.after_journal")
        self._apply(record)
        self._records += 1
        if self._records >= _COMPACT_RECORDS:
            self._compact()

    def _replay(self, index: int, payload: bytes) -> None:
        try:
            self._apply(json.loads(payload))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise JournalError(
                f"{self._folder}: record {index} cannot be read: {type(error).__name__}: "
                f"{error!s:.200}; it was written by another version of relaax_like. Use that "
                "version, or another folder"
            ) from None

    def _apply(self, record: Mapping[str, Any]) -> None:
        appliers: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "submit": self._apply_submit,
            "begin": self._apply_begin,
            "version": self._apply_version,
            "end": self._apply_end,
            "cancel": self._apply_cancel,
        }
        appliers[record["op"]](record)

    def _apply_submit(self, record: Mapping[str, Any]) -> None:
        job = Job(
            id=record["job"],
            key=record["key"],
            name=record["name"],
            config=record["config"],
            algorithm=record["algorithm"],
            environment=record["environment"],
        )
        self._add(job)

    def _apply_begin(self, record: Mapping[str, Any]) -> None:
        job = self._jobs[record["job"]]
        job.state = State.RUNNING
        job.attempts += 1
        job.slave = record["slave"]
        job.reason = ""

    def _apply_version(self, record: Mapping[str, Any]) -> None:
        job = self._jobs[record["job"]]
        job.version += 1
        job.step = record["step"]
        job.losses = 0

    def _apply_end(self, record: Mapping[str, Any]) -> None:
        job = self._jobs[record["job"]]
        outcome = State(record["outcome"])
        job.reason, job.tail = record["reason"], record["tail"] or job.tail
        if outcome is State.DONE:
            self._finish(job, State.DONE)
            return
        if outcome is State.FAILED:
            job.failures += 1
        else:
            job.losses += 1
        if job.failures >= MAX_FAILURES:
            self._finish(job, State.FAILED)
        elif job.losses >= MAX_LOSSES:
            job.reason = f"lost {job.losses} slaves in a row without a new version: {job.reason}"
            self._finish(job, State.FAILED)
        else:
            job.state = State.QUEUED

    def _apply_cancel(self, record: Mapping[str, Any]) -> None:
        job = self._jobs[record["job"]]
        job.reason = "cancelled"
        self._finish(job, State.CANCELLED)

    def _add(self, job: Job) -> None:
        self._jobs[job.id] = job
        self._by_key[job.key] = job.id
        self._next_id = job.id + 1
        if job.state.has_ended:
            self._ended += 1
        else:
            self._open_jobs += 1

    def _finish(self, job: Job, state: State) -> None:
        job.state, job.config = state, ""
        self._open_jobs -= 1
        self._ended += 1
        if self._ended > _MAX_ENDED:
            oldest = next(one for one in self._jobs.values() if one.state.has_ended)
            del self._jobs[oldest.id], self._by_key[oldest.key]
            self._ended -= 1

    # The state.

    def _compact(self) -> None:
        """Writes all jobs to a file, and removes the records before."""
        try:
            index = self._journal.start_segment()
            state = {
                "kind": _KIND,
                "format": FORMAT,
                "next_record": index,
                "next_job": self._next_id,
                "jobs": [dataclasses.asdict(job) for job in self._jobs.values()],
            }
            self._write_state(state)
        except (JournalError, OSError) as error:
            logger.warning(
                "%s was not written, so the journal before it is kept: %s",
                self._folder / _STATE_NAME,
                error,
            )
            self._records //= 2  # tried again later
            return
        self._journal.drop_before(index)
        self._records = 0

    def _write_state(self, state: Mapping[str, Any]) -> None:
        replace_file(self._folder / _STATE_NAME, json.dumps(state).encode())

    def _read_state(self) -> int:
        """Reads the file of jobs; returns the index of the first record after it.

        In a folder that is empty, except for what a crash left behind, writes a file without jobs.

        Raises:
          ConfigError: the folder or the file is of another program or version, or damaged.
          OSError: the file cannot be read or written.
        """
        path = self._folder / _STATE_NAME
        if not path.exists():
            if any(not one.name.startswith(TEMPORARY) for one in self._folder.iterdir()):
                raise ConfigError(
                    f"{self._folder}: not the queue of a coordinator, because it has no "
                    f"{_STATE_NAME}; restore that file from a backup, or choose another folder"
                )
            # Names the format from the beginning.
            self._write_state(
                {"kind": _KIND, "format": FORMAT, "next_record": 0, "next_job": 1, "jobs": []}
            )
            return 0
        try:
            state = json.loads(path.read_text("utf-8"))
            kind, found = state["kind"], state["format"]
        except (ValueError, KeyError, TypeError) as error:
            raise _make_damaged_error(path, error) from None
        if kind != _KIND or found != FORMAT:
            raise ConfigError(
                f"{path}: {kind!s:.80} of format {found!s:.40}, but this version reads {_KIND} of "
                f"format {FORMAT}; use the version of relaax_like that wrote it, or another folder"
            )
        try:
            for fields in state["jobs"]:
                self._add(Job(**{**fields, "state": State(fields["state"])}))
            self._next_id = int(state["next_job"])
            return int(state["next_record"])
        except (ValueError, KeyError, TypeError) as error:
            raise _make_damaged_error(path, error) from None


def _make_damaged_error(path: Path, error: Exception) -> ConfigError:
    return ConfigError(
        f"{path}: not a file of jobs, or damaged ({type(error).__name__}: {error!s:.200}); restore "
        "the coordinator's folder from a backup, or choose another folder"
    )
