"""The journal check of `relaax fsck`, and its repair: moving away everything after a damage.

Neither the check nor the repair must run while a server writes to the folder.
"""

import contextlib
import itertools
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relaax_like.core.journal.files import SegmentFile, get_size, list_segments
from relaax_like.core.journal.head import Claim, JournalHead, path_of_head
from relaax_like.core.journal.reader import (
    Damage,
    DamagedSegmentError,
    SegmentReader,
    locate,
)
from relaax_like.wire.errors import JournalError
from relaax_like.wire.syncing import sync_path


@dataclass(frozen=True)
class SegmentReport:
    """The result of checking one segment's file.

    Attributes:
      path: the file.
      first_index: index of its first record, according to its name.
      records: number of valid records before the segment's first damage.
      bytes: size of the file.
      state: "whole": complete and undamaged; "torn": a crash can leave this, and nothing that was
        synced is lost; "damaged": anything else.
    """

    path: Path
    first_index: int
    records: int
    bytes: int
    state: str


@dataclass(frozen=True)
class JournalReport:
    """The result of checking a journal.

    Attributes:
      segments: oldest first, including those after a damaged one.
      damage: the first damage, or torn end; None: there is none.
    """

    segments: tuple[SegmentReport, ...]
    damage: Damage | None


@dataclass(frozen=True)
class JournalCut:
    """What `cut_journal` moved into another folder.

    Attributes:
      aside: the folder with what was moved; None: nothing was moved, because the rest of the
        journal is missing and there are no unusable snapshots.
      bytes: number of the journal's bytes that were moved.
    """

    aside: Path | None
    bytes: int


def check_journal(directory: Path) -> JournalReport:
    """Reads a complete journal, damaged or not; a missing beginning or end is not noticed.

    Raises:
      JournalError: a segment has a format that this version does not know, or the folder cannot be
        read or searched.
    """
    segments = list_segments(directory)
    reports = []
    first: Damage | None = None
    previous: SegmentReader | None = None
    for position, segment in enumerate(segments):
        damage = None
        reader: SegmentReader | None = None
        try:
            with SegmentReader(segment) as reader:
                reader.validate_follows(previous)
                for _ in reader:
                    pass
        except DamagedSegmentError as error:
            expected = reader if reader and error.offset else previous
            index = expected.index if expected else segment.first_index
            damage = locate(error, segments, position, index)
        reports.append(_report(segment, reader, damage))
        first = first or damage
        previous = None if damage else reader
    return JournalReport(tuple(reports), first)


def _report(
    segment: SegmentFile, reader: SegmentReader | None, damage: Damage | None
) -> SegmentReport:
    state = "whole" if damage is None else "torn" if damage.torn else "damaged"
    records = reader.index - segment.first_index if reader else 0
    size = get_size(segment)
    return SegmentReport(segment.path, segment.first_index, records, size, state)


def cut_journal(directory: Path, damage: Damage, unusable: Sequence[Path] = ()) -> JournalCut:
    """Cuts a journal at a damage; everything after it is moved to `cut-INDEX-N` in its folder.

    Until the cut is complete, the journal still counts as damaged, so the cut can be repeated.

    Args:
      directory: the journal's folder.
      damage: where to cut; records before `damage.index` remain.
      unusable: damaged snapshots that are newer than `damage`; they are moved, too: if one were
        restored from a backup, it would not match what is written to the journal from now on.

    Raises:
      JournalError: a file cannot be moved or written (disk full, no permission, ...).
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        aside = _make_aside(directory, damage.index)
        for path in unusable:
            path.rename(aside / path.name)
        # The head might claim what is discarded here; the next start writes a new one.
        JournalHead(path_of_head(directory)).replace(Claim())
        moved = 0 if damage.offset is None else _move_rest(directory, damage, damage.offset, aside)
        sync_path(aside)
        with contextlib.suppress(OSError):
            aside.rmdir()  # nothing was moved into it
        sync_path(directory)
    except OSError as error:
        raise JournalError(
            f"{directory}: could not truncate the journal: {error}; make sure that this user can "
            f"read and write there and in {directory.parent}, and that the disk has space, then "
            "try again"
        ) from error
    return JournalCut(aside if aside.exists() else None, moved)


def _make_aside(directory: Path, index: int) -> Path:
    for count in itertools.count(1):
        aside = directory / f"cut-{index:020d}-{count}"
        try:
            aside.mkdir(mode=0o700)
            return aside
        except FileExistsError:
            continue
    raise AssertionError


def _move_rest(directory: Path, damage: Damage, offset: int, aside: Path) -> int:
    """Moves a damage and everything after it; returns the number of bytes."""
    path = damage.path
    behind = [segment.path for segment in list_segments(directory)]
    behind = behind[behind.index(path) + 1 :]
    moved = sum(one.stat().st_size for one in behind) + path.stat().st_size - offset
    if offset:
        copy = aside / f"{path.name}.from-{offset}"
        with open(path, "rb") as source, open(copy, "xb") as target:
            source.seek(offset)
            shutil.copyfileobj(source, target)
        sync_path(copy)
    for one in reversed(behind):
        one.rename(aside / one.name)
    if offset:
        _truncate(path, offset)
    else:
        path.rename(aside / path.name)
    return moved


def _truncate(path: Path, size: int) -> None:
    os.truncate(path, size)
    sync_path(path)
