"""Spans: where a process's time goes. Off by default, at nearly no cost.

A span is a name with a start and an end, in one thread. Each process that traces has one file,
which is the ring buffer itself, mapped into memory: recorded spans survive `kill -9`, nothing runs
in the background, and nothing needs to be called at the end. `relaax trace` merges and explains the
files.

Three forms, from the clearest to the fastest:

    with tracing.span("snapshot write"):
        save()

    mark = tracing.begin()                        # phases that follow each other
    read()
    mark = tracing.end("read", mark)
    answer()
    tracing.end("answer", mark)

    if (recorder := tracing.active) is not None:  # where start and end are known
        recorder.add("predict", start_ns, end_ns)

A span named "idle", or whose name begins with "wait", is time in which the thread had nothing to
do. A span named "start" is preparation, which is excluded from the run when computing shares.
"""

import contextlib
import itertools
import json
import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.wire.errors import ConfigError, InvalidInputError

ENVIRONMENT_VARIABLE = "RELAAX_TRACE"
SUFFIX = ".trace"
# Number of spans, of 24 bytes each. A server with 20,000 spans per second keeps the last 50 s.
CAPACITY = 1_000_000
CPU = "CPU cores in use"
START = "start"

# The file, little-endian: magic, number of rows ever written, JSON lines that end with a zero byte
# (the process, then names and threads as they first occur), and the ring buffer from _ROWS_AT on. A
# counter's row has its time, its value as a double, and _COUNTER for the thread.
_MAGIC = b"RLXTRC01"
_COUNT_AT, _LINES_AT, _ROWS_AT = 8, 16, 1 << 16
_ROW = np.dtype([("start", "<i8"), ("end", "<i8"), ("name", "<u4"), ("thread", "<u4")])
_ROW_BYTES = _ROW.itemsize
_pack_span = struct.Struct("<qqII").pack_into
_pack_counter = struct.Struct("<qdII").pack_into
_COUNTER = 0xFFFFFFFF
_OTHER = "(others)"
_CPU_EVERY_NS = 250_000_000

_now = time.perf_counter_ns


class Recorder:
    """Writes the spans of this process to its file. Thread-safe.

    The newest `capacity` spans and values of counters are kept. Where the system can do that, all
    disk space is allocated at the start, so that a disk that fills up later cannot end the process.

    Attributes:
      path: the file.
      pid: the process that records; a fork needs its own recorder.

    Args:
      folder: of the file; created if it does not exist.
      role: of the process, such as "rlx server".
      name: identifies this process among those of its role, or "".
      capacity: number of spans and values that are kept.

    Raises:
      ConfigError: the file cannot be created.
    """

    def __init__(self, folder: Path, role: str, name: str = "", capacity: int = CAPACITY):
        self.pid = os.getpid()
        self._capacity = capacity
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.path, self._map = _make_file(folder, role, _ROWS_AT + capacity * _ROW_BYTES)
        except OSError as error:
            raise ConfigError(
                f"{str(folder)[:200]}: cannot write a trace there: {error}; set "
                f"{ENVIRONMENT_VARIABLE} to another folder and omit --trace, or run without tracing"
            ) from None
        self._numbers = itertools.count()
        self._written = memoryview(self._map)[_COUNT_AT:_LINES_AT].cast("Q")
        self._lock = threading.Lock()  # guards the lines and their numbers
        self._line_at = _LINES_AT
        self._names: dict[str, int] = {_OTHER: 0}
        self._next_name = self._next_thread = 1
        start = _now()
        self._add_line(
            role=role,
            name=name,
            pid=self.pid,
            host=socket.gethostname(),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
            capacity=capacity,
            started_ns=start,
            wall_minus_clock_ns=time.time_ns() - start,
        )
        # For names and threads for which there is no space in the header.
        self._add_line(name=_OTHER)
        self._add_line(thread=_OTHER)
        self._local = threading.local()  # number of the thread in the file
        self._cpu = (start, time.process_time_ns())
        self._cpu_due = start + _CPU_EVERY_NS

    def add(self, name: str, start_ns: int, end_ns: int) -> None:
        """Records a span of the calling thread; times are from `time.perf_counter_ns`."""
        number = next(self._numbers)
        name_id = self._names.get(name)
        if name_id is None:
            name_id = self._get_name(name)
        try:
            thread = self._local.index
        except AttributeError:  # its first span
            thread = self._local.index = self._add_thread()
        offset = _ROWS_AT + _ROW_BYTES * (number % self._capacity)
        _pack_span(self._map, offset, start_ns, end_ns, name_id, thread)
        self._written[0] = number + 1
        if end_ns > self._cpu_due:
            self._sample_cpu(end_ns)

    def count(self, name: str, value: float) -> None:
        """Records a counter's current value."""
        number = next(self._numbers)
        offset = _ROWS_AT + _ROW_BYTES * (number % self._capacity)
        _pack_counter(self._map, offset, _now(), value, self._get_name(name), _COUNTER)
        self._written[0] = number + 1

    def _sample_cpu(self, now_ns: int) -> None:
        self._cpu_due = now_ns + _CPU_EVERY_NS
        used_ns = time.process_time_ns()
        (before_ns, used_before_ns), self._cpu = self._cpu, (now_ns, used_ns)
        if now_ns > before_ns:
            self.count(CPU, (used_ns - used_before_ns) / (now_ns - before_ns))

    def _get_name(self, name: str) -> int:
        if name not in self._names:
            with self._lock:
                if name not in self._names:
                    fits = self._add_line(name=name)
                    self._names[name] = self._next_name if fits else 0
                    self._next_name += fits
        return self._names[name]

    def _add_thread(self) -> int:
        with self._lock:
            if not self._add_line(thread=threading.current_thread().name):
                return 0
            self._next_thread += 1
            return self._next_thread - 1

    def _add_line(self, **fields: Any) -> bool:
        line = json.dumps(fields).encode() + b"\n"
        end = self._line_at + len(line)
        if end >= _ROWS_AT:
            return False
        self._map[self._line_at : end] = line
        self._line_at = end
        return True


