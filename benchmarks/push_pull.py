"""Push-pull: one gradient up, Adam, fresh values down, over gRPC on loopback.

    python -m benchmarks.push_pull [--seconds 5] [--ray] [--sizes 10000 1000000]

Server and workers are processes of their own, without TensorFlow; each worker pushes as fast as it
is answered. `journal` writes each push down first; its budget is taken away here, since 1 M
parameters are far above 100 MB/s. With `--ray` the same is done by a Ray actor in the same run: an
actor that owns weights and the same Adam, gradients and values through Ray's object store. Ray is
installed into .venv-ray, and runs in a network namespace of its own, as root, since it listens on
all interfaces.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import report
from relaax_like.bridge.control import BridgeControl
from relaax_like.config.combine import CombineConfig
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.push_journal import PushJournal
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.parameter_server.store import Store
from relaax_like.runs.processes.process import freeze_gc

CHECKOUT = Path(__file__).parents[1]
RAY_VENV = CHECKOUT / ".venv-ray"
SIZES = (10_000, 1_000_000, 16_000_000)
# The largest with one worker only, and without a journal: two gigabytes a second.
LARGE = 10_000_000
WORKERS = (1, 2, 4)
WARM_UP = 3


def serve(parameters: int, durability: str, combine: CombineConfig | None = None) -> None:
    """Serves that many parameters until standard input ends."""
    variables = [Variable("w", np.zeros(parameters, np.float32))]
    manifest = make_manifest(variables)
    store = Store(manifest, manifest.pack([variables[0].value]), {"default": OptimizerConfig()})
    with tempfile.TemporaryDirectory() as folder:
        journal = PushJournal(
            Path(folder) / "journal",
            manifest.fingerprint,
            enabled=durability == "journal",
            max_bytes_per_sec=float("inf"),
        )
        with ParameterServer(
            store,
            snapshots=Snapshots(folder, 1),
            journal=journal,
            metrics=NullMetrics(),
            combine=combine,
        ) as backend:
            backend.restore_latest_checkpoint()
            server, port = BridgeControl().create_server("127.0.0.1:0", backend)
            freeze_gc()
            server.start()
            print(json.dumps({"port": port}), flush=True)
            sys.stdin.read()
            server.stop(grace=None).wait()
            backend.close(save=False)


def work(address: str, parameters: int, seconds: float, share: bool) -> None:
    """Pushes until standard input says so; prints the seconds of each round."""
    gradient = [np.full(parameters, 1e-3, np.float32)]
    rounds: list[float] = []
    with BridgeControl().connect(address) as link:
        with link.parameter_server_stub(
            metrics=NullMetrics(), keep_stream_open=True, use_shared_memory=share
        ) as client:
            client.get_values()
            for _ in range(WARM_UP):
                client.push_pull(gradient)
            print("ready", flush=True)
            sys.stdin.readline()
            end = time.perf_counter() + seconds
            while (start := time.perf_counter()) < end:
                client.push_pull(gradient)
                rounds.append(time.perf_counter() - start)
    print(json.dumps(rounds), flush=True)


def measure(
    parameters: int, workers: int, durability: str, seconds: float, share: bool
) -> dict[str, Any]:
    """Returns rounds per second of all workers together, and the times of single rounds."""
    with contextlib.ExitStack() as stack:
        server = _start(stack, "serve", parameters, durability)
        assert server.stdout is not None
        assert server.stdin is not None
        address = f"127.0.0.1:{json.loads(server.stdout.readline())['port']}"
        started = [
            _start(stack, "work", address, parameters, seconds, share) for _ in range(workers)
        ]
        for worker in started:
            assert worker.stdout is not None
            worker.stdout.readline()
        outputs = []
        for worker in started:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        for worker in started:
            outputs.append(json.loads(worker.communicate()[0]))
        server.stdin.close()
        server.wait(60)
    return make_row(durability, parameters, outputs)


def _start(stack: contextlib.ExitStack, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.push_pull", *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def make_row(kind: str, parameters: int, workers: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Returns the row of one measurement from the workers' times per round."""
    times = np.concatenate([np.asarray(rounds) for rounds in workers])
    return {
        "server": kind,
        "parameters": parameters,
        "workers": len(workers),
        "rounds/s": sum(len(rounds) / sum(rounds) for rounds in workers),
        "p50 ms": 1e3 * float(np.percentile(times, 50)),
        "p99 ms": 1e3 * float(np.percentile(times, 99)),
    }


def measure_ray(parameters: int, workers: int, seconds: float) -> dict[str, Any]:
    """Returns the same of a Ray actor."""
    script = f"ip link set lo up && exec {install_ray()} -m benchmarks.peers.ray_actor"
    arguments = f"{parameters} {workers} {seconds}"
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", f"{script} {arguments}"],
        cwd=CHECKOUT,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        timeout=120 + 10 * seconds,
    )
    return make_row("Ray actor", parameters, json.loads(done.stdout.splitlines()[-1]))


def install_ray() -> Path:
    """Installs Ray where it is missing; returns its Python."""
    python, wanted = RAY_VENV / "bin" / "python", CHECKOUT / "benchmarks/peers/ray.txt"
    done = RAY_VENV / "installed.txt"
    if not done.exists() or done.read_text() != wanted.read_text():
        subprocess.run([sys.executable, "-m", "venv", "--clear", RAY_VENV], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", wanted], check=True)
        done.write_text(wanted.read_text())
    return python


def main(argv: Sequence[str] = ()) -> None:
    """Measures all sizes, one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS)
    parser.add_argument("--chunks", action="store_true", help="as between two machines")
    parser.add_argument("--ray", action="store_true", help="measure a Ray actor beside us")
    arguments = parser.parse_args(argv)
    rows, seconds = [], arguments.seconds
    for parameters in arguments.sizes:
        for workers in arguments.workers if parameters < LARGE else (1,):
            for durability in ("snapshot", "journal") if parameters < LARGE else ("snapshot",):
                rows.append(
                    measure(
                        parameters, workers, durability, arguments.seconds, not arguments.chunks
                    )
                )
            if arguments.ray:
                rows.append(measure_ray(parameters, workers, seconds))
    report("push-pull", rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(int(sys.argv[2]), sys.argv[3])
    elif sys.argv[1:2] == ["work"]:
        work(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5] == "True")
    else:
        main(sys.argv[1:])
