"""Clients with a time limit, while the learner is busy and the parameter server is killed.

    python -m benchmarks.realtime [--seconds 60]

Twenty clients in C send 50 steps per second each, with `max_wait_ms: 20`, to one rlx server with
a2c, whose agents act in NumPy. An update takes 2 s more than usual: it sleeps, or computes. In the
middle the parameter server is killed (`kill -9`) and started again a second later. Once for each
placement.

Columns: answers in these seconds; those of them that came while a control process that only sleeps
was late by more than 10 ms (`disturbed`); median, percentiles and maximum of the other waits,
measured at the clients. `late`: answers since the clients connected that took more than 20 ms at
the server, as it counts them and as it says in each answer (`timings`). `discarded`: environment
steps that no learner was ready for.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.c_client import compile_client
from benchmarks.cluster import WARM_UP_SEC, Servers, start_servers, wait_for_ready
from benchmarks.report import report
from relaax_like.bridge.control import BridgeControl
from relaax_like.core.records import Status

A2C = Path(__file__).parents[1] / "algorithms" / "a2c"
CLIENTS = 20
PERIOD_SEC = 0.02
MAX_WAIT_MS = 20
UPDATE_SEC = 2.0
# In which the control process can be late.
_CONTROL_SEC = 0.010
_HANDLER = """

class SlowUpdate:
    def after_interact(self, rollout):
        return rollout

    def after_learn(self, training_data, policy_data):
        import time

        import numpy as np

        end, matrix = time.monotonic() + {seconds}, np.eye(300, dtype=np.float32)
        while time.monotonic() < end:
            {work}


def make_data_handler(config):
    return SlowUpdate()
"""
_WORK = {"sleeps": "time.sleep(end - time.monotonic())", "computes": "matrix = matrix @ matrix"}
# Prints when it was late: from when it wanted to wake up to when it did.
_CONTROL = f"""
import time
while True:
    due = time.monotonic() + 0.001
    time.sleep(0.001)
    now = time.monotonic()
    if now - due > {_CONTROL_SEC}:
        print(due, now, flush=True)
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Measures all rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of each row")
    arguments = parser.parse_args(argv)
    with compile_client() as program:
        rows = [
            measure(program, placement, update, arguments.seconds)
            for placement in ("agent", "server")
            for update in _WORK
        ]
    report(f"{CLIENTS} C clients, 50 steps/s each, max_wait_ms {MAX_WAIT_MS}", rows)


def measure(program: Path, placement: str, update: str, seconds: float) -> dict[str, Any]:
    """Returns one row."""
    with tempfile.TemporaryDirectory() as folder:
        config = write_algorithm(Path(folder), update)
        with start_servers(config, f"learner.placement={placement}") as servers:
            results, stalls, status = play(program, servers, seconds)
    asked = np.concatenate([result["asked"] for result in results])
    waits = np.concatenate([result["latencies"] for result in results])
    disturbed = np.zeros(len(waits), bool)
    for start, stop in stalls:
        disturbed |= (asked < stop) & (asked + waits > start)
    calm = 1e3 * waits[~disturbed]
    return {
        "placement": placement,
        "an update": update,
        "answers": len(waits),
        "disturbed": int(disturbed.sum()),
        "p50 ms": float(np.percentile(calm, 50)),
        "p99 ms": float(np.percentile(calm, 99)),
        "p99.9 ms": float(np.percentile(calm, 99.9)),
        "max ms": float(calm.max()),
        "all": sum(client.answers for client in status.served),
        "all, clients": sum(result["answers"] for result in results),
        "late, counted": sum(client.late for client in status.served),
        "late, told": sum(result["late"] for result in results),
        "discarded": sum(client.discarded_steps for client in status.served),
        "steps": status.global_t,
    }


def write_algorithm(folder: Path, update: str) -> Path:
    """Copies a2c with a slow update; returns its settings."""
    shutil.copytree(A2C, folder / "a2c", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "a2c" / "algorithm.py").open("a") as file:
        file.write(_HANDLER.format(seconds=UPDATE_SEC, work=_WORK[update]))
    text = (folder / "a2c" / "a2c.yaml").read_text()
    config = folder / "config.yaml"
    config.write_text(text.replace("name: a2c", "path: a2c"))
    return config


def play(
    program: Path, servers: Servers, seconds: float
) -> tuple[list[dict[str, Any]], list[tuple[float, float]], Status]:
    """Returns what the clients printed, when the control process was late, and the status."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [str(program), servers.address, str(PERIOD_SEC), str(MAX_WAIT_MS)]
    clients: list[subprocess.Popen[str]] = []
    control = subprocess.Popen([sys.executable, "-c", _CONTROL], stdout=subprocess.PIPE, text=True)
    try:
        clients += (subprocess.Popen(command, **pipes) for _ in range(CLIENTS))
        for client in clients:
            wait_for_ready(client)
        start = time.monotonic() + WARM_UP_SEC
        for client in clients:
            assert client.stdin is not None
            client.stdin.write(f"{start} {seconds}\n")
            client.stdin.flush()
        time.sleep(start + seconds / 2 - time.monotonic())
        servers.kill_parameter_server()
        # The clients make no steps any more, but stay connected; reports come every two seconds.
        time.sleep(start + seconds + 4.0 - time.monotonic())
        with BridgeControl().connect(servers.parameter_server_address) as link:
            status = link.status()
        outputs: list[str] = [""] * len(clients)

        def read(index: int) -> None:
            outputs[index] = clients[index].communicate()[0]

        readers = [threading.Thread(target=read, args=(i,)) for i in range(len(clients))]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        control.kill()
        stalls = [line.split() for line in control.communicate()[0].splitlines()]
    finally:
        for process in (*clients, control):
            process.kill()
            process.wait()
    return (
        [json.loads(output) for output in outputs],
        [(float(due), float(woke)) for due, woke in stalls],
        status,
    )


if __name__ == "__main__":
    main()
