"""ReplayLog: keeps what a replay table accepts on disk, so that a crash does not empty the table.

    FOLDER/journal-INDEX.log   records in the order in which they were accepted, each a
                               `relaax.v1.ReplayRecord` and a `relaax.v1.Rollout`
    FOLDER/priorities.npz      of the items, after an orderly end
    FOLDER-head                up to where the records have been synced

Rollouts are stored as they arrived: n-step transitions and stacked frames are made when the table
is sampled, so a run can continue with another `n_step`.
"""

import logging
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError

from relaax_like.core.episode_reports import read_reports, write_reports
from relaax_like.core.journal.files import list_segments
from relaax_like.core.journal.head import JournalHead, is_given_up, path_of_head
from relaax_like.core.journal.journal import SYNC_INTERVAL_SEC, Journal
from relaax_like.core.journal.reader import Damage, DamagedJournalError, JournalReader
from relaax_like.core.records import EpisodeReport, Origin
from relaax_like.experience.rollout import Rollout
from relaax_like.learn.rollout_messages import bytes_to_rollout, rollout_to_bytes
from relaax_like.v1 import journal_pb2
from relaax_like.wire.array_file import read_arrays, write_arrays
from relaax_like.wire.errors import (
    CollectorFullError,
    DamagedError,
    InvalidInputError,
    JournalError,
    ServerUnavailableError,
)

logger = logging.getLogger(__name__)

# Of all such journals: each record says by itself which arrays it has.
_FINGERPRINT = zlib.crc32(b"replay")
_LENGTH = struct.Struct("<I")
_PRIORITIES = "priorities.npz"
_KIND = "priorities 1"
_SEGMENT_BYTES = 32 << 20
# Bytes that a power failure can lose; agents wait for a disk that is slower than they are.
_MAX_UNSYNCED_BYTES = 256 << 20
# Seconds until a log that was given up is written again, if there is room.
_RETRY_SEC = 10.0
GIVEN_UP = (
    "the replay table's journal was given up at {} or before: it lacks experience that was "
    "acknowledged, which is lost"
)


def name_replay_folder(name: str = "") -> str:
    """Returns the name of the folder, in the folder of checkpoints.

    Args:
      name: of one of several Algorithms; "": the only one.
    """
    return f"replay-{name}" if name else "replay"


@dataclass(frozen=True)
class ReplayRecord:
    """A rollout, or only counts, that a table's source accepted.

    Attributes:
      rollout: the rollout; None: the record has only steps and episodes.
      episodes: those that are counted with the record.
      env_steps: number of environment steps that are counted with the record.
      origin: the message that contained it; None: it is from this process.
      steps: environment steps that the table had taken before, over the whole run.
      minibatches: number that had been drawn before, over the whole run.
    """

    rollout: Rollout | None
    episodes: Sequence[EpisodeReport]
    env_steps: int
    origin: Origin | None
    steps: int
    minibatches: int


