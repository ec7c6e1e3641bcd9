"""Environment steps per second while learning: our ppo in one process beside Stable-Baselines3's.

    python -m benchmarks.peers.throughput [--env cartpole|half_cheetah] [--rounds 3]

`relaax train --trace` and Stable-Baselines3's PPO get the same settings, one environment process,
one thread for the mathematics, and use up the same budget; they alternate. Counted is from the end
of the fifth update to the end of the last one: sampling, updates and all between, no start, no
compiler.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.learning import run_experiment
from benchmarks.peers.moments import make_moments, read_moments
from benchmarks.peers.peer import install, run_peer
from benchmarks.peers.run import PPO, ZOO
from benchmarks.peers.translation import make_settings
from benchmarks.report import report
from relaax_like.config.loader import load_experiment
from relaax_like.config.plan import OnPolicy, get_plan

# Updates that are not counted: the first one is compiled, and processors wake up.
_SKIP = 5


@dataclass(frozen=True, kw_only=True)
class Case:
    """What both do.

    Attributes:
      name: in the table.
      config: the YAML file.
      overrides: "section.key=value" each.
    """

    name: str
    config: Path
    overrides: Sequence[str]


CASES = {
    # 390 iterations; linear schedules go by the same number.
    "cartpole": Case(
        name="CartPole-v1, 8 environments",
        config=PPO,
        overrides=(*ZOO, "learner.target_return=null", "algorithm.max_global_step=99840"),
    ),
    "half_cheetah": Case(
        name="HalfCheetah-v5, 1 environment",
        config=PPO.parent / "half_cheetah.yaml",
        overrides=(
            "algorithm.network.layers=[64, 64]",
            "algorithm.network.activation=tanh",
            "algorithm.update_norm=false",
            "algorithm.normalize_rewards=false",
            "algorithm.max_global_step=50176",
        ),
    ),
}


def measure_ours(case: Case, seed: int) -> float:
    """Returns our steps per second."""
    overrides = [*case.overrides, f"seed={seed}"]
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        run_experiment(case.config, Path(folder), overrides, command=("train", "--trace"))
        moments = read_moments(Path(folder), started)
    return moments.compute_rate(_get_env_steps(case), _SKIP)


def measure_sb3(case: Case, seed: int) -> float:
    """Returns Stable-Baselines3's steps per second."""
    experiment = load_experiment(case.config, [*case.overrides, f"seed={seed}"])
    result, _ = run_peer(make_settings(experiment))
    return make_moments(result["updates"]).compute_rate(_get_env_steps(case), _SKIP)


def _get_env_steps(case: Case) -> int:
    """Returns the environment steps of one iteration."""
    plan = get_plan(load_experiment(case.config, case.overrides).algorithm)
    assert isinstance(plan, OnPolicy)
    return plan.env_steps


PROGRAMS: dict[str, Callable[[Case, int], float]] = {
    "relaax ppo serial": measure_ours,
    "sb3 ppo": measure_sb3,
}


def compare(case: Case, rounds: int) -> list[dict[str, Any]]:
    """Returns a row per program: the median of some rounds, in which they alternate."""
    rates: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for seed in range(rounds):
        for name, measure in PROGRAMS.items():
            rates[name].append(measure(case, seed))
    ours = statistics.median(rates["relaax ppo serial"])
    return [
        {
            "environment": case.name,
            "program": name,
            "steps/s": round(statistics.median(own)),
            "least": round(min(own)),
            "most": round(max(own)),
            "ours is x": f"{ours / statistics.median(own):.2f}",
        }
        for name, own in rates.items()
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Measures one environment, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", choices=CASES, help="default: all")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(argv)
    install()
    cases = CASES.values() if args.env is None else [CASES[args.env]]
    rows = [row for case in cases for row in compare(case, args.rounds)]
    report("ppo, steps while learning", rows)


if __name__ == "__main__":
    main()
