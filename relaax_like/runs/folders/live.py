"""How `relaax train` shows its progress: a table in a terminal, else lines, or JSON."""

import contextlib
import json
import logging
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from relaax_like.config.models import Experiment
from relaax_like.core.metrics import Metrics
from relaax_like.core.records import Status
from relaax_like.runs.folders.modes import SPARE_COLUMNS, LogMode
from relaax_like.runs.folders.progress import log_progress
from relaax_like.runs.processes.process import Shutdown

logger = logging.getLogger(__name__)

_TABLE_INTERVAL_SEC = 1.0
# Groups of curves in the table, and the maximum number of lines of the optimizer's group.
_OPTIMIZER, _TIME = "Optimizer/", "Time/"
_MAX_ROWS = 14
# `Time/NAME Time` are seconds of one iteration.
_SECONDS = " Time"
_SHOW_CURSOR = b"\r\n\x1b[?25h"


class NewestScalars(Metrics):
    """Passes all points to a recorder, and keeps the newest value of each curve. Thread-safe."""

    def __init__(self, recorder: Metrics):
        self._recorder = recorder
        self._values: dict[str, float] = {}

    @property
    def values(self) -> dict[str, float]:
        """Name -> newest value, in the order of each curve's first point."""
        return dict(self._values)

    def scalar(self, name: str, y: float, x: float | None = None) -> None:
        """Records one point."""
        self._recorder.scalar(name, y, x)
        self._values[name] = float(y)

    def scalars(self, points: Sequence[tuple[str, float, float | None]]) -> int:
        """Records many points; returns how many were dropped."""
        self._values.update((name, float(y)) for name, y, _ in points)
        return self._recorder.scalars(points)

    def start_at(self, global_t: int) -> None:
        """Records a start of the run."""
        self._recorder.start_at(global_t)

    def histogram(self, name: str, values: np.ndarray, x: float | None = None) -> None:
        """Records a histogram, which has no newest value."""
        self._recorder.histogram(name, values, x)


class Progress:
    """Shows the progress of a training run; this class logs a line each time.

    Attributes:
      interval_sec: time between two calls of `show`.
      find_mean_length: returns the mean length of the newest episodes, in steps; None before the
        first one.
      policy: whose run it is, if there are several.
    """

    policy = ""

    def __init__(self, interval_sec: float) -> None:
        self.interval_sec = interval_sec
        self.find_mean_length: Callable[[], float | None] = lambda: None

    def show(self, status: Status) -> None:
        """Shows the current status."""
        log_progress(status, serves=False, policy=self.policy)


class JsonProgress(Progress):
    """Prints one JSON object per line to standard output, which contains nothing else.

    Args:
      interval_sec: see `Progress`.
      newest: the recorder of the run.
      on_closed: called when standard output is no longer read.
    """

    def __init__(
        self,
        interval_sec: float,
        newest: NewestScalars,
        on_closed: Callable[[], None] = lambda: None,
    ):
        super().__init__(interval_sec)
        self._newest = newest
        self._on_closed = on_closed
        self._has_failed = False

    def show(self, status: Status) -> None:
        """Prints the object; if it cannot be written, as on a full disk, this is logged once."""
        numbers = {
            **({"policy": self.policy} if self.policy else {}),
            "step": status.global_t,
            "version": status.version,
            "steps_per_sec": status.env_steps_per_sec,
            "mean_return": status.mean_return,
            "return_episodes": status.return_episodes,
            "mean_length": self.find_mean_length(),
            "episodes": status.episodes,
            "uptime_sec": status.uptime_sec,
            "snapshot_step": status.snapshot_global_t,
            "finished": status.finished,
            "scalars": self._newest.values,
        }
        try:
            print(json.dumps(numbers), flush=True)
        except BrokenPipeError:
            self._on_closed()
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                logger.warning(
                    "a line of --log json could not be written: %s; training continues", error
                )


