"""`--trace`, RELAAX_TRACE and `relaax trace` on real processes."""

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import GYM_MAIN, TRACE, Cluster, Program, find_command
from support.here import refuse_here, run_here

RELAAX = find_command("relaax")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.delenv("RELAAX_TRACE", raising=False)
    with Cluster(tmp_path) as cluster:
        yield cluster


def start_server(cluster: Cluster, command: str, *flags: object, **env: str) -> Program:
    argv = [find_command(command), "--config", cluster.config, *flags]
    program = cluster.start(command, argv, **env)
    program.wait_for(r"server on localhost:\d+")
    return program


def start_client(cluster: Cluster, **env: str) -> Program:
    argv = [sys.executable, GYM_MAIN, "--rlx-server", f"localhost:{cluster.rlx_port}"]
    return cluster.start("client", [*argv, "--env", "CartPole-v0", "--name", "cart"], **env)


def explain(cluster: Cluster, *arguments: object) -> list[str]:
    """Runs `relaax trace` in the cluster's folder; returns the lines that it prints."""
    with contextlib.chdir(cluster.folder):
        status, output = run_here("trace", *arguments)
    assert status == 0, output
    return output.splitlines()


def assert_nested(events: list[dict[str, Any]]) -> None:
    """Fails where a span begins within another one of its thread and ends behind it."""
    threads = defaultdict(list)
    for event in events:
        threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in threads.values():
        around: list[float] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while around and around[-1] <= start + 0.002:  # written in ns, added up in doubles
                around.pop()
            assert not around or end <= around[-1] + 0.002
            around.append(end)


def test_a_run_s_processes_are_merged_on_one_time_axis(cluster: Cluster) -> None:
    before = time.time()
    budget = ("--set", "algorithm.max_global_step=1500")
    # One by its flag, one by the variable, and one that is killed.
    ps = start_server(cluster, "relaax-parameter-server", "--trace", *budget)
    folder = cluster.folder / "run" / "trace"
    rlx = start_server(cluster, "relaax-rlx-server", RELAAX_TRACE=str(folder))
    client = start_client(cluster, RELAAX_TRACE=str(folder))
    assert client.wait() == 0, client
    assert ps.wait() == 0, ps
    rlx.stop(signal.SIGKILL)
    wall_sec = time.time() - before

    lines = explain(cluster, "run", "--output", "merged.json")
    events = json.loads((cluster.folder / "merged.json").read_text())["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    roles = {
        "parameter server": f"parameter server (pid {ps.pid})",
        "rlx server": f"rlx server (pid {rlx.pid})",
        "environment": f"environment cart (pid {client.pid})",
    }
    assert sorted(processes.values()) == sorted(roles.values())
    spans = [event for event in events if event["ph"] == "X"]
    names = defaultdict(set)
    for span in spans:
        assert 0 <= span["ts"] <= span["ts"] + span["dur"] <= wall_sec * 1e6
        names[processes[span["pid"]]].add(span["name"])
    assert names[roles["environment"]] >= {"environment step", "wait for actions", "encode"}
    assert names[roles["parameter server"]] >= {"apply", "wait for turn", "snapshot write"}
    assert names[roles["rlx server"]] >= {"start"}
    assert_nested(spans)
    # An answer is waited for in the environment's process while the gradient is applied elsewhere.
    applied = [(s["ts"], s["ts"] + s["dur"]) for s in spans if s["name"] == "apply"]
    waited = [(s["ts"], s["ts"] + s["dur"]) for s in spans if s["name"] == "wait for actions"]
    assert any(w[0] < a[0] and a[1] < w[1] for a in applied for w in waited)
    for text in ("wait for actions", "CPU cores in use", "ui.perfetto.dev", "main"):
        assert text in "\n".join(lines)
    assert lines[-1].endswith(".")
    assert " of the time" in lines[-1]


def test_a_run_without_traces_is_refused(cluster: Cluster) -> None:
    line = refuse_here("trace", cluster.folder)
    assert line.startswith(f"error: {cluster.folder}: no traces, or no access to them; ")


def test_train_traces_its_one_process_and_replaces_an_older_trace(cluster: Cluster) -> None:
    old = cluster.folder / "run" / "trace" / "rlx-server-1.trace"
    old.parent.mkdir(parents=True)
    old.write_text("of an earlier run")
    argv = [RELAAX, "train", cluster.config, "--trace", "--set", "algorithm.max_global_step=500"]
    program = cluster.start("train", argv)
    assert program.wait() == 0, program
    program.wait_for(r"tracing to run/trace; afterwards run: relaax trace run/trace")
    assert [path.name for path in old.parent.iterdir()] == [f"train-{program.pid}.trace"]
    lines = explain(cluster, "run/trace")
    assert (old.parent / "trace.json.gz").stat().st_size > 1000
    all_running = r"1 process, \d+\.\d s during which all roles were running"
    assert any(re.fullmatch(all_running, line) for line in lines)
    for name in ("environment step", "apply", "check push"):
        assert f" {name} " in "\n".join(lines)

    # A damaged file is skipped by name.
    (old.parent / "environment-5.trace").write_bytes(os.urandom(1000))
    assert explain(cluster, "run")[0].startswith("skipped run/trace/environment-5.trace: ")


@pytest.mark.parametrize(
    ("command", "env"),
    [("relaax-rlx-server", {}), ("client", {"RELAAX_TRACE": "experiment.yaml/below"})],
    ids=["flag", "variable"],
)
def test_a_folder_that_cannot_be_written_ends_the_process_at_once(
    command: str, env: dict[str, str], cluster: Cluster
) -> None:
    (cluster.folder / "run").write_text("a file where the run's folder should be")
    if command == "client":
        program = start_client(cluster, **env)
    else:
        program = cluster.start(
            "rlx", [find_command(command), "--config", cluster.config, "--trace"]
        )
    assert program.wait() == 2
    assert "cannot write a trace there" in program.lines[-1]
    assert TRACE not in program.output
