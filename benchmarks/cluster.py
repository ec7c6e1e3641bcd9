"""A parameter server and an rlx server as processes, for benchmarks."""

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path


@contextlib.contextmanager
def run_servers(config: Path, *sets: str) -> Iterator[str]:
    """Starts both on free ports, with a budget that no benchmark uses up.

    Gives the rlx server's address, once it listens.
    """
    ps, rlx = (f"localhost:{port}" for port in _find_free_ports(2))
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            f"run_dir={folder}",
            f"relaax-parameter-server.bind={ps}",
            f"relaax-rlx-server.bind={rlx}",
            "relaax-rlx-server.score_lines=false",
            "learner.target_return=null",
            "algorithm.max_global_step=1000000000",
            *sets,
        ]
        arguments = ["--config", str(config), *(f"--set={override}" for override in overrides)]
        commands = [
            [sys.executable, "-m", f"relaax_like.cli.{role}", *arguments]
            for role in ("parameter_server", "rlx_server")
        ]
        processes = [subprocess.Popen(c, stdout=subprocess.DEVNULL) for c in commands]
        try:
            for address in (ps, rlx):
                _wait_for_port(address)
            yield rlx
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(20)


def _find_free_ports(count: int) -> Sequence[int]:
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
