"""`relaax fsck`: whether a run's snapshots and journal are whole, and the cure."""

import contextlib
from pathlib import Path

from rich.console import Console
from rich.table import Table

from relaax_like.launch.process import EXIT_ERROR
from relaax_like.parameter_server.folder import lock_folder
from relaax_like.parameter_server.journal_check import (
    JournalReport,
    check_journal,
    cut_to_last_good,
)
from relaax_like.parameter_server.snapshots import read_latest
from relaax_like.wire.errors import ConfigError


def check_folder(folder: Path, to_last_good: bool) -> int:
    """Prints what is there; returns the exit status: 1 when the parameter server would not start.

    Args:
      folder: of a run, or of its checkpoints.
      to_last_good: set aside what lies behind the first damage of the journal.

    Raises:
      ConfigError: no such folder, or nothing of a run in it.
      SnapshotError: a parameter server is running there, or all snapshots are damaged.
      JournalError: a journal of a format that this version does not know.
    """
    checkpoints = _find_checkpoints(folder)
    with contextlib.closing(lock_folder(checkpoints)):
        state = read_latest(checkpoints)
        where = "none" if state is None else f"version {state.version}, step {state.global_t:,}"
        print(f"newest snapshot: {where}")
        report = check_journal(checkpoints / "journal")
        _print_journal(report)
        if report.damage is None or report.damage.torn:
            return 0
        if not to_last_good:
            print("the parameter server does not start on it; --to-last-good keeps what is whole")
            return EXIT_ERROR
        cut = cut_to_last_good(checkpoints / "journal")
        assert cut is not None
        print(
            f"records from {cut.damage.index} on are set aside in {cut.aside} ({cut.bytes:,} "
            "bytes); the run goes on before them"
        )
    return 0


def _find_checkpoints(folder: Path) -> Path:
    for candidate in (folder / "checkpoints", folder):
        if (candidate / "lock").exists() or (candidate / "journal").is_dir():
            return candidate
    raise ConfigError(
        f"{folder}: no run's folder: it has neither checkpoints nor a journal; name run_dir or "
        "checkpoint_dir of the YAML file"
    )


def _print_journal(report: JournalReport) -> None:
    if not report.segments:
        print("journal: none")
        return
    table = Table(title="journal")
    for column in ("segment", "first record", "records", "bytes", "state"):
        table.add_column(column, justify="left" if column in ("segment", "state") else "right")
    for segment in report.segments:
        numbers = (segment.first_index, segment.records, segment.bytes)
        table.add_row(segment.path.name, *(f"{number:,}" for number in numbers), segment.state)
    Console().print(table)
    if report.damage is not None:
        print(report.damage)
