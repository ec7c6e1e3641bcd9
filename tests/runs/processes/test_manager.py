"""The Manager on tiny programs, and `relaax run` on a whole experiment. covers F20, R17, R19"""

import dataclasses
import errno
import io
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.cluster import GYM_MAIN, TRACE, Cluster, Program, find_command, wait_until
from support.here import refuse_here

from relaax_like.parameter_server.snapshots import read_latest
from relaax_like.runs.processes.manager import Manager, _print_line, shorten_tracebacks
from relaax_like.runs.processes.topology import Node, RestartPolicy, Topology
from relaax_like.wire.errors import RelaaxError

QUICK = RestartPolicy(first_delay_sec=0.02, max_delay_sec=0.05, max_restarts=3)
PATIENT = dataclasses.replace(QUICK, max_restarts=1000)
SLEEP = "import time; time.sleep(600)"


# Reports that it is ready, as a parameter server does.
READY = "import os; os.write(int(os.environ['RELAAX_REPORTS']), b'ready \\n')\n"


def node(name: str, script: str, role: Any = "metrics server", **fields: Any) -> Node:
    """Returns a process of any kind; one with the default role neither reports nor is essential."""
    return Node(name=name, role=role, argv=[sys.executable, "-c", script], **fields)


def make_manager(*nodes: Node, policy: RestartPolicy = QUICK, **options: Any) -> Manager:
    return Manager(Topology(nodes=nodes, restart=policy), **options)


class Running:
    """A Manager in a thread of its own, and what its processes have printed."""

    def __init__(self, *nodes: Node, policy: RestartPolicy = QUICK, term_sec: float = 6.0):
        self.lines: list[tuple[str, str]] = []
        self.status: int | None = None
        self.manager = make_manager(
            *nodes,
            policy=policy,
            write_line=lambda *line: self.lines.append(line),
            term_sec=term_sec,
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait(self) -> int:
        self._thread.join(30)
        assert not self._thread.is_alive(), f"the manager goes on: {self.manager.pids()}"
        assert self.status is not None
        return self.status

    def wait_pid(self, name: str, other_than: int = 0) -> int:
        """Waits until a process runs and is another one than before."""
        return wait_until(
            lambda: (pid := self.manager.pids().get(name, 0)) != other_than and pid,
            f"a process {name}",
            30,
        )

    def wait_line(self, name: str, text: str, count: int = 1) -> None:
        wait_until(
            lambda: self.lines.count((name, text)) >= count, f"{text!r} of {name}: {self.lines}", 30
        )

    def end(self) -> None:
        self.manager.kill()
        self._thread.join(30)

    def _run(self) -> None:
        self.status = self.manager.run()


@pytest.fixture
def run() -> Iterator[Any]:
    started: list[Running] = []

    def start(*nodes: Node, **options: Any) -> Running:
        started.append(Running(*nodes, **options))
        return started[-1]

    yield start
    for running in started:
        running.end()


class Server:
    """A server of an experiment that reports what the test says.

    Args:
      folder: for the pipe to it.
    """

    def __init__(self, folder: Path):
        fifo = folder / "reports"
        os.mkfifo(fifo)
        script = (
            "import os\n"
            f"for line in open({str(fifo)!r}, 'rb'):\n"
            "    os.write(int(os.environ['RELAAX_REPORTS']), line)\n"
        )
        self.node = node("rlx", script + SLEEP, "rlx server")
        self._fifo = os.open(fifo, os.O_RDWR)

    def report(self, *lines: str) -> None:
        os.write(self._fifo, "".join(f"{line}\n" for line in lines).encode())

    def close(self) -> None:
        os.close(self._fifo)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.close()


def environment(name: str, script: str) -> Node:
    return node(name, script, "environment", client_name=f"client of {name}")


def assert_gone(*pids: int) -> None:
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), f"the end of {pids}", 10)


