"""Fairness: what one bad client does to 63 good ones; a2c in training mode, one slot each.

The good ones are paced connections of one process. The 64th is a process of its own: good too
(`undisturbed`, measured first and last), or

- `slow`: takes 1 s for each of its steps;
- `stalled`: stopped by a signal when half of a message has been sent;
- `nan`: sends NaN as an observation, is refused, and reconnects at once, forever;
- `flood`: sends steps as fast as it can and reads no answer; cut off, it reconnects at once.

The last two give way to the others' use of the processor (nice 19): they would run on a machine of
their own, and it is the server's fairness that is measured, not the scheduler's.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cluster import Servers, run_loads, start_servers, wait_for_ready
from benchmarks.load import NullEnvironment, Player, connect, make_hello, make_step, pack
from benchmarks.report import report

CONFIG = Path(__file__).parents[1] / "algorithms" / "a2c" / "a2c.yaml"
CLIENTS = 64
RATE = 75.0
_STEP = pack(make_step(np.zeros(4, np.float32)))


def stall(address: str) -> None:
    """Sends half of a message in the middle of an episode and stops itself."""
    player = Player(address, NullEnvironment())
    player.begin()
    while not player.take():
        pass
    player.socket.sendall(_STEP[: len(_STEP) // 2])
    print("ready\nhalf a message", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def send_nan(address: str) -> None:
    """Sends NaN in one session after the other."""
    os.nice(19)
    print("ready", flush=True)
    sessions, began = 0, time.monotonic()
    with _until_terminated():
        while True:
            with contextlib.suppress(OSError), contextlib.closing(connect(address)) as one:
                one.sendall(pack(make_hello()))
                one.sendall(pack(make_step(np.full(4, np.nan, np.float32), first=True)))
                while one.recv(65536):
                    pass
            sessions += 1
    print(f"{sessions / (time.monotonic() - began):,.0f} sessions/s")


def flood(address: str) -> None:
    """Sends steps ahead, in one session after the other."""
    os.nice(19)
    print("ready", flush=True)
    sent, sessions, began = 0, 0, time.monotonic()
    steps = _STEP * 1000
    with _until_terminated():
        while True:
            sessions += 1
            with contextlib.suppress(OSError), contextlib.closing(connect(address)) as one:
                one.settimeout(None)
                one.sendall(pack(make_hello()))
                one.sendall(pack(make_step(np.zeros(4, np.float32), first=True)))
                while True:
                    sent += one.send(steps)
    elapsed = time.monotonic() - began
    print(f"{sent / elapsed / 1e6:,.0f} MB/s, {sessions / elapsed:,.1f} sessions/s")


class _TerminatedError(BaseException):
    pass


@contextlib.contextmanager
def _until_terminated() -> Iterator[None]:
    def stop(*unused: object) -> None:
        raise _TerminatedError

    signal.signal(signal.SIGTERM, stop)
    with contextlib.suppress(_TerminatedError):
        yield


BAD: dict[str, Callable[[str], None]] = {"stalled": stall, "nan": send_nan, "flood": flood}
CASES = ("undisturbed", "slow", "stalled", "nan", "flood", "undisturbed")


def measure(case: str, rate: float, seconds: float) -> dict[str, Any]:
    """Returns the row of one case."""
    period = str(1 / rate)
    with start_servers(CONFIG) as servers:
        loads = [["many", servers.address, period, str(CLIENTS - 1)]]
        if case in BAD:
            (good, *_), cpu, did = _measure_beside(case, loads, servers, seconds)
        else:
            loads.append(["many", servers.address, "1.0" if case == "slow" else period, "1"])
            (good, other), cpu = run_loads(loads, servers, seconds)
            did = f"{len(other['latencies']) / seconds:,.1f} steps/s"
    return {
        "the 64th": case,
        "which did": did,
        "steps/s": len(good["latencies"]) / seconds,
        "p50 ms": 1e3 * float(np.percentile(good["latencies"], 50)),
        "p99 ms": 1e3 * float(np.percentile(good["latencies"], 99)),
        "max ms": 1e3 * max(good["latencies"]),
        "cpu % load": 100 * good["cpu_sec"] / seconds,
        **{f"cpu % {name}": share for name, share in cpu.items()},
    }


def _measure_beside(
    case: str, loads: Sequence[Sequence[str]], servers: Servers, seconds: float
) -> tuple[list[dict[str, Any]], dict[str, float], str]:
    """Returns what `run_loads` does, and what the bad client said that it did."""
    command = [sys.executable, "-m", "benchmarks.fairness", "--be", case, servers.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as bad:
        try:
            wait_for_ready(bad)
            results, cpu = run_loads(loads, servers, seconds)
            bad.send_signal(signal.SIGTERM)
            bad.send_signal(signal.SIGCONT)
            assert bad.stdout is not None
            did = bad.stdout.read().strip()
        finally:
            bad.kill()
    return results, cpu, did


def main(rate: float = RATE, seconds: float = 15.0, cases: Sequence[str] = CASES) -> None:
    """Measures all cases."""
    rows = [measure(case, rate, seconds) for case in cases]
    for row in rows:
        row["% off"] = 100 * (row["steps/s"] / rows[0]["steps/s"] - 1)
    report(f"fairness, {CLIENTS} clients at {rate:g} steps/s each", rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=RATE, help="steps/s of a client")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--cases", nargs="+", choices=sorted(set(CASES)), default=CASES)
    parser.add_argument("--be", nargs=2, metavar=("CASE", "ADDRESS"), help="be a bad client")
    args = parser.parse_args()
    if args.be:
        BAD[args.be[0]](args.be[1])
    else:
        main(args.rate, args.seconds, args.cases)