def _make_file(folder: Path, role: str, size: int) -> tuple[Path, mmap.mmap]:
    stem = f"{role.replace(' ', '-')}-{os.getpid()}"
    path = folder / f"{stem}{SUFFIX}"
    # Processes of two containers can have the same pid.
    for number in itertools.count(2):
        if not path.exists():
            break
        path = folder / f"{stem}-{number}{SUFFIX}"
    with path.open("x+b") as file:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            file.truncate(size)
            mapped = mmap.mmap(file.fileno(), size)
        except OSError:
            path.unlink()
            raise
    mapped[: len(_MAGIC)] = _MAGIC
    return path, mapped


# None: this process does not trace. Read it at each use; do not cache it.
active: Recorder | None = None


def start(folder: Path, role: str, name: str = "", capacity: int = CAPACITY) -> None:
    """Starts to trace this process, unless it is already traced. See `Recorder`."""
    global active
    if active is None or active.pid != os.getpid():
        active = Recorder(folder, role, name, capacity)


def start_from_environment(role: str, name: str = "") -> None:
    """Starts to trace if RELAAX_TRACE names a folder. See `Recorder`."""
    if folder := os.environ.get(ENVIRONMENT_VARIABLE):
        start(Path(folder), role, name)


def stop() -> None:
    """Stops tracing. Not needed when the process ends: the file is always complete."""
    global active
    active = None


def begin() -> int:
    """Returns the time for `end`; 0 if this process does not trace."""
    return 0 if active is None else _now()


def end(name: str, began: int) -> int:
    """Records a span; returns its end, at which the next can begin, or 0 if it was not recorded.

    Args:
      name: of the span.
      began: from `begin`, or from `end` of the span before; 0: nothing is recorded.
    """
    recorder = active
    if recorder is None or not began:
        return 0
    now = _now()
    recorder.add(name, began, now)
    return now


def count(name: str, value: float) -> None:
    """Records a counter's current value, such as the rows of a prediction, if tracing is on."""
    if active is not None:
        active.count(name, value)


def span(name: str) -> contextlib.AbstractContextManager[object]:
    """Returns a context manager that records its block, even if it raises.

    Clearer than `begin` and `end`, but several times slower: for code that runs less than a
    thousand times per second.
    """
    return _NOTHING if active is None else _record(name)


