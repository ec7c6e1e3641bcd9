"""Push-pull: one gradient up, Adam, fresh values down, over gRPC on loopback.

The server is a process of its own, without TensorFlow, as in a real run; one worker pushes as fast
as it is answered.
"""

import json
import subprocess
import sys
import time
from typing import Any

import numpy as np

from benchmarks.report import report
from relaax_like.bridge.control import BridgeControl
from relaax_like.bridge.manifest import Variable, make_manifest
from relaax_like.bridge.service import NullMetrics
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.store import Store

SIZES = {"10 k": 10_000, "1 M": 1_000_000, "16 M": 16_000_000}
WARM_UP = 3


def serve(parameters: int) -> None:
    """Serves that many parameters until standard input ends."""
    variables = [Variable("w", np.zeros(parameters, np.float32))]
    manifest = make_manifest(variables)
    store = Store(manifest, manifest.pack([variables[0].value]), {"default": OptimizerConfig()})
    with ParameterServer(store, metrics=NullMetrics()) as backend:
        server, port = BridgeControl().create_server("127.0.0.1:0", backend)
        server.start()
        print(json.dumps({"port": port}), flush=True)
        sys.stdin.read()
        server.stop(grace=None).wait()


def measure(parameters: int, seconds: float) -> dict[str, Any]:
    """Returns rounds per second and the times of single rounds."""
    command = [sys.executable, "-m", "benchmarks.push_pull", str(parameters)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["port"]
        with BridgeControl().connect(f"127.0.0.1:{port}") as link:
            with link.parameter_server_stub(metrics=NullMetrics(), often=True) as client:
                rounds = _push(client, parameters, seconds)
        assert process.stdin is not None
        process.stdin.close()
    return {
        "parameters": parameters,
        "rounds/s": len(rounds) / sum(rounds),
        "p50 ms": 1e3 * float(np.percentile(rounds, 50)),
        "p99 ms": 1e3 * float(np.percentile(rounds, 99)),
    }


def _push(client: Any, parameters: int, seconds: float) -> list[float]:
    gradient = [np.full(parameters, 1e-3, np.float32)]
    client.get_values()
    rounds: list[float] = []
    while sum(rounds[WARM_UP:]) < seconds or len(rounds) < WARM_UP + 3:
        start = time.perf_counter()
        client.push_pull(gradient)
        rounds.append(time.perf_counter() - start)
    return rounds[WARM_UP:]


def main(seconds: float = 5.0) -> None:
    """Measures all sizes."""
    report("push-pull, 1 worker, Adam, gRPC", [measure(n, seconds) for n in SIZES.values()])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(int(sys.argv[1]))
    else:
        main()
