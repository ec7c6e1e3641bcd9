"""Spans and counters of one process, and the file that they survive in."""

import itertools
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from relaax_like.wire import tracing
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.tracing import ProcessTrace, read_trace


@pytest.fixture(autouse=True)
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test begins or leaves traced."""
    monkeypatch.delenv(tracing.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(tracing, "active", None)


def read_only(folder: Path) -> ProcessTrace:
    (path,) = folder.glob("*.trace")
    return read_trace(path)


def list_spans(trace: ProcessTrace) -> list[tuple[str, str]]:
    return [(trace.names[n], trace.threads[t]) for _, _, n, t in trace.spans.tolist()]


def test_off_nothing_is_recorded_and_no_file_made(tmp_path: Path) -> None:
    tracing.start_from_environment("environment")
    mark = tracing.begin()
    with tracing.span("outer"):
        mark = tracing.end("inner", mark)
    tracing.count("rows", 3)
    assert tracing.active is None
    assert mark == 0
    assert list(tmp_path.iterdir()) == []


def test_spans_have_names_threads_and_the_time_of_day(tmp_path: Path) -> None:
    before = time.time_ns()
    tracing.start(tmp_path / "new" / "folder", "rlx server", "one")
    with tracing.span("outer"):
        mark = tracing.begin()
        mark = tracing.end("first", mark)
        tracing.end("second", mark)
    thread = threading.Thread(target=tracing.end, args=("third", mark), name="training")
    thread.start()
    thread.join()
    after = time.time_ns()
    trace = read_only(tmp_path / "new" / "folder")
    assert (trace.role, trace.name, trace.pid) == ("rlx server", "one", os.getpid())
    assert trace.path.name == f"rlx-server-{os.getpid()}.trace"
    assert trace.overwritten == 0
    main = threading.current_thread().name
    by_start = [("outer", main), ("first", main), ("third", "training"), ("second", main)]
    assert list_spans(trace) == by_start
    outer, first, third, second = trace.spans
    assert before <= outer["start"] <= first["start"] <= second["end"] <= outer["end"] <= after
    assert first["end"] == second["start"] == third["start"]  # without a gap


def test_a_span_whose_block_raises_is_recorded(tmp_path: Path) -> None:
    tracing.start(tmp_path, "train")
    with pytest.raises(ZeroDivisionError):
        with tracing.span("divide"):
            1 / 0  # noqa: B018
    assert [name for name, _ in list_spans(read_only(tmp_path))] == ["divide"]


def test_a_mark_of_before_tracing_began_is_no_span(tmp_path: Path) -> None:
    mark = tracing.begin()
    tracing.start(tmp_path, "train")
    assert tracing.end("since 1970", mark) == 0
    assert len(read_only(tmp_path).spans) == 0


def test_a_full_ring_keeps_the_newest_and_counts_the_lost(tmp_path: Path) -> None:
    tracing.start(tmp_path, "train", capacity=10)
    assert tracing.active is not None
    now = time.perf_counter_ns()
    for number in range(37):
        tracing.active.add("step", now + number, now + number + 5)
    trace = read_only(tmp_path)
    assert trace.overwritten == 27
    assert len(trace.spans) == 10
    starts = trace.spans["start"]
    np.testing.assert_array_equal(starts - starts[0], np.arange(10))
    tracing.active.add("step", now + 99, now + 100)
    assert int(read_only(tmp_path).spans["start"][-1] - starts[-1]) == 99 - 36


def test_many_threads_lose_no_span_and_keep_their_names(tmp_path: Path) -> None:
    tracing.start(tmp_path, "rlx server")

    def work(worker: int) -> None:
        for _ in range(2000):
            tracing.end(f"work {worker}", tracing.begin())

    with ThreadPoolExecutor(4, thread_name_prefix="pool") as pool:
        barrier = threading.Barrier(4)
        list(pool.map(lambda worker: (barrier.wait(30), work(worker)), range(4)))
    trace = read_only(tmp_path)
    assert len(trace.spans) == 8000
    for worker in range(4):
        mine = trace.spans[trace.spans["name"] == trace.names.index(f"work {worker}")]
        assert len(mine) == 2000
        (thread,) = np.unique(mine["thread"])
        assert trace.threads[thread].startswith("pool_")


def test_counters_are_values_over_time(tmp_path: Path) -> None:
    tracing.start(tmp_path, "rlx server")
    for value in (3, 4.5, math.nan):
        tracing.count("rows predicted", value)
    tracing.end("predict", tracing.begin())
    trace = read_only(tmp_path)
    mine = trace.counters[trace.counters["name"] == trace.names.index("rows predicted")]
    np.testing.assert_array_equal(mine["value"], [3, 4.5, math.nan])
    assert (np.diff(mine["time"]) >= 0).all()
    assert mine["time"][-1] <= trace.spans["start"][0]


def test_the_cpu_in_use_is_sampled_beside_the_spans(tmp_path: Path) -> None:
    start, used = time.perf_counter_ns(), time.process_time_ns()
    tracing.start(tmp_path, "rlx server")
    assert tracing.active is not None
    while time.process_time_ns() - used < 400_000_000:
        pass
    end = time.perf_counter_ns() + 400_000_000  # two libraries' threads might have spun too
    tracing.active.add("spin", start, end)
    trace = read_only(tmp_path)
    (sample,) = trace.counters
    assert trace.names[sample["name"]] == tracing.CPU
    assert 0.3 < sample["value"] * (end - start) / 1e9 < 2


@pytest.mark.posix
def test_what_was_recorded_survives_sigkill(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom relaax_like.wire import tracing\n"
        "tracing.start(Path(sys.argv[1]), 'rlx server', capacity=5000)\n"
        "for n in range(3000): tracing.end('step', tracing.begin())\n"
        "print('ready', flush=True)\nwhile True: tracing.end('step', tracing.begin())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    process.stdout.close()
    trace = read_only(tmp_path)
    assert 3000 <= len(trace.spans) <= 5000
    assert set(list_spans(trace)) == {("step", "MainThread")}


def test_a_fork_that_traces_has_a_file_of_its_own(tmp_path: Path) -> None:
    script = (
        "import os\nfrom relaax_like.wire import tracing\n"
        "tracing.start_from_environment('environment', 'parent')\n"
        "if pid := os.fork():\n"
        "    os.waitpid(pid, 0)\n    tracing.end('of the parent', tracing.begin())\n"
        "else:\n"
        "    tracing.start_from_environment('environment', 'child')\n"
        "    tracing.end('of the child', tracing.begin())\n"
    )
    env = {**os.environ, tracing.ENVIRONMENT_VARIABLE: str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], env=env, check=True, timeout=60)
    traces = [read_trace(path) for path in tmp_path.glob("*.trace")]
    found = {trace.name: [name for name, _ in list_spans(trace)] for trace in traces}
    assert found == {"parent": ["of the parent"], "child": ["of the child"]}


def test_a_second_process_of_the_same_pid_takes_another_file(tmp_path: Path) -> None:
    for number in range(3):  # as in two containers that share a folder
        tracing.start(tmp_path, "rlx server", str(number))
        tracing.stop()
    assert {read_trace(path).name for path in tmp_path.glob("*.trace")} == {"0", "1", "2"}


def test_names_without_end_fill_the_header_and_no_more(tmp_path: Path) -> None:
    tracing.start(tmp_path, "rlx server")
    for number in range(5000):
        tracing.end(f"episode {number:060}", tracing.begin())
    for _ in range(10):
        thread = threading.Thread(target=tracing.end, args=("late", tracing.begin()), name="x" * 80)
        thread.start()
        thread.join()
    trace = read_only(tmp_path)
    assert len(trace.spans) == 5010
    names = [name for name, _ in list_spans(trace)]
    assert f"episode {7:060}" in names
    assert 4000 < names.count("(others)") < 5010
    threads = {thread for name, thread in list_spans(trace)[5000:]}
    assert threads == {"(others)"}


def damage(change: Callable[[bytearray], object]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        content = bytearray(path.read_bytes())
        change(content)
        path.write_bytes(content)

    return apply


HEADER_END = 1 << 16
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "gone": (Path.unlink, "No such file"),
    "empty": (damage(bytearray.clear), "not a trace of this version"),
    "another kind of file": (
        damage(lambda c: c.__setitem__(0, 0)),
        "not a trace of this version",
    ),
    "cut off": (damage(lambda c: c.__delitem__(slice(-100, None))), "bytes, expected"),
    "header cut off": (damage(lambda c: c.__delitem__(slice(40, None))), "header is damaged"),
    "header of zeros": (
        damage(lambda c: c.__setitem__(slice(16, HEADER_END), bytes(HEADER_END - 16))),
        "header is damaged",
    ),
    "header no JSON": (damage(lambda c: c.__setitem__(20, 0xFF)), "header is damaged"),
    "endless": (
        damage(lambda c: c.__setitem__(slice(0, None), c.replace(b": 100,", b": 1e999,"))),
        "header is damaged .OverflowError",
    ),
    "no role": (
        damage(lambda c: c.__setitem__(slice(0, None), c.replace(b'"role"', b'"rule"'))),
        "header is damaged .KeyError",
    ),
}


@pytest.mark.parametrize(("spoil", "want"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_named(
    spoil: Callable[[Path], object], want: str, tmp_path: Path
) -> None:
    tracing.start(tmp_path, "rlx server", capacity=100)
    tracing.end("step", tracing.begin())
    (path,) = tmp_path.iterdir()
    spoil(path)
    with pytest.raises(InvalidInputError, match=want) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)


def test_half_a_row_or_half_a_line_costs_no_more_than_itself(tmp_path: Path) -> None:
    tracing.start(tmp_path, "rlx server", capacity=100)
    for _ in range(5):
        tracing.end("step", tracing.begin())
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    rows = np.frombuffer(content, tracing._ROW, offset=HEADER_END)
    rows["end"][0] = 0  # it ends before it begins
    rows["name"][1] = 7  # no such name
    rows["thread"][2] = 7  # no such thread
    del rows
    content[content.index(0, 16)] = ord("{")  # a line without its end
    path.write_bytes(content)
    trace = read_trace(path)
    assert [name for name, _ in list_spans(trace)] == ["step", "step"]


@pytest.mark.parametrize("kind", ["a file", "below a file"])
def test_a_folder_that_cannot_be_written_is_named_with_the_cure(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    folder = file if kind == "a file" else file / "below"
    with pytest.raises(ConfigError, match="set RELAAX_TRACE to another folder") as caught:
        tracing.start(folder, "rlx server")
    assert str(folder) in str(caught.value)
    assert tracing.active is None


def test_starting_twice_keeps_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracing.start(tmp_path, "rlx server")
    monkeypatch.setenv(tracing.ENVIRONMENT_VARIABLE, str(tmp_path / "other"))
    tracing.start_from_environment("environment")  # a client inside of a server
    assert [path.name for path in tmp_path.iterdir()] == [f"rlx-server-{os.getpid()}.trace"]


def test_the_three_forms_record_the_same(tmp_path: Path) -> None:
    tracing.start(tmp_path, "train")
    with tracing.span("one"):
        pass
    tracing.end("two", tracing.begin())
    if (recorder := tracing.active) is not None:
        recorder.add("three", time.perf_counter_ns(), time.perf_counter_ns())
    spans = read_only(tmp_path).spans
    assert [name for name, _ in list_spans(read_only(tmp_path))] == ["one", "two", "three"]
    for one, other in itertools.pairwise(spans):
        assert one["end"] <= other["start"]
