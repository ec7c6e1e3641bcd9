"""Ray in network namespaces of its own, because Ray listens on all interfaces.

with RayCluster(tmp_path) as cluster:
    head = cluster.start_head(cpus=2)
    cluster.start_in(cluster.here, "run", [find_command("relaax"), "run", ...])

A namespace is held by a process; all that is started dies with the block.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from support.cluster import BARE, Program, find_command, wait_until
from support.gated_envs import GATE
from support.machines import HERE, THERE, Machines

HEAD, WORKER = HERE, THERE
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


class RayCluster(Machines):
    """Machines of a Ray cluster; `here` is the head's and driver's.

    Attributes:
      gate: the file without which the runs' environments give small rewards only.
    """

    def __init__(self, folder: Path, token: bool = True):
        super().__init__(folder)
        # Ray's sockets have paths of at most 107 bytes.
        self._short = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self.gate = folder / "gate"
        token_file = folder / "ray-token"
        token_file.touch(mode=0o600)
        token_file.write_text(_TOKEN)
        self.env |= {
            "RAY_TMPDIR": str(self._short),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token" if token else "disabled",
            "RAY_AUTH_TOKEN_PATH": str(token_file),
            GATE: str(self.gate),
            **_QUICK,
        }
        assert not find_ray_listeners()

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
