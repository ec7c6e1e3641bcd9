"""Ray in network namespaces of its own, because Ray listens on all interfaces.

with RayCluster(tmp_path) as cluster:
    head = cluster.start_head(cpus=2)
    cluster.start_in(cluster.here, "run", [find_command("relaax"), "run", ...])

A namespace is held by a process; all that is started dies with the block.
"""

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from support.cluster import BARE, ROOT, Processes, Program, find_command, wait_until
from support.gated_envs import GATE

HEAD, WORKER = "10.77.0.1", "10.77.0.2"
PORT = 6379
LONG_SEC = 200.0  # two cores, and other tests beside this one
_TOKEN = "0123456789abcdef" * 4
# So that a lost machine is noticed in two seconds instead of a quarter of a minute, and no process
# is started before it is needed.
_QUICK = {
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
# What no test looks at: two seconds of processor time for each machine.
FEWER_PROCESSES = ("--include-log-monitor=false",)
FEWER_ON_HEAD = ("--include-dashboard=false", "--no-monitor")
# The other machine does not see the processes of this one: a driver joins the Ray that it sees.
_OWN_PROCESSES = ("--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
# The first process of a machine, which no orphan must outlive as a zombie.
_REAP = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    signal.pause()
"""

# Waits until the cluster knows more steps of a run than a number; prints what it knows.
_KNOWN = """
import sys, time
from pathlib import Path
from relaax_like.runs.processes.ray_joining import join
from relaax_like.runs.processes.run_record import RunRecord
record = RunRecord(join(sys.argv[1], 0, True), Path(sys.argv[2]))
while (known := record.read()) is None or known.global_t <= int(sys.argv[3]):
    time.sleep(0.05)
print("known", known.global_t)
"""


def find_ray_listeners() -> list[str]:
    """Returns what of Ray listens outside of all namespaces."""
    argv = ["ss", "-ltnpH"]
    lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if re.search(r'"(raylet|gcs_server|ray::)', line)]


class RayCluster(Processes):
    """Machines of a Ray cluster: namespaces of this one.

    Attributes:
      here: the head's and driver's.
      there: the other machine's, after `connect`, with processes of its own.
      env: of all that is started.
      gate: the file without which the runs' environments give small rewards only.
    """

    def __init__(self, folder: Path, token: bool = True):
        super().__init__(folder)
        _require_namespaces()
        # Ray's sockets have paths of at most 107 bytes.
        self._short = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self.gate = folder / "gate"
        token_file = folder / "ray-token"
        token_file.touch(mode=0o600)
        token_file.write_text(_TOKEN)
        self.env = {
            "HOME": str(folder),
            "RAY_TMPDIR": str(self._short),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token" if token else "disabled",
            "RAY_AUTH_TOKEN_PATH": str(token_file),
            # The environments of tests are needed on all machines.
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
            GATE: str(self.gate),
            **_QUICK,
        }
        assert not find_ray_listeners()
        self.here = self._make_namespace("here")
        self._run(self.here, f"ip addr add {HEAD}/32 dev lo")  # stays when the other one is lost
        self.there = self.here
        self._devices = (f"r{os.getpid() % 100_000}-{number}" for number in itertools.count())

    def connect(self) -> None:
        """Adds the other machine, and a pair of devices between both."""
        self.there = self._make_namespace("there", *_OWN_PROCESSES)
        name = next(self._devices)
        self._run(self.here, f"ip link add {name}a type veth peer name {name}b")
        self._run(self.here, f"ip link set {name}b netns {self._find_first(self.there)}")
        self._run(self.here, f"ip link set {name}a up")
        self._run(self.here, f"ip route add {WORKER}/32 dev {name}a src {HEAD}")
        self._run(self.there, f"ip addr add {WORKER}/24 dev {name}b && ip link set {name}b up")

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

    def start_head(self, cpus: int, host: str = "127.0.0.1") -> None:
        """Starts the head of the cluster, and waits until it serves."""
        flags = ["--head", f"--port={PORT}", *FEWER_ON_HEAD]
        self._start_ray(self.here, host, cpus, *flags)

    def start_worker(self, cpus: int) -> None:
        """Starts Ray on the other machine, and waits until it has joined the head."""
        if self.there is self.here:
            self.connect()
        self._start_ray(self.there, WORKER, cpus, f"--address={HEAD}:{PORT}")

    def start_run(
        self,
        address: str,
        *flags: object,
        command: str = "run",
        namespace: Program | None = None,
    ) -> Program:
        """Starts `relaax run --ray`, with an algorithm without TensorFlow and two environments.

        Args:
          address: of the cluster.
          flags: more of them.
          command: `train` trains with workers.
          namespace: the machine where it is typed; None: the head's.
        """
        config = self.folder / "experiment.yaml"
        config.write_text(
            f"run_dir: {command}\n"
            "relaax-parameter-server: {progress_interval_sec: 0.5}\n"
            f"algorithm: {{path: '{BARE}', max_global_step: 100000000}}\n"
            "environment:\n"
            "  {program: OpenAI_Gym, env: 'support.gated_envs:GatedCartPole-v0', clients: 2}\n"
        )
        flag = "--redis" if command == "train" else "--ray"  # two names of one flag
        argv = [find_command("relaax"), command, config, flag, address, *flags]
        return self.start_in(namespace or self.here, command, argv)

    def find_known_step(self, address: str, run_dir: Path, above: int) -> int:
        """Waits until the cluster knows more steps of a run than `above`; returns its number."""
        argv = [sys.executable, "-c", _KNOWN, address, run_dir, above]
        program = self.start_in(self.here, "known", argv)
        assert program.wait(LONG_SEC) == 0, program
        return int(program.wait_for(r"known (\d+)")[1])

    def find_outside(self) -> list[str]:
        """Returns the commands of processes started here that are in this network namespace."""
        ours = os.readlink("/proc/self/ns/net")
        found = []
        for process, argv in self._list_commands():
            with contextlib.suppress(FileNotFoundError):  # it has ended
                if os.readlink(f"/proc/{process.pid}/ns/net") == ours:
                    found.append(" ".join(argv))
        return found

    def find_worker_raylet(self) -> psutil.Process:
        """Returns the process that is Ray on the other machine."""
        (found,) = self._find_ray("raylet", WORKER)
        return found

    def find_head_processes(self) -> list[psutil.Process]:
        """Returns the processes without which the head does not exist."""
        return [*self._find_ray("gcs_server", HEAD), *self._find_ray("raylet", HEAD)]

    def _find_ray(self, program: str, host: str) -> list[psutil.Process]:
        flags = (f"--node_ip_address={host}", f"--node-ip-address={host}")
        return [
            process
            for process, argv in self._list_commands()
            if argv and Path(argv[0]).name == program and any(flag in argv for flag in flags)
        ]

    def _list_commands(self) -> list[tuple[psutil.Process, list[str]]]:
        found = []
        for process in self.find_left():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
                found.append((process, process.cmdline()))
        return found

    def assert_no_node_left(self) -> None:
        """Fails when a process of a run still exists, on any machine."""

        def find() -> list[str]:
            commands = [" ".join(argv) for _, argv in self._list_commands()]
            return [c for c in commands if re.search(r"relaax_like\.(cli|launch)|OpenAI_Gym", c)]

        wait_until(lambda: not find(), ("the end of all nodes", find), 30)

    def close(self) -> None:
        """Kills what is left, removes Ray's files."""
        super().close()
        shutil.rmtree(self._short, ignore_errors=True)
        assert not find_ray_listeners()

    def _start_ray(self, namespace: Program, host: str, cpus: int, *flags: str) -> None:
        argv = ["start", f"--node-ip-address={host}", f"--num-cpus={cpus}", *flags]
        argv += FEWER_PROCESSES
        program = self.start_in(namespace, "ray start", [find_command("ray"), *argv])
        assert program.wait(LONG_SEC) == 0, program

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
        pytest.fail(f"Ray is started in network namespaces only: {reason}")
    if reason:
        pytest.skip(f"Ray is started in network namespaces only, as root: {reason}")
