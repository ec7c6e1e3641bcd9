"""Scaling with the number of clients, each with one slot; a2c in training mode.

**Paced**: a step of the environment takes 20 ms (`--period`), or as long as its answer where that
is longer. So n clients can make 50 n steps/s; `% of rate` is what they do. In three forms:

- `python`: real client processes that use `RlxClient`;
- `c`: real client processes that use `environments/c/rlx_more.c`, which cost less; needs
  a C compiler, `$CC` or `cc`;
- `connections`: one process drives all connections in turn. The clients cost little, and what
  remains is the servers' part.

**Unpaced** (form `unpaced`): CartPole, each step asked for as soon as the last one is answered, all
connections driven by one process. `% below` is what is lost against the best number of clients.

Columns: `p50`, `p99` and the longest of the times from asking to the answer; `RSS` is the most
memory that a client process has held, `rlx MB` the rlx server's memory at the end; processor time
in percent of one core: of the clients, the rlx server's event loop, the whole rlx server, its
learner, the parameter server, and of all that ran on the machine.
"""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from benchmarks.c_client import compile_client
from benchmarks.cluster import run_programs, start_servers
from benchmarks.report import report
from relaax_like.runs.processes.process import raise_descriptor_limit

CONFIG = Path(__file__).parents[1] / "algorithms" / "a2c" / "a2c.yaml"
FORMS = ("python", "c", "connections", "unpaced")
CLIENTS = (1, 8, 32, 64, 128)
PERIOD_SEC = 0.02
_LOAD = (sys.executable, "-m", "benchmarks.load")


class Load(NamedTuple):
    """A program that plays clients, as `benchmarks.load` describes it.

    Attributes:
      program: and the arguments before the server's address.
      rest: the arguments after it.
    """

    program: Sequence[Any]
    rest: Sequence[Any]


def measure(loads: Sequence[Load], seconds: float) -> dict[str, Any]:
    """Returns steps, latencies and processor time of these loads together.

    Args:
      loads: the programs.
      seconds: for which steps are counted.
    """
    with start_servers(CONFIG, "relaax-rlx-server.max_clients=10000") as servers:
        commands = [
            [str(part) for part in (*load.program, servers.address, *load.rest)] for load in loads
        ]
        results, cpu = run_programs(commands, servers, seconds)
        rlx_mb = psutil.Process(servers.rlx_server).memory_info().rss / 1e6
    latencies = np.concatenate([result["latencies"] for result in results])
    return {
        "steps/s": len(latencies) / seconds,
        "p50 ms": 1e3 * float(np.percentile(latencies, 50)),
        "p99 ms": 1e3 * float(np.percentile(latencies, 99)),
        "max ms": 1e3 * float(latencies.max()),
        "RSS MB": float(np.mean([result["rss_mb"] for result in results])),
        "rlx MB": rlx_mb,
        "cpu % load": 100 * sum(result["cpu_sec"] for result in results) / seconds,
        **{f"cpu % {name}": share for name, share in cpu.items()},
    }


def measure_paced(
    form: str, clients: int, seconds: float, period_sec: float, c_client: Path | None = None
) -> dict[str, Any]:
    """Returns one row; form `c` needs the compiled client."""
    if form == "connections":
        loads = [Load((*_LOAD, "many"), (period_sec, clients, "null"))]
    else:
        program = (c_client,) if form == "c" else (*_LOAD, "one")
        loads = [Load(program, (period_sec,))] * clients
    row = measure(loads, seconds)
    return {"clients": clients, "% of rate": 100 * row["steps/s"] * period_sec / clients, **row}


def measure_cartpole(clients: int, seconds: float) -> dict[str, Any]:
    """Returns one row."""
    load = Load((*_LOAD, "many"), (0, clients, "cartpole"))
    return {"clients": clients, **measure([load], seconds)}


def main(
    clients: Sequence[int] = CLIENTS,
    seconds: float = 10.0,
    forms: Sequence[str] = FORMS,
    period_sec: float = PERIOD_SEC,
) -> None:
    """Measures all rows of these forms."""
    with contextlib.ExitStack() as stack:
        c_client = stack.enter_context(compile_client()) if "c" in forms else None
        for form, name in (
            ("python", "Python processes"),
            ("c", "C processes"),
            ("connections", "connections"),
        ):
            if form in forms:
                rows = [measure_paced(form, n, seconds, period_sec, c_client) for n in clients]
                step = f"{1e3 * period_sec:g} ms a step"
                report(f"paced, {step}, one slot each, clients are {name}", rows)
    if "unpaced" in forms:
        rows = [measure_cartpole(n, seconds) for n in clients]
        best = max(row["steps/s"] for row in rows)
        for row in rows:
            row["% below"] = 100 * (1 - row["steps/s"] / best)
        report("CartPole, one slot each, one load process", rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    parser.add_argument("--period", type=float, default=PERIOD_SEC, help="seconds of a step")
    args = parser.parse_args()
    raise_descriptor_limit()
    main(args.clients, args.seconds, args.forms, args.period)
