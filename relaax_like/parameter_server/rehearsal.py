"""Finds out what a start of the server would restore from its folder, without starting it.

Must not be called while a server writes to the folder.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relaax_like.core.journal.head import JournalHead, path_of_head
from relaax_like.core.journal.reader import (
    Damage,
    DamagedJournalError,
    JournalReader,
    find_last_record,
)
from relaax_like.parameter_server.published_state import PublishedState
from relaax_like.parameter_server.push_journal import (
    JOURNAL_INDEX,
    NO_SNAPSHOT,
    holds_records,
    read_records,
)
from relaax_like.parameter_server.records import Position, unpack_record
from relaax_like.parameter_server.snapshot_format import State
from relaax_like.parameter_server.snapshots import read_latest
from relaax_like.wire.errors import DamagedError, JournalError


@dataclass(frozen=True)
class Rehearsal:
    """What a start of the server would restore.

    Attributes:
      snapshot: the newest snapshot that is not damaged; None: there is none.
      skipped: directories of damaged snapshots that are newer, oldest first.
      end: where the usable records end: the state from which the server would resume. A
        publication is not considered if there is no snapshot.
      damage: why the server would not start; None: it would start.
      torn: the torn end that the server would truncate; None: nothing is torn.
      lost: what is lost if everything after `damage` is discarded, in words; "" without damage.
    """

    snapshot: State | None
    skipped: tuple[Path, ...]
    end: Position
    damage: Damage | None = None
    torn: Damage | None = None
    lost: str = ""


def rehearse(checkpoints: Path) -> Rehearsal:
    """Finds out what a start of the server would restore and replay; changes nothing.

    Args:
      checkpoints: the folder of snapshots and journal.

    Raises:
      SnapshotError: all snapshots are damaged, a snapshot or publication has a format that this
        version does not know, or the folder cannot be read.
      JournalError: there are records but no snapshot; the journal has another model or format; or
        its folder or a record cannot be read.
    """
    directory = checkpoints / "journal"
    damaged: set[str] = set()
    snapshot = read_latest(checkpoints, damaged)
    if snapshot is None and holds_records(directory):
        raise JournalError(NO_SNAPSHOT.format(checkpoints))
    skipped = tuple(checkpoints / name for name in sorted(damaged))
    end = _find_start(checkpoints, snapshot)
    fingerprint = None if snapshot is None else snapshot.manifest.fingerprint
    head = JournalHead(path_of_head(directory))
    reader = JournalReader(directory, fingerprint, end.index, head)
    try:
        for record in read_records(reader, end):
            end = Position(end.index + 1, record.version, record.global_t)
    except DamagedJournalError as error:
        lost = _describe_lost(directory, end, error.damage, skipped)
        return Rehearsal(snapshot, skipped, end, error.damage, lost=lost)
    return Rehearsal(snapshot, skipped, end, torn=reader.torn)


def _find_start(checkpoints: Path, snapshot: State | None) -> Position:
    if snapshot is None:
        return Position(0, 0, 0)
    index = int(snapshot.statistics.get(JOURNAL_INDEX, 0))
    published = PublishedState(checkpoints).read(snapshot)
    newest = snapshot
    if published is not None and published.age > snapshot.age:
        newest = published
    return Position(index, newest.version, newest.global_t)


def _describe_lost(directory: Path, end: Position, damage: Damage, skipped: Sequence[Path]) -> str:
    """Describes the versions after a damage, as far as they can still be determined."""
    known = [(end.version, end.global_t)]
    for path in skipped:
        _, steps, number = path.name.split("-")
        known.append((int(number), int(steps)))
    payload = find_last_record(directory, damage)
    if payload is not None:
        with contextlib.suppress(JournalError):
            record = unpack_record(memoryview(payload))
            known.append((record.version, record.global_t))
    version, global_t = max(known)
    text = f"all versions after {end.version:,}"
    if version > end.version:
        text = f"versions {end.version + 1:,} to {version:,} (step {global_t:,})"
    if payload is None:
        missing = _count_missing(directory, damage)
        pushes = "push" if missing == 1 else "pushes"
        text += f", and at least {missing:,} missing {pushes}" if missing else ""
    return text


def _count_missing(directory: Path, damage: Damage) -> int:
    """Returns the number of synced records that are missing; 0: none, or unknown."""
    try:
        claim = JournalHead(path_of_head(directory)).read()
    except DamagedError:
        claim = None
    return 0 if claim is None else max(0, claim.end - damage.index)