class ReplayLog:
    """Writes records before they are acknowledged, and reads them when a run continues.

        log = ReplayLog(folder, get_rows)
        for record in log.replay(): ...           # insert it again
        table.set_priorities(log.take_priorities())
        log.append(record)                        # then insert it, then acknowledge it
        log.close(table.get_priorities())

    Written records survive the end of the process, even if it is killed; a power failure loses the
    records of the last second, or none with `strict`. When a new file begins, those whose rows have
    all left the table are removed.

    If the disk is full, the run continues without writing records, and logs this once. Once there
    is room, they are written again; the log is complete again when all rows that were not written
    have left the table. If the process ends earlier, the next start logs what is missing. Not
    thread-safe.

    Attributes:
      directory: as the argument.
      given_up_step: the table's environment steps at the first record that is missing; None: the
        log is complete.

    Args:
      directory: folder of the records; belongs to the log.
      get_rows: returns the id of the table's oldest row, and that of its next one.
      strict: whether to sync each record before `append` returns.
      segment_bytes: size at which a file is complete and the next one begins.
    """

    def __init__(
        self,
        directory: Path,
        get_rows: Callable[[], tuple[int, int]],
        *,
        strict: bool = False,
        segment_bytes: int = _SEGMENT_BYTES,
    ):
        self.directory = directory
        self._get_rows = get_rows
        self._strict = strict
        self._segment_bytes = segment_bytes
        self._journal: Journal | None = None
        self.given_up_step: int | None = None
        self._next_try = 0.0  # when a log that was given up is written again
        self._missing_end: int | None = None  # row; all rows that were not written are before it
        self._starts: deque[tuple[int, int]] = deque()  # first record of a file -> its first row
        self._bytes = 0  # of the newest file

    def replay(self) -> Iterator[ReplayRecord]:
        """Yields all records, oldest first; afterwards more can be appended.

        Raises:
          JournalError: records are damaged or missing, another version wrote them, or the folder
            cannot be read or written.
        """
        reader = _open(self.directory)
        was_given_up = is_given_up(self.directory)
        steps = 0
        borders = {segment.first_index for segment in list_segments(self.directory)}
        for index, payload in reader:
            if index in borders:
                self._starts.append((index, self._get_rows()[1]))
                self._bytes = 0
            self._bytes += len(payload)
            record = _unpack(payload, index, self.directory)
            steps = record.steps
            yield record
        if reader.torn:
            logger.warning(
                "%s; truncating the replay table's journal there. No record known to be synced is "
                "lost; after a power failure, experience of the second before it can be lost",
                reader.torn,
            )
        self._journal = Journal(
            self.directory,
            reader.next_index,
            fingerprint=_FINGERPRINT,
            head=JournalHead(path_of_head(self.directory)),
            segment_bytes=1 << 62,  # `append` begins new files
            sync_interval_sec=None if self._strict else SYNC_INTERVAL_SEC,
        )
        if was_given_up:
            logger.warning("%s", GIVEN_UP.format(f"step {steps:,}"))
        self._journal.resume()
        if not self._starts:
            self._starts.append((reader.next_index, self._get_rows()[1]))

    def take_priorities(self) -> Mapping[str, np.ndarray]:
        """Returns the priorities that an orderly end left, and removes their file.

        Returns:
          What was passed to `close`; {} if there is no such file, it cannot be read, or records
          were appended after it was written.
        """
        assert self._journal is not None, "priorities before replay"
        path = self.directory / _PRIORITIES
        try:
            saved = dict(read_arrays(path, _KIND))
            is_newest = int(saved.pop("next_index")) == self._journal.next_index
        except FileNotFoundError:
            return {}
        except (DamagedError, KeyError, TypeError, ValueError) as error:
            logger.warning(
                "%s: the priorities cannot be read (%r); items start with equal priorities",
                path,
                error,
            )
            is_newest = False
        path.unlink(missing_ok=True)
        return saved if is_newest else {}

    def append(self, record: ReplayRecord) -> None:
        """Writes a record, unless the log was given up less than ten seconds ago.

        Raises:
          CollectorFullError: the disk is slower than the agents; nothing was written.
          ServerUnavailableError: the disk has failed; do not acknowledge anything from now on.
        """
        journal = self._journal
        assert journal is not None, "append before replay"
        if self.given_up_step is not None and time.monotonic() < self._next_try:
            return
        if journal.unsynced_bytes > _MAX_UNSYNCED_BYTES:
            raise CollectorFullError("the disk is behind; agents wait until it has caught up")
        pieces = _pack(record)
        try:
            if self._bytes >= self._segment_bytes:
                self._begin_file(journal)
            journal.append(pieces)
            if self._strict:
                journal.sync()
            self._bytes += sum(map(len, pieces))
            self._check_complete(journal)
        except JournalError as error:
            self._give_up(journal, record.steps, error)

    def _check_complete(self, journal: Journal) -> None:
        """After a record: notes if no row that was not written is in the table any more."""
        if self.given_up_step is None:
            return
        oldest_row, next_row = self._get_rows()
        if self._missing_end is None:
            self._missing_end = next_row
        if oldest_row >= self._missing_end:
            journal.resume()
            self.given_up_step = self._missing_end = None
            logger.info("the replay table's journal has all of its rows again")

    def _give_up(self, journal: Journal, steps: int, error: JournalError) -> None:
        try:
            journal.give_up()
        except JournalError as final:
            raise ServerUnavailableError(
                f"no more experience can be acknowledged: {final}"
            ) from final
        self._next_try, self._missing_end = time.monotonic() + _RETRY_SEC, None
        if self.given_up_step is None:
            self.given_up_step = steps
            logger.error(
                "the replay table's journal is no longer written: %s. Training continues; a crash "
                "loses the experience that comes while there is no room",
                error,
            )

    def close(self, priorities: Mapping[str, np.ndarray]) -> None:
        """Writes priorities, syncs and closes; errors are logged. Idempotent.

        Args:
          priorities: of `Table.get_priorities`.
        """
        journal, self._journal = self._journal, None
        if journal is None:
            return
        try:
            if priorities and self.given_up_step is None:
                arrays = {**priorities, "next_index": np.array(journal.next_index)}
                write_arrays(self.directory / _PRIORITIES, arrays, _KIND)
        except OSError as error:
            logger.warning("%s: the priorities were not written: %s", self.directory, error)
        try:
            journal.close()
        except JournalError as error:
            logger.error("%s", error)

    def _begin_file(self, journal: Journal) -> None:
        oldest_row, next_row = self._get_rows()
        self._starts.append((journal.start_segment(), next_row))
        self._bytes = 0
        while len(self._starts) > 1 and self._starts[1][1] <= oldest_row:
            self._starts.popleft()
        journal.drop_before(self._starts[0][0])


