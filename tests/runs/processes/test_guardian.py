"""Guardian: what is left when a Manager is killed, and what it does not touch."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.cluster import Processes, wait_until

from relaax_like.runs.processes.guardian import Guardian, end_groups

# Notes the SIGTERM that it gets.
ORDERLY = """
import pathlib, signal, sys, time
def end(*_):
    pathlib.Path("ended").write_text("in order")
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
time.sleep(600)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""
# A program in another language, whose own child knows of nothing.
SHELL = "sleep 600 & echo up; wait"
MANAGER = f"""
import sys
from relaax_like.runs.processes.manager import Manager
from relaax_like.runs.processes.topology import Node, Topology
commands = dict(
    orderly=[sys.executable, "-c", {ORDERLY!r}],
    stubborn=[sys.executable, "-c", {STUBBORN!r}],
    shell=["sh", "-c", {SHELL!r}],
)
nodes = [Node(name=name, role="metrics server", argv=argv) for name, argv in commands.items()]
Manager(Topology(nodes=nodes), term_sec=3.0).run()
"""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as processes:
        yield processes


def test_kill_9_of_a_manager_ends_all_and_those_that_can_in_order(processes: Processes) -> None:
    manager = processes.start("manager", [sys.executable, "-c", MANAGER])
    for name in ("orderly", "stubborn", "shell"):
        manager.wait_for(rf"{name} +\| up")
    # Manager, guardian, three children and a grandchild.
    assert len(processes.find_left()) == 6
    manager.send(signal.SIGKILL)
    processes.assert_nothing_left()
    assert (processes.folder / "ended").read_text() == "in order"


def test_a_manager_whose_guardian_is_killed_goes_on(processes: Processes) -> None:
    manager = processes.start("manager", [sys.executable, "-c", MANAGER])
    for name in ("orderly", "stubborn", "shell"):
        manager.wait_for(rf"{name} +\| up")
    left = {process: process.cmdline() for process in processes.find_left()}
    (guardian,) = [process for process, argv in left.items() if argv[-2].endswith("guardian.py")]
    orderly = next(process for process, argv in left.items() if ORDERLY in argv)
    guardian.kill()
    orderly.kill()
    # It is started again.
    wait_until(lambda: [line for line in manager.lines if "| up" in line][3:], manager)


def start_sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], start_new_session=True)


def test_what_was_removed_is_left_alone_and_what_was_not_ends() -> None:
    kept, forgotten = start_sleeper(), start_sleeper()
    try:
        with Guardian(term_sec=0.2) as guardian:
            for process in (kept, forgotten):
                guardian.add(process.pid)
            guardian.remove(forgotten.pid)
            assert kept.poll() is None
        assert kept.wait(10) == -signal.SIGTERM
        assert forgotten.poll() is None
    finally:
        forgotten.kill()
        forgotten.wait()


def test_a_group_whose_leader_has_gone_is_killed() -> None:
    leader = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert leader.stdout is not None
    with leader.stdout:
        member = int(leader.stdout.readline())
    leader.wait()
    assert psutil.pid_exists(member)
    end_groups([leader.pid], term_sec=5.0)
    wait_until(
        lambda: (
            not psutil.pid_exists(member) or psutil.Process(member).status() == psutil.STATUS_ZOMBIE
        ),
        "the end of the group",
    )


def test_numbers_of_processes_that_have_long_ended_are_no_trouble() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    process.wait()
    end_groups([process.pid], term_sec=5.0)
