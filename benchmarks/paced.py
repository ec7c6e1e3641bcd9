"""Scaling with the number of clients, each with one slot; a2c in training mode.

**Paced**: a step of the environment takes 20 ms, or as long as its answer where that is longer. So
n clients can make 50 n steps/s; `% of 50n` is what they do. First as real client processes, then as
connections that one process drives in turn, where the clients cost little and what remains is the
servers' part.

**Unpaced**: CartPole, each step asked for as soon as the last one is answered, all connections
driven by one process. `% below` is what is lost against the best number of clients.

Columns: `p50`, `p99` and the longest of the times from asking to the answer; `RSS` is the most
memory that a client process has held; processor time in percent of one core: of the clients, the
rlx server's event loop, the whole rlx server, its learner, the parameter server, and of all that
ran on the machine.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cluster import run_loads, start_servers
from benchmarks.report import report

CONFIG = Path(__file__).parents[1] / "algorithms" / "a2c" / "a2c.yaml"
CLIENTS = (1, 8, 32, 64, 128)
PERIOD_SEC = 0.02


def measure(loads: Sequence[Sequence[Any]], seconds: float) -> dict[str, Any]:
    """Returns steps, latencies and processor time of these loads together.

    Args:
      loads: arguments of `benchmarks.load`, without the address.
      seconds: for which steps are counted.
    """
    with start_servers(CONFIG) as servers:
        commands = [
            [form, servers.address, *(str(argument) for argument in rest)] for form, *rest in loads
        ]
        results, cpu = run_loads(commands, servers, seconds)
    latencies = np.concatenate([result["latencies"] for result in results])
    return {
        "steps/s": len(latencies) / seconds,
        "p50 ms": 1e3 * float(np.percentile(latencies, 50)),
        "p99 ms": 1e3 * float(np.percentile(latencies, 99)),
        "max ms": 1e3 * float(latencies.max()),
        "RSS MB": float(np.mean([result["rss_mb"] for result in results])),
        "cpu % load": 100 * sum(result["cpu_sec"] for result in results) / seconds,
        **{f"cpu % {name}": share for name, share in cpu.items()},
    }


def measure_paced(form: str, clients: int, seconds: float) -> dict[str, Any]:
    """Returns one row; the form is `processes`, or `connections` of one process."""
    load: list[Any] = ["one", PERIOD_SEC]
    loads = [load] * clients if form == "processes" else [["many", PERIOD_SEC, clients, "null"]]
    row = measure(loads, seconds)
    return {"clients": clients, "% of 50n": 100 * row["steps/s"] * PERIOD_SEC / clients, **row}


def measure_cartpole(clients: int, seconds: float) -> dict[str, Any]:
    """Returns one row."""
    return {"clients": clients, **measure([["many", 0, clients, "cartpole"]], seconds)}


def main(clients: Sequence[int] = CLIENTS, seconds: float = 10.0) -> None:
    """Measures all rows."""
    for form in ("processes", "connections"):
        paced = [measure_paced(form, n, seconds) for n in clients]
        report(f"paced, 20 ms a step, one slot each, clients are {form}", paced)
    rows = [measure_cartpole(n, seconds) for n in clients]
    best = max(row["steps/s"] for row in rows)
    for row in rows:
        row["% below"] = 100 * (1 - row["steps/s"] / best)
    report("CartPole, one slot each, one load process", rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    main(args.clients, args.seconds)
