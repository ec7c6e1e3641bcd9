"""`relaax trace`: reads the traces of a run, shows where the time went and what limits the run."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from relaax_like.runs.processes.process import TRACE_FOLDER
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.tracing import (
    CPU,
    ENVIRONMENT_VARIABLE,
    START,
    SUFFIX,
    ProcessTrace,
    read_trace,
)

# A thread that is busy for this share of the time limits the others.
_LIMITING = 0.7
# Share of a machine's cores in use above which more threads would only compete with each other.
_FULL = 0.9


@dataclass(frozen=True, kw_only=True)
class SpanTime:
    """Time in the spans of one name, in one kind of thread. Shares are of one thread's time.

    Attributes:
      name: of the spans.
      calls: number of spans.
      total_sec: their total time, including nested spans.
      share: the total time as a share of the window.
      own_share: the same without the time of nested spans.
      p50_us: median duration.
      p99_us: 99th percentile.
    """

    name: str
    calls: int
    total_sec: float
    share: float
    own_share: float
    p50_us: float
    p99_us: float

    @property
    def waits(self) -> bool:
        """Whether the thread had nothing to do in these spans."""
        return is_waiting(self.name)


@dataclass(frozen=True, kw_only=True)
class ThreadTime:
    """Time of one kind of thread: all threads of a role whose names differ only in a number.

    Attributes:
      role: of the processes.
      thread: the threads' name without the number; "main" for the main thread.
      count: number of threads.
      spans: by `own_share`, the largest first.
    """

    role: str
    thread: str
    count: int
    spans: tuple[SpanTime, ...]

    @property
    def busy(self) -> float:
        """Share of the window in spans other than waiting ones, averaged over the threads."""
        return sum(span.own_share for span in self.spans if not span.waits)


@dataclass(frozen=True, kw_only=True)
class CounterValues:
    """Values of one counter in all processes of a role.

    Attributes:
      role: of the processes.
      name: of the counter.
      samples: number of finite values in the window of the report.
      mean: of the values.
      p99: 99th percentile.
    """

    role: str
    name: str
    samples: int
    mean: float
    p99: float


@dataclass(frozen=True, kw_only=True)
class TraceReport:
    """The times and counters of a traced run.

    Attributes:
      window_sec: time in which all roles were running, or the complete time if there was no such
        time; all shares refer to it.
      is_common: whether all roles were running in that time.
      threads: the busiest first within each role.
      counters: of all roles.
      cpu: share of the cores used by the traced processes, on the busiest machine; 0: not known.
      cores: number of cores of that machine.
    """

    window_sec: float
    is_common: bool
    threads: tuple[ThreadTime, ...]
    counters: tuple[CounterValues, ...]
    cpu: float
    cores: int


def is_waiting(name: str) -> bool:
    """Returns whether a span of this name is time in which its thread had nothing to do."""
    return name == "idle" or name.startswith("wait")


def find_trace_folder(folder: Path) -> Path:
    """Returns the folder with the traces: the run's `trace`, or the given one.

    Raises:
      ConfigError: there is no such folder, no traces are in it, or there is no access to them.
    """
    if not os.path.isdir(folder):  # Path's method raises an error without access
        raise ConfigError(
            f"{folder}: no such folder, or no access to it; pass the run_dir of the experiment"
        )
    for candidate in (folder / TRACE_FOLDER, folder):
        if os.path.isdir(candidate) and any(candidate.glob(f"*{SUFFIX}")):
            return candidate
    raise ConfigError(
        f"{folder}: no traces, or no access to them; record some with `relaax run CONFIG --trace`, "
        f"or with {ENVIRONMENT_VARIABLE}=FOLDER in the environment of each process"
    )


def load_traces(folder: Path) -> tuple[list[ProcessTrace], list[str]]:
    """Reads all traces of a folder.

    Returns:
      The traces that contain spans, and one line for each skipped file with the reason.

    Raises:
      ConfigError: there is no usable trace.
    """
    traces, skipped = [], []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            trace = read_trace(path)
        except InvalidInputError as error:
            skipped.append(str(error))
            continue
        if len(trace.spans):
            traces.append(trace)
        else:
            skipped.append(f"{path}: the process has recorded no spans")
    if not traces:
        more = f"; and {len(skipped) - 2} more" if len(skipped) > 2 else ""
        raise ConfigError(
            f"{folder}: no usable trace: {'; '.join(skipped[:2])}{more}; make one of these files "
            "usable, or trace again"
        )
    return traces, skipped


def compute_report(traces: Sequence[ProcessTrace]) -> TraceReport:
    """Computes where the time went, from one or more traces, each with at least one span."""
    start, stop, is_common = _find_window(traces)
    seconds = (stop - start) / 1e9
    kinds: dict[tuple[str, str], list[_ThreadSpans]] = {}
    for trace in traces:
        for thread in _split_threads(trace, start, stop):
            kinds.setdefault((trace.role, thread.kind), []).append(thread)
    threads = [
        ThreadTime(role=role, thread=kind, count=len(members), spans=_sum_up(members, seconds))
        for (role, kind), members in kinds.items()
    ]
    cpu, cores = _measure_cpu(traces, start, stop)
    return TraceReport(
        window_sec=seconds,
        is_common=is_common,
        threads=tuple(sorted(threads, key=lambda thread: (thread.role, -thread.busy))),
        counters=tuple(_sum_up_counters(traces, start, stop)),
        cpu=cpu,
        cores=cores,
    )


def format_report(report: TraceReport) -> str:
    """Formats the times as one table, and the counters as another."""
    lines = [
        f"{'thread':24} {'span':28} {'calls':>9} {'total s':>8} {'share':>6} {'own':>5} "
        f"{'p50 us':>9} {'p99 us':>9}"
    ]
    role = ""
    for thread in report.threads:
        if thread.role != role:
            role = thread.role
            lines.append(role)
        times = f" x {thread.count}" if thread.count > 1 else ""
        name = f"  {thread.thread}{times}"
        lines.append(f"{name:24} {'(busy)':28} {'':9} {'':8} {'':6} {thread.busy:5.0%}")
        lines += [
            f"{'':24} {span.name:28} {span.calls:9,} {span.total_sec:8.2f} {span.share:6.0%} "
            f"{span.own_share:5.0%} {span.p50_us:9,.0f} {span.p99_us:9,.0f}"
            for span in thread.spans
        ]
    if report.counters:
        lines += ["", f"{'role':24} {'counter':28} {'samples':>9} {'mean':>15} {'p99':>11}"]
        lines += [
            f"{c.role:24} {c.name:28} {c.samples:9,} {c.mean:15,.2f} {c.p99:11,.2f}"
            for c in report.counters
        ]
    return "\n".join(lines)


def find_bottleneck(report: TraceReport) -> str:
    """Returns one or two sentences: what limits the run, or that nothing stands out.

    Args:
      report: with one thread or more.
    """
    top = max(report.threads, key=lambda thread: thread.busy)
    full = f"{report.cpu:.0%} of the machine's {report.cores} cores"
    if top.busy >= _LIMITING:
        part = f"; {full} are busy, so part of that is waiting for a core"
        tail = part if report.cpu >= _FULL else ""
        return f"{_describe_limit(top, report)}{tail}."
    what = f"the busiest is {_subject(top)}, for {top.busy:.0%} of the time{_mostly(top)}"
    if report.cpu >= _FULL:
        return f"The machine limits the run: {full} are busy; {what}."
    return (
        f"Nothing is busy all the time: {what}. Either the roles wait for each other "
        "alternately, which more environments or slots would hide, or they wait for something "
        "that has no span."
    )


def _describe_limit(top: ThreadTime, report: TraceReport) -> str:
    subject = _subject(top)
    busy = f"busy {top.busy:.0%} of the time{_mostly(top)}"
    if top.role == "environment":
        loops = [t for t in report.threads if (t.role, t.thread) == ("rlx server", "main")]
        waits = f", while {_subject(loops[0])} waits {1 - loops[0].busy:.0%} of it" if loops else ""
        return f"The environments limit the run: they are {busy}{waits}"
    if top.thread == "training":
        return f"Agents wait for gradients: {subject} is {busy}"
    return f"{subject[0].upper()}{subject[1:]} limits the run: it is {busy}"


def _subject(thread: ThreadTime) -> str:
    if thread.role == "environment":
        return "the environments"
    if (thread.role, thread.thread) == ("rlx server", "main"):
        return "the rlx server's event loop"
    of = "" if thread.role == "train" else f"{thread.role}'s "
    return f"the {of}{thread.thread} thread"


def _mostly(thread: ThreadTime) -> str:
    for span in thread.spans:
        if not span.waits:
            return f", mostly in {span.name!r} ({span.own_share:.0%})"
    return ""


@dataclass(frozen=True)
class _ThreadSpans:
    """Spans of one thread: `name` indexes `names`; times in ns, [N] each.

    `inside_ns` and `own_ns` are the parts within the window, `whole_ns` is the full duration.
    """

    kind: str
    names: tuple[str, ...]
    name: np.ndarray
    inside_ns: np.ndarray
    own_ns: np.ndarray
    whole_ns: np.ndarray


def _find_window(traces: Sequence[ProcessTrace]) -> tuple[int, int, bool]:
    """Returns start and end of the report's time, in ns since 1970, and whether all roles ran then.

    A ring buffer that was full has no information about the time before its oldest span. If roles
    never ran at the same time, the report is about the complete time.
    """
    begins: dict[str, int] = {}
    ends: dict[str, int] = {}
    for trace in traces:
        passive = [i for i, name in enumerate(trace.names) if is_waiting(name) or name == START]
        work = trace.spans[~np.isin(trace.spans["name"], passive)]
        if len(work):
            begin, end = int(work["start"][0]), int(work["end"].max())
            begins[trace.role] = min(begins.get(trace.role, begin), begin)
            ends[trace.role] = max(ends.get(trace.role, end), end)
    full = [int(trace.spans["start"][0]) for trace in traces if trace.overwritten]
    start, stop = max([*begins.values(), *full], default=0), min(ends.values(), default=0)
    if start < stop:
        return start, stop, True
    start = min(int(trace.spans["start"][0]) for trace in traces)
    return start, max(start + 1, *(int(trace.spans["end"].max()) for trace in traces)), False


def _split_threads(trace: ProcessTrace, start: int, stop: int) -> Iterator[_ThreadSpans]:
    spans = trace.spans[(trace.spans["end"] > start) & (trace.spans["start"] < stop)]
    for thread in np.unique(spans["thread"]).tolist():
        mine = spans[spans["thread"] == thread]
        starts, ends = np.maximum(mine["start"], start), np.minimum(mine["end"], stop)
        yield _ThreadSpans(
            name_kind(trace.threads[thread]),
            trace.names,
            mine["name"],
            ends - starts,
            compute_own_times(starts, ends),
            mine["end"] - mine["start"],
        )


def name_kind(thread: str) -> str:
    """Returns a thread's name without the numbers at its end: threads of one pool have one kind.

    The main thread's kind is "main"; that of `Thread-N (function)` is the function.
    """
    if thread == "MainThread":
        return "main"
    if match := re.fullmatch(r"Thread-\d+ \((.+)\)", thread):
        return match[1]
    return re.sub(r"([-_]\d+)+$", "", thread)


def compute_own_times(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns each span's time without the spans directly nested in it.

    Args:
      starts: [N] int64, sorted; among spans with the same start, the longest comes first.
      ends: [N] int64.
    """
    own = (ends - starts).tolist()
    begin, end = starts.tolist(), ends.tolist()
    around: list[int] = []
    for i in range(len(own)):
        while around and end[around[-1]] <= begin[i]:
            around.pop()
        if around:
            own[around[-1]] -= min(end[i], end[around[-1]]) - begin[i]
        around.append(i)
    return np.array(own, np.int64)


