"""`relaax plot`: curves of runs as a picture."""

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from relaax_like.cli.tables import print_table
from relaax_like.reports.modes import XAxis
from relaax_like.reports.plot import choose_curve, plot_runs, validate_output
from relaax_like.run_folders.runs import Run, group_runs, load_runs


def show_plot(paths: Sequence[Path], curve: str | None, x: XAxis, smooth: int, out: Path) -> int:
    """Draws a curve of the runs; prints the picture's file, curve and runs.

    Args:
      paths: see `load_runs`.
      curve: name of the curve; None: see `choose_curve`.
      x: what the horizontal axis shows.
      smooth: number of points averaged into each plotted point.
      out: file to write.

    Raises:
      ConfigError: see `load_runs`, `choose_curve` and `plot_runs`.
    """
    validate_output(out)
    runs = load_runs(paths)
    name = choose_curve(runs, curve)
    groups = group_runs(runs)
    plot_runs(groups, name, out, x, smooth)
    print(f"{out}: {name}; {', '.join(group.label for group in groups)}")
    return 0


def list_curves(paths: Sequence[Path]) -> int:
    """Prints the names of the runs' curves, and each run's points and newest value.

    Raises:
      ConfigError: see `load_runs`.
    """
    runs = load_runs(paths)
    table = Table()
    table.add_column("curve")
    for run in runs:
        table.add_column(escape(run.name), justify="right")
    for name in sorted({name for run in runs for name in run.curves}):
        table.add_row(escape(name), *(_describe(run, name) for run in runs))
    print_table(table)
    return 0


def _describe(run: Run, name: str) -> str:
    curve = run.curves.get(name)
    if curve is None:
        return "-"
    points = len(curve.steps)
    return f"{curve.values[-1]:.5g} ({points:,} point{'s' if points > 1 else ''})"
