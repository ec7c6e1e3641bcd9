"""A parameter server and an rlx server as processes, and load for them, for benchmarks."""

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

# How long all connected clients play before anything is counted. The gradient for each number of
# packed rollouts is compiled once it has come several times, and all callers that wait for theirs
# pause for a second or two; with 64 clients this lasted for 28 s.
WARM_UP_SEC = 40.0


@dataclass(frozen=True, kw_only=True)
class Servers:
    """Both servers.

    Attributes:
      address: of the rlx server.
      rlx_server: its process id.
      parameter_server: its process id.
      parameter_server_address: where it listens.
      kill_parameter_server: kills it and starts it again a second later.
    """

    address: str
    rlx_server: int
    parameter_server: int
    parameter_server_address: str
    kill_parameter_server: Callable[[], None]


@contextlib.contextmanager
def run_servers(config: Path, *sets: str) -> Iterator[str]:
    """Starts both as `start_servers` does; gives the rlx server's address, once it listens."""
    with start_servers(config, *sets) as servers:
        yield servers.address


@contextlib.contextmanager
def start_servers(config: Path, *sets: str, log: IO[bytes] | None = None) -> Iterator[Servers]:
    """Starts both on free ports, with a budget that no benchmark uses up.

    Gives them once they listen. What they print goes to `log`, or nowhere.
    """
    ps, rlx = (f"localhost:{port}" for port in find_free_ports(2))
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            f"run_dir={folder}",
            f"relaax-parameter-server.bind={ps}",
            f"relaax-rlx-server.bind={rlx}",
            "learner.target_return=null",
            "algorithm.max_global_step=1000000000",
            "algorithm.state_size=4",  # of CartPole: clients that exploit do not say it
            "algorithm.num_actions=2",
            *sets,
        ]
        arguments = ["--config", str(config), *(f"--set={override}" for override in overrides)]
        commands = [
            [sys.executable, "-m", "relaax_like.cli.servers", role, *arguments]
            for role in ("parameter_server", "rlx_server")
        ]
        output = subprocess.DEVNULL if log is None else log
        processes = [subprocess.Popen(command, stdout=output) for command in commands]

        def kill_parameter_server() -> None:
            processes[0].kill()
            processes[0].wait()
            time.sleep(1.0)
            processes[0] = subprocess.Popen(commands[0], stdout=output)

        try:
            for address in (ps, rlx):
                _wait_for_port(address)
            yield Servers(
                address=rlx,
                parameter_server=processes[0].pid,
                rlx_server=processes[1].pid,
                parameter_server_address=ps,
                kill_parameter_server=kill_parameter_server,
            )
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(20)


def run_loads(
    loads: Sequence[Sequence[str]], servers: Servers, seconds: float
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Runs programs of `benchmarks.load`; see `run_programs`.

    Args:
      loads: the arguments of each.
      servers: that they play against.
      seconds: for which they count.
    """
    base = [sys.executable, "-m", "benchmarks.load"]
    return run_programs([[*base, *load] for load in loads], servers, seconds)


def run_programs(
    commands: Sequence[Sequence[str]], servers: Servers, seconds: float
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Runs programs that converse as `benchmarks.load` does, and all count in the same seconds.

    Args:
      commands: of each.
      servers: that they play against.
      seconds: for which they count.

    Returns:
      What each printed; and what processor time was used meanwhile, see `_read_cpu`, in percent of
      one core.
    """
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running: list[subprocess.Popen[str]] = []
    try:
        for command in commands:
            running.append(subprocess.Popen(command, **pipes))
        for process in running:
            wait_for_ready(process)
        start = time.monotonic() + WARM_UP_SEC
        for process in running:
            assert process.stdin is not None
            process.stdin.write(f"{start} {seconds}\n")
            process.stdin.flush()
        time.sleep(start - time.monotonic())
        before = _read_cpu(servers)
        time.sleep(start + seconds - time.monotonic())
        after = _read_cpu(servers)
        results = [json.loads(process.communicate()[0]) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    return results, {name: 100 * (after[name] - before[name]) / seconds for name in before}


def wait_for_ready(process: subprocess.Popen[str]) -> None:
    """Waits until a program has printed `ready`.

    Raises:
      RuntimeError: it ended, or printed something else.
    """
    assert process.stdout is not None
    line = process.stdout.readline()
    if line != "ready\n":
        raise RuntimeError(f"{process.args!r}: {line!r} came, expected 'ready'")


def _read_cpu(servers: Servers) -> dict[str, float]:
    """Returns processor seconds so far: of the rlx server's loop, and of each process."""
    rlx_server = psutil.Process(servers.rlx_server)
    times = psutil.cpu_times()
    return {
        # The loop runs in the main thread, whose id is that of the process.
        "loop": next(
            thread.user_time + thread.system_time
            for thread in rlx_server.threads()
            if thread.id == servers.rlx_server
        ),
        "rlx": sum(rlx_server.cpu_times()[:2]),
        "learner": sum(sum(child.cpu_times()[:2]) for child in rlx_server.children()),
        "ps": sum(psutil.Process(servers.parameter_server).cpu_times()[:2]),
        "all": sum(times) - times.idle - times.iowait,
    }


def find_free_ports(count: int) -> Sequence[int]:
    """Returns ports of the loopback interface that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _wait_for_port(address: str) -> None:
    host, _, port = address.rpartition(":")
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1.0):
            return
        time.sleep(0.1)
    raise TimeoutError(f"nothing listens on {address}")
