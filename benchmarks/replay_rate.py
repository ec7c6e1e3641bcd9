"""A replay table's rate of updates, with clients that come and go, and with one that cannot wait.

    python -m benchmarks.replay_rate [--seconds 600] [--only rate | overload]

`rate`: four programs play CartPole with 4 slots as fast as they are answered, each for 5 to 20 s
before the next one takes its place; dqn learns in the server. Columns: updates per environment step
after the warm-up, the setting, and the largest deviation of any ten seconds in percent of it.

`overload`: one client in C sends 50 steps per second with `max_wait_ms: 20`. In the first half each
call of updates takes 2 s more than usual, so that ever more are overdue; then they are made up.
Columns: answers, their median, percentiles and maximum, how many came late, steps that were
discarded, the most updates that were overdue, and how many at the end.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.c_client import compile_client
from benchmarks.cluster import WARM_UP_SEC, Servers, start_servers, wait_for_ready
from benchmarks.report import report
from relaax_like.bridge.control import BridgeControl
from relaax_like.core.records import Status

DQN = Path(__file__).parents[1] / "algorithms" / "dqn"
UPDATES_AT_ONCE = 16
WARM_UP_STEPS = 1_000
SETTINGS = (
    f"algorithm.updates_at_once={UPDATES_AT_ONCE}",
    f"algorithm.warm_up_steps={WARM_UP_STEPS}",
    "algorithm.network={layers: [64, 64]}",
    "learner.eval_freq=0",
)
PROGRAMS, SLOTS = 4, 4
_SAMPLE_SEC = 10.0
_HANDLER = """

class SlowUpdate:
    def after_interact(self, rollout):
        return rollout

    def after_learn(self, minibatches, policy_data):
        import time

        time.sleep(2.0 if time.time() < {until} else 0.0)


def make_data_handler(config):
    return SlowUpdate()
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Measures both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="of each of the two")
    parser.add_argument("--only", choices=("rate", "overload"), help="measure one of the two")
    arguments = parser.parse_args(argv)
    if arguments.only != "overload":
        report("updates per step", [measure_rate(arguments.seconds)])
    if arguments.only != "rate":
        with compile_client() as program:
            row = measure_overload(program, arguments.seconds)
        report("one client with max_wait_ms 20, and a slow learner", [row])


def measure_rate(seconds: float) -> dict[str, Any]:
    """Returns the row of programs that come and go."""
    setting = 0.5
    with start_servers(
        DQN / "dqn.yaml", *SETTINGS, f"algorithm.updates_per_step={setting}"
    ) as servers:
        stop = threading.Event()
        players = [
            threading.Thread(target=keep_playing, args=(servers, random.Random(i), stop))
            for i in range(PROGRAMS)
        ]
        for player in players:
            player.start()
        try:
            samples = sample(servers, seconds, lambda status: status.version > 0)
        finally:
            stop.set()
            for player in players:
                player.join()
    steps = np.array([status.global_t for status in samples], np.float64)
    updates = np.array([status.version * UPDATES_AT_ONCE for status in samples], np.float64)
    rates = np.diff(updates) / np.diff(steps)
    whole = (updates[-1] - updates[0]) / (steps[-1] - steps[0])
    return {
        "seconds": seconds,
        "steps": int(steps[-1] - steps[0]),
        "updates": int(updates[-1] - updates[0]),
        "updates per step": float(whole),
        "setting": setting,
        "off, %": float(100 * abs(whole / setting - 1)),
        "largest of 10 s, %": float(100 * np.abs(rates / setting - 1).max()),
    }


def keep_playing(servers: Servers, random_: random.Random, stop: threading.Event) -> None:
    """Runs one program after another, each until it is killed after a random time."""
    program = Path(__file__).parents[1] / "environments" / "OpenAI_Gym" / "main"
    command = [
        *(sys.executable, str(program), "--rlx-server", servers.address),
        *("--env", "CartPole-v1", "--num-envs", str(SLOTS)),
    ]
    while not stop.is_set():
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
        try:
            stop.wait(random_.uniform(5.0, 20.0))
        finally:
            process.kill()
            process.wait()


def measure_overload(program: Path, seconds: float) -> dict[str, Any]:
    """Returns the row of a client that cannot wait."""
    with tempfile.TemporaryDirectory() as folder:
        until = time.time() + WARM_UP_SEC + seconds / 2
        config = write_algorithm(Path(folder), until)
        with start_servers(config, *SETTINGS, "algorithm.updates_per_step=0.5") as servers:
            client = subprocess.Popen(
                [str(program), servers.address, "0.02", "20"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                wait_for_ready(client)
                start = time.monotonic() + WARM_UP_SEC
                assert client.stdin is not None
                client.stdin.write(f"{start} {seconds}\n")
                client.stdin.flush()
                samples = sample(servers, WARM_UP_SEC + seconds, lambda status: True)
                result = json.loads(client.communicate()[0])
            finally:
                client.kill()
                client.wait()
    waits = 1e3 * np.array(result["latencies"])
    overdue = [status.overdue_updates or 0.0 for status in samples]
    return {
        "answers": len(waits),
        "p50 ms": float(np.percentile(waits, 50)),
        "p99 ms": float(np.percentile(waits, 99)),
        "p99.9 ms": float(np.percentile(waits, 99.9)),
        "max ms": float(waits.max()),
        "late": result["late"],
        "discarded": max(
            sum(client.discarded_steps for client in status.served) for status in samples
        ),
        "most overdue": float(max(overdue)),
        "overdue at the end": float(overdue[-1]),
    }


def write_algorithm(folder: Path, until: float) -> Path:
    """Copies dqn with a slow learner; returns its settings."""
    shutil.copytree(DQN, folder / "dqn", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "dqn" / "algorithm.py").open("a") as file:
        file.write(_HANDLER.format(until=until))
    text = (folder / "dqn" / "dqn.yaml").read_text()
    config = folder / "config.yaml"
    config.write_text(text.replace("name: dqn", "path: dqn"))
    return config


def sample(servers: Servers, seconds: float, has_begun: Callable[[Status], bool]) -> list[Status]:
    """Returns the status every ten seconds, once the training has begun."""
    samples: list[Status] = []
    with BridgeControl().connect(servers.parameter_server_address) as link:
        while not has_begun(link.status()):
            time.sleep(0.1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            samples.append(link.status())
            time.sleep(min(_SAMPLE_SEC, max(end - time.monotonic(), 0.0)))
        samples.append(link.status())
    return samples


if __name__ == "__main__":
    main()
