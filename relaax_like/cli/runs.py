"""`relaax compare` and `relaax plot`: runs side by side, and their curves in one picture."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from relaax_like.cli.tables import print_table
from relaax_like.runs.folders.compare import RunResults, summarize_run
from relaax_like.runs.folders.modes import XAxis
from relaax_like.runs.folders.plot import choose_curve, plot_runs, validate_output
from relaax_like.runs.folders.runs import Run, RunGroup, find_differences, group_runs, load_runs

# Attribute of RunSummary -> title of its row, and the format of its numbers.
_ROWS: dict[str, tuple[str, Callable[[float], str]]] = {
    "steps": ("steps", "{:,.0f}".format),
    "mean_return": ("mean return", "{:,.2f}".format),
    "episodes": ("of episodes", "{:,.0f}".format),
    "best": ("best", "{:,.2f}".format),
    "target_steps": ("steps to {target:g}", "{:,.0f}".format),
    "target_sec": ("seconds to {target:g}", "{:,.1f}".format),
    "steps_per_sec": ("steps/s", "{:,.0f}".format),
}
_CAPTION = "over several seeds: mean [minimum, maximum]"
_OF_TARGET = ("target_steps", "target_sec")


def show_comparison(paths: Sequence[Path], target: float | None, as_json: bool) -> int:
    """Prints a table of the runs, or JSON; returns the exit status.

    The table has one column for each group of runs; see `group_runs`.

    Args:
      paths: see `load_runs`.
      target: a mean return; also print the steps and seconds needed to reach it.
      as_json: print JSON instead of a table.

    Raises:
      ConfigError: see `load_runs`.
    """
    groups = group_runs(load_runs(paths))
    summaries = [[summarize_run(run, target) for run in group.runs] for group in groups]
    differences = find_differences(groups)
    if as_json:
        print(json.dumps(_to_json(groups, summaries, target, differences)))
        return 0
    print_table(_make_table(groups, summaries, target, differences))
    return 0


def _to_json(
    groups: Sequence[RunGroup],
    summaries: Sequence[Sequence[RunResults]],
    target: float | None,
    differences: dict[str, list[Any]],
) -> dict[str, Any]:
    return {
        "target": target,
        "groups": [
            {
                "name": group.name,
                "environment": group.runs[0].environment,
                "algorithm": group.runs[0].algorithm,
                "versions": group.runs[0].versions,
                "runs": [asdict(summary) for summary in rows],
            }
            for group, rows in zip(groups, summaries, strict=True)
        ],
        # One value per group, in their order.
        "differences": differences,
    }


def _make_table(
    groups: Sequence[RunGroup],
    summaries: Sequence[Sequence[RunResults]],
    target: float | None,
    differences: dict[str, list[Any]],
) -> Table:
    """Makes one column per group of runs: the numbers, then the settings that differ."""
    several = any(len(rows) > 1 for rows in summaries)
    table = Table(caption=Text(_CAPTION) if several else None)
    table.add_column("run")
    for group in groups:
        table.add_column(escape(group.name), justify="right")
    table.add_row("environment", *(escape(group.runs[0].environment) for group in groups))
    table.add_row("algorithm", *(escape(group.runs[0].algorithm) for group in groups))
    table.add_row("seeds", *(group.seeds for group in groups))
    table.add_row("versions", *(escape(_list_versions(group.runs[0])) for group in groups))
    for attribute, (title, to_text) in _ROWS.items():
        if target is not None:
            title = title.format(target=target)
        elif attribute in _OF_TARGET:
            continue
        values = [[getattr(row, attribute) for row in rows] for rows in summaries]
        table.add_row(title, *(_format(numbers, to_text) for numbers in values))
    table.add_section()
    for key, settings in differences.items():
        cells = ["-" if value is None else _to_text(value) for value in settings]
        table.add_row(*map(escape, [key, *cells]))
    return table


def _list_versions(run: Run) -> str:
    return "\n".join(f"{name} {', '.join(found)}" for name, found in run.versions.items()) or "-"


def _format(values: Sequence[float | None], to_text: Callable[[float], str]) -> str:
    """Formats one number, or the mean and range of several; shows the count if some are missing."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    text = to_text(float(np.mean(known)))
    if min(known) < max(known):
        text += f" [{to_text(min(known))}, {to_text(max(known))}]"
    return text if len(known) == len(values) else f"{text}, {len(known)} of {len(values)}"


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


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
        table.add_row(escape(name), *(_describe_curve(run, name) for run in runs))
    print_table(table)
    return 0


def _describe_curve(run: Run, name: str) -> str:
    curve = run.curves.get(name)
    if curve is None:
        return "-"
    points = len(curve.steps)
    return f"{curve.values[-1]:.5g} ({points:,} point{'s' if points > 1 else ''})"
