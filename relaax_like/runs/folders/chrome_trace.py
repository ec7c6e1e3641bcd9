"""Merges traces into one file of the trace event format, for ui.perfetto.dev or chrome://tracing.

The format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, cast

import numpy as np

from relaax_like.wire.errors import ConfigError
from relaax_like.wire.tracing import ProcessTrace


def write_chrome_trace(traces: Sequence[ProcessTrace], path: Path) -> int:
    """Writes all spans and finite counters on one time axis; its zero is the first span's start.

    Args:
      traces: one or more, each with at least one span.
      path: a JSON file; compressed if the name ends with ".gz".

    Returns:
      Number of events written, including those that name processes and threads.

    Raises:
      ConfigError: the file cannot be written.
    """
    zero = min(int(trace.spans["start"][0]) for trace in traces)
    events = 0
    try:
        with _open(path) as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[')
            for number, trace in enumerate(traces, 1):
                for event in _make_events(trace, number, zero):
                    file.write(f"{',' if events else ''}\n{event}")
                    events += 1
            file.write("\n]}\n")
    except OSError as error:
        raise ConfigError(
            f"--output {path}: cannot be written: {error.strerror or error}; free disk space, or "
            "choose another file"
        ) from None
    return events


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return cast(IO[str], gzip.open(path, "wt", compresslevel=5))
    return path.open("w")


def _make_events(trace: ProcessTrace, number: int, zero: int) -> Iterator[str]:
    """Yields a process's events as JSON. Its number replaces the pid, which is not unique."""
    label = " ".join(part for part in (trace.role, trace.name, f"(pid {trace.pid})") if part)
    yield _make_metadata("process_name", number, 0, name=label)
    yield _make_metadata("process_sort_index", number, 0, sort_index=number)
    for thread, name in enumerate(trace.threads):
        yield _make_metadata("thread_name", number, thread, name=name)
    names = [json.dumps(name) for name in trace.names]
    for start, end, name, thread in trace.spans.tolist():
        yield (
            f'{{"ph":"X","pid":{number},"tid":{thread},"ts":{(start - zero) / 1e3:.3f},'
            f'"dur":{(end - start) / 1e3:.3f},"name":{names[name]}}}'
        )
    # JSON has no NaN.
    for time, value, name in trace.counters[np.isfinite(trace.counters["value"])].tolist():
        yield (
            f'{{"ph":"C","pid":{number},"ts":{(time - zero) / 1e3:.3f},"name":{names[name]},'
            f'"args":{{"value":{json.dumps(value)}}}}}'
        )


def _make_metadata(kind: str, process: int, thread: int, **arguments: object) -> str:
    event = {"ph": "M", "pid": process, "tid": thread, "name": kind, "args": arguments}
    return json.dumps(event)
