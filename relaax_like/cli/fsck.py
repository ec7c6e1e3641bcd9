"""`relaax fsck`: checks, and repairs on request, the files from which a run's servers start.

These are snapshots and journals of a parameter server, and journals of replay tables. A learner in
a process of its own has only the latter on its machine.
"""

import contextlib
import os
from pathlib import Path

from rich.console import Console
from rich.table import Table

from relaax_like.core.journal.check import JournalCut, JournalReport, check_journal, cut_journal
from relaax_like.core.journal.head import is_given_up
from relaax_like.learn.replay_log import GIVEN_UP, find_damage
from relaax_like.parameter_server.folder import lock_folder
from relaax_like.parameter_server.push_journal import GIVEN_UP as PUSHES_GIVEN_UP
from relaax_like.parameter_server.rehearsal import Rehearsal, rehearse
from relaax_like.parameter_server.snapshots import list_names
from relaax_like.runs.processes.process import EXIT_ERROR
from relaax_like.wire.errors import ConfigError

# Of a run, also of a copy of its snapshots, such as a job's version, which has no lock.
_FILES = ("replay*-head", "cp-[0-9]*-[0-9]*")


def check_folder(folder: Path, to_last_good: bool) -> int:
    """Prints the state of the files; returns 1 if a server or learner would not start, else 0.

    Args:
      folder: of a run, or of its checkpoints.
      to_last_good: make the servers start: move what follows a journal's first damage aside.

    Raises:
      ConfigError: there is no such folder, or it does not belong to a run.
      SnapshotError: another process uses the folder, the lock file cannot be locked, all snapshots
        are damaged, one has an unknown format, or the folder cannot be read.
      JournalError: a journal has records but no snapshot, or another model or format; or it cannot
        be read or moved.
    """
    checkpoints = _find_checkpoints(folder)
    with contextlib.closing(lock_folder(checkpoints)):
        # A head without its folder: the folder is missing.
        logs = {path.name.removesuffix("-head") for path in checkpoints.glob("replay*")}
        statuses = []
        if not logs or _has_server(checkpoints):
            statuses.append(_check_pushes(checkpoints, to_last_good))
        for name in sorted(logs):
            statuses.append(_check_experience(checkpoints / name, to_last_good))
    return max(statuses)


def _has_server(checkpoints: Path) -> bool:
    """Returns whether a parameter server has used the folder, and not only a learner."""
    names = ("epoch", "journal")
    return any((checkpoints / n).exists() for n in names) or bool(list_names(checkpoints))


def _check_pushes(checkpoints: Path, to_last_good: bool) -> int:
    """Checks snapshots and the journal of pushes; see `check_folder`."""
    journal = checkpoints / "journal"
    rehearsal = rehearse(checkpoints)
    _print_snapshots(rehearsal)
    report = check_journal(journal)
    _print_journal(report)
    where = f"version {rehearsal.end.version:,}, step {rehearsal.end.global_t:,}"
    if is_given_up(journal):
        print(PUSHES_GIVEN_UP.format(rehearsal.end.version, rehearsal.end.global_t))
    if rehearsal.damage is None:
        _print_harmless(report, rehearsal)
        print(f"the parameter server starts at {where}")
        return 0
    print(rehearsal.damage)
    if not to_last_good:
        print(
            f"the parameter server cannot start; with --to-last-good it starts at {where}, "
            f"which discards {rehearsal.lost}"
        )
        return EXIT_ERROR
    cut = cut_journal(journal, rehearsal.damage, rehearsal.skipped)
    print(f"discarded: {rehearsal.lost}; the parameter server starts at {where}")
    _print_cut(cut)
    return 0


def _check_experience(directory: Path, to_last_good: bool) -> int:
    """Checks the journal of a replay table; see `check_folder`."""
    report = check_journal(directory)
    _print_journal(report, directory.name)
    if is_given_up(directory):
        newest = report.segments[-1:]
        records = sum(one.first_index + one.records for one in newest)
        print(GIVEN_UP.format(f"record {records:,}"))
    damage, torn = find_damage(directory)
    if torn is not None:
        print(
            f"{torn}; the next start will truncate it there. After a power failure, experience of "
            "the second before it can be lost"
        )
    if damage is None:
        return 0
    print(damage)
    lost = f"experience from record {damage.index:,} on"
    if not to_last_good:
        print(f"the learner cannot start; with --to-last-good it starts without {lost}")
        return EXIT_ERROR
    cut = cut_journal(directory, damage)
    print(f"discarded: {lost}")
    _print_cut(cut)
    return 0


def _print_cut(cut: JournalCut) -> None:
    if cut.aside is not None:
        print(f"moved to {cut.aside} ({cut.bytes:,} bytes of the journal)")


def _find_checkpoints(folder: Path) -> Path:
    # Unlike Path's, these functions do not raise if a name is too long or a permission is missing.
    if not os.path.isdir(folder):
        raise ConfigError(
            f"{folder}: no such folder, or no access to it; pass run_dir or checkpoint_dir of the "
            "YAML file"
        )
    for candidate in (folder / "checkpoints", folder):
        is_used = os.path.exists(candidate / "lock") or os.path.isdir(candidate / "journal")
        if is_used or (
            os.path.isdir(candidate) and any(True for name in _FILES for _ in candidate.glob(name))
        ):
            return candidate
    raise ConfigError(
        f"{folder}: not a run's folder, or no access to it: neither it nor its subfolder "
        "checkpoints has a file lock, a folder journal, a snapshot cp-* or a file replay*-head; "
        "pass run_dir or checkpoint_dir of the YAML file"
    )


def _print_journal(report: JournalReport, title: str = "journal") -> None:
    if not report.segments:
        print(f"{title}: none")
        return
    table = Table(title=title)
    for column in ("segment", "first record", "records", "bytes", "state"):
        table.add_column(column, justify="left" if column in ("segment", "state") else "right")
    for segment in report.segments:
        numbers = (segment.first_index, segment.records, segment.bytes)
        table.add_row(segment.path.name, *(f"{number:,}" for number in numbers), segment.state)
    Console().print(table)


def _print_snapshots(rehearsal: Rehearsal) -> None:
    state = rehearsal.snapshot
    where = "none" if state is None else f"version {state.version:,}, step {state.global_t:,}"
    print(f"newest snapshot: {where}")
    if rehearsal.skipped:
        names = ", ".join(path.name for path in rehearsal.skipped)
        print(f"newer snapshots that are damaged: {names}")


def _print_harmless(report: JournalReport, rehearsal: Rehearsal) -> None:
    """Prints damage that does not prevent the server from starting."""
    if rehearsal.torn is not None:
        print(
            f"{rehearsal.torn}; the parameter server will truncate the journal there. No "
            "record known to be synced is lost; after a power failure, pushes acknowledged in "
            "the second before it can be lost"
        )
    elif report.damage is not None:
        print(f"{report.damage}; it is older than the newest snapshot, and not needed")
