"""What `relaax fsck` tells of a journal, and its cure: the journal up to the first damage.

Neither may run while a server writes to the folder.
"""

import itertools
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from relaax_like.parameter_server.journal_format import Segment, list_segments
from relaax_like.parameter_server.journal_reader import Damage, DamagedError, SegmentReader, locate
from relaax_like.wire.errors import JournalError
from relaax_like.wire.syncing import sync_path


@dataclass(frozen=True)
class SegmentReport:
    """One segment's file.

    Attributes:
      path: the file.
      first_index: of its first record, as its name says.
      records: that are whole, up to the segment's own first damage.
      bytes: size of the file.
      state: "whole"; "torn", as a crash leaves the end of the last one; "damaged".
    """

    path: Path
    first_index: int
    records: int
    bytes: int
    state: str


@dataclass(frozen=True)
class JournalReport:
    """A journal.

    Attributes:
      segments: oldest first, also those behind a damaged one.
      damage: the first one; None where all is whole.
    """

    segments: tuple[SegmentReport, ...]
    damage: Damage | None


@dataclass(frozen=True)
class Cut:
    """What `cut_to_last_good` did.

    Attributes:
      damage: where it cut; records before `damage.index` are left.
      aside: the folder with all that lay behind.
      bytes: moved there.
    """

    damage: Damage
    aside: Path
    bytes: int


def check_journal(directory: Path) -> JournalReport:
    """Reads a whole journal, damaged or not.

    Raises:
      JournalError: a segment is of a format that this version does not know.
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
        except DamagedError as error:
            expected = reader if reader and error.offset else previous
            index = expected.index if expected else segment.first_index
            damage = locate(error, segments, position, index)
        reports.append(_report(segment, reader, damage))
        first = first or damage
        previous = None if damage else reader
    return JournalReport(tuple(reports), first)


def _report(segment: Segment, reader: SegmentReader | None, damage: Damage | None) -> SegmentReport:
    state = "whole" if damage is None else "torn" if damage.torn else "damaged"
    records = reader.index - segment.first_index if reader else 0
    size = segment.path.stat().st_size
    return SegmentReport(segment.path, segment.first_index, records, size, state)


def cut_to_last_good(directory: Path) -> Cut | None:
    """Cuts a journal at its first damage; what lies behind is moved into a folder beside it.

    Until it is done the journal looks as damaged as before: it can be done again.

    Returns:
      None when there is no damage; then nothing was touched.

    Raises:
      JournalError: the disk is full or fails, or a segment is of an unknown format.
    """
    damage = check_journal(directory).damage
    if damage is None:
        return None
    try:
        aside = _make_aside(directory, damage.index)
        behind = [segment.path for segment in list_segments(directory)]
        behind = behind[behind.index(damage.path) + 1 :]
        moved = sum(path.stat().st_size for path in behind)
        moved += damage.path.stat().st_size - damage.offset
        if damage.offset:
            _copy_tail(damage, aside)
        for path in reversed(behind):
            path.rename(aside / path.name)
        if damage.offset:
            _truncate(damage.path, damage.offset)
        else:
            damage.path.rename(aside / damage.path.name)
        sync_path(aside)
        sync_path(directory)
    except OSError as error:
        raise JournalError(f"{directory}: the journal was not cut: {error}") from error
    return Cut(damage, aside, moved)


def _make_aside(directory: Path, index: int) -> Path:
    for count in itertools.count(1):
        aside = directory / f"cut-{index:020d}-{count}"
        try:
            aside.mkdir(mode=0o700)
            return aside
        except FileExistsError:
            continue
    raise AssertionError


def _copy_tail(damage: Damage, aside: Path) -> None:
    copy = aside / f"{damage.path.name}.from-{damage.offset}"
    with open(damage.path, "rb") as source, open(copy, "xb") as target:
        source.seek(damage.offset)
        shutil.copyfileobj(source, target)
    sync_path(copy)


def _truncate(path: Path, size: int) -> None:
    os.truncate(path, size)
    sync_path(path)
