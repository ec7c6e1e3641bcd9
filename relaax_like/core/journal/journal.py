"""The journal: records in the order in which they take effect, written before acknowledgement.

The content of a record is not interpreted here. Written bytes survive the end of the process, even
if it is killed; synced bytes survive a power cut. After a crash the state is the newest snapshot,
if the owner writes snapshots, and the records after it.
"""

import errno
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relaax_like.core.journal.files import (
    HEADER_BYTES,
    SegmentFile,
    list_segments,
    pack_header,
    pack_record_header,
    path_of,
)
from relaax_like.core.journal.head import Claim, JournalHead, path_of_marker
from relaax_like.core.journal.reader import JournalReader, SegmentReader
from relaax_like.wire.closing import Closing
from relaax_like.wire.errors import ConfigError, JournalError
from relaax_like.wire.syncing import sync_path

_LOG = logging.getLogger(__name__)
# A contiguous piece of a record; for a NumPy array, `array.data`.
Piece = bytes | bytearray | memoryview
SEGMENT_BYTES = 256 << 20
SYNC_INTERVAL_SEC = 1.0
# Maximum number of buffers of one writev: Linux's IOV_MAX.
_MAX_BUFFERS = 1024


@dataclass
class _File:
    """A segment of the writer; its descriptor is open as long as it might have to be synced."""

    path: Path
    first_index: int
    confirmed: bool
    size: int
    descriptor: int | None = None


