"""Where the time went: shares, own times, bottleneck of hand-made traces; the merged file."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax_like.config.loader import load_experiment
from relaax_like.launch.run import make_topology
from relaax_like.runs.folders.chrome_trace import write_chrome_trace
from relaax_like.runs.folders.trace import (
    TraceReport,
    compute_own_times,
    compute_report,
    find_bottleneck,
    find_trace_folder,
    format_report,
    load_traces,
    name_kind,
)
from relaax_like.wire import tracing
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.tracing import CPU, ProcessTrace

SEC = 1_000_000_000
BASE = 1_700_000_000 * SEC  # ns since 1970
# (thread, name, start, end), in seconds since BASE.
Span = tuple[str, str, float, float]


def make_trace(
    role: str,
    spans: Sequence[Span],
    *,
    name: str = "",
    counters: Sequence[tuple[str, float, float]] = (),
    overwritten: int = 0,
    cores: int = 0,
) -> ProcessTrace:
    """Makes what `read_trace` would give; counters are (name, time, value)."""
    names = list(dict.fromkeys([*(s[1] for s in spans), *(c[0] for c in counters)]))
    threads = list(dict.fromkeys(s[0] for s in spans))
    rows = [
        (BASE + round(start * SEC), BASE + round(end * SEC), names.index(n), threads.index(t))
        for t, n, start, end in sorted(spans, key=lambda s: (s[2], -s[3]))
    ]
    values = [(BASE + round(time * SEC), value, names.index(n)) for n, time, value in counters]
    return ProcessTrace(
        path=Path(f"{role}.trace"),
        role=role,
        name=name,
        pid=7,
        host="here",
        cores=cores,
        names=tuple(names),
        threads=tuple(threads),
        spans=np.array(rows, tracing._ROW),
        counters=np.array(values, [("time", "<i8"), ("value", "<f8"), ("name", "<u4")]),
        overwritten=overwritten,
    )


def repeat(thread: str, seconds: float, *phases: tuple[str, float]) -> list[Span]:
    """Returns phases of (name, length) after each other, again and again, for so long from 0 on."""
    spans: list[Span] = []
    at = 0.0
    while at < seconds - 1e-9:
        for name, length in phases:
            spans.append((thread, name, at, at + length))
            at += length
    return spans


def list_times(report: TraceReport) -> dict[tuple[str, str, str], tuple[int, float, float, float]]:
    return {
        (t.role, t.thread, s.name): (
            s.calls,
            round(s.total_sec, 6),
            round(s.share, 6),
            round(s.own_share, 6),
        )
        for t in report.threads
        for s in t.spans
    }


def test_own_times_leave_out_what_lies_directly_within() -> None:
    #   0 ........................ 100
    #   0 ......... 40   50 ... 60        90 ... 130 (begins within, ends behind)
    #     10 .. 30
    #       15 20
    starts = np.array([0, 0, 10, 15, 50, 90, 200])
    ends = np.array([100, 40, 30, 20, 60, 130, 201])
    own = compute_own_times(starts, ends)
    np.testing.assert_array_equal(own, [100 - 40 - 10 - 10, 40 - 20, 20 - 5, 5, 10, 40, 1])


def test_times_and_shares_by_hand() -> None:
    trace = make_trace(
        "rlx server",
        [
            ("MainThread", "read", 0, 2),
            ("MainThread", "answer", 2, 8),
            ("MainThread", "predict", 3, 4),
            ("MainThread", "predict", 5, 7),
            ("MainThread", "idle", 8, 9),
            ("MainThread", "read", 9, 10),
            ("session-1_0", "step", 0, 5),
            ("session-2_0", "step", 5, 6),
            ("session-2_0", "wait for values", 6, 10),
        ],
    )
    report = compute_report([trace])
    assert report.window_sec == 10
    assert list_times(report) == {
        ("rlx server", "main", "read"): (2, 3, 0.3, 0.3),
        ("rlx server", "main", "answer"): (1, 6, 0.6, 0.3),
        ("rlx server", "main", "predict"): (2, 3, 0.3, 0.3),
        ("rlx server", "main", "idle"): (1, 1, 0.1, 0.1),
        # Two threads of a kind: the mean of both.
        ("rlx server", "session", "step"): (2, 6, 0.3, 0.3),
        ("rlx server", "session", "wait for values"): (1, 4, 0.2, 0.2),
    }
    busy = {(t.thread, t.count): round(t.busy, 6) for t in report.threads}
    assert busy == {("main", 1): 0.9, ("session", 2): 0.3}
    (predict,) = (s for t in report.threads for s in t.spans if s.name == "predict")
    assert predict.p50_us == pytest.approx(1.5e6)
    assert predict.p99_us == pytest.approx(1.99e6)


def test_the_window_is_when_all_roles_work_and_spans_are_cut_at_it() -> None:
    server = make_trace(
        "rlx server", [("MainThread", "start", 0, 7), *repeat("MainThread", 30, ("read", 1))]
    )
    environment = make_trace(
        "environment",
        [
            ("MainThread", "wait for the server", 0, 10),
            ("MainThread", "environment", 10.5, 12.5),
            ("MainThread", "wait for actions", 12.5, 20.5),
            ("MainThread", "environment", 20.5, 21),
            ("MainThread", "wait for actions", 21, 40),
        ],
    )
    report = compute_report([server, environment])
    assert (report.window_sec, report.is_common) == (10.5, True)
    times = list_times(report)
    assert ("rlx server", "main", "start") not in times
    assert times["rlx server", "main", "read"] == (11, 10.5, 1, 1)  # half of one
    assert times["environment", "main", "environment"][1] == 2.5
    assert ("environment", "main", "wait for the server") not in times


def test_a_full_ring_shortens_the_window() -> None:
    other = make_trace("environment", repeat("MainThread", 20, ("environment", 1)))
    spans: list[Span] = [("MainThread", "read", 15, 16), ("MainThread", "read", 19, 20)]
    assert compute_report([make_trace("rlx server", spans), other]).window_sec == 5
    full = make_trace("rlx server", spans, overwritten=100)
    more = make_trace("rlx server", repeat("MainThread", 20, ("read", 1)))
    assert compute_report([more, other]).window_sec == 20
    assert compute_report([full, more, other]).window_sec == 5


def test_roles_that_never_worked_together_have_the_whole_time() -> None:
    one = make_trace("rlx server", [("MainThread", "read", 0, 2)])
    other = make_trace("environment", [("MainThread", "environment", 6, 10)])
    report = compute_report([one, other])
    assert (report.window_sec, report.is_common) == (10, False)


@pytest.mark.parametrize(
    ("thread", "kind"),
    [
        ("MainThread", "main"),
        ("training", "training"),
        ("bridge_12", "bridge"),
        ("session-31_0", "session"),
        ("ThreadPoolExecutor-0_3", "ThreadPoolExecutor"),
        ("Thread-5 (_announce_link)", "_announce_link"),
    ],
)
def test_threads_of_one_pool_are_one_kind(thread: str, kind: str) -> None:
    assert name_kind(thread) == kind


def make_run(
    loop: Sequence[tuple[str, float]],
    environment: Sequence[tuple[str, float]],
    training: Sequence[tuple[str, float]] = (("wait for rollouts", 1.0),),
    cpu: float = 0.1,
) -> list[ProcessTrace]:
    """A run of 20 s with two environments: phases that each role repeats."""
    cpus = [(CPU, float(time), cpu) for time in range(21)]
    server = [*repeat("MainThread", 20, *loop), *repeat("training", 20, *training)]
    clients = repeat("MainThread", 20, *environment)
    return [
        make_trace("rlx server", server, counters=cpus, cores=2),
        make_trace("environment", clients, name="a", counters=cpus, cores=2),
        make_trace("environment", clients, name="b", counters=cpus, cores=2),
    ]


# Each begins and ends with work, as the time before the first and after the last of it is left out.
BUSY_LOOP = (("read step", 0.41), ("idle", 0.03), ("predict", 0.35), ("answer", 0.21))
CALM_LOOP = (("read step", 0.05), ("idle", 0.8), ("predict", 0.15))
WAITING = (("environment", 0.05), ("wait for actions", 0.9), ("environment", 0.05))
RUNS: dict[str, tuple[list[ProcessTrace], str]] = {
    "server": (
        make_run(BUSY_LOOP, WAITING),
        "The rlx server's event loop limits the run: it is busy 97% of the time, mostly in 'read "
        "step' (41%).",
    ),
    "environments": (
        make_run(CALM_LOOP, (("step", 0.8), ("wait for actions", 0.08), ("step", 0.12))),
        "The environments limit the run: they are busy 92% of the time, mostly in 'step' (92%), "
        "while the rlx server's event loop waits 80% of it.",
    ),
    "gradients": (
        make_run(CALM_LOOP, WAITING, (("wait for rollouts", 0.1), ("gradient", 0.9))),
        "Agents wait for gradients: the rlx server's training thread is busy 90% of the time, "
        "mostly in 'gradient' (90%).",
    ),
    "nothing": (
        make_run(CALM_LOOP, WAITING, (("wait for rollouts", 0.7), ("gradient", 0.3))),
        "Nothing is busy all the time: the busiest is the rlx server's training thread, for "
        "30% of the time, mostly in 'gradient' (30%). Either the roles wait for each other "
        "alternately, which more environments or slots would hide, or they wait for something "
        "that has no span.",
    ),
    "machine": (
        make_run(CALM_LOOP, (("step", 0.3), ("wait for actions", 0.4), ("step", 0.3)), cpu=0.64),
        "The machine limits the run: 96% of the machine's 2 cores are busy; the busiest is the "
        "environments, for 60% of the time, mostly in 'step' (60%).",
    ),
    "server on a full machine": (
        make_run(BUSY_LOOP, WAITING, cpu=0.64),
        "The rlx server's event loop limits the run: it is busy 97% of the time, mostly in "
        "'read step' (41%); 96% of the machine's 2 cores are busy, so part of that is waiting "
        "for a core.",
    ),
    "one process": (
        [make_trace("train", repeat("MainThread", 20, ("step", 0.9), ("idle", 0.1), ("end", 0.0)))],
        "The main thread limits the run: it is busy 90% of the time, mostly in 'step' (90%).",
    ),
    "environments alone": (
        [make_trace("environment", repeat("MainThread", 20, ("step", 1.0)))],
        "The environments limit the run: they are busy 100% of the time, mostly in 'step' (100%).",
    ),
}


@pytest.mark.parametrize(("traces", "want"), RUNS.values(), ids=RUNS)
def test_the_bottleneck_in_one_sentence(traces: list[ProcessTrace], want: str) -> None:
    assert find_bottleneck(compute_report(traces)) == want


def test_the_table_has_all_of_it() -> None:
    counters = [("rows predicted", 1.0, 8.0), ("rows predicted", 2.0, 16.0)]
    server = make_trace("rlx server", repeat("MainThread", 10, ("predict", 1)), counters=counters)
    clients = [
        make_trace(
            "environment", repeat("MainThread", 10, ("step", 0.3), ("wait", 0.5), ("step", 0.2))
        )
    ]
    lines = format_report(compute_report([server, *clients, *clients])).splitlines()
    words = [line.split() for line in lines]
    assert ["main", "x", "2", "(busy)", "50%"] in words
    assert ["step", "40", "10.00", "50%", "50%", "250,000", "300,000"] in words
    assert ["predict", "10", "10.00", "100%", "100%", "1,000,000", "1,000,000"] in words
    assert ["rlx", "server", "rows", "predicted", "2", "12.00", "15.92"] in words


def test_the_merged_file_is_in_the_trace_event_format(tmp_path: Path) -> None:
    server = make_trace(
        "rlx server",
        [("training", "gradient", 3, 5), ("MainThread", 'read "all"', 3.5, 4)],
        counters=[("rows", 3.25, 8.0), ("rows", 3.3, float("nan"))],
    )
    client = make_trace("environment", [("MainThread", "step", 2, 2.000001)], name="CartPole-1")
    for path in (tmp_path / "trace.json", tmp_path / "trace.json.gz"):
        count = write_chrome_trace([server, client], path)
        content = path.read_bytes()
        text = gzip.decompress(content) if path.suffix == ".gz" else content
        events = json.loads(text, parse_constant=pytest.fail)["traceEvents"]
        assert len(events) == count
        assert [e for e in events if e["ph"] == "X"] == [
            {"ph": "X", "pid": 1, "tid": 0, "ts": 1e6, "dur": 2e6, "name": "gradient"},
            {"ph": "X", "pid": 1, "tid": 1, "ts": 1.5e6, "dur": 0.5e6, "name": 'read "all"'},
            {"ph": "X", "pid": 2, "tid": 0, "ts": 0.0, "dur": 1.0, "name": "step"},
        ]
        counter = {"ph": "C", "pid": 1, "ts": 1.25e6, "name": "rows", "args": {"value": 8.0}}
        assert [e for e in events if e["ph"] == "C"] == [counter]
        assert find_names(events, "process_name") == {
            (1, 0): "rlx server (pid 7)",
            (2, 0): "environment CartPole-1 (pid 7)",
        }
        assert find_names(events, "thread_name") == {
            (1, 0): "training",
            (1, 1): "MainThread",
            (2, 0): "MainThread",
        }


def find_names(events: list[dict[str, Any]], kind: str) -> dict[tuple[int, int], str]:
    return {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in events
        if e["ph"] == "M" and e["name"] == kind
    }


def test_an_output_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    trace = make_trace("train", [("MainThread", "step", 0, 1)])
    with pytest.raises(ConfigError, match=r"--output .*nowhere/trace.json: cannot be written"):
        write_chrome_trace([trace], tmp_path / "nowhere" / "trace.json")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder with two real traces of this process."""
    monkeypatch.setattr(tracing, "active", None)
    for role in ("rlx server", "environment"):
        tracing.start(tmp_path / "trace", role, capacity=100)
        tracing.end("step", tracing.begin())
        tracing.stop()
    return tmp_path


