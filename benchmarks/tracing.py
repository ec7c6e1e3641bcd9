"""Spans: nanoseconds of each form, off and on."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.report import report
from relaax_like.wire import tracing

_CALLS = 200_000


def record_with(calls: int) -> None:
    """Records spans by `with`."""
    for _ in range(calls):
        with tracing.span("step"):
            pass


def record_alone(calls: int) -> None:
    """Records spans by `begin` and `end`."""
    for _ in range(calls):
        tracing.end("step", tracing.begin())


def record_phases(calls: int) -> None:
    """Records spans that follow each other, by `end` alone."""
    mark = tracing.begin()
    for _ in range(calls):
        mark = tracing.end("step", mark)


def record_given(calls: int) -> None:
    """Records spans whose times are at hand."""
    for _ in range(calls):
        if (recorder := tracing.active) is not None:
            recorder.add("step", 1, 2)


def count(calls: int) -> None:
    """Records values of a counter."""
    for _ in range(calls):
        tracing.count("rows", 8.0)


FORMS: dict[str, Callable[[int], None]] = {
    "with span": record_with,
    "begin and end": record_alone,
    "end of phases": record_phases,
    "times at hand": record_given,
    "counter": count,
}


def measure(form: Callable[[int], None]) -> float:
    """Returns the nanoseconds of one span, the loop included; the best of five rounds."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter_ns()
        form(_CALLS)
        best = min(best, (time.perf_counter_ns() - start) / _CALLS)
    return best


def main() -> None:
    """Measures each form, first off and then on."""
    off = {name: measure(form) for name, form in FORMS.items()}
    with tempfile.TemporaryDirectory() as folder:
        tracing.start(Path(folder), "benchmark")
        on = {name: measure(form) for name, form in FORMS.items()}
        tracing.stop()
    report("tracing", [{"form": n, "off ns": off[n], "on ns": on[n]} for n in FORMS])


if __name__ == "__main__":
    main()
