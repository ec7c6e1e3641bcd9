"""Machines that are network namespaces of this one, for what listens beyond loopback.

with Machines(tmp_path) as machines:
    machines.connect()
    machines.start_in(machines.there, "client", [...])

A namespace is held by a process; all that is started dies with the block.
"""

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from support.cluster import ROOT, Processes, Program

HERE, THERE = "10.77.0.1", "10.77.0.2"
# The other machine does not see the processes of this one: a driver joins the Ray that it sees.
_OWN_PROCESSES = ("--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
# The first process of a machine, which no orphan must outlive as a zombie.
_REAP = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    signal.pause()
"""


class Machines(Processes):
    """Two machines, of which the second one comes with `connect`.

    Attributes:
      here: the first one, with the address HERE.
      there: the other one, with the address THERE and processes of its own; before `connect`,
        `here`.
      env: of all that is started.
    """

    def __init__(self, folder: Path):
        super().__init__(folder)
        _require_namespaces()
        self.env = {
            "HOME": str(folder),
            # The environments of tests are needed on all machines.
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
        }
        self.here = self._make_namespace("here")
        self._run(self.here, f"ip addr add {HERE}/32 dev lo")  # stays when the other one is lost
        self.there = self.here
        self._devices = (f"r{os.getpid() % 100_000}-{number}" for number in itertools.count())

    def connect(self) -> None:
        """Adds the other machine, and a pair of devices between both."""
        self.there = self._make_namespace("there", *_OWN_PROCESSES)
        name = next(self._devices)
        self._run(self.here, f"ip link add {name}a type veth peer name {name}b")
        self._run(self.here, f"ip link set {name}b netns {self._find_first(self.there)}")
        self._run(self.here, f"ip link set {name}a up")
        self._run(self.here, f"ip route add {THERE}/32 dev {name}a src {HERE}")
        self._run(self.there, f"ip addr add {THERE}/24 dev {name}b && ip link set {name}b up")

    def start_in(
        self, namespace: Program, name: str, argv: Sequence[object], **env: str
    ) -> Program:
        """Starts a command in a namespace."""
        enter = [f"--target={namespace.pid}", "--net"]
        if namespace is not self.here:
            # There is a process between: signals reach it, and not the command.
            enter = [f"--target={self._find_first(namespace)}", "--net", "--mount", "--pid"]
            enter += [f"--wd={self.folder}"]
        return self.start(name, ["nsenter", *enter, "--", *argv], **{**self.env, **env})

    def lose_machine(self) -> None:
        """Kills all processes of the other machine at once; `start_worker` adds a new one."""
        psutil.Process(self._find_first(self.there)).kill()
        self.there.wait()
        self.there = self.here

    def find_outside(self) -> list[str]:
        """Returns the commands of processes started here that are in this network namespace."""
        ours = os.readlink("/proc/self/ns/net")
        found = []
        for process, argv in self._list_commands():
            with contextlib.suppress(FileNotFoundError):  # it has ended
                if os.readlink(f"/proc/{process.pid}/ns/net") == ours:
                    found.append(" ".join(argv))
        return found

    def _list_commands(self) -> list[tuple[psutil.Process, list[str]]]:
        found = []
        for process in self.find_left():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
                found.append((process, process.cmdline()))
        return found

    def _make_namespace(self, name: str, *flags: str) -> Program:
        script = f"ip link set lo up && echo up && exec {sys.executable} -c '{_REAP}'"
        program = self.start(name, ["unshare", "--net", *flags, "sh", "-c", script])
        program.wait_for("^up$")
        return program

    def _find_first(self, machine: Program) -> int:
        """Returns the process with which all others of the other machine end."""
        (first,) = psutil.Process(machine.pid).children()
        return first.pid

    def _run(self, namespace: Program, script: str) -> None:
        program = self.start_in(namespace, "ip", ["sh", "-c", script])
        assert program.wait() == 0, program


def _require_namespaces() -> None:
    """Skips the test where namespaces cannot be made, unless they are required."""
    missing = [name for name in ("unshare", "nsenter", "ip", "ss") if shutil.which(name) is None]
    reason = f"{missing} missing" if missing else ""
    if not missing:
        done = subprocess.run(
            ["unshare", "--net", *_OWN_PROCESSES, "ip", "link", "set", "lo", "up"],
            capture_output=True,
            text=True,
        )
        reason = done.stderr.strip()
    if reason and "RELAAX_REQUIRE_NAMESPACES" in os.environ:
        pytest.fail(f"network namespaces are required: {reason}")
    if reason:
        pytest.skip(f"no network namespaces, which root can make: {reason}")
