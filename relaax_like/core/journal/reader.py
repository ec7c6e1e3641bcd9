"""Reads a journal, checks what it reads, and distinguishes a crash's torn end from damage."""

import contextlib
import os
import shlex
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from relaax_like.core.journal.files import (
    FORMAT,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MARK,
    RECORD,
    RECORD_BYTES,
    SegmentFile,
    list_segments,
)
from relaax_like.core.journal.head import JournalHead
from relaax_like.wire.closing import Closing
from relaax_like.wire.errors import DamagedError, JournalError

_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Damage:
    """Where the usable part of a journal ends, if later records are damaged or missing.

    Attributes:
      path: the segment's file; the journal's folder if the rest is missing.
      offset: offset in the file; everything before it is usable. None: the rest is missing.
      index: index of the record that should be there.
      found: what is there instead.
      torn: a crash can leave this; only what had not been synced is lost.
    """

    path: Path
    offset: int | None
    index: int
    found: str
    torn: bool

    def __str__(self) -> str:
        if self.offset is None:
            return f"{self.path}: the journal ends before record {self.index}, but {self.found}"
        word = "torn" if self.torn else "damaged"
        return (
            f"{self.path}: {word} at offset {self.offset}, where record {self.index} should be: "
            f"{self.found}"
        )


class DamagedJournalError(JournalError):
    """A journal is unusable from some record onwards, and that is not just a crash's torn end.

    Attributes:
      damage: the place and kind of the damage.
    """

    def __init__(self, damage: Damage, directory: Path):
        super().__init__(
            f"{damage}. Restore what is damaged or missing, or let `relaax fsck "
            f"{shlex.quote(str(directory.parent))} --to-last-good` discard everything from there "
            "on; without --to-last-good, it only reports what would be lost"
        )
        self.damage = damage


class DamagedSegmentError(DamagedError):
    """A segment is damaged; only used within the journal's modules.

    Attributes:
      offset: offset of the damage.
      torn: whether a crash can leave this; None: it can if no complete record follows.
    """

    def __init__(self, offset: int, found: str, torn: bool | None = None):
        super().__init__(found)
        self.offset = offset
        self.torn = torn


class SegmentReader(Closing):
    """Reads one segment, record after record.

        with SegmentReader(segment) as reader:
            reader.validate_follows(previous_reader)
            for index, payload in reader: ...

    The file is read, not mapped, so that a failing disk, or a file that shrinks, is an error and
    not a SIGBUS. No more memory is allocated than the file's size.

    Attributes:
      segment: the file.
      size: size of the file in bytes.
      fingerprint: of the model; see `Journal`.
      index: index of the next record.
      offset: offset of the next record.
      record_offset: offset of the newest record that was read.
      chain: chain after the records read so far.
    """

    def __init__(self, segment: SegmentFile):
        """Opens the file and reads its header.

        Raises:
          DamagedSegmentError: the header is damaged, or the file cannot be read.
          JournalError: the segment has a format that this version does not know.
        """
        self.segment = segment
        self.offset = self.record_offset = 0
        try:
            self._file = open(segment.path, "rb")  # noqa: SIM115
        except OSError as error:
            raise DamagedSegmentError(0, _describe_unreadable(error), torn=False) from error
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            self._first_chain = self._read_header()
        except BaseException:
            self._file.close()
            raise
        self.chain = self._first_chain
        self.offset = HEADER_BYTES

    def validate_follows(self, previous: "SegmentReader | None") -> None:
        """Checks that this segment begins where another one ended.

        Args:
          previous: the segment before, read to its end; None: nothing is checked.

        Raises:
          DamagedSegmentError: this segment begins elsewhere, does not continue the other one, or is
            of another model.
        """
        if previous is None:
            return
        if self.fingerprint != previous.fingerprint:
            found = (
                f"fingerprint {self.fingerprint:#x}, but {previous.fingerprint:#x} in the segment "
                "before"
            )
            raise DamagedSegmentError(0, found, torn=False)
        # A power cut can lose the end of a segment, but not if that is known to be on the disk.
        torn = not self.segment.confirmed
        if self.index != previous.index:
            found = f"a segment that begins with record {self.index}"
            raise DamagedSegmentError(0, found, torn and self.index > previous.index)
        if self.chain != previous.chain:
            raise DamagedSegmentError(
                0, "a segment that does not continue the previous one", torn=False
            )

    def __iter__(self) -> Iterator[tuple[int, memoryview]]:
        """Yields index and payload; continues where the last iteration stopped.

        Raises:
          DamagedSegmentError: the rest of the segment is damaged.
        """
        while self.offset < self.size:
            yield self._read_record()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _read_header(self) -> int:
        if self.size < HEADER_BYTES:
            found = f"only {self.size} of a header's {HEADER_BYTES} bytes"
            raise DamagedSegmentError(0, found, torn=True)
        header = self._read(HEADER_BYTES)
        magic, version, self.fingerprint, self.index, chain, crc = HEADER.unpack(header)
        if magic != MAGIC or crc != zlib.crc32(header[:-4]):
            # Confirmed segments have been synced: no crash can lose their header.
            torn = False if self.segment.confirmed else None
            raise DamagedSegmentError(0, "a header that does not match its CRC", torn)
        if version != FORMAT:
            raise JournalError(
                f"{self.segment.path}: format {version}, but this version reads format {FORMAT}; "
                "use the version of relaax_like that wrote it, or start in another folder"
            )
        if self.index != self.segment.first_index:
            found = f"a header for record {self.index}, which contradicts the file name"
            raise DamagedSegmentError(0, found, torn=False)
        return chain

    def _read_record(self) -> tuple[int, memoryview]:
        remaining = self.size - self.offset - RECORD_BYTES
        if remaining < 0:
            found = f"only {self.size - self.offset} of a record header's {RECORD_BYTES} bytes"
            raise DamagedSegmentError(self.offset, found)
        header = self._read(RECORD_BYTES)
        mark, length, index, crc, chain = RECORD.unpack(header)
        if mark != MARK:
            raise DamagedSegmentError(self.offset, f"{mark!r} instead of a record marker")
        if length > remaining:
            found = f"a record with only {remaining} of its {length} bytes in the file"
            raise DamagedSegmentError(self.offset, found)
        payload = self._read(length)
        if crc != zlib.crc32(payload, zlib.crc32(header[4:20])):
            raise DamagedSegmentError(self.offset, "a record that does not match its CRC")
        if index != self.index:
            raise DamagedSegmentError(self.offset, f"record {index}")
        if chain != zlib.crc32(header[4:24], self.chain):
            raise DamagedSegmentError(
                self.offset, "a record that does not continue the previous one"
            )
        self.index += 1
        self.chain = chain
        self.record_offset = self.offset
        self.offset += RECORD_BYTES + length
        return index, memoryview(payload)

    def _read(self, count: int) -> bytes:
        try:
            piece = self._file.read(count)
        except OSError as error:
            raise DamagedSegmentError(
                self.offset, _describe_unreadable(error), torn=False
            ) from error
        if len(piece) < count:
            raise DamagedSegmentError(
                self.offset, "a file that shrank while it was being read", torn=False
            )
        return piece


