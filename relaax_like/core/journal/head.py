"""The journal's head: a small file that records how far the journal is known to be on the disk.

A journal that has lost its last segment, or the end of it, looks like one that ended earlier. The
head is beside the journal's folder and shows the difference. Little-endian:

    magic 8 bytes, format u32, first index of the newest segment i64 (-1: none), end u64,
    final u32 (0 or 1), CRC u32

The head is written after each sync of the journal, so it never claims what a crash can lose. It
needs no sync of its own: a power cut can leave an older head, which claims less. It is overwritten
in place, without a new file: it is smaller than a sector, which a disk writes completely or not at
all, and needs no additional space on a full disk.

A journal that can be given up has another file, in its folder, as long as it was not. Giving up
removes it, which a full disk permits.
"""

import logging
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from relaax_like.wire.errors import DamagedError, JournalError
from relaax_like.wire.syncing import replace_file

_LOG = logging.getLogger(__name__)
_FORMAT = 1
_MAGIC = b"\x89rlxhed\n"
_HEAD = struct.Struct("<8sIqQII")


@dataclass(frozen=True)
class Claim:
    """What the journal's writer has recorded as synced to disk.

    Attributes:
      newest_segment: first index of a segment: it exists, or a newer one does; None: unknown.
      end: all records before this index exist, or are older than all segments.
      is_final: the writer closed the journal, and there is no record after `end`: a snapshot of
        that position needs no journal.
    """

    newest_segment: int | None = None
    end: int = 0
    is_final: bool = False


def path_of_head(directory: Path) -> Path:
    """Returns the path of a journal's head: beside the folder, in case the folder is lost."""
    return directory.with_name(f"{directory.name}-head")


def path_of_marker(directory: Path) -> Path:
    """Returns the path of the file that exists while a journal has not been given up."""
    return directory / "not-given-up"


def is_given_up(directory: Path) -> bool:
    """Returns whether a journal might lack, at its end, what was acknowledged later."""
    return os.path.exists(path_of_head(directory)) and not os.path.exists(path_of_marker(directory))


class JournalHead:
    """Reads and writes the head of one journal. Used by one thread at a time.

        head = JournalHead(directory.with_name("journal-head"))
        claim = head.read()          # None: there is none
        head.replace(Claim())        # atomic and durable
        head.note(Claim(7, 12))      # in place, without a sync
        head.close()

    Args:
      path: the file.

    Attributes:
      path: as the argument.
    """

    def __init__(self, path: Path):
        self.path = path
        self._file: int | None = None
        self._failed = False

    def read(self) -> Claim | None:
        """Returns the head's claim; None if there is no head.

        Raises:
          DamagedError: the head is damaged, or cannot be read.
          JournalError: the head has a format that this version does not know.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DamagedError(f"cannot be read: {error}") from error
        if len(content) != _HEAD.size:
            raise DamagedError(f"expected {_HEAD.size} bytes, found {len(content)}")
        magic, version, newest, end, final, crc = _HEAD.unpack(content)
        if magic != _MAGIC or crc != zlib.crc32(content[:-4]):
            raise DamagedError("it does not match its CRC")
        if version != _FORMAT:
            raise JournalError(
                f"{self.path}: format {version}, but this version reads format {_FORMAT}; use "
                "the version of relaax_like that wrote it, or start in another folder"
            )
        return Claim(None if newest < 0 else newest, end, bool(final))

    def replace(self, claim: Claim) -> None:
        """Writes the file, or replaces it atomically: after a crash, it is the old or the new file.

        Raises:
          OSError: the file cannot be written, and the old one is untouched; or the folder cannot
            be synced, and a power cut can leave either file.
        """
        self.close()
        replace_file(self.path, _pack(claim))

    def note(self, claim: Claim) -> None:
        """Overwrites the existing file. The caller has synced what the head claims.

        The first failure is logged; it only weakens a check at the next start.
        """
        try:
            if self._file is None:
                self._file = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
            os.pwrite(self._file, _pack(claim), 0)
        except OSError as error:
            if not self._failed:
                _LOG.warning(
                    "%s: could not be written: %s; if the journal loses its end, the next "
                    "start might not notice",
                    self.path,
                    error,
                )
            self._failed = True

    def close(self) -> None:
        """Closes the file. Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _pack(claim: Claim) -> bytes:
    newest = -1 if claim.newest_segment is None else claim.newest_segment
    head = _HEAD.pack(_MAGIC, _FORMAT, newest, claim.end, claim.is_final, 0)[:-4]
    return head + zlib.crc32(head).to_bytes(4, "little")