def _sum_up(threads: Sequence[_ThreadSpans], window_sec: float) -> tuple[SpanTime, ...]:
    times = []
    names = {thread.names[i] for thread in threads for i in np.unique(thread.name)}
    for name in names:
        inside, own, whole = [], [], []
        for thread in threads:
            if name not in thread.names:
                continue
            mine = thread.name == thread.names.index(name)
            inside.append(thread.inside_ns[mine])
            own.append(thread.own_ns[mine])
            whole.append(thread.whole_ns[mine])
        durations = np.concatenate(whole) / 1e3
        total_sec = float(np.concatenate(inside).sum()) / 1e9
        p50, p99 = np.percentile(durations, (50, 99)).tolist()
        times.append(
            SpanTime(
                name=name,
                calls=len(durations),
                total_sec=total_sec,
                share=total_sec / window_sec / len(threads),
                own_share=float(np.concatenate(own).sum()) / 1e9 / window_sec / len(threads),
                p50_us=p50,
                p99_us=p99,
            )
        )
    return tuple(sorted(times, key=lambda time: -time.own_share))


def _take_counter(trace: ProcessTrace, name: str) -> np.ndarray:
    counters = trace.counters
    return counters[(counters["name"] == trace.names.index(name)) & np.isfinite(counters["value"])]