class JournalReader:
    """The records of a journal, each checked; can be iterated once.

        reader = JournalReader(directory, manifest.fingerprint, from_index)
        for index, payload in reader: ...
        if reader.torn: ...     # the end, not yet synced, was lost in a crash
        journal = Journal(directory, reader.next_index, ...)

    Must not be used while another process writes: a partly written record looks torn.

    Attributes:
      torn: what a crash left at the end; None: nothing, as far as was read.
      end: the segment in which the records read so far end; None: none was read.
    """

    def __init__(
        self,
        directory: Path,
        fingerprint: int | None,
        from_index: int,
        head: JournalHead | None = None,
    ):
        """Reads nothing yet.

        Args:
          directory: the journal's folder; if it does not exist, there are no records.
          fingerprint: of the model, see `Journal`; None: any.
          from_index: index of the first wanted record; older records in the same segment are
            checked, too.
          head: the journal's head; None: a missing end is not noticed.
        """
        self.torn: Damage | None = None
        self.end: SegmentReader | None = None
        self._directory = directory
        self._fingerprint = fingerprint
        self._from_index = from_index
        self._head = head

    @property
    def next_index(self) -> int:
        """Index of the record after those read so far, and never below `from_index`."""
        return max(self._from_index, self.end.index if self.end else 0)

    def __iter__(self) -> Iterator[tuple[int, memoryview]]:
        """Yields index and payload.

        The records can end before `from_index`: a snapshot can outlive records that it contains.

        Raises:
          DamagedJournalError: records, or the head, are damaged or missing.
          JournalError: records belong to another model; records or the head have a format that this
            version does not know; or the folder cannot be read.
        """
        segments = self._select_segments()
        for position, segment in enumerate(segments):
            try:
                with SegmentReader(segment) as reader:
                    self._validate_model(reader)
                    reader.validate_follows(self.end)
                    self.end = reader
                    for index, payload in reader:
                        if index >= self._from_index:
                            yield index, payload
            except DamagedSegmentError as error:
                index = self.end.index if self.end else segment.first_index
                damage = locate(error, segments, position, index)
                if not damage.torn:
                    raise DamagedJournalError(damage, self._directory) from None
                self.torn = damage
                break
        if self._head is not None:
            self._validate_end(self._head, segments)

    def make_error(self, found: str) -> DamagedJournalError:
        """Returns the error to raise if the record that was read last cannot be used.

        Args:
          found: what is there instead of a usable record.
        """
        assert self.end is not None
        path, offset = self.end.segment.path, self.end.record_offset
        return DamagedJournalError(
            Damage(path, offset, self.end.index - 1, found, torn=False), self._directory
        )

    def _select_segments(self) -> list[SegmentFile]:
        segments = list_segments(self._directory)
        older = sum(segment.first_index <= self._from_index for segment in segments)
        if segments and not older:
            first = segments[0]
            found = f"a journal that starts with record {first.first_index}"
            damage = Damage(first.path, 0, self._from_index, found, torn=False)
            raise DamagedJournalError(damage, self._directory)
        return segments[max(0, older - 1) :]

    def _validate_end(self, head: JournalHead, segments: Sequence[SegmentFile]) -> None:
        """Checks that the journal contains all that its head claims.

        Raises:
          DamagedJournalError: records are missing; or the head is damaged, or missing although
            there are segments.
          JournalError: the head has a format that this version does not know.
        """
        try:
            claim = head.read()
        except DamagedError as error:
            self._fail_at_end(
                f"its head, {head.path}, is damaged or unreadable ({error}); more could be missing"
            )
        if claim is None:
            if segments:
                self._fail_at_end(f"its head, {head.path}, is missing, and more could be missing")
            return
        if claim.is_final and self._from_index >= claim.end:
            return
        newest = segments[-1].first_index if segments else -1
        if claim.newest_segment is not None and newest < claim.newest_segment:
            self._fail_at_end(f"there was a segment that begins with record {claim.newest_segment}")
        if (self.end.index if self.end else 0) < claim.end:
            self._fail_at_end(f"record {claim.end - 1} had been written and synced")

    def _fail_at_end(self, found: str) -> NoReturn:
        if self.torn is None:
            damage = Damage(self._directory, None, self.next_index, found, torn=False)
        else:
            damage = replace(self.torn, found=f"{self.torn.found}, but {found}", torn=False)
        raise DamagedJournalError(damage, self._directory)

    def _validate_model(self, reader: SegmentReader) -> None:
        if self._fingerprint is not None and reader.fingerprint != self._fingerprint:
            raise JournalError(
                f"{reader.segment.path}: the journal belongs to a different model: fingerprint "
                f"{reader.fingerprint:#x}, expected {self._fingerprint:#x}; use the settings, the "
                "algorithm's code and the snapshots of that run, or another checkpoint_dir"
            )


