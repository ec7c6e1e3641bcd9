"""`python -m relaax_like.metrics.wandb_main`: forwards a growing event file to Weights & Biases.

The first line of its input is a request in JSON: events (the file), folder, project, group, name
and config. When its input ends, the file is complete. Its output is for people; if it fails, the
last line is the reason.
"""

import contextlib
import itertools
import json
import os
import select
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from relaax_like.metrics.curves import EventFileReader
from relaax_like.metrics.tensorboard_files import Event, HistogramProto, Summary

_AXIS = "env_steps"
_INTERVAL_SEC = 1.0
_INIT_TIMEOUT_SEC = 30.0


def main() -> int:
    """Forwards an event file until it is complete; returns the exit status: 1 after a failure."""
    # Only we must print there, and no other process must keep it open.
    says = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        with open(0, "rb", buffering=0, closefd=False) as orders:  # `select` needs no buffering
            order = json.loads(orders.readline())
        run = _begin(order, says)
        reader = EventFileReader(Path(order["events"]))
        is_whole = is_used = False
        while not is_whole:
            # First, because events that were written before the end are read after it.
            is_whole = bool(select.select([0], [], [], _INTERVAL_SEC)[0])
            for is_start, events in itertools.groupby(
                reader.read(), lambda e: e.HasField("session_log")
            ):
                if is_start and is_used:  # a curve that was sent cannot be cut
                    run.finish()
                    run = _begin(order, says)
                for step, numbers in group_by_step(events):
                    run.log({**numbers, _AXIS: step})
                    is_used = True
        run.finish()
    except Exception as error:  # wandb can raise any error
        _say(says, " ".join(str(error).split())[:500] or repr(error))
        return 1
    return 0


def group_by_step(events: Iterable[Event]) -> list[tuple[int, dict[str, Any]]]:
    """Returns rows of (step, name -> number or histogram).

    Consecutive points of one step share a row, unless a name repeats.
    """
    rows: list[tuple[int, dict[str, Any]]] = []
    for event in events:
        for value in event.summary.value:
            if not rows or rows[-1][0] != event.step or value.tag in rows[-1][1]:
                rows.append((event.step, {}))
            rows[-1][1][value.tag] = _read(value)
    return rows


def _begin(order: dict[str, Any], says: TextIO) -> Any:
    """Starts a run: online if the user is logged in and the server answers, else offline.

    The variable WANDB_MODE can choose otherwise.
    """
    import wandb

    arguments: dict[str, Any] = {
        "dir": order["folder"],
        "project": order["project"],
        "group": order["group"],
        "name": order["name"],
        "config": order["config"],
        "settings": wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            # Statistics of this process are not useful.
            x_disable_stats=True,
            x_disable_meta=True,
            init_timeout=_INIT_TIMEOUT_SEC,
        ),
    }
    try:
        run = wandb.init(**arguments)
    except wandb.Error as error:
        _say(says, str(error).partition("\n")[0])
        run = wandb.init(mode="offline", **arguments)
    run.define_metric(_AXIS, hidden=True)
    run.define_metric("*", step_metric=_AXIS)
    if run.offline:
        folder = run.settings.sync_dir
        _say(says, f"offline; to upload the run later: wandb sync {folder}")
    else:
        _say(says, run.url or "disabled")
    return run


def _read(value: Summary.Value) -> Any:
    if value.HasField("simple_value"):
        return value.simple_value
    import wandb

    counts, edges = _read_histogram(value.histo)
    return wandb.Histogram(np_histogram=(counts, edges))


def _read_histogram(histogram: HistogramProto) -> tuple[np.ndarray, np.ndarray]:
    """Returns counts `[n]` and edges `[n + 1]`."""
    edges = np.array([histogram.min, *histogram.bucket_limit])
    return np.array(histogram.bucket, np.int64), edges


def _say(says: TextIO, text: str) -> None:
    with contextlib.suppress(OSError):  # the parent process has exited
        print(text, file=says, flush=True)


if __name__ == "__main__":
    sys.exit(main())
