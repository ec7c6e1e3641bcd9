"""A learner in the parameter server's process, and one in a process of its own: steps per second.

    python -m benchmarks.standalone [--seconds 30] [--rounds 2]

`relaax run` trains ppo in 64 slots of CartPole-v1, and sac in 8 slots of Pendulum-v1, one client
each. sac makes an update per environment step, and its agents wait where it is behind, so that its
steps are its updates. Placements alternate; the table has the best round of each.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster import find_free_ports
from benchmarks.report import report
from relaax_like.bridge.control import BridgeControl
from relaax_like.wire.errors import ServerUnavailableError

ALGORITHMS = Path(__file__).parents[1] / "algorithms"
CASES = {
    "ppo": (ALGORITHMS / "ppo" / "ppo.yaml", ["environment.slots=64", "algorithm.num_steps=4096"]),
    "sac": (ALGORITHMS / "sac" / "sac.yaml", ["environment.slots=8"]),
}
# Steps after which everything is compiled, and the table has its first ones.
WARM_UP = 10_000


def measure(case: str, placement: str, seconds: float) -> float:
    """Returns the environment steps per second of one run."""
    config, own = CASES[case]
    ps, rlx, learner = find_free_ports(3)
    with tempfile.TemporaryDirectory() as folder:
        sets = [
            *own,
            f"run_dir={folder}",
            f"learner.placement={placement}",
            f"learner.bind=localhost:{learner}",
            f"relaax-parameter-server.bind=localhost:{ps}",
            f"relaax-rlx-server.bind=localhost:{rlx}",
            "learner.target_return=null",
            "learner.eval_freq=0",
            "algorithm.max_global_step=1000000000",
            "environment.clients=1",
        ]
        command = [str(Path(sys.executable).with_name("relaax")), "run", str(config)]
        process = subprocess.Popen(
            [*command, *(f"--set={one}" for one in sets)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with BridgeControl().connect(f"localhost:{ps}") as link:

                def read() -> tuple[float, int]:
                    while process.poll() is None:
                        try:
                            return time.perf_counter(), link.status(timeout_sec=5.0).global_t
                        except ServerUnavailableError:
                            time.sleep(0.2)
                    raise RuntimeError(f"relaax run ended with {process.returncode}")

                while read()[1] < WARM_UP:
                    time.sleep(0.2)
                began, first = read()
                time.sleep(seconds)
                ended, last = read()
                return (last - first) / (ended - began)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    for case in options.cases:
        rates = {"server": 0.0, "standalone": 0.0}
        for _ in range(options.rounds):
            for placement in rates:
                rate = measure(case, placement, options.seconds)
                rates[placement] = max(rates[placement], rate)
        rows.append(
            {
                "algorithm": case,
                **{f"{placement}, steps/s": rate for placement, rate in rates.items()},
                "ratio": rates["standalone"] / rates["server"],
            }
        )
    report("standalone", rows)


if __name__ == "__main__":
    main()