class TableProgress(Progress):
    """Draws a table in place, with log lines above it. A context manager.

    The table is removed from the terminal at the end.
    """

    def __init__(self, experiment: Experiment, newest: NewestScalars, console: Console):
        super().__init__(_TABLE_INTERVAL_SEC)
        self._experiment = experiment
        self._newest = newest
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        # Held by each writer: printing above the table depends on its current height.
        self._lock = threading.RLock()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "TableProgress":
        self._stack.enter_context(self._live)
        self._stack.enter_context(_logging_to(self._console, self._lock))
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._stack.close()

    def show(self, status: Status) -> None:
        """Draws the table."""
        panel = self.make_panel(status)
        with self._lock:
            self._live.update(panel, refresh=True)

    def make_panel(self, status: Status) -> RenderableType:
        """Makes the table's content."""
        experiment = self._experiment
        columns = Table.grid(padding=(0, 3))
        scalars = self._newest.values
        columns.add_row(
            _make_grid(self._describe(status)),
            _make_grid(_describe_optimizer(scalars) | _describe_time(scalars)),
        )
        title = f"relaax train {experiment.run_dir}"
        return Panel(
            Group(self._make_bar(status), Text(), columns),
            title=Text(title),
            title_align="left",
            width=self._console.width - SPARE_COLUMNS,
        )

    def _make_bar(self, status: Status) -> RenderableType:
        budget = self._experiment.algorithm.max_global_step
        bar = Table.grid(padding=(0, 2))
        bar.add_column()
        bar.add_column(ratio=1)
        bar.add_row(
            Text(f"step {status.global_t:,} / {budget:,}"),
            ProgressBar(total=budget, completed=min(status.global_t, budget), width=24),
            Text(self._describe_rest(status)),
        )
        return bar

    def _describe_rest(self, status: Status) -> str:
        if status.finished:
            return status.finished
        if status.env_steps_per_sec <= 0:
            return "ETA -"
        left = self._experiment.algorithm.max_global_step - status.global_t
        try:
            rest = timedelta(seconds=math.ceil(max(0, left) / status.env_steps_per_sec))
        except OverflowError:  # millions of years
            return "ETA -"
        learner = self._experiment.learner
        others = (learner.target_return, learner.target_eval_return, learner.max_episodes)
        at_most = "" if all(other is None for other in others) else " at most"
        return f"ETA {rest}{at_most}"

    def _describe(self, status: Status) -> dict[str, str]:
        rows = {
            "steps/s": f"{status.env_steps_per_sec:,.0f}",
            **({} if self._experiment.learner.offline else self._describe_episodes(status)),
            "version": f"{status.version:,}",
            "snapshot": _describe_snapshot(status),
            "up": str(timedelta(seconds=int(status.uptime_sec))),
        }
        if status.snapshot_failures:
            rows["failed snapshots"] = str(status.snapshot_failures)
        if status.refused:
            rows["refused"] = ", ".join(f"{n} x {why}" for why, n in status.refused.items())
        return rows

    def _describe_episodes(self, status: Status) -> dict[str, str]:
        target = self._experiment.learner.target_return
        mean = "-" if status.mean_return is None else f"{status.mean_return:.2f}"
        wanted = "" if target is None else f" of {target:g}"
        last = f" (last {status.return_episodes})" if status.return_episodes else ""
        length = self.find_mean_length()
        return {
            "mean return": f"{mean}{wanted}{last}",
            "episode length": "-" if length is None else f"{length:,.1f}",
            "episodes": f"{status.episodes:,}",
        }


@contextlib.contextmanager
def open_progress(
    mode: LogMode, experiment: Experiment, newest: NewestScalars, shutdown: Shutdown
) -> Iterator[Progress]:
    """Chooses how the progress is shown, and restores the terminal afterwards.

    Args:
      mode: the user's choice.
      experiment: that is trained.
      newest: the recorder of the run.
      shutdown: its second signal ends the process immediately; the terminal is restored even then.
    """
    interval_sec = experiment.parameter_server.progress_interval_sec
    if mode is LogMode.JSON:
        yield JsonProgress(interval_sec, newest, shutdown.note_output_closed)
        return
    console = Console()
    if mode is LogMode.PLAIN or not sys.stdout.isatty() or console.is_dumb_terminal:
        yield Progress(interval_sec)
        return
    shutdown.on_repeat(lambda: _write_raw(_SHOW_CURSOR))
    with TableProgress(experiment, newest, console) as table:
        yield table


def _write_raw(data: bytes) -> None:
    """Writes to the terminal without taking locks, as a signal handler must."""
    with contextlib.suppress(OSError):
        os.write(1, data)


@contextlib.contextmanager
def _logging_to(console: Console, lock: threading.RLock) -> Iterator[None]:
    """Sends the log to a console that draws something in place, in the same form as before."""
    root = logging.getLogger()
    before = root.handlers[:]
    handler = _ConsoleHandler(console, lock)
    if before:
        handler.setFormatter(before[0].formatter)
    root.handlers[:] = [handler, *before[1:]]
    try:
        yield
    finally:
        root.handlers[:] = before


class _ConsoleHandler(logging.Handler):
    def __init__(self, console: Console, lock: threading.RLock):
        super().__init__()
        self._console = console
        self._lock = lock

    def emit(self, record: logging.LogRecord) -> None:
        line = Text(self.format(record))
        with self._lock:
            self._console.print(line, soft_wrap=True)


def _make_grid(rows: dict[str, str]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(no_wrap=True)
    for name, value in rows.items():
        grid.add_row(Text(name), Text(value))
    return grid


def _describe_snapshot(status: Status) -> str:
    if status.snapshot_global_t is None:
        return "none"
    age = status.snapshot_age_sec
    return f"step {status.snapshot_global_t:,}" + ("" if age is None else f", {age:,.0f} s ago")


def _name(curve: str, prefix: str) -> str:
    """Returns a curve's name in the style of the other rows: words in lower case, but "KL"."""
    words = re.split("[_/ ]", curve.removeprefix(prefix))
    return " ".join(word if word.isupper() else word.lower() for word in words)


def _describe_optimizer(scalars: dict[str, float]) -> dict[str, str]:
    """Returns the newest loss, KL, entropy, ... by their names, at most `_MAX_ROWS` of them."""
    found = [name for name in scalars if name.startswith(_OPTIMIZER)]
    rows = {_name(name, _OPTIMIZER): f"{scalars[name]:.4g}" for name in found[:_MAX_ROWS]}
    if len(found) > _MAX_ROWS:
        rows[f"and {len(found) - _MAX_ROWS} more"] = ""
    return rows


def _describe_time(scalars: dict[str, float]) -> dict[str, str]:
    """Returns the parts of the newest iteration's time: name -> seconds and share of their sum."""
    times = {name: value for name, value in scalars.items() if name.startswith(_TIME)}
    total = sum(value for name, value in times.items() if name.endswith(_SECONDS))
    return {
        _name(name, _TIME): f"{value:.3f} s, {100 * value / total:.0f} %"
        if name.endswith(_SECONDS) and total > 0
        else f"{value:,.4g}"
        for name, value in times.items()
    }
