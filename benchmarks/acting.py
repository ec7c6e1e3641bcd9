"""Acting and learning: env steps per second of one-slot CartPole clients, each its own process.

Parameter server, rlx server (plain agents of policy_gradient, in TensorFlow) and clients run on the
same machine; the agents push a gradient at each episode's end.
"""

import argparse
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cluster import run_servers
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


def measure(clients: int, seconds: float) -> dict[str, Any]:
    """Returns env steps per second of all clients together, and percentiles of one action."""
    with run_servers(CONFIG) as address:
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