_NOTHING = contextlib.nullcontext()


@contextlib.contextmanager
def _record(name: str) -> Iterator[None]:
    began = _now()
    try:
        yield
    finally:
        end(name, began)


@dataclass(frozen=True, kw_only=True)
class ProcessTrace:
    """The content of one process's file: N spans and M values of counters.

    Attributes:
      path: the file.
      role: of the process.
      name: identifies this process among those of its role, or "".
      pid: process id.
      host: machine on which it ran.
      cores: number of CPU cores that it is allowed to use; 0: unknown.
      names: of spans and counters.
      threads: their names; two threads can have the same name.
      spans: [N] structured, sorted by `start`: `start` and `end` int64 ns since 1970, `name` and
        `thread` uint32 indices of `names` and `threads`.
      counters: [M] structured, sorted by `time`: `time` int64 ns since 1970, `value` float64,
        `name` uint32 index of `names`.
      overwritten: number of spans and values that newer ones replaced.
    """

    path: Path
    role: str
    name: str
    pid: int
    host: str
    cores: int
    names: tuple[str, ...]
    threads: tuple[str, ...]
    spans: np.ndarray
    counters: np.ndarray
    overwritten: int


def read_trace(path: Path) -> ProcessTrace:
    """Reads a file, even while its process is still writing it.

    Raises:
      InvalidInputError: it cannot be read, is not a trace of this version, or is damaged.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if content[: len(_MAGIC)] != _MAGIC:
        raise InvalidInputError(
            f"{path}: begins with {content[: len(_MAGIC)]!r}, expected {_MAGIC!r}: not a trace of "
            "this version of relaax_like; read it with the version that wrote it, or trace again"
        )
    try:
        process, names, threads = _read_lines(content[_LINES_AT:_ROWS_AT])
        capacity, offset = int(process["capacity"]), int(process["wall_minus_clock_ns"])
        identity = {key: process[key] for key in ("role", "name", "pid", "host", "cores")}
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise InvalidInputError(
            f"{path}: its header is damaged ({error!r}); copy the file again, or trace again"
        ) from None
    if len(content) != _ROWS_AT + capacity * _ROW_BYTES:
        raise InvalidInputError(
            f"{path}: has {len(content):,} bytes, expected {_ROWS_AT + capacity * _ROW_BYTES:,}; "
            "copy the complete file, or trace again"
        )
    written = int.from_bytes(content[_COUNT_AT:_LINES_AT], "little")
    rows = np.frombuffer(content, _ROW, min(written, capacity), _ROWS_AT)
    # The newest row is incomplete if the process was killed or is still writing.
    rows = rows[rows["name"] < len(names)]
    is_counter = rows["thread"] == _COUNTER
    return ProcessTrace(
        **identity,
        path=path,
        names=names,
        threads=threads,
        spans=_take_spans(rows[~is_counter], len(threads), offset),
        counters=_take_counters(rows[is_counter], offset),
        overwritten=max(0, written - capacity),
    )


def _read_lines(header: bytes) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]:
    text = header[: header.index(0)]
    # The newest line is incomplete if the process was killed.
    lines = text[: text.rindex(b"\n")].splitlines()
    process, *others = [json.loads(line) for line in lines]
    names = tuple(str(line["name"]) for line in others if "name" in line)
    return process, names, tuple(str(line["thread"]) for line in others if "thread" in line)


def _take_spans(rows: np.ndarray, threads: int, offset: int) -> np.ndarray:
    spans = rows[(rows["thread"] < threads) & (rows["start"] > 0) & (rows["end"] >= rows["start"])]
    spans = spans[np.lexsort((-spans["end"], spans["start"]))]  # a copy; outer spans first
    spans["start"] += offset
    spans["end"] += offset
    return spans


def _take_counters(rows: np.ndarray, offset: int) -> np.ndarray:
    values = np.empty(len(rows), [("time", "<i8"), ("value", "<f8"), ("name", "<u4")])
    values["time"] = rows["start"] + offset
    values["value"] = np.ascontiguousarray(rows["end"]).view("<f8")
    values["name"] = rows["name"]
    return values[np.argsort(values["time"], kind="stable")]