def test_a_killed_process_is_restarted_and_the_others_are_left_alone(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    running = run(node("doomed", SLEEP), node("other", SLEEP))
    other = running.wait_pid("other")
    first = running.wait_pid("doomed")
    os.kill(first, signal.SIGKILL)
    second = running.wait_pid("doomed", other_than=first)
    os.kill(second, signal.SIGTERM)
    running.wait_pid("doomed", other_than=second)
    assert running.manager.pids()["other"] == other
    running.manager.stop()
    assert running.wait() == 0
    assert "doomed died (killed by SIGKILL); restart 1 of 3" in caplog.text
    assert "doomed died (killed by SIGTERM); restart 2 of 3" in caplog.text
    assert_gone(other)


def test_a_death_comes_with_what_the_process_said_last(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    script = "print('first'); print('the disk is full'); print(' ' * 9); raise SystemExit(3)"
    running = run(node("doomed", script), node("other", SLEEP))
    running.wait_line("doomed", "the disk is full")
    wait_until(lambda: "doomed died" in caplog.text, "its end", 30)
    line = next(r.getMessage() for r in caplog.records if "doomed died" in r.getMessage())
    assert line.startswith("doomed died (status 3); restart 1 of 3")
    assert line.endswith("; its last line: the disk is full")


def test_too_many_deaths_in_a_row_end_all_with_the_status(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    running = run(node("dying", "print('hello'); raise SystemExit(7)"), node("other", SLEEP))
    assert running.wait() == 7
    assert running.lines.count(("dying", "hello")) == 1 + QUICK.max_restarts
    assert "it died too often in a row" in caplog.text
    assert running.manager.pids() == {}


def test_a_process_that_only_ever_is_killed_ends_all_with_status_1(run: Any) -> None:
    suicide = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert run(node("dying", suicide)).wait() == 1


def test_a_healthy_process_may_die_more_often_than_the_limit(run: Any) -> None:
    always_healthy = RestartPolicy(
        first_delay_sec=0.02, max_delay_sec=0.05, max_restarts=1, healthy_sec=0.0
    )
    running = run(node("dying", "print('hello'); raise SystemExit(1)"), policy=always_healthy)
    running.wait_line("dying", "hello", count=4)


def test_a_mistake_in_the_settings_ends_all_without_a_restart(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    running = run(node("wrong", "print('no such key'); raise SystemExit(2)"), node("other", SLEEP))
    assert running.wait() == 2
    assert running.lines == [("wrong", "no such key")]
    assert "a configuration or usage error" in caplog.text


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left"), UnicodeEncodeError("ascii", "\u00e9", 0, 1, "no")],
    ids=["full disk", "encoding"],
)
def test_lines_that_cannot_be_written_do_not_hold_a_process_up(error: Exception) -> None:
    def fail(name: str, line: str) -> None:
        raise error

    # More than a pipe holds.
    talker = node("ps", "for _ in range(5000): print('x' * 100)", "parameter server")
    manager = make_manager(talker, write_line=fail)
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(manager.run()), daemon=True)
    thread.start()
    thread.join(30)
    manager.kill()
    thread.join(30)
    assert statuses == [0]


def test_a_character_that_the_output_lacks_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    _print_line("ps", 3, "caf\u00e9")
    assert written.getvalue() == b"ps  | caf?\n"


def test_the_good_end_of_an_essential_process_ends_all_well(run: Any) -> None:
    # The sleeper dies of SIGTERM, which is no failure of the experiment.
    running = run(node("ps", "print('done')", "parameter server"), node("other", SLEEP))
    assert running.wait() == 0
    assert running.lines == [("ps", "done")]


def test_the_good_end_of_another_process_ends_nothing_before_the_last(run: Any) -> None:
    running = run(node("client", "print('done')"), node("ps", SLEEP))
    running.wait_line("client", "done")
    wait_until(lambda: "client" not in running.manager.pids(), "the client's end")
    ps = running.wait_pid("ps")
    assert running.lines == [("client", "done")]  # it was not started again
    running.manager.stop()
    assert running.wait() == 0
    assert_gone(ps)


def test_what_ended_well_is_started_again_with_an_essential_process_that_died(run: Any) -> None:
    """The parameter server died in its last seconds: its clients have work again."""
    running = run(node("client", "print('done')"), node("ps", SLEEP, "parameter server"))
    running.wait_line("client", "done")
    wait_until(lambda: "client" not in running.manager.pids(), "the client's end")
    os.kill(running.wait_pid("ps"), signal.SIGKILL)
    running.wait_line("client", "done", count=2)
    running.manager.stop()
    running.wait()


def test_it_ends_by_itself_when_all_have_ended_well(run: Any) -> None:
    # covers F31
    assert run(node("one", "pass"), node("two", "pass")).wait() == 0


def test_a_process_that_ignores_sigterm_is_killed(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    stubborn = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); {SLEEP}"
    running = run(node("stubborn", f"{stubborn}"), term_sec=0.3)
    pid = running.wait_pid("stubborn")
    wait_until(lambda: running.lines, "its first line", 30)
    running.manager.stop()
    assert running.wait() == 0
    assert f"pid {pid} did not exit within 0.3 s; killed it" in caplog.text
    assert_gone(pid)


def test_environments_end_first_and_the_essential_process_last(run: Any) -> None:
    slow = (
        "import signal, sys, time\n"
        "def end(*_):\n"
        "    began = time.monotonic(); time.sleep(0.3)\n"
        "    print('ended', began, time.monotonic()); sys.exit(0)\n"
        f"signal.signal(signal.SIGTERM, end); print('up')\n{SLEEP}"
    )
    running = run(
        node("ps", READY + slow, "parameter server"), node("rlx", slow), environment("client", slow)
    )
    for name in ("ps", "rlx", "client"):
        running.wait_line(name, "up")
    running.manager.stop()
    running.wait()
    spans = {name: text.split()[1:] for name, text in running.lines if text.startswith("ended")}
    times = [float(at) for name in ("client", "rlx", "ps") for at in spans[name]]
    assert times == sorted(times)  # each was asked after the one before it had ended


@pytest.mark.parametrize("end", ["death", "stop"])
def test_grandchildren_that_hold_the_output_are_no_orphans(run: Any, end: str) -> None:
    parent = (
        "import subprocess, sys; "
        f"print(subprocess.Popen([sys.executable, '-c', {SLEEP!r}]).pid, flush=True); {SLEEP}"
    )
    running = run(node("parent", parent))
    parent_pid = running.wait_pid("parent")
    wait_until(lambda: running.lines, "the grandchild's pid", 30)
    grandchild = int(running.lines[0][1])
    if end == "death":
        os.kill(parent_pid, signal.SIGKILL)
        running.wait_pid("parent", other_than=parent_pid)
    else:
        running.manager.stop()
        assert running.wait() == 0
    assert_gone(parent_pid, grandchild)


def test_kill_waits_for_nobody(run: Any) -> None:
    stubborn = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); {SLEEP}"
    running = run(node("stubborn", stubborn), term_sec=600)
    pid = running.wait_pid("stubborn")
    wait_until(lambda: running.lines, "its first line", 30)
    running.manager.stop()
    running.manager.kill()
    running.wait()
    assert_gone(pid)


def test_lines_carry_the_name_of_their_process(capfd: pytest.CaptureFixture[str]) -> None:
    script = (
        "import sys; print('out'); print('err', file=sys.stderr); "
        "sys.stdout.buffer.write(b'\\xff\\n')"
    )
    assert make_manager(node("ps", script), node("client", "print('hello')")).run() == 0
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == [
        "client | hello",
        "ps     | err",
        "ps     | out",
        "ps     | \N{REPLACEMENT CHARACTER}",
    ]


def test_an_environment_of_its_own_is_added_to_ours(run: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("FROM_OUTSIDE", "a")
    script = "import os; print(os.environ['FROM_OUTSIDE'], os.environ['OWN'])"
    running = run(node("one", script, env={"OWN": "b"}))
    assert running.wait() == 0
    assert running.lines == [("one", "a b")]


def test_a_command_that_does_not_exist_is_named_and_the_others_end() -> None:
    bad = Node(name="bad", role="metrics server", argv=["/no/such/program"])
    manager = make_manager(node("good", SLEEP), bad)
    with pytest.raises(RelaaxError, match=r"bad: cannot start /no/such/program: .*No such file"):
        manager.run()
    assert manager.pids() == {}


# Environments, whose end is not that of the others.


def test_an_environment_that_cannot_start_is_given_up_and_the_others_continue(
    run: Any, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    broken = "def f(): raise ValueError('no simulator')\nf()"
    running = run(server.node, environment("env1", broken), environment("env2", SLEEP))
    server.report("ready ")
    wait_until(lambda: "giving up on env1" in caplog.text, "the end of env1")
    assert "env1 died (status 1); restart 2 of 2" in caplog.text
    assert (
        "(status 1): it died 3 times without a step in between; the others continue" in caplog.text
    )
    running.wait_line("env1", "ValueError: no simulator (same traceback as above)", count=2)
    lines = [line for name, line in running.lines if name == "env1"]
    assert lines.count(f"{TRACE}:") == 1
    assert lines.count("ValueError: no simulator") == 1
    assert set(running.manager.pids()) == {"rlx", "env2"}


def test_an_environment_with_a_mistake_in_its_settings_is_not_started_again(
    run: Any, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = "print('no such game'); raise SystemExit(2)"
    running = run(server.node, environment("env1", wrong), environment("env2", SLEEP))
    server.report("ready ")
    wait_until(lambda: "giving up on env1" in caplog.text, "the end of env1")
    assert "(status 2): a configuration or usage error; the others continue" in caplog.text
    running.wait_pid("env2")
    assert running.lines == [("env1", "no such game")]


def test_an_environment_that_steps_between_its_deaths_is_not_given_up(
    run: Any, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    running = run(server.node, environment("env1", SLEEP))
    server.report("ready ")
    pid = 0
    for _ in range(5):
        pid = running.wait_pid("env1", other_than=pid)
        # Whether it is heard of before the death, after it, or after the next start.
        server.report("stepped client of env1")
        os.kill(pid, signal.SIGKILL)
    running.wait_pid("env1", other_than=pid)
    assert "giving up" not in caplog.text


def test_environments_wait_until_the_servers_are_ready(run: Any, server: Server) -> None:
    dying = node("metrics", "print('up'); raise SystemExit(1)")
    running = run(server.node, dying, environment("env1", f"print('up'); {SLEEP}"), policy=PATIENT)
    first = running.wait_pid("rlx")
    running.wait_line("metrics", "up", count=3)  # so often it has looked what is to be started
    assert "env1" not in running.manager.pids()
    server.report("ready ")
    running.wait_line("env1", "up")
    os.kill(first, signal.SIGKILL)
    running.wait_pid("rlx", other_than=first)
    pid = running.wait_pid("env1")  # it was left alone
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "env1" not in running.manager.pids(), "its death")
    running.wait_line("metrics", "up", count=running.lines.count(("metrics", "up")) + 3)
    assert "env1" not in running.manager.pids()
    server.report("ready ")
    running.wait_pid("env1", other_than=pid)


def test_it_ends_when_neither_an_environment_nor_another_client_is_left(
    run: Any, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    policy = dataclasses.replace(QUICK, alone_sec=0.05)
    running = run(server.node, environment("env1", "raise SystemExit(2)"), policy=policy)
    server.report("joined somebody", "joined somebody", "ready ", "left somebody")
    wait_until(lambda: "giving up on env1" in caplog.text, "the end of env1")
    assert "no environment of this run is left" not in caplog.text  # one somebody is connected
    server.report("left somebody")
    assert running.wait() == 1
    assert "no environment of this run is left; stopping in 0.05 s unless" in caplog.text
    assert "no client connected for 0.05 s; stopping all processes" in caplog.text


def test_environments_that_are_to_end_their_episodes_are_not_started_again(run: Any) -> None:
    """covers D23"""
    ends = "import signal, sys, time\n"
    ends += "signal.signal(signal.SIGHUP, lambda *_: sys.exit(0))\nprint('up')\ntime.sleep(600)"
    running = run(
        environment("env1", ends),
        environment("env2", f"print('up'); {SLEEP}"),  # it dies of the signal
        environment("env3", "print('up'); raise SystemExit(1)"),
        policy=dataclasses.replace(PATIENT, environment_deaths=1000),
    )
    for name in ("env1", "env2", "env3"):
        running.wait_line(name, "up")
    running.manager.end_episodes()
    assert running.wait() == 0


def test_it_ends_when_the_only_environments_are_given_up(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = environment("env1", "print('no such game'); raise SystemExit(2)")
    policy = dataclasses.replace(QUICK, alone_sec=0)
    assert run(wrong, environment("env2", "print('done')"), policy=policy).wait() == 1
    assert "its last line: no such game" in caplog.text
    assert "before its first step" not in caplog.text  # nothing reports steps
    assert run(environment("env1", "print('done')"), policy=policy).wait() == 0


def test_collectors_end_with_their_environments(run: Any, server: Server) -> None:
    """covers D23"""
    policy = dataclasses.replace(QUICK, alone_sec=0)
    running = run(server.node, environment("env1", "print('done')"), policy=policy)
    server.report("ready ")
    assert running.wait() == 0


@pytest.mark.parametrize("has_stepped", [False, True])
def test_an_environment_that_ends_well_before_its_first_step_is_reported(
    run: Any,
    server: Server,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    has_stepped: bool,
) -> None:
    policy = dataclasses.replace(QUICK, alone_sec=0.05)
    waiting = (
        f"import os, time\nwhile not os.path.exists({str(tmp_path / 'gate')!r}): time.sleep(0.01)"
    )
    running = run(server.node, environment("env1", waiting), policy=policy)
    server.report("ready ")
    running.wait_pid("env1")
    if has_stepped:
        server.report("joined client of env1", "stepped client of env1")
        _, env1 = running.manager._supervised
        wait_until(lambda: env1.worked, "the report")
    (tmp_path / "gate").touch()
    assert running.wait() == 1
    assert ("env1 ended with status 0 before its first step" in caplog.text) is not has_stepped


def test_a_server_that_does_useful_work_may_die_more_often_than_the_limit(run: Any) -> None:
    script = (
        "import os; print('up'); os.write(int(os.environ['RELAAX_REPORTS']), b'worked \\n'); "
        "os.abort()"
    )
    running = run(node("ps", script, "rlx server"))
    running.wait_line("ps", "up", count=QUICK.max_restarts + 4)


def test_a_traceback_that_is_known_is_its_last_line() -> None:
    begin = f"{TRACE}:"
    first = [begin, "  File 'a', line 1, in f", "ValueError: 1", "", "more"]
    other = [begin, "  File 'b', line 1, in g", "ValueError: 1"]
    again = [begin, "  File 'a', line 1, in f", "ValueError: 2"]
    broken_off = ["before", begin, "  File 'a'"]
    known: set[str] = set()
    lines = [*first, *other, *again, *broken_off]
    assert list(shorten_tracebacks(iter(lines), known)) == [
        *first,
        *other,
        "ValueError: 2 (same traceback as above)",
        *broken_off,
    ]
    endless = [begin, *[" "] * 5000]
    assert list(shorten_tracebacks(iter(endless), known)) == endless


@pytest.mark.parametrize("deaths", [1, 2, 3, 4, 10, 1000])
def test_the_delay_doubles_up_to_its_limit(deaths: int) -> None:
    policy = RestartPolicy(first_delay_sec=0.5, max_delay_sec=10.0)
    nominal = min(0.5 * 2 ** min(deaths - 1, 100), 10.0)
    assert 0.5 * nominal <= policy.delay_sec(deaths) <= nominal


# `relaax run`, on whole experiments.

SCORES = "relaax-rlx-server.score_lines=true"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster


def start_run(cluster: Cluster, *sets: str) -> Program:
    overrides = [part for text in sets for part in ("--set", text)]
    return cluster.start("run", [find_command("relaax"), "run", cluster.config, *overrides])


def find_child(cluster: Cluster, text: str) -> psutil.Process:
    (found,) = [p for p in cluster.find_left() if text in " ".join(p.cmdline())]
    return found


def test_relaax_run_restarts_what_dies_and_ends_with_the_training(cluster: Cluster) -> None:
    # Its clients reconnect quickly.
    program = cluster.folder / "main.py"
    program.write_text(
        "import os, sys\n"
        "again = ['--retry-sleep', '0.2', '0.5']\n"
        f"argv = [sys.executable, {str(GYM_MAIN)!r}, *sys.argv[1:], *again]\n"
        "os.execv(sys.executable, argv)\n"
    )
    text = cluster.config.read_text()
    cluster.config.write_text(text.replace("program: OpenAI_Gym", f"path: {program}"))
    run = start_run(cluster, "algorithm.max_global_step=6000", SCORES)
    for name in ("ps", "rlx"):
        run.wait_for(rf"^{name} +\| ")
    for client in ("CartPole-v0-1", "CartPole-v0-2"):
        run.wait_for(f"{client} slot 0: episode 1, score")
    find_child(cluster, "cli.servers rlx_server").kill()
    run.wait_for(r"rlx died \(killed by SIGKILL\); restart 1 of 10")
    assert run.wait() == 0
    run.wait_for(r"ps +\| .* finished: budget of 6000 env steps used up")
    assert "env1 | waiting" not in run.output  # it was started when the server was ready
    assert "Score" not in run.output
    # The other client can still be asleep before its next attempt.
    run.wait_for(r"env[12] +\| CartPole-v0: ")
    assert TRACE not in run.output
    cluster.assert_nothing_left()


def test_relaax_run_refuses_a_used_port_before_it_starts_anything(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", cluster.ps_port)):
        line = refuse_here("run", cluster.config, status=1)
    assert f"pid {os.getpid()}" in line
    assert "--set relaax-parameter-server.bind=" in line


def test_relaax_run_starts_a_program_in_any_language(cluster: Cluster) -> None:
    program = cluster.folder / "environment.sh"
    program.write_text('#!/bin/sh\necho "arguments: $*"\nexit 2\n')
    program.chmod(0o755)
    section = f"environment: {{path: {program}, env: Maze}}\n"
    text = cluster.config.read_text()
    cluster.config.write_text(text[: text.index("environment:")] + section)
    run = start_run(cluster)
    run.wait_for(
        rf"env1 +\| arguments: --rlx-server localhost:{cluster.rlx_port} --env Maze --name Maze-1"
    )
    run.wait_for(
        r"giving up on env1 \(status 2\): a configuration or usage error; its last line: a"
    )
    run.wait_for("no environment of this run is left; stopping in 60 s unless a client connects")
    assert run.stop(signal.SIGINT) == 128 + signal.SIGINT
    cluster.assert_nothing_left()


def test_one_environment_that_fails_does_not_end_a_healthy_training_but_ctrl_c_does(
    cluster: Cluster,
) -> None:
    program = cluster.folder / "main.py"
    program.write_text(
        "import os, sys\n"
        "from pathlib import Path\n"
        "if sys.argv[-1].endswith('-2'):\n"
        "    raise ValueError('no simulator')\n"
        f"os.execv(sys.executable, [sys.executable, {str(GYM_MAIN)!r}, *sys.argv[1:]])\n"
    )
    text = cluster.config.read_text()
    cluster.config.write_text(text.replace("program: OpenAI_Gym", f"path: {program}"))
    run = start_run(cluster, SCORES)
    run.wait_for(
        "giving up on env2 .*: it died 3 times without a step in between; the others continue"
    )
    find_child(cluster, "--name CartPole-v0-1").kill()
    run.wait_for(r"env1 died \(killed by SIGKILL\); restart 1 of 2")
    assert run.output.count("raise ValueError") == 1
    run.wait_for("score", after=len(run.lines))
    before = len(run.lines)
    assert run.stop(signal.SIGINT) == 128 + signal.SIGINT
    run.wait_for(r"ps +\| .* stopped", after=before)  # it came to its own end, with a snapshot
    last = "\n".join(run.lines[before:])
    assert "killed" not in last
    assert TRACE not in last
    cluster.assert_nothing_left()
    assert list((cluster.folder / "run" / "checkpoints").glob("cp-*"))


def test_relaax_run_without_an_environment_says_what_to_add(cluster: Cluster) -> None:
    text = cluster.config.read_text()
    cluster.config.write_text(text[: text.index("environment:")])
    line = refuse_here("run", cluster.config)
    assert ": no `environment` section, so there is nothing to train on" in line


def test_kill_9_of_relaax_run_ends_all_that_it_started_in_order(cluster: Cluster) -> None:
    run = start_run(cluster, "relaax-parameter-server.durability=snapshot")
    cluster.wait_steps(200)
    assert len(cluster.find_left()) >= 5  # two servers, two clients, and their guardian
    run.send(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    cluster.assert_nothing_left()
    # The parameter server came to its own end, with a snapshot.
    state = read_latest(cluster.folder / "run" / "checkpoints")
    assert state is not None
    assert state.global_t >= 200


def test_relaax_run_ends_silently_when_nobody_reads_it_any_more(cluster: Cluster) -> None:
    errors = cluster.folder / "errors"
    command = " ".join([find_command("relaax"), "run", str(cluster.config)])
    # As a shell with pipefail has it: the status of the first in the pipe.
    script = f"set -o pipefail; {command} 2> {errors} | head -1; exit $?"
    shell = cluster.start("shell", ["bash", "-c", script])
    assert shell.wait() == 128 + signal.SIGPIPE, shell
    assert len(shell.lines) == 1
    assert errors.read_text() == ""
    cluster.assert_nothing_left()


@pytest.mark.parametrize("log", ["plain", "json"])
def test_relaax_train_does_so_too_and_saves(cluster: Cluster, log: str) -> None:
    errors = cluster.folder / "errors"
    quick = "--set relaax-parameter-server.progress_interval_sec=0.1"
    command = f"{find_command('relaax')} train {cluster.config} --log {log} {quick}"
    script = f"set -o pipefail; {command} 2> {errors} | head -1; exit $?"
    shell = cluster.start("shell", ["bash", "-c", script])
    assert shell.wait() == 128 + signal.SIGPIPE, shell
    assert len(shell.lines) == 1
    assert TRACE not in errors.read_text()
    assert "BrokenPipe" not in errors.read_text()
    assert read_latest(cluster.folder / "run" / "checkpoints") is not None


def test_log_lines_of_the_manager_reach_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    assert make_manager(node("x", "raise SystemExit(2)")).run() == 2
    assert [record.levelname for record in caplog.records] == ["ERROR"]
