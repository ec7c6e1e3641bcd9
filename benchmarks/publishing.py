"""Publications: of a learner in the parameter server's process, and of one in a process of its own.

    python -m benchmarks.publishing [--seconds 5]

Each publication has new values and Adam's state. The parameter server writes them to a folder, as
in a run. Columns: parameters, milliseconds of one publication in the same process and through gRPC
on this machine, and the megabytes of one.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cluster import find_free_ports
from benchmarks.report import report
from relaax_like.bridge.control import BridgeControl
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.records import Publication
from relaax_like.core.roles import Publisher
from relaax_like.learn.remote_publisher import RemotePublisher
from relaax_like.parameter_server.learner_lease import LearnerLease
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.parameter_server.store import Store

SIZES = (10_000, 100_000, 1_000_000)


def make_server(folder: Path, parameters: int) -> ParameterServer:
    """Makes a parameter server of one variable."""
    variable = Variable("w", np.zeros(parameters, np.float32))
    manifest = make_manifest([variable])
    store = Store(manifest, manifest.pack([variable.value]), {"default": OptimizerConfig()})
    return ParameterServer(
        store,
        snapshots=Snapshots(folder),
        metrics=NullMetrics(),
        learner_lease=LearnerLease(folder),
    )


@contextlib.contextmanager
def open_remote(parameters: int) -> Iterator[Publisher]:
    """Starts a parameter server as a process, and a publisher here."""
    (port,) = find_free_ports(1)
    command = [sys.executable, "-m", "benchmarks.publishing", "serve", str(port), str(parameters)]
    with subprocess.Popen(command) as process:
        try:
            with BridgeControl().connect(f"127.0.0.1:{port}") as link:
                manifest = link.wait(30.0)
                publisher = RemotePublisher(
                    link.publisher_stub(), "benchmark", manifest, NullMetrics()
                )
                publisher.address = "localhost:1"
                yield publisher
                publisher.close()
        finally:
            process.kill()


def serve(port: int, parameters: int) -> None:
    """Serves until it is killed."""
    with tempfile.TemporaryDirectory() as folder:
        server = make_server(Path(folder), parameters)
        grpc_server, _ = BridgeControl().create_server(
            f"127.0.0.1:{port}", server, publisher=server
        )
        grpc_server.start()
        grpc_server.wait_for_termination()


def measure(publisher: Publisher, seconds: float) -> float:
    """Returns the milliseconds of one publication."""
    lease = publisher.lease()
    number = lease.number
    values = lease.values.copy()
    slots = {group: array.copy() for group, array in lease.slots.items()}
    began = time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        number += 1
        values.view(np.float32)[:] = number
        publisher.publish(
            Publication(number=number, values=values, slots=slots, steps={"default": number})
        )
    return 1e3 * passed / (number - lease.number)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures all sizes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0)
    seconds = parser.parse_args(argv).seconds
    rows: list[dict[str, Any]] = []
    for parameters in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            server = make_server(Path(folder), parameters)
            here = measure(server, seconds)
            server.close(save=False)
        with open_remote(parameters) as publisher:
            there = measure(publisher, seconds)
        rows.append(
            {
                "parameters": parameters,
                "same process, ms": here,
                "another process, ms": there,
                "MB": 12e-6 * parameters,
            }
        )
    report("publications", rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