class Journal(Closing):
    """Appends records to segments in one folder, which belongs to one writer. Thread-safe.

        for index, payload in JournalReader(directory, fingerprint, state_index): ...
        with Journal(directory, next_index, fingerprint=fingerprint) as journal:
            journal.append([head, gradient])      # then acknowledge
            ...
            first = journal.start_segment()       # together with taking the state
            ...                                   # write the snapshot
            journal.drop_before(first)

    A thread syncs records at an interval, by default once a second; neither `append` nor a new
    segment waits for a sync. Without an interval, the caller syncs.

    A failed append leaves nothing behind, and the next one can succeed; if its partial data cannot
    be removed, the failure is final. So is a failed sync: the kernel might have dropped what it
    could not write, so nothing can be acknowledged any more.

    At its start, it continues after the records that the folder holds, and truncates an incomplete
    record that a crash left at the end. If the record before `first_index` is missing, the caller's
    state contains more than the journal: the existing records are removed, and the journal starts
    over. Otherwise they are synced.

    Args:
      directory: the folder, which is created if it is missing. The caller ensures that no other
        process writes to it.
      first_index: index of the next record: the caller's state contains all before it.
      fingerprint: number that distinguishes models, such as the manifest's fingerprint.
      head: records what is on the disk, so that a missing end is noticed at the next start; it is
        closed with the journal. None: there is no head.
      segment_bytes: size at which a segment is complete and the next one begins.
      sync_interval_sec: seconds for which records are gathered before they are synced; None: the
        caller calls `sync`.

    Attributes:
      directory: the folder.
      next_index: index of the record that is appended next.
      failed: the failure after which nothing can be appended any more; "": there was none.

    Raises:
      ConfigError: `segment_bytes` or `sync_interval_sec` is not more than 0.
      JournalError: the folder contains records that the caller's state does not have, that are
        damaged, or that are of another model or format; or it cannot be read or written to.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        first_index: int,
        *,
        fingerprint: int,
        head: JournalHead | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        sync_interval_sec: float | None = SYNC_INTERVAL_SEC,
    ):
        if not segment_bytes > 0:
            raise ConfigError(f"segment_bytes: {segment_bytes}, expected more than 0")
        if sync_interval_sec is not None and not sync_interval_sec > 0:
            raise ConfigError(f"sync_interval_sec: {sync_interval_sec}, expected more than 0")
        self.directory = Path(directory)
        self.next_index = first_index
        self._fingerprint = fingerprint
        self._head = head
        self._segment_bytes = segment_bytes
        self._sync_interval_sec = sync_interval_sec

        # Guards all attributes below; held while bytes are written, never during a sync.
        self._lock = threading.Lock()
        # Held during a sync, and while segments are removed. Acquired before `_lock`.
        self._sync_lock = threading.Lock()
        self._chain = 0
        self._files: list[_File] = []  # oldest first; the last one is being written
        # Kept open: a sync that could not open it, for lack of descriptors, would be fatal.
        self._folder: int | None = None
        self._written_bytes = 0  # by this writer
        self._synced_bytes = 0
        self._synced_index = first_index
        self.failed = ""
        self._closed = False

        self._open_or_fail()
        self._dirty = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        if sync_interval_sec is not None:
            self._thread = threading.Thread(
                target=self._sync_loop, name="journal sync", daemon=True
            )
            self._thread.start()

    @property
    def unsynced_records(self) -> int:
        """Number of records that are not synced; a power cut can lose them."""
        return self.next_index - self._synced_index

    @property
    def unsynced_bytes(self) -> int:
        """Number of bytes that are not synced; a power cut can lose them."""
        return self._written_bytes - self._synced_bytes

    @property
    def total_bytes(self) -> int:
        """Size of all segments, in bytes."""
        with self._lock:
            return sum(file.size for file in self._files)

    def append(self, pieces: Sequence[Piece]) -> int:
        """Appends one record; after the call, the record survives the end of the process.

        Args:
          pieces: the pieces of the record, in order. They are not copied.

        Returns:
          The record's index.

        Raises:
          JournalError: the record was not written (disk full, ...), or the journal has failed or is
            closed.
        """
        views = _view(pieces)
        with self._lock:
            self._validate_usable()
            first = self.next_index
            current = self._files[-1]
            if current.size >= self._segment_bytes and current.first_index < first:
                self._begin_segment()
            self._append(views)
        self._dirty.set()
        return first

    def start_segment(self) -> int:
        """Begins a new segment, unless the newest one has no records yet.

        A snapshot of the current state contains everything before the next record.

        Returns:
          The index of the next record, the first of its segment.

        Raises:
          JournalError: the segment could not be created, and the old one stays in use; or the
            journal has failed, or is closed.
        """
        with self._lock:
            self._validate_usable()
            if self._files[-1].first_index < self.next_index:
                self._begin_segment()
            index = self.next_index
        self._dirty.set()
        return index

    def resume(self) -> None:
        """Notes on the disk that the journal is not given up, or no longer.

        Raises:
          JournalError: that could not be noted.
        """
        try:
            path_of_marker(self.directory).touch()
            sync_path(self.directory)
        except OSError as error:
            raise JournalError(
                f"{path_of_marker(self.directory)}: cannot be created: {error}; make sure that the "
                "folder is writable and its disk has space"
            ) from error

    def give_up(self) -> None:
        """Notes on the disk that more is acknowledged than the journal has; see `is_given_up`.

        Raises:
          JournalError: that could not be noted, or the journal has failed; nothing more can be
            acknowledged.
        """
        if self.failed:
            raise JournalError(self.failed)
        try:
            path_of_marker(self.directory).unlink(missing_ok=True)
            sync_path(self.directory)
        except OSError as error:
            with self._lock:
                self.failed = (
                    f"{path_of_marker(self.directory)}: cannot be removed: {error}; without that, "
                    "the next start would not know what a crash has lost, so nothing more is "
                    "accepted. Restart the server or learner once the disk works again"
                )
            raise JournalError(self.failed) from error

    def drop_before(self, index: int) -> int:
        """Removes the segments whose records are all older than `index`.

        The segment that is being written stays. If a segment cannot be removed, it and all later
        segments stay, and a warning is logged.

        Returns:
          The number of bytes freed.
        """
        freed = 0
        with self._sync_lock:
            with self._lock:
                ends = [file.first_index for file in self._files[1:]]
            for _ in range(sum(end <= index for end in ends)):
                file = self._files[0]  # only a holder of `_sync_lock` removes from this end
                try:
                    file.path.unlink(missing_ok=True)
                except OSError as error:
                    _LOG.warning(
                        "%s: could not remove the old segment: %s; it stays until the next removal",
                        file.path,
                        error,
                    )
                    break
                with self._lock:
                    del self._files[0]
                _close(file)
                freed += file.size
        return freed

    def sync(self) -> None:
        """Syncs everything that was appended before the call.

        Raises:
          JournalError: the sync failed, or the journal had failed before; it can no longer be used.
        """
        with self._sync_lock:
            with self._lock:
                if self.failed:
                    raise JournalError(self.failed)
                files = [file for file in self._files if file.descriptor is not None]
                written_bytes, index = self._written_bytes, self.next_index
            if written_bytes == self._synced_bytes:
                return
            try:
                self._sync_files(files)
            except OSError as error:
                with self._lock:
                    self.failed = (
                        f"{self.directory}: the journal cannot be synced: {error}; what was "
                        "not synced can be lost, and nothing more is accepted. "
                        "Restart the server, learner or coordinator once the disk works again"
                    )
                raise JournalError(self.failed) from error
            self._note_head(files[-1].first_index, index)
            with self._lock:
                self._synced_bytes, self._synced_index = written_bytes, index

    def close(self) -> None:
        """Syncs, unless the journal has failed, and ends the thread. Idempotent.

        Raises:
          JournalError: the last sync failed; everything else is done.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._stopping.set()
        self._dirty.set()
        if self._thread is not None:
            self._thread.join()
        try:
            if not self.failed:
                self.sync()
                with self._sync_lock:
                    self._note_head(self._files[-1].first_index, self.next_index, is_final=True)
        finally:
            with self._sync_lock:
                self._close_files()

    # With the lock held.

    def _validate_usable(self) -> None:
        if self.failed:
            raise JournalError(self.failed)
        if self._closed:
            raise JournalError(
                f"{self.directory}: the journal is closed; nothing more can be appended"
            )

    def _append(self, pieces: Sequence[memoryview]) -> None:
        file = self._files[-1]
        header, chain = pack_record_header(self.next_index, pieces, self._chain)
        assert file.descriptor is not None
        try:
            size = _write(file.descriptor, [memoryview(header), *pieces])
        except BaseException as error:  # also Ctrl-C: no partial record must remain
            self._take_back(file, error)
            if not isinstance(error, OSError):
                raise
            raise JournalError(
                f"{file.path}: record {self.next_index} could not be written: {error}; nothing of "
                "it remains. Check the disk and its free space"
            ) from error
        file.size += size
        self._written_bytes += size
        self._chain = chain
        self.next_index += 1

    def _take_back(self, file: _File, cause: BaseException) -> None:
        assert file.descriptor is not None
        try:
            os.ftruncate(file.descriptor, file.size)
        except OSError as error:
            self.failed = (
                f"{file.path}: record {self.next_index} could not be written ({cause}), and "
                f"its partial data cannot be removed: {error}; nothing more is accepted. "
                "Restart the server, learner or coordinator, which truncates the file"
            )
            raise JournalError(self.failed) from error

    def _begin_segment(self) -> None:
        """Creates the next file. It is not synced here, because an append would have to wait.

        A power cut could then lose the end of the old segment but not the new one, which would look
        like damage. The name distinguishes the two: it ends in `.new` until all segments before it
        have been synced, and only then is the file renamed. Whatever a power cut leaves of the new
        file itself, even a header of zeros, counts as a torn record: not yet synced.
        """
        path = path_of(self.directory, self.next_index, confirmed=False)
        file = _File(path, self.next_index, confirmed=False, size=HEADER_BYTES)
        header = pack_header(self._fingerprint, self.next_index, self._chain)
        try:
            # An earlier attempt might have left the file.
            file.descriptor = _open_to_append(path, os.O_CREAT | os.O_TRUNC)
            _write(file.descriptor, [memoryview(header)])
        except BaseException as error:
            _close(file)
            try:
                path.unlink(missing_ok=True)
            except OSError as second:
                _LOG.warning("%s: could not be removed: %s; it holds no record", path, second)
            if not isinstance(error, OSError):
                raise
            raise JournalError(
                f"{path}: cannot create a new segment: {error}; make sure that the folder is "
                "writable and its disk has space"
            ) from error
        self._files.append(file)
        self._written_bytes += HEADER_BYTES

    # With the sync lock held.

    def _sync_files(self, files: Sequence[_File]) -> None:
        """Syncs files and names. All but the last one are complete, and are closed."""
        for file in files:
            assert file.descriptor is not None
            os.fsync(file.descriptor)
        new = [file for file in files if not file.confirmed]
        for file in new:
            confirmed = path_of(self.directory, file.first_index, confirmed=True)
            os.rename(file.path, confirmed)
            file.path, file.confirmed = confirmed, True
        if new:
            assert self._folder is not None
            os.fsync(self._folder)
        for file in files[:-1]:
            _close(file)

    def _note_head(self, newest_segment: int, end: int, is_final: bool = False) -> None:
        if self._head is not None:
            self._head.note(Claim(newest_segment, end, is_final))

    # At the start and at the end.

    def _open_or_fail(self) -> None:
        try:
            self._open()
        except BaseException as error:
            self._close_files()
            if isinstance(error, OSError):
                raise JournalError(
                    f"{self.directory}: cannot hold a journal: {error}; make sure that this user "
                    "can read and write there and that the disk has space, or choose another folder"
                ) from error
            raise

    def _open(self) -> None:
        if not self.directory.is_dir():
            self.directory.mkdir(parents=True, mode=0o700)
            sync_path(self.directory.parent)
        self._folder = os.open(self.directory, os.O_RDONLY | os.O_CLOEXEC)
        segments = list_segments(self.directory)
        end = self._read_end(segments) if segments else None
        if self._head is not None and not self._head.path.exists():
            self._head.replace(Claim())
        kept = segments[: segments.index(end.segment) + 1] if end else []
        if end is not None:
            _unlink(segments[len(kept) :])
        for position, segment in enumerate(kept):
            file = _File(**vars(segment), size=segment.path.stat().st_size)
            self._files.append(file)
            # A writer that was killed might have left some of these unsynced.
            if not any(behind.confirmed for behind in kept[position + 1 :]):
                file.descriptor = _open_to_append(file.path)
        if end is None:
            self._begin_segment()
        else:
            self._chain = end.chain
            self._cut(self._files[-1], end.offset)
        self._sync_files([file for file in self._files if file.descriptor is not None])
        self._note_head(self._files[-1].first_index, self.next_index)
        if end is None:
            # Only now: until the new segment was on the disk, the head claimed the old ones.
            _unlink([one for one in segments if one.path != self._files[-1].path])
        self._synced_bytes = self._written_bytes

    def _read_end(self, segments: Sequence[SegmentFile]) -> SegmentReader | None:
        """Finds where the records end; None if the journal must start over.

        Raises:
          JournalError: there are records that were not replayed, or records are damaged, or of
            another model or format.
        """
        first = self.next_index
        reader = self._read(first)
        if reader.end is None:
            # The segment that begins with the next record is torn: the one before it stays in use.
            reader = self._read(max(first - 1, segments[0].first_index))
        if reader.torn:
            _LOG.warning("%s; truncating the journal there", reader.torn)
        end = reader.end
        if end is not None and end.index > first:
            raise JournalError(
                f"{self.directory}: the journal has records up to {end.index - 1}, but only those "
                f"before {first} were replayed; replay the others before anything is appended"
            )
        if end is not None and end.index < first:
            _LOG.warning(
                "%s: the journal ends before record %d, but the state contains all records before "
                "%d; starting a new journal",
                self.directory,
                end.index,
                first,
            )
            return None
        return end

    def _read(self, from_index: int) -> JournalReader:
        reader = JournalReader(self.directory, self._fingerprint, from_index)
        for _ in reader:
            pass
        return reader

    def _cut(self, file: _File, size: int) -> None:
        if file.size > size:
            assert file.descriptor is not None
            os.ftruncate(file.descriptor, size)
            file.size = size

    def _close_files(self) -> None:
        for file in self._files:
            _close(file)
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None
        if self._head is not None:
            self._head.close()

    # In the sync thread.

    def _sync_loop(self) -> None:
        while True:
            self._dirty.wait()
            if self._stopping.wait(self._sync_interval_sec):
                return  # `close` syncs
            self._dirty.clear()
            if self._stopping.is_set():
                return  # `close` set the event between the wait and the clear, which undid that
            try:
                self.sync()
            except JournalError as error:
                _LOG.error("%s", error)
                return


def _view(pieces: Sequence[Piece]) -> list[memoryview]:
    views = (memoryview(piece) for piece in pieces)
    return [view.cast("B") for view in views if view.nbytes]


def _open_to_append(path: Path, flags: int = 0) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, 0o600)


def _write(descriptor: int, buffers: list[memoryview]) -> int:
    """Writes all buffers and returns the number of bytes."""
    size = sum(buffer.nbytes for buffer in buffers)
    while buffers:
        written = os.writev(descriptor, buffers[:_MAX_BUFFERS])
        if written == 0:
            raise OSError(errno.EIO, "nothing was written")
        done = 0
        while done < len(buffers) and written >= buffers[done].nbytes:
            written -= buffers[done].nbytes
            done += 1
        del buffers[:done]
        if written:
            buffers[0] = buffers[0][written:]
    return size


def _unlink(segments: Sequence[SegmentFile]) -> None:
    for segment in reversed(segments):
        segment.path.unlink(missing_ok=True)


def _close(file: _File) -> None:
    if file.descriptor is not None:
        os.close(file.descriptor)
        file.descriptor = None
