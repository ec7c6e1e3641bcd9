"""Jobs: what the queue knows about each of them, and which names and sizes are accepted."""

import re
from dataclasses import dataclass
from enum import StrEnum

from relaax_like.config.job_names import EXPECTED_NAME, is_name
from relaax_like.v1 import coordinator_pb2 as pb
from relaax_like.wire.errors import InvalidInputError

# Format of messages and of the queue's files.
FORMAT = 2
MAX_CONFIG_BYTES = 64 * 1024
MAX_TAIL_BYTES = 16 * 1024
MAX_REASON = 1000
MAX_PAYLOAD_BYTES = 512 * 1024
# Largest message that the coordinator accepts.
MAX_MESSAGE_BYTES = 1024 * 1024
# Largest numbers that messages can hold.
MAX_JOB = 2**64 - 1
MAX_ATTEMPT = 2**32 - 1
# Attempts that fail before a job does: the first one and two retries.
MAX_FAILURES = 3
# Collectors of one job.
MAX_COLLECTORS = 255
# Slaves that a job can lose without a new version in between.
MAX_LOSSES = 20
_KEY = re.compile(r"[A-Za-z0-9]{16,64}")


class JobState(StrEnum):
    """State of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        """Whether the state is final."""
        return self in (JobState.DONE, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True)
class Attempt:
    """One attempt to run a job; results of an attempt that is not the newest are refused.

    Attributes:
      job: id of the job.
      number: 1 for the job's first attempt.
      collector: number of one of the attempt's collectors, 1 or more; 0: its learner.
    """

    job: int
    number: int
    collector: int = 0

    @classmethod
    def of(cls, message: pb.Attempt) -> "Attempt":
        """Returns an attempt that was received."""
        return cls(message.job, message.attempt, message.collector)

    def to_message(self) -> pb.Attempt:
        """Returns the attempt as a message."""
        return pb.Attempt(job=self.job, attempt=self.number, collector=self.collector)

    @property
    def of_learner(self) -> "Attempt":
        """The attempt that a collector belongs to."""
        return Attempt(self.job, self.number)

    def __str__(self) -> str:
        end = f", collector {self.collector}" if self.collector else ""
        return f"job {self.job}, attempt {self.number}{end}"


@dataclass
class Job:
    """A job; changed only by `job_queue.JobQueue`.

    Attributes:
      id: 1 or more; jobs are assigned in this order, except for those that no free slave can run.
      key: chosen by the client that submitted the job; a repeated submission has the same key.
      name: for display.
      config: the resolved experiment, as JSON; "" once the job has ended.
      algorithm: name of the algorithm that a slave needs.
      environment: name of the environment that a slave needs.
      collectors: number of other slaves that play in its environments; 0: it plays itself.
      state: see `JobState`.
      attempts: number of attempts begun so far.
      failures: number of attempts that ended as FAILED.
      losses: number of attempts since the newest version that ended because their slave was lost,
        left, was busy or did not start them in time.
      slave: name of the slave of the newest attempt; "": there was no attempt.
      version: number of the newest version; 0: there is no version.
      step: environment steps of that version.
      reason: why the job is in this state, or why its newest attempt ended; "": nothing to report.
      tail: end of the output of the newest attempt whose output was reported; "": there is none.
    """

    id: int
    key: str
    name: str
    config: str
    algorithm: str
    environment: str
    collectors: int = 0
    state: JobState = JobState.QUEUED
    attempts: int = 0
    failures: int = 0
    losses: int = 0
    slave: str = ""
    version: int = 0
    step: int = 0
    reason: str = ""
    tail: str = ""

    @property
    def attempt(self) -> Attempt:
        """The newest attempt; its number is 0 before the first one."""
        return Attempt(self.id, self.attempts)


def validate_format(number: int, who: str) -> None:
    """Checks the format of a message.

    Args:
      number: the received format.
      who: what the receiver is, for the error.

    Raises:
      InvalidInputError: the format is not `FORMAT`.
    """
    if number != FORMAT:
        raise InvalidInputError(
            f"format: {number}, but the {who} speaks format {FORMAT}; use the same version of "
            "relaax_like at both ends"
        )


def validate_name(name: str, field: str) -> str:
    """Returns the name of a job, slave, algorithm or environment, if it is valid.

    Args:
      name: the name.
      field: name of the field, for the error.

    Raises:
      InvalidInputError: the name is not valid.
    """
    if not is_name(name):
        raise InvalidInputError(f"{field}: {name!r:.120}, expected {EXPECTED_NAME}")
    return name


def validate_key(key: str) -> str:
    """Returns the key of a submission, if it is valid.

    Raises:
      InvalidInputError: the key is not valid.
    """
    if not _KEY.fullmatch(key):
        raise InvalidInputError(
            f"key: {key!r:.80}, expected 16 to 64 characters from A-Z, a-z and 0-9"
        )
    return key


def validate_collectors(number: int, least: int = 1) -> int:
    """Returns the number of a job's collectors, if it is in range.

    Args:
      number: the number.
      least: of the range.

    Raises:
      InvalidInputError: the number is not valid.
    """
    if not least <= number <= MAX_COLLECTORS:
        raise InvalidInputError(f"collectors: {number!s:.40}, expected {least} to {MAX_COLLECTORS}")
    return number


def validate_size(text: str, most: int, field: str, cure: str = "") -> str:
    """Returns a text, if it is not too long.

    Args:
      text: the text.
      most: maximum number of bytes in UTF-8.
      field: name of the field, for the error.
      cure: what to do, for the error; "": obvious.

    Raises:
      InvalidInputError: the text has more than `most` bytes.
    """
    size = len(text.encode())
    if size > most:
        end = f"; {cure}" if cure else ""
        raise InvalidInputError(f"{field}: {size} bytes, expected at most {most}{end}")
    return text