def _sum_up_counters(
    traces: Sequence[ProcessTrace], start: int, stop: int
) -> Iterator[CounterValues]:
    values: dict[tuple[str, str], list[np.ndarray]] = {}
    for trace in traces:
        for i in np.unique(trace.counters["name"]).tolist():
            mine = _take_counter(trace, trace.names[i])
            inside = (mine["time"] >= start) & (mine["time"] <= stop)
            values.setdefault((trace.role, trace.names[i]), []).append(mine["value"][inside])
    for (role, name), parts in sorted(values.items()):
        joined = np.concatenate(parts)
        if len(joined):
            yield CounterValues(
                role=role,
                name=name,
                samples=len(joined),
                mean=float(joined.mean()),
                p99=float(np.percentile(joined, 99)),
            )


def _measure_cpu(traces: Sequence[ProcessTrace], start: int, stop: int) -> tuple[float, int]:
    """Returns the share of cores in use on the busiest machine, and its number of cores."""
    used: dict[tuple[str, int], float] = {}
    for trace in traces:
        if CPU in trace.names and trace.cores:
            samples = _take_counter(trace, CPU)
            # A value applies to the time since the previous one.
            times = np.clip(samples["time"], start, stop)
            used_ns = float((samples["value"][1:] * np.diff(times)).sum())
            machine = (trace.host, trace.cores)
            used[machine] = used.get(machine, 0.0) + used_ns / (stop - start)
    shares = [(cpu / cores, cores) for (_, cores), cpu in used.items()]
    return max(shares, default=(0.0, 0))