def _describe_unreadable(error: OSError) -> str:
    return f"a file that cannot be read ({error}); first check its permissions and the disk"


def locate(
    error: DamagedSegmentError, segments: Sequence[SegmentFile], position: int, index: int
) -> Damage:
    """Returns where a journal is damaged, and whether that is the torn end that a crash leaves.

    The bytes that a killed process wrote are all there, in order; a power cut loses some of those
    that were not yet synced. So the end is torn if nothing complete follows it: no record in the
    same file, and no segments except unconfirmed ones. A power cut that lost a page but not a later
    one looks like damage, too: the user decides, rather than a record being dropped.

    Args:
      error: the error raised while reading a segment.
      segments: all segments.
      position: position in `segments` of the one that was read.
      index: index of the record that should be there.
    """
    segment = segments[position]
    torn = error.torn
    if torn is None:
        torn = not _holds_record(segment.path, error.offset)
    torn = torn and not any(behind.confirmed for behind in segments[position + 1 :])
    return Damage(segment.path, error.offset, index, str(error), torn)


def find_last_record(directory: Path, damage: Damage) -> bytes | None:
    """Returns the payload of the last complete record after a damage; None: none was found.

    Only for display: it is not checked whether the record continues those before it.

    Raises:
      JournalError: the folder cannot be read.
    """
    if damage.offset is None:
        return None
    for segment in reversed(list_segments(directory)):
        if segment.first_index < damage.index and segment.path != damage.path:
            break
        offset = damage.offset if segment.path == damage.path else 0
        payload = None
        with contextlib.suppress(OSError), open(segment.path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            for mark in _find_marks(file.fileno(), offset):
                if _is_record(file.fileno(), mark, size):
                    length = RECORD.unpack(os.pread(file.fileno(), RECORD_BYTES, mark))[1]
                    payload = os.pread(file.fileno(), length, mark + RECORD_BYTES)
        if payload is not None:
            return payload
    return None


def _holds_record(path: Path, offset: int) -> bool:
    """Returns whether a complete record begins at `offset` or later; True if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            descriptor = file.fileno()
            size = os.fstat(descriptor).st_size
            return any(
                _is_record(descriptor, mark, size) for mark in _find_marks(descriptor, offset)
            )
    except OSError:
        return True


def _find_marks(descriptor: int, offset: int) -> Iterator[int]:
    while len(piece := os.pread(descriptor, _READ_BYTES, offset)) >= len(MARK):
        found = piece.find(MARK)
        while found >= 0:
            yield offset + found
            found = piece.find(MARK, found + 1)
        offset += len(piece) - (len(MARK) - 1)  # a mark can lie across the border


def _is_record(descriptor: int, offset: int, size: int) -> bool:
    remaining = size - offset - RECORD_BYTES
    if remaining < 0:
        return False
    header = os.pread(descriptor, RECORD_BYTES, offset)
    _, length, _, crc, _ = RECORD.unpack(header)
    if length > remaining:
        return False
    found = zlib.crc32(header[4:20])
    position = offset + RECORD_BYTES
    end = position + length
    while position < end:
        piece = os.pread(descriptor, min(_READ_BYTES, end - position), position)
        if not piece:
            return False
        found = zlib.crc32(piece, found)
        position += len(piece)
    return found == crc
