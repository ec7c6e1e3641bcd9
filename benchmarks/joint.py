"""Learners that make each update together: rows per second of one, and of two.

    python -m benchmarks.joint [--seconds 20] [--layers 64,64 256,256] [--learners 1 2]

A parameter server and learners are processes of their own on this machine, with one thread each.
Each learner learns ppo from the same recorded rollout of 8 slots and 128 steps, again and again: 10
epochs in minibatches of 256 of its rows, whatever the number of learners. `alone` is one learner
that pushes its gradients without a group (combine.method: fifo). A row that is learned from in 10
epochs counts once.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cluster import find_free_ports
from benchmarks.report import report
from relaax_like.bridge.control import BridgeControl
from relaax_like.config.loader import load_experiment
from relaax_like.core.records import LearnerUpdate, LearnRequest
from relaax_like.experience.rollout import Rollout
from relaax_like.launch.learners import make_learners

PPO = Path(__file__).parents[1] / "algorithms" / "ppo" / "ppo.yaml"
STEPS, SLOTS, STATE, ACTIONS = 128, 8, 32, 4
ROWS, MINIBATCH = STEPS * SLOTS, 256


def make_rollout(steps: int, slots: int, state: int, actions: int) -> Rollout:
    """Makes a rollout of random numbers, always the same for the same sizes."""
    random, shape = np.random.default_rng(1), (steps, slots)
    seen = random.standard_normal((steps + 1, slots, state)).astype(np.float32)
    return Rollout(
        inputs={"observation": seen[:-1]},
        next_inputs={"observation": seen[1:]},
        next_alive=random.choice([1.0, 1.0, 1.0, 0.0], shape).astype(np.float32),
        rewards=random.standard_normal((*shape, 1)).astype(np.float32),
        actions={"action": random.integers(actions, size=shape)},
        log_prob=np.full(shape, np.log(1 / actions), np.float32),
        states={},
        versions=np.zeros(steps, np.int64),
    )


def make_sets(port: int, folder: str, layers: str, learners: int) -> list[str]:
    """Returns the settings of a run; 0 learners: one that pushes gradients by itself."""
    return [
        f"run_dir={folder}",
        f"relaax-parameter-server.bind=127.0.0.1:{port}",
        f"relaax-parameter-server.combine.method={'sync' if learners else 'fifo'}",
        "learner.placement=agent",
        "algorithm.max_global_step=1000000000",
        f"algorithm.state_size={STATE}",
        f"algorithm.num_actions={ACTIONS}",
        f"algorithm.network={{layers: [{layers}]}}",
        f"algorithm.num_steps={ROWS}",
        f"algorithm.rollout_steps={STEPS}",
        f"algorithm.batch_size={MINIBATCH * max(learners, 1)}",
        "algorithm.epochs=10",
    ]


def learn(port: int, folder: str, layers: str, learners: int, seconds: float) -> None:
    """Is one learner; prints its rows per second."""
    experiment = load_experiment(PPO, make_sets(port, folder, layers, learners))
    with BridgeControl().connect(f"127.0.0.1:{port}") as link:
        link.wait(60.0)
        name = f"learner-{time.time_ns()}"
        (learner,) = make_learners(
            experiment,
            lambda client_id: link.parameter_server_stub(client_id, keep_stream_open=True),
            name,
        ).values()
        learned = threading.Semaphore(0)

        def note(update: LearnerUpdate) -> None:
            if update.numbers:
                learned.release()

        learner.start(note)
        rollout, number = make_rollout(STEPS, SLOTS, STATE, ACTIONS), 0

        def learn_once() -> None:
            nonlocal number
            number += 1
            learner.submit(LearnRequest(number, rollout, env_steps=ROWS, agent="one"))
            learned.acquire()

        for _ in range(3):  # compile, and come into step
            learn_once()
        began, first = time.perf_counter(), number
        while time.perf_counter() - began < seconds:
            learn_once()
        print((number - first) * ROWS / (time.perf_counter() - began))
        learner.stop()


def measure(layers: str, learners: int, seconds: float) -> float:
    """Returns the rows per second of all learners together."""
    (port,) = find_free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        sets = [
            part for one in make_sets(port, folder, layers, learners) for part in ("--set", one)
        ]
        command = [str(Path(sys.executable).with_name("relaax-parameter-server"))]
        with subprocess.Popen(
            [*command, "--config", str(PPO), *sets],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as server:
            try:
                own = [sys.executable, "-m", "benchmarks.joint", "learn", str(port), folder]
                processes = [
                    subprocess.Popen(
                        [*own, layers, str(learners), str(seconds)],
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                    for _ in range(max(learners, 1))
                ]
                return sum(float(one.communicate()[0].split()[-1]) for one in processes)
            finally:
                server.terminate()
                server.wait()


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the table."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["learn"]:
        port, folder, layers, learners, seconds = arguments[1:]
        return learn(int(port), folder, layers, int(learners), float(seconds))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--layers", nargs="+", default=["64,64", "256,256"])
    parser.add_argument("--learners", nargs="+", type=int, default=[1, 2])
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for layers in options.layers:
        alone = measure(layers, 0, options.seconds)
        row: dict[str, Any] = {"layers": layers, "alone, rows/s": alone}
        for learners in options.learners:
            row[f"{learners} in step, rows/s"] = measure(layers, learners, options.seconds)
        rows.append(row)
    report("joint", rows)
    return None


if __name__ == "__main__":
    main()
