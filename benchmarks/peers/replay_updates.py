"""Updates per second: ours beside Stable-Baselines3's, and of sac and CrossQ beside SBX's.

    python -m benchmarks.peers.replay_updates [--algorithm sac] [--at-once 4] [--core 0]

Both draw minibatches from 10,000 steps with 17 numbers in an observation and 6 in an action, and
learn from them, on one thread, alternately. The networks are two layers of 64 with minibatches of
64, and two of 256 with 256. All other settings are those of the algorithm's YAML file, which both
get (`benchmarks.peers.translation`). One call makes `--at-once` updates: ours is `Table.sample`,
`LearningPolicy.data_preprocess` and `forward`, as a learner calls them; theirs is `train`. The rate
is that of the fastest call, because the machine can have other users.
"""

import argparse
import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.peers.peer import start_peer
from benchmarks.peers.replay_cases import ALGORITHMS, SIZES, STEPS, Steps, draw
from benchmarks.peers.translation import make_settings
from benchmarks.peers.update_cases import ACTION, OBSERVATION
from benchmarks.report import report
from relaax_like.config.algorithm_folder import find_algorithm, load_algorithm_module
from relaax_like.config.loader import load_experiment
from relaax_like.experience.rollout import Rollout
from relaax_like.learn.learning_policy import LearningPolicy
from relaax_like.learn.replayed import ReplayIteration
from relaax_like.learn.updates import CompiledUpdates
from relaax_like.replay import RowSpec, Storage, Table, Transitions, Uniform

# Calls that are not counted: ours compiles in the first one.
_WARM_UP = 3


def make_overrides(algorithm: str, units: int, minibatch: int, at_once: int) -> list[str]:
    """Returns what differs from the algorithm's file."""
    sets = {
        "state_size": OBSERVATION,
        "network": f"{{layers: [{units}, {units}], activation: relu}}",
        "batch_size": minibatch,
        "updates_at_once": at_once,
        "capacity": 2 * STEPS,
    }
    if algorithm == "dqn":
        sets["num_actions"] = ACTION
    else:
        sets |= {"action_size": ACTION, "action_low": -1, "action_high": 1}
    return [f"algorithm.{name}={value}" for name, value in sets.items()]


def make_ours(algorithm: str, config: Any, at_once: int) -> Callable[[], None]:
    """Makes one call of ours."""
    folder = find_algorithm(config.name)
    model = load_algorithm_module(folder, "model").make_model(config, 0)
    made = load_algorithm_module(folder, "algorithm").make_algorithm(config, model, 0)
    policy = LearningPolicy(CompiledUpdates(made, config.optimizers), config.plan, 0)
    rollout = make_rollout(draw(algorithm))
    table = Table(
        Storage(RowSpec.from_rollout(rollout), config.capacity),
        Transitions(n_step=config.n_step, discount=config.gamma),
        Uniform(),
        minibatch_size=config.batch_size,
    )
    table.insert(rollout)

    def update() -> None:
        minibatches = table.sample(at_once)
        iteration = ReplayIteration(minibatches, 0, (), None)
        policy.forward(policy.data_preprocess(iteration))

    return update


def make_rollout(steps: Steps) -> Rollout:
    """Returns the steps as one slot's rollout."""
    observations = steps.observations[:, None]
    zeros = np.zeros((STEPS, 1), np.float32)
    return Rollout(
        inputs={"observation": observations[:-1]},
        next_inputs={"observation": observations[1:]},
        next_alive=np.ones((STEPS, 1), np.float32),
        rewards=steps.rewards[:, None, None],
        actions={"action": steps.actions[:, None]},
        log_prob=zeros,
        states={},
        versions=np.zeros(STEPS, np.int64),
        starts=np.array([[0, 0, 0]]),
    )


def measure(algorithm: str, units: int, at_once: int, rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of each call of each program."""
    experiment = load_experiment(algorithm, make_overrides(algorithm, units, SIZES[units], at_once))
    update = make_ours(algorithm, experiment.algorithm, at_once)
    settings = json.dumps(make_settings(experiment)) + "\n"
    libraries = {"sac": ("sb3", "sbx"), "crossq": ("sbx",)}.get(algorithm, ("sb3",))
    took: dict[str, list[float]] = {program: [] for program in ("relaax", *libraries)}
    with contextlib.ExitStack() as stack:
        peers = {
            library: stack.enter_context(
                start_peer("benchmarks.peers.sb3_replay_updates", library, library=library)
            )
            for library in libraries
        }
        for peer in peers.values():
            if _ask(peer, settings) != "ready\n":
                raise RuntimeError("the peer's process has ended; its output is above")
        for _ in range(_WARM_UP + rounds):
            began = time.perf_counter()
            update()
            took["relaax"].append(time.perf_counter() - began)
            for library, peer in peers.items():
                took[library].append(float(_ask(peer, f"{at_once}\n")))
        for peer in peers.values():
            assert peer.stdin is not None
            peer.stdin.close()
    return {program: seconds[_WARM_UP:] for program, seconds in took.items()}


def _ask(peer: subprocess.Popen[str], line: str) -> str:
    """Sends a line; returns the line that answers it."""
    assert peer.stdin is not None
    assert peer.stdout is not None
    peer.stdin.write(line)
    peer.stdin.flush()
    return peer.stdout.readline()


def summarize(algorithm: str, units: int, at_once: int, rounds: int) -> dict[str, Any]:
    """Returns a row: updates per second in the fastest call of each program, and ours by theirs."""
    took = measure(algorithm, units, at_once, rounds)
    ours, *theirs = (at_once / min(seconds) for seconds in took.values())
    return {
        "algorithm": algorithm,
        "layers": f"{units}, {units}",
        "minibatch": SIZES[units],
        "in one call": at_once,
        **{f"{name}, updates/s": at_once / min(seconds) for name, seconds in took.items()},
        "ours is x": ", ".join(f"{ours / their:.2f}" for their in theirs),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measures one algorithm, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=ALGORITHMS, help="default: all")
    parser.add_argument("--at-once", type=int, default=4, help="updates in one call")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--core", type=int, help="that all programs run on; default: any")
    args = parser.parse_args(argv)
    if args.core is not None:
        os.sched_setaffinity(0, {args.core})
    rows = [
        summarize(algorithm, units, args.at_once, args.rounds)
        for algorithm in ([args.algorithm] if args.algorithm else ALGORITHMS)
        for units in SIZES
    ]
    report("off-policy updates", rows)


if __name__ == "__main__":
    main()