def test_the_run_s_folder_and_the_traces_own_are_found(folder: Path) -> None:
    assert find_trace_folder(folder) == folder / "trace"
    assert find_trace_folder(folder / "trace") == folder / "trace"
    traces, skipped = load_traces(folder / "trace")
    assert {trace.role for trace in traces} == {"rlx server", "environment"}
    assert skipped == []


def test_a_damaged_file_is_skipped_and_named(folder: Path) -> None:
    damaged = next((folder / "trace").glob("environment-*"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    traces, (line,) = load_traces(folder / "trace")
    assert [trace.role for trace in traces] == ["rlx server"]
    assert str(damaged) in line
    for path in (folder / "trace").glob("*.trace"):
        path.write_text("{}")
    with pytest.raises(ConfigError, match=r"no usable trace: .*make one of these files usable"):
        load_traces(folder / "trace")


def test_a_process_without_spans_is_said_to_have_none(folder: Path) -> None:
    tracing.start(folder / "trace", "metrics server", capacity=100)
    traces, (line,) = load_traces(folder / "trace")
    assert len(traces) == 2
    assert "metrics-server" in line
    assert "has recorded no span" in line


def test_a_wrong_folder_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder, or no access to it; pass the run_dir"):
        find_trace_folder(tmp_path / "nowhere")
    with pytest.raises(
        ConfigError, match=r": no traces, or no access to them; .*relaax run CONFIG --trace"
    ):
        find_trace_folder(tmp_path)


def test_relaax_run_hands_the_folder_to_all_its_processes(tmp_path: Path) -> None:
    config = tmp_path / "experiment.yaml"
    config.write_text(
        "run_dir: run\nalgorithm: {name: policy_gradient}\n"
        "environment: {program: OpenAI_Gym, env: CartPole-v0, clients: 2}\n"
    )
    experiment = load_experiment(config, [f"run_dir={tmp_path / 'run'}"])
    traced = make_topology(experiment, [], trace=True).nodes
    variable = tracing.ENVIRONMENT_VARIABLE
    assert [(spec.name, spec.env[variable]) for spec in traced] == [
        (name, str(tmp_path / "run" / "trace")) for name in ("ps", "rlx", "env1", "env2")
    ]
    assert not any(variable in spec.env for spec in make_topology(experiment, []).nodes)