def find_damage(directory: Path) -> tuple[Damage | None, Damage | None]:
    """Reads all of a log, for a report.

    Returns:
      The damage that prevents a start; and the incomplete record that a crash left at the end,
      which does not prevent it. None for each that was not found.

    Raises:
      JournalError: the records have a format that this version does not know, or are not those of a
        replay table; or the folder cannot be read.
    """
    reader = _open(directory)
    try:
        for _ in reader:
            pass
    except DamagedJournalError as error:
        return error.damage, None
    return None, reader.torn


def _open(directory: Path) -> JournalReader:
    segments = list_segments(directory)
    first = segments[0].first_index if segments else 0
    return JournalReader(directory, _FINGERPRINT, first, JournalHead(path_of_head(directory)))


def _pack(record: ReplayRecord) -> Sequence[bytes | memoryview]:
    """Returns the pieces of a record."""
    message = journal_pb2.ReplayRecord(steps=record.steps, minibatches=record.minibatches)
    header = message.experience
    if record.origin is not None:
        header.client_id = record.origin.client_id
        header.incarnation = record.origin.incarnation
        header.sequence = record.origin.sequence
    write_reports(header, record.episodes)
    header.env_steps = record.env_steps
    rollout = b"" if record.rollout is None else rollout_to_bytes(record.rollout).data
    header.rollout_bytes = len(rollout)
    serialized = message.SerializeToString()
    head = _LENGTH.pack(len(serialized)) + serialized
    return [head, rollout] if len(rollout) else [head]


def _unpack(payload: memoryview, index: int, directory: Path) -> ReplayRecord:
    """Reads a record; its arrays are copies, as the payload might be reused.

    Args:
      payload: of the record.
      index: number of the record, for errors.
      directory: folder of the records, for errors.

    Raises:
      JournalError: the payload is not a valid record.
    """
    try:
        (length,) = _LENGTH.unpack(payload[: _LENGTH.size])
        start = _LENGTH.size + length
        message = journal_pb2.ReplayRecord.FromString(bytes(payload[_LENGTH.size : start]))
        header = message.experience
        rest = np.frombuffer(bytes(payload[start:]), np.uint8)
        if len(rest) != header.rollout_bytes:
            raise InvalidInputError(
                f"{len(rest)} bytes of a rollout, expected {header.rollout_bytes}"
            )
        rollout = bytes_to_rollout(rest) if len(rest) else None
    except (struct.error, DecodeError, InvalidInputError) as error:
        raise JournalError(
            f"{directory}: record {index} of the replay table cannot be read: {error}; it was "
            "written by another version of relaax_like. Finish the run with that version, or use "
            "another checkpoint_dir"
        ) from None
    origin = None
    if header.sequence:
        origin = Origin(header.client_id, header.incarnation, header.sequence)
    return ReplayRecord(
        rollout,
        read_reports(header),
        header.env_steps,
        origin,
        message.steps,
        message.minibatches,
    )
