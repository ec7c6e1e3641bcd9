"""PushJournal: writes pushes to disk before they are answered; reads them after a crash."""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from relaax_like.core.journal.files import HEADER_BYTES, get_size, list_segments
from relaax_like.core.journal.head import JournalHead, is_given_up, path_of_head
from relaax_like.core.journal.journal import SYNC_INTERVAL_SEC, Journal
from relaax_like.core.journal.reader import JournalReader
from relaax_like.core.records import Durability
from relaax_like.parameter_server.push_log import PushLog
from relaax_like.parameter_server.records import Position, Record, pack_record, unpack_record
from relaax_like.wire.errors import DamagedError, JournalError, ServerUnavailableError

_LOG = logging.getLogger(__name__)
_RATE_SEC = 5.0
# Key of a snapshot's statistics: index of the first record that the snapshot does not contain.
JOURNAL_INDEX = "journal_index"

GIVEN_UP = (
    "the journal was given up at version {:,}, step {:,}: what was acknowledged "
    "later is lost if the process was killed"
)
NO_SNAPSHOT = (
    "{}: there is a journal, but no snapshot before it; restore the snapshots, or use another "
    "checkpoint_dir"
)


class PushJournal(PushLog):
    """The journal of a run, and what to do when it cannot be written.

        journal = PushJournal(directory, fingerprint)
        for record in journal.replay(position): ...   # position of the newest snapshot
        journal.append(record)
        journal.settle()                            # then acknowledge
        index = journal.begin_snapshot()            # together with taking the state
        journal.end_snapshot(index)                 # once it is on the disk

    If the disk is full, or data arrives faster than `max_bytes_per_sec`, training continues without
    the journal: `durability`, `given_up_version` and one line of the log show this, and so does the
    next start, unless the last snapshot has everything. After a full disk, the journal continues
    with the next snapshot that can be written (`resume`); else with the next start. For the threads
    that use it, see `PushLog`.

    Args:
      directory: the journal's folder.
      fingerprint: fingerprint of the manifest.
      enabled: False: existing records are read, but no more are written.
      strict: whether `settle` syncs.
      max_bytes_per_sec: average over five seconds; above it, journaling stops.
      clock: returns monotonic seconds.

    Attributes:
      durability: what currently survives a crash.
      needs_snapshot: see `PushLog`.
      given_up_version: see `PushLog`.
    """

    def __init__(
        self,
        directory: Path,
        fingerprint: int,
        *,
        enabled: bool = True,
        strict: bool = False,
        max_bytes_per_sec: float = 100e6,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.durability: Durability = "journal" if enabled else "snapshot"
        self.needs_snapshot = True
        self.given_up_version: int | None = None
        self._can_resume = False
        self._directory = directory
        self._head = JournalHead(path_of_head(directory))
        self._fingerprint = fingerprint
        self._strict = strict
        self._max_bytes_per_sec = max_bytes_per_sec
        self._clock = clock
        self._journal: Journal | None = None
        self._previous_index = 0  # of the snapshot before the newest one
        self._written: deque[tuple[float, int]] = deque()  # time and bytes, in the last seconds
        self._written_bytes = 0

    @property
    def unsynced_records(self) -> int:
        """Number of records that are not synced; a power cut can lose them."""
        return 0 if self._journal is None else self._journal.unsynced_records

    @property
    def unsynced_bytes(self) -> int:
        """Number of bytes that are not synced; a power cut can lose them."""
        return 0 if self._journal is None else self._journal.unsynced_bytes

    @property
    def total_bytes(self) -> int:
        """Size of the journal on the disk, in bytes."""
        return 0 if self._journal is None else self._journal.total_bytes

    @property
    def failed(self) -> str:
        """Why nothing can be acknowledged any more; "" if pushes can be acknowledged."""
        if self._journal is None:
            return ""
        if self.durability == "journal" or self._is_sync_due:
            return self._journal.failed
        return ""

    def replay(self, start: Position | None) -> Iterator[Record]:
        """Yields the records after a snapshot; afterwards the journal can be written to.

        Args:
          start: the position of the snapshot; None: there is no snapshot.

        Raises:
          JournalError: records are damaged or missing, or of another model or format; there are
            records but no snapshot; or the folder cannot be read or written to.
        """
        if start is None and holds_records(self._directory):
            raise JournalError(NO_SNAPSHOT.format(self._directory.parent))
        start = start or Position(0, 0, 0)
        self._previous_index = start.index
        reader = JournalReader(self._directory, self._fingerprint, start.index, self._head)
        was_given_up = is_given_up(self._directory)
        end: Position | Record = start
        for record in read_records(reader, start):
            end = record
            yield record
        if reader.torn:
            _LOG.warning(
                "%s; truncating the journal there. No record known to be synced is lost; "
                "after a power failure, pushes acknowledged in the second before the failure can "
                "be lost",
                reader.torn,
            )
        self._journal = Journal(
            self._directory,
            reader.next_index,
            fingerprint=self._fingerprint,
            head=self._head,
            sync_interval_sec=None if self._strict else SYNC_INTERVAL_SEC,
        )
        if was_given_up:
            _LOG.warning("%s", GIVEN_UP.format(end.version, end.global_t))
        self._journal.resume()

    def append(self, record: Record) -> None:
        """Writes a record, unless journaling has stopped.

        Raises:
          ServerUnavailableError: the journal has failed for good, or giving it up could not be
            noted on the disk; nothing must be acknowledged.
        """
        if self.durability == "snapshot":
            return
        assert self._journal is not None, "append before replay"
        pieces = pack_record(record)
        if self._is_too_much(sum(map(len, pieces))):
            self._give_up(
                record.version_before,
                f"gradients arrive at more than {self._max_bytes_per_sec / 1e6:g} MB/s, the "
                "limit set by relaax-parameter-server.journal_max_mb_per_sec",
            )
            return
        try:
            self._journal.append(pieces)
        except JournalError as error:
            self._can_resume = True
            self._give_up(record.version_before, str(error))

    def require_sound(self) -> None:
        """Checks that what was appended earlier can be acknowledged now.

        Raises:
          ServerUnavailableError: the disk has failed since.
        """
        if self.failed:
            raise _make_final_error(JournalError(self.failed))

    def settle(self) -> None:
        """Makes appended records as durable as promised, so that they can be acknowledged.

        Raises:
          ServerUnavailableError: that failed for good; nothing must be acknowledged.
        """
        if self._journal is not None and self._is_sync_due:
            try:
                self._journal.sync()
            except JournalError as error:
                raise _make_final_error(error) from error

    def begin_snapshot(self) -> int:
        """Returns the index at which replaying after this snapshot begins."""
        assert self._journal is not None, "a snapshot before replay"
        try:
            return self._journal.start_segment()
        except JournalError as error:
            # The old segment stays in use, and is kept longer. Pushes handle a full disk or a
            # failed sync themselves.
            if self.durability == "journal" and not self._journal.failed:
                _LOG.warning("%s; until then, the old segment stays in use", error)
            return self._journal.next_index

    def end_snapshot(self, index: int) -> None:
        """Drops records that the two newest snapshots contain: either can then be resumed from.

        A failure is logged; the records then stay.

        Args:
          index: the index that `begin_snapshot` returned for the newest one.
        """
        assert self._journal is not None, "a snapshot before replay"
        try:
            self._journal.sync()
            self._journal.drop_before(self._previous_index)
        except JournalError as error:
            _LOG.error("%s", error)
            return
        self._previous_index = index

    def resume(self) -> None:
        """Writes records again after a full disk; see `PushLog`."""
        journal, version = self._journal, self.given_up_version
        if not self._can_resume or version is None or journal is None or journal.failed:
            return
        self.durability = "journal"
        try:
            journal.resume()
        except JournalError as error:
            with contextlib.suppress(ServerUnavailableError):  # which each push gets from now on
                self._give_up(version, str(error))
            return
        self._can_resume, self.given_up_version = False, None
        _LOG.info("the newest snapshot has everything: the journal is written again")

    def close(self) -> None:
        """Syncs and closes. Idempotent.

        Raises:
          JournalError: the last sync failed.
        """
        if self._journal is not None:
            self._journal.close()

    @property
    def _is_sync_due(self) -> bool:
        """Whether a record must be synced before anything is acknowledged."""
        # Even if journaling has stopped meanwhile: earlier records are still promised.
        return self._strict and self.unsynced_records > 0

    def _give_up(self, version: int, reason: str) -> None:
        assert self._journal is not None
        try:
            self._journal.give_up()
        except JournalError as error:
            raise _make_final_error(error) from error
        self.durability = "snapshot"
        if self.given_up_version is None:
            _LOG.error(
                "the journal is no longer written: %s. Training continues; until the next %s, "
                "a crash loses the pushes since the newest snapshot",
                reason,
                "start, or a snapshot with room," if self._can_resume else "start",
            )
        self.given_up_version = version

    def _is_too_much(self, num_bytes: int) -> bool:
        now = self._clock()
        self._written.append((now, num_bytes))
        self._written_bytes += num_bytes
        while self._written[0][0] < now - _RATE_SEC:
            self._written_bytes -= self._written.popleft()[1]
        return self._written_bytes > self._max_bytes_per_sec * _RATE_SEC


def holds_records(directory: Path) -> bool:
    """Returns whether a push was ever written to a journal.

    Raises:
      JournalError: the folder cannot be read or searched, or the head has a format that this
        version does not know.
    """
    try:
        claim = JournalHead(path_of_head(directory)).read()
    except DamagedError:
        claim = None
    return (claim is not None and claim.end > 0) or any(
        segment.first_index > 0 or get_size(segment) > HEADER_BYTES
        for segment in list_segments(directory)
    )


def read_records(reader: JournalReader, start: Position) -> Iterator[Record]:
    """Yields the records of a journal; checks that each continues where the previous one ended.

    Raises:
      DamagedJournalError: records, or the head, are damaged or missing; or a record does not
        continue the state before it.
      JournalError: see `JournalReader`; or a record cannot be read.
    """
    version, global_t = start.version, start.global_t
    for _, payload in reader:
        assert reader.end is not None
        record = unpack_record(payload, reader.end.segment.path)
        if (record.version_before, record.global_t_before) != (version, global_t):
            where = f"version {record.version_before}, step {record.global_t_before}"
            if (record.version_before, record.global_t_before) < (version, global_t):
                raise reader.make_error(
                    f"a record that continues {where}, but the restored state is already at "
                    f"version {version}, step {global_t}, as after a publication before which no "
                    "snapshot of the replayed records could be written"
                )
            raise reader.make_error(
                f"a record that continues {where}; the data before it ends at version {version}, "
                f"step {global_t}, and what lies between was not written or is lost"
            )
        version, global_t = record.version, record.global_t
        yield record


def _make_final_error(error: JournalError) -> ServerUnavailableError:
    # The error says that the server must be restarted.
    return ServerUnavailableError(f"no more pushes can be acknowledged: {error}")
