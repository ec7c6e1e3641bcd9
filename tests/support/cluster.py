"""A small real cluster: servers and clients as processes, on free ports, watched by their output.

with Cluster(tmp_path) as cluster:
    server = cluster.start_parameter_server("algorithm.max_global_step=400")
    cluster.start_rlx_server()
    client = cluster.start_client()
    assert client.wait() == 0

Whatever happens, nothing that it started is left when the block ends. Every process carries a mark
in its environment, which its own children inherit: orphans are found by it too.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psutil

if TYPE_CHECKING:
    from relaax_like.core.records import Status
    from relaax_like.wire.security import ClientSecurity

ROOT = Path(__file__).parents[2]
GYM_MAIN = ROOT / "environments" / "OpenAI_Gym" / "main"
# An algorithm without TensorFlow: its servers start in a second.
BARE = Path(__file__).parent / "bare_algorithm"
POLICY_GRADIENT = ROOT / "algorithms" / "policy_gradient"
TIMEOUT_SEC = 60.0
_MARK = "RELAAX_TEST_CLUSTER"
# What a stack trace of any Python process begins with.
TRACE = "Traceback (most recent call last)"

T = TypeVar("T")


_given: set[int] = set()


def find_free_port() -> int:
    """Finds a port that is free now, outside the range that outgoing connections draw from.

    None is given twice, nor to another process of a test run.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    while True:
        port = 20_000 + workers * random.randrange(12_000 // workers) + worker
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port


def find_command(name: str) -> str:
    """Returns the path of an installed command, of the same installation as this Python."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found, f"{name} is not installed"
    return found


def find_tool(name: str, package: str, variable: str) -> str:
    """Returns the path of a program; skips the test without it, or fails if `variable` is set."""
    found = shutil.which(name)
    if found is None:
        import pytest  # programs of the tests that use this module start without it

        message = f"{name} is not installed (apt-get install {package})"
        if os.environ.get(variable):
            pytest.fail(message)
        pytest.skip(message)
    return found


def wait_until(
    condition: Callable[[], T],
    what: object,
    timeout_sec: float = TIMEOUT_SEC,
    poll_sec: float = 0.02,
) -> T:
    """Waits until a condition holds and returns what it gave; fails the test after the time.

    Args:
      condition: asked again and again until it gives something true.
      what: for the message; a `Program` shows its output of the moment of the failure.
      timeout_sec: longest wait.
      poll_sec: between two questions.
    """
    deadline = time.monotonic() + timeout_sec
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, f"waited {timeout_sec:g} s in vain: {what}"
        time.sleep(poll_sec)


def freeze(pid: int) -> None:
    """Stops a process with SIGSTOP, and waits until all its threads have stopped.

    On a busy machine its threads run on for a while after the signal, and answer.
    """
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: _read_thread_states(pid) == {"T"}, f"the stop of all threads of {pid}")


def _read_thread_states(pid: int) -> set[str]:
    """Returns the states of a process's threads: "S" for sleeping, "T" for stopped, ..."""
    try:
        stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # a thread has ended meanwhile
        return set()
    return {stat.rpartition(")")[2].split()[0] for stat in stats}


def accepts(port: int) -> bool:
    """Tells whether something listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Program:
    """A process and all that it has printed, standard error included."""

    def __init__(self, name: str, argv: Sequence[str], cwd: Path, env: dict[str, str]):
        self.name = name
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Signals of the test's own terminal are none of its business.
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    @property
    def output(self) -> str:
        """All that it has printed so far."""
        return "\n".join(self.lines)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self._process.send_signal(number)

    def wait(self, timeout_sec: float = TIMEOUT_SEC) -> int:
        """Waits for its end and the end of its output; returns the exit status."""
        try:
            status = self._process.wait(timeout_sec)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.send_signal(signal.SIGABRT)  # Python prints where its threads are
                self._process.wait(5.0)
                self._reader.join(5.0)
            raise AssertionError(f"{self} did not end in {timeout_sec:g} s") from None
        self._reader.join(10)
        assert not self._reader.is_alive(), f"{self} ended, but a child of it holds its output"
        return status

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends a signal and waits for the end; returns the exit status."""
        self.send(number)
        return self.wait()

    def wait_for(self, pattern: str, after: int = 0) -> re.Match[str]:
        """Waits for a line that has the pattern in it; fails when the process ends without it.

        Args:
          pattern: a regular expression.
          after: lines to skip, for example `len(program.lines)` of a moment ago.
        """

        def find() -> re.Match[str] | None:
            ended = not self.alive and not self._reader.is_alive()
            for line in list(self.lines)[after:]:
                if match := re.search(pattern, line):
                    return match
            assert not ended, f"{self} ended without a line {pattern!r}"
            return None

        found = wait_until(find, self)
        assert found is not None
        return found

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                self.lines.append(line.rstrip("\n"))

    def __repr__(self) -> str:
        status = self._process.poll()
        last = "".join(f"\n    {line}" for line in list(self.lines)[-25:])
        return f"{self.name} (pid {self.pid}, status {status}):{last}\n"


class Processes:
    """Starts processes and ends all of them, and their children, on leaving. A context manager."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.started: list[Program] = []
        self._mark = uuid.uuid4().hex

    def start(self, name: str, argv: Sequence[object], **env: str) -> Program:
        """Starts a command in the cluster's folder."""
        clean = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
        # Commands come from the environment of this Python, activated or not.
        clean["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{clean.get('PATH', '')}"
        ours = {
            _MARK: self._mark,
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        for key, value in env.items():
            print(f"{key}={value}")  # shown where the test fails; `gate.py` keeps it
        program = Program(name, [str(part) for part in argv], self.folder, clean | ours | env)
        self.started.append(program)
        return program

    def find_left(self) -> list[psutil.Process]:
        """Returns all processes that still run and descend from what was started here."""
        return [p for p in psutil.process_iter() if _has_mark(p, self._mark)]

    def assert_nothing_left(self) -> None:
        """Fails when anything still runs that was started here, directly or indirectly."""
        try:
            wait_until(lambda: not self.find_left(), "the end of all processes", 10)
        except AssertionError:
            commands = [" ".join(p.cmdline()) for p in self.find_left()]
            raise AssertionError(f"left running: {commands}") from None

    def close(self) -> None:
        """Kills what is left."""
        while left := self.find_left():
            for process in left:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(left, timeout=10)
        for program in self.started:
            program.wait(10)

    def __enter__(self):  # type: ignore[no-untyped-def]  # Self, of the subclass too
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False


class Cluster(Processes):
    """A parameter server, an rlx server and clients of one experiment.

    Attributes:
      folder: where everything is started and written; `run` in it is the run folder.
      config: the experiment's file.
      ps_port: of the parameter server, also after a restart.
      rlx_port: of the rlx server.
      sets: overrides, "key=value", for every process.
      security: what `status` shows to the parameter server.
    """

    def __init__(self, folder: Path, algorithm: Path = BARE, *sets: str):
        """Writes the configuration; nothing is started.

        Args:
          folder: an empty one.
          algorithm: the algorithm's folder.
          sets: overrides, "key=value", for every process.
        """
        super().__init__(folder)
        self.ps_port, self.rlx_port = find_free_port(), find_free_port()
        self.security: ClientSecurity | None = None
        self.config = folder / "experiment.yaml"
        self.sets = list(sets)
        self.config.write_text(
            "run_dir: run\n"
            f"relaax-parameter-server: {{bind: 'localhost:{self.ps_port}'}}\n"
            f"relaax-rlx-server: {{bind: 'localhost:{self.rlx_port}'}}\n"
            f"algorithm: {{path: '{algorithm}'}}\n"
            "environment: {program: OpenAI_Gym, env: CartPole-v0, clients: 2}\n"
        )

    def start_parameter_server(self, *sets: str, **env: str) -> Program:
        """Starts `relaax-parameter-server` with overrides, "key=value" each."""
        return self._start_server("relaax-parameter-server", sets, **env)

    def start_rlx_server(self, *sets: str) -> Program:
        """Starts `relaax-rlx-server`."""
        return self._start_server("relaax-rlx-server", sets)

    def start_client(self, name: str = "client", *flags: object) -> Program:
        """Starts `environments/OpenAI_Gym/main` with CartPole-v0, which reconnects quickly."""
        argv = [sys.executable, GYM_MAIN, "--rlx-server", f"localhost:{self.rlx_port}"]
        argv += ["--env", "CartPole-v0", "--name", name, "--retry-sleep", 0.2, 0.5]
        return self.start(name, [*argv, *flags])

    def start_paced_client(self, name: str = "client", *flags: object) -> Program:
        """Starts a client that plays no faster than a simulator; see `paced_envs`."""
        argv = [sys.executable, GYM_MAIN, "--rlx-server", f"localhost:{self.rlx_port}"]
        argv += ["--env", "support.paced_envs:PacedCartPole-v0", "--name", name]
        argv += ["--retry-sleep", 0.2, 0.5]
        return self.start(name, [*argv, *flags], PYTHONPATH=str(ROOT / "tests"))

    def start_both_servers(self, *sets: str) -> tuple[Program, Program]:
        """Starts both servers and waits until they serve."""
        servers = self.start_parameter_server(*sets), self.start_rlx_server(*sets)
        servers[0].wait_for(rf"parameter server on .*:{self.ps_port}")
        servers[1].wait_for(rf"rlx server on .*:{self.rlx_port}")
        return servers

    def status(self) -> "Status | None":
        """Asks the parameter server over the bridge; None while it does not answer."""
        # Programs that the tests start need other parts of this module, and start faster without.
        from relaax_like.bridge.control import BridgeControl
        from relaax_like.wire.errors import ServerUnavailableError

        with BridgeControl().connect(f"localhost:{self.ps_port}", self.security) as link:
            try:
                return link.status(timeout_sec=1.0)
            except ServerUnavailableError:
                return None

    def wait_status(self, condition: "Callable[[Status], bool]", what: str) -> "Status":
        """Waits until the parameter server's numbers satisfy a condition, and returns them."""

        def check() -> "Status | None":
            status = self.status()
            return status if status is not None and condition(status) else None

        # Each question is a connection of its own.
        found = wait_until(check, (what, self.started), poll_sec=0.1)
        assert found is not None
        return found

    def wait_steps(self, more: int = 1) -> "Status":
        """Waits until that many more environment steps have been counted."""
        before = self.wait_status(lambda status: True, "any answer").global_t
        return self.wait_status(lambda s: s.global_t >= before + more, f"{more} more steps")

    def _start_server(self, command: str, sets: Sequence[str], **env: str) -> Program:
        overrides = [part for text in (*self.sets, *sets) for part in ("--set", text)]
        argv = [find_command(command), "--config", self.config, *overrides]
        return self.start(command, argv, **env)
