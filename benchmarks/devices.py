"""Updates per second on the processor and on a GPU: what `learner.device` is worth.

    python -m benchmarks.devices [--rounds 10] [--threads 4]

dqn and sac learn from minibatches of 10,000 drawn steps, 17 numbers in an observation and 6 in an
action, as in `benchmarks.peers.replay_updates`; two layers each. A process for each device makes
16 updates in one call. The rate is that of the fastest call. Needs a GPU.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.report import report
from relaax_like.config.loader import load_experiment
from relaax_like.nn.device import set_device
from relaax_like.nn.threads import set_threads

ALGORITHMS = ("dqn", "sac")
# Units of each layer -> minibatch.
SIZES = {64: 64, 256: 256, 1024: 1024}
DEVICES = ("cpu", "gpu")
_AT_ONCE = 16
_WARM_UP = 3


def measure(algorithm: str, units: int, rounds: int) -> float:
    """Returns updates per second in this process, which has chosen its device."""
    from benchmarks.peers.replay_updates import make_ours, make_overrides  # loads TensorFlow

    overrides = make_overrides(algorithm, units, SIZES[units], _AT_ONCE)
    update = make_ours(algorithm, load_experiment(algorithm, overrides).algorithm, _AT_ONCE)
    seconds = []
    for _ in range(_WARM_UP + rounds):
        began = time.perf_counter()
        update()
        seconds.append(time.perf_counter() - began)
    return _AT_ONCE / min(seconds[_WARM_UP:])


def measure_all(device: str, rounds: int, threads: int) -> list[float]:
    """Returns the rates of all cases, measured by a process that uses the device."""
    command = [sys.executable, "-m", "benchmarks.devices", "--device", device]
    command += ["--rounds", str(rounds), "--threads", str(threads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return list(json.loads(done.stdout.splitlines()[-1]))


def main(argv: Sequence[str] | None = None) -> None:
    """Measures all cases on both devices."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=4, help="of the processor")
    parser.add_argument("--device", choices=DEVICES, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    cases = [(algorithm, units) for algorithm in ALGORITHMS for units in SIZES]
    if args.device:
        set_device(args.device, "--device")
        set_threads(args.threads)
        print(json.dumps([measure(*case, args.rounds) for case in cases]))
        return
    rates = {device: measure_all(device, args.rounds, args.threads) for device in DEVICES}
    rows: list[dict[str, Any]] = [
        {
            "algorithm": algorithm,
            "layers": f"{units}, {units}",
            "minibatch": SIZES[units],
            "cpu, updates/s": cpu,
            "gpu, updates/s": gpu,
            "gpu is x": f"{gpu / cpu:.2f}",
        }
        for (algorithm, units), cpu, gpu in zip(cases, rates["cpu"], rates["gpu"], strict=True)
    ]
    report(f"updates, {args.threads} threads and a GPU", rows)


if __name__ == "__main__":
    main()
