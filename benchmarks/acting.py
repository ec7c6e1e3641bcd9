"""Acting and learning: env steps per second of one-slot CartPole clients, each its own process.

Parameter server, rlx server (plain agents of policy_gradient, in TensorFlow) and clients run on the
same machine; the agents push a gradient at each episode's end.
"""

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import report
from relaax_like.client import RlxClient
from relaax_like.client.client import Retry
from relaax_like.wire.spaces import Box, Discrete

CONFIG = Path(__file__).parents[1] / "algorithms" / "policy_gradient" / "policy_gradient.yaml"
CLIENTS = (1, 8)


def act(address: str, start_at: float, seconds: float) -> None:
    """Plays CartPole from a moment on for so long; prints steps and latencies as JSON."""
    import gymnasium

    warnings.simplefilter("ignore")
    env = gymnasium.make("CartPole-v0")
    spaces = Box(dtype="float32", shape=(4,)), Discrete(n=2)
    latencies: list[float] = []
    with RlxClient(address, *spaces, retry=Retry(min_sleep_sec=0.2, max_sleep_sec=0.5)) as client:
        action = client.act(env.reset()[0])
        began = 0.0
        while time.time() < start_at + seconds:
            if not began and time.time() >= start_at:
                began, latencies = time.perf_counter(), []
            state, reward, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                client.reward_and_reset(reward, state, truncated=truncated and not terminated)
                state, _ = env.reset()
            asked = time.perf_counter()
            if terminated or truncated:
                action = client.act(state)
            else:
                action = client.reward_and_act(reward, state)
            latencies.append(time.perf_counter() - asked)
        print(json.dumps({"sec": time.perf_counter() - began, "latencies": latencies}))


@contextlib.contextmanager
def run_servers() -> Iterator[str]:
    """Starts a parameter server and an rlx server; gives the address of the latter."""
    ps, rlx = (f"localhost:{port}" for port in _find_free_ports(2))
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            f"run_dir={folder}",
            f"relaax-parameter-server.bind={ps}",
            f"relaax-rlx-server.bind={rlx}",
            "relaax-rlx-server.score_lines=false",
            "learner.target_return=null",
            "algorithm.max_global_step=1e9",
        ]
        arguments = ["--config", str(CONFIG), *(f"--set={override}" for override in overrides)]
        commands = [
            [sys.executable, "-m", f"relaax_like.cli.{role}", *arguments]
            for role in ("parameter_server", "rlx_server")
        ]
        processes = [subprocess.Popen(c, stdout=subprocess.DEVNULL) for c in commands]
        try:
            _wait_for_port(rlx)
            yield rlx
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(20)


def measure(clients: int, seconds: float) -> dict[str, Any]:
    """Returns env steps per second of all clients together, and percentiles of one action."""
    with run_servers() as address:
        # All begin to count at one moment, when every client has played for a while.
        start_at = time.time() + 12.0 + clients
        command = [sys.executable, "-m", "benchmarks.acting", address, str(start_at), str(seconds)]
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(clients)]
        results = [json.loads(process.communicate()[0]) for process in processes]
    latencies = np.concatenate([result["latencies"] for result in results])
    return {
        "clients": clients,
        "env steps/s": float(sum(len(r["latencies"]) / r["sec"] for r in results)),
        "act p50 us": 1e6 * float(np.percentile(latencies, 50)),
        "act p99 us": 1e6 * float(np.percentile(latencies, 99)),
    }


def main(seconds: float = 8.0) -> None:
    """Measures one and eight clients."""
    rows = [measure(clients, seconds) for clients in CLIENTS]
    report("acting and learning, CartPole, plain agents", rows)


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


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("address", nargs="?")
    parser.add_argument("start_at", nargs="?", type=float)
    parser.add_argument("seconds", nargs="?", type=float)
    args = parser.parse_args()
    if args.address:
        act(args.address, args.start_at, args.seconds)
    else:
        main()
