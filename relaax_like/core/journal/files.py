"""The journal's files, byte by byte.

    journal-INDEX.log        a segment: a header, then records
    journal-INDEX.log.new    the same, until the segments before it are certainly on the disk

INDEX is the index of the segment's first record, with 20 digits.

    header: magic 8 bytes, format u32, fingerprint u32, first index u64, chain u32, CRC u32
    record: mark 4 bytes, length u64, index u64, CRC u32, chain u32, then the payload

Numbers are little-endian; CRCs are zlib's CRC-32. A header's CRC covers its other bytes, a record's
CRC its length, index and payload, so each can be checked by itself. The chain is the CRC-32 of
length, index and CRC, continued from the chain of the previous record; the header has the value
that its first record continues from. So a missing, repeated or foreign record is noticed.
"""

import os
import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relaax_like.wire.errors import JournalError

FORMAT = 2
# The same in every format: it distinguishes an unknown format from a damaged header.
HEADER = struct.Struct("<8sIIQII")
RECORD = struct.Struct("<4sQQII")
_HEAD = struct.Struct("<QQ")
HEADER_BYTES = HEADER.size
RECORD_BYTES = RECORD.size
MAGIC = b"\x89rlxlog\n"
MARK = b"\x8dRec"
_NAME = re.compile(r"^journal-(\d{20})\.log(\.new)?$")
_NEW = ".new"


@dataclass(frozen=True)
class SegmentFile:
    """A segment's file.

    Attributes:
      path: the file.
      first_index: index of its first record, according to its name.
      confirmed: all segments before it are on the disk; a crash cannot have damaged them.
    """

    path: Path
    first_index: int
    confirmed: bool


def path_of(directory: Path, first_index: int, confirmed: bool) -> Path:
    """Returns the path of a segment."""
    return directory / f"journal-{first_index:020d}.log{'' if confirmed else _NEW}"


def list_segments(directory: Path) -> list[SegmentFile]:
    """Returns the segments of a journal, oldest first; [] if there is no folder.

    Raises:
      JournalError: the folder cannot be read.
    """
    try:
        names = [_NAME.match(name) for name in os.listdir(directory)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise JournalError(
            f"{directory}: the journal's folder cannot be read: {error}; it must be a folder that "
            "this user can read. Correct that, or check the disk"
        ) from error
    segments = (SegmentFile(directory / n[0], int(n[1]), not n[2]) for n in names if n)
    return sorted(segments, key=lambda segment: (segment.first_index, segment.path))


def get_size(segment: SegmentFile) -> int:
    """Returns the size of a segment's file, in bytes.

    Raises:
      JournalError: the file is gone, its folder cannot be searched, or the disk has failed.
    """
    try:
        return segment.path.stat().st_size
    except OSError as error:
        raise JournalError(
            f"{segment.path}: the file cannot be examined: {error}; this user must be allowed to "
            "read and search its folder. Correct that, or check the disk"
        ) from error


def pack_header(fingerprint: int, first_index: int, chain: int) -> bytes:
    """Returns a segment's header."""
    header = HEADER.pack(MAGIC, FORMAT, fingerprint, first_index, chain, 0)[:-4]
    return header + zlib.crc32(header).to_bytes(4, "little")


def pack_record_header(index: int, payload: Sequence[memoryview], chain: int) -> tuple[bytes, int]:
    """Returns the header that precedes a payload, and the chain after the record.

    Args:
      index: index of the record.
      payload: its bytes, in pieces.
      chain: chain after the previous record.
    """
    length = sum(piece.nbytes for piece in payload)
    head = _HEAD.pack(length, index)
    crc = zlib.crc32(head)
    for piece in payload:
        crc = zlib.crc32(piece, crc)
    chain = zlib.crc32(crc.to_bytes(4, "little"), zlib.crc32(head, chain))
    return RECORD.pack(MARK, length, index, crc, chain), chain
