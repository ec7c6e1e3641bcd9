"""Draws a curve of several runs: a line per run, or a mean and a band per group."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from relaax_like.extras import describe_missing
from relaax_like.metrics.curves import Curve
from relaax_like.metrics.names import EPISODE_LENGTH, EPISODE_REWARD, EPISODES, MEAN_RETURN
from relaax_like.runs.folders.modes import XAxis
from relaax_like.runs.folders.runs import Run, RunGroup
from relaax_like.wire.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_X_LABELS = {XAxis.STEPS: "environment steps", XAxis.TIME: "seconds since the run began"}
# Labels of some curves; others are labelled with their names.
_Y_LABELS = {
    MEAN_RETURN: "mean return of the most recent episodes",
    EPISODE_LENGTH: "mean length of the most recent episodes, in steps",
    EPISODES: "episodes",
    EPISODE_REWARD: "return of an episode",
}
_GRID = 400
_SUFFIXES = (".png", ".pdf", ".svg")


def choose_curve(runs: Sequence[Run], name: str | None) -> str:
    """Returns the name of the curve to draw; all runs have it.

    Args:
      runs: the runs.
      name: the requested curve; None: the mean return, or else the episodes' rewards.

    Raises:
      ConfigError: a run has no such curve; the error lists the run's curves.
    """
    wanted = (MEAN_RETURN, EPISODE_REWARD) if name is None else (name,)
    for candidate in wanted:
        if all(candidate in run.curves for run in runs):
            return candidate
    run = next(run for run in runs if wanted[0] not in run.curves)
    there = ", ".join(map(repr, run.curves)) or "no curves"
    cure = "name one that all runs have"
    if not run.curves:
        cure = "wait until the run has recorded curves, or omit it"
    raise ConfigError(f"--curve: run {run.name} has no curve {wanted[0]!r}; it has {there}; {cure}")


def plot_runs(
    groups: Sequence[RunGroup], curve: str, out: Path, x: XAxis = XAxis.STEPS, smooth: int = 1
) -> None:
    """Draws the curve of each group and writes the picture.

    Args:
      groups: several runs of a group become a line, their mean, in a band from their minimum to
        their maximum, with each run as a thin line.
      curve: its name; all runs have it.
      out: the file; its suffix determines the format.
      x: environment steps, or seconds since each run began.
      smooth: number of newest points that are averaged into each drawn point.

    Raises:
      ConfigError: see `validate_output`; or matplotlib is not installed, or the file cannot be
        written.
    """
    validate_output(out)
    try:
        figure = _make_figure(groups, curve, x, smooth)
    except ImportError as error:
        raise ConfigError(describe_missing(error.name) or str(error)) from None
    try:
        figure.savefig(out, dpi=120)
    except OSError as error:
        raise ConfigError(
            f"--out {out}: cannot be written: {error.strerror or error}; free disk space, or "
            "choose another file"
        ) from None


def validate_output(out: Path) -> None:
    """Checks the name of the output file, before slow preparations.

    Raises:
      ConfigError: no such format, no such folder, or no access to it.
    """
    if out.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"--out {out}: expected a name that ends in {' or '.join(_SUFFIXES)}")
    if not os.path.isdir(out.parent):  # Path's method raises an error without access
        raise ConfigError(
            f"--out {out}: there is no folder {out.parent}, or no access to it; create it, or "
            "choose another one"
        )


def compute_running_mean(values: np.ndarray, points: int) -> np.ndarray:
    """Returns `[n] float64`: the mean of each value and the `points - 1` before it, or of fewer.

    Args:
      values: `[n]`.
      points: number of values in a mean, 1 or more; at the start there are fewer.
    """
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - points)
    return (sums[ends] - sums[starts]) / (ends - starts)


def compute_band(
    lines: Sequence[tuple[np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Interpolates lines linearly on one grid, in the range where all of them have values.

    Args:
      lines: (x, y) of each, `[m]` with one point or more; x does not decrease.

    Returns:
      Grid, mean, minimum and maximum, `[n] float64` each; empty if the lines have no common range.
    """
    start = max(x[0] for x, _ in lines)
    end = min(x[-1] for x, _ in lines)
    grid = np.linspace(start, end, _GRID) if start < end else np.zeros(0)
    rows = np.array([np.interp(grid, x, y) for x, y in lines])  # [lines, grid]
    return grid, rows.mean(axis=0), rows.min(axis=0), rows.max(axis=0)


def _make_figure(groups: Sequence[RunGroup], curve: str, x: XAxis, smooth: int) -> "Figure":
    from matplotlib.figure import Figure  # without pyplot it draws with Agg, without a screen
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    for group in groups:
        _draw_group(axes, group, curve, x, smooth)
    label = _Y_LABELS.get(curve, curve)
    figure.suptitle(_make_title(groups, curve))
    axes.set_xlabel(_X_LABELS[x])
    axes.set_ylabel(label if smooth == 1 else f"{label}\n(mean of {smooth} points)")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    if any(len(group.runs) > 1 for group in groups):
        axes.set_title("line: mean over seeds; band: minimum to maximum", fontsize="small")
    axes.legend()
    return figure


def _make_title(groups: Sequence[RunGroup], curve: str) -> str:
    """Names algorithm and environment, if they are the same in all runs, and the curve."""
    runs = [run for group in groups for run in group.runs]
    names = [{run.environment for run in runs}, {run.algorithm for run in runs}]
    return ", ".join([*(name for same in names if len(same) == 1 for name in same), curve])


def _draw_group(axes: "Axes", group: RunGroup, curve: str, x: XAxis, smooth: int) -> None:
    lines = [_get_line(run.curves[curve], x, smooth) for run in group.runs]
    if len(lines) == 1:
        axes.plot(*lines[0], label=group.label)
        return
    grid, mean, low, high = compute_band(lines)
    (line,) = axes.plot(grid, mean, label=group.label, linewidth=2)
    axes.fill_between(grid, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    for one in lines:
        axes.plot(*one, color=line.get_color(), alpha=0.4, linewidth=0.7)


def _get_line(curve: Curve, x: XAxis, smooth: int) -> tuple[np.ndarray, np.ndarray]:
    along = curve.steps.astype(np.float64) if x is XAxis.STEPS else curve.seconds
    return along, compute_running_mean(curve.values, smooth)
