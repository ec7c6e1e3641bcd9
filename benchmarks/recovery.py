"""The parameter server in trouble: how soon it is back, what a big pull takes, what a save stalls.

    python -m benchmarks.recovery [--kills 50]

- `kill -9`: a server with 100 parameters under pushes of four clients is killed again and again;
  `ready` is from the start of the next process to its first answer.
- `pull`: eight clients pull 200 MB at once; `memory` is the server's greatest resident memory above
  the one with no client, as a multiple of the state: values, and twice that for Adam.
- `save`: one client pushes and pulls 1 M parameters while snapshots (12 MB, read back) are taken
  one after another, and before; times per push.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.report import report
from relaax_like.bridge.control import BridgeControl
from relaax_like.core.metrics import NullMetrics
from relaax_like.wire.errors import ServerUnavailableError

PULLED = 50_000_000
SAVED = 1_000_000


def main(argv: Sequence[str] = ()) -> None:
    """Measures all three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0, help="of pushes, each way of saving")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        report("kill -9", [measure_kills(Path(folder) / "kills", arguments.kills)])
        report("pull", [measure_pull(Path(folder) / "pull")])
        report("save", list(measure_saves(Path(folder) / "save", arguments.seconds)))


def measure_kills(folder: Path, kills: int) -> dict[str, Any]:
    """Returns the seconds until a killed server is back, and its memory."""
    ready, memory = [], []
    stopping = threading.Event()
    write_run(folder, 100)
    process, address = start_server(folder)
    threads = [threading.Thread(target=_push_on, args=(address, stopping)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(kills):
        time.sleep(0.1 + 0.01 * (number % 30))
        memory.append(psutil.Process(process.pid).memory_info().rss)
        process.send_signal(signal.SIGKILL)
        process.wait()
        start = time.monotonic()
        process, _ = start_server(folder, address)
        _wait_answer(address)
        ready.append(time.monotonic() - start)
    stopping.set()
    for thread in threads:
        thread.join()
    _end(process)
    return {
        "kills": kills,
        "ready p50 s": float(np.percentile(ready, 50)),
        "ready p95 s": float(np.percentile(ready, 95)),
        "ready max s": max(ready),
        "resident MB": max(memory) / 1e6,
    }


def measure_pull(folder: Path) -> dict[str, Any]:
    """Returns the memory that eight pulls of 200 MB at once take."""
    write_run(folder, PULLED)
    process, address = start_server(folder)
    _wait_answer(address)
    server = psutil.Process(process.pid)
    before = server.memory_info().rss
    code = (
        "from relaax_like.bridge.control import BridgeControl; import sys\n"
        "with BridgeControl().connect(sys.argv[1]) as link:\n"
        "    client = link.parameter_server_stub()\n"
        "    sys.stdin.readline()\n"
        "    assert client.get_values()[0].size\n"
    )
    command = [sys.executable, "-c", code, address]
    clients = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(8)]
    time.sleep(3.0)  # they are waiting for the line
    start = time.monotonic()
    for client in clients:
        assert client.stdin is not None
        client.stdin.write(b"\n")
        client.stdin.flush()
    most = before
    while any(client.poll() is None for client in clients):
        most = max(most, server.memory_info().rss)
        time.sleep(0.005)
    seconds = time.monotonic() - start
    failed = sum(client.wait() != 0 for client in clients)
    _end(process)
    state = 3 * 4 * PULLED
    return {
        "clients": len(clients),
        "MB each": 4 * PULLED / 1e6,
        "seconds": seconds,
        "failed": failed,
        "state MB": state / 1e6,
        "resident before MB": before / 1e6,
        "most MB": most / 1e6,
        "most / state": round(most / state, 2),
    }


def measure_saves(folder: Path, seconds: float) -> Iterator[dict[str, Any]]:
    """Yields the times of pushes without and with snapshots meanwhile."""
    write_run(folder, SAVED)
    process, address = start_server(folder)
    _wait_answer(address)
    gradient = [np.full(SAVED, 1e-3, np.float32)]
    with BridgeControl().connect(address) as link:
        with link.parameter_server_stub(metrics=NullMetrics(), keep_stream_open=True) as client:
            for saving in (False, True):
                saves = 0
                stopping = threading.Event()

                def save(stopping: threading.Event = stopping) -> None:
                    nonlocal saves
                    with BridgeControl().connect(address) as own:
                        while not stopping.is_set():
                            own.request_save()
                            saves += 1

                thread = threading.Thread(target=save)
                if saving:
                    thread.start()
                times = _time_calls(lambda: client.push_pull(gradient), seconds)
                stopping.set()
                if saving:
                    thread.join()
                yield {
                    "saves": saves,
                    "pushes": len(times),
                    **{f"p{p:g} ms": float(np.percentile(times, p)) for p in (50, 99, 99.9)},
                    "max ms": max(times),
                }
    _end(process)


def write_run(folder: Path, parameters: int) -> None:
    """Writes what a server needs that starts with zeros."""
    folder.mkdir()
    np.savez(folder / "initial.npz", w=np.zeros(parameters, np.float32))


def start_server(folder: Path, address: str = "") -> tuple[subprocess.Popen[bytes], str]:
    """Starts a parameter server process; returns it and its address."""
    if not address:
        with contextlib.closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
    settings = {
        "run_dir": str(folder / "run"),
        "relaax-parameter-server": {
            "bind": address,
            "initial_values": str(folder / "initial.npz"),
            "optimizers": {"default": {"name": "adam", "learning_rate": 1e-3}},
            "log_level": "ERROR",
        },
        # Never loaded: the server starts from the file.
        "algorithm": {"name": "policy_gradient", "state_size": 4, "num_actions": 2},
    }
    config = folder / "run.yaml"
    config.write_text(json.dumps(settings))
    program = [sys.executable, "-m", "relaax_like.cli.servers", "parameter_server"]
    command = [*program, "--config", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ})
    return process, address


def _push_on(address: str, stopping: threading.Event) -> None:
    with BridgeControl().connect(address) as link:
        with link.parameter_server_stub(metrics=NullMetrics(), keep_stream_open=True) as client:
            gradient = [np.ones(100, np.float32)]
            while not stopping.is_set():
                client.push_pull(gradient)
                stopping.wait(0.005)


def _wait_answer(address: str) -> None:
    host, _, port = address.rpartition(":")
    while True:  # agents pause between their attempts; it is not their patience that is measured
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))):
                time.sleep(0.01)
                continue
        with contextlib.suppress(ServerUnavailableError), BridgeControl().connect(address) as link:
            link.status(timeout_sec=1.0)
            return


def _time_calls(call: Callable[[], object], seconds: float) -> list[float]:
    times, end = [], time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
