"""The mirror loss on CartPole, whose left and right are the same: asymmetry, and steps to solve it.

    python -m benchmarks.mirror [--seeds 0 1 2] [--weights 0 0.1 1 4]

Each run is `relaax train algorithms/ppo/ppo.yaml` for 100 000 steps. `asymmetry %` is the mean
total variation between what the policy does and the mirror image of what it does in the mirrored
state, over the states of the last 20 iterations: 0 is symmetric, 100 not at all. `steps to 475` is
when the mean return of the last 100 training episodes has first been so high.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning import run_experiment
from benchmarks.report import report
from relaax_like.metrics.curves import read_curves

CONFIG = Path(__file__).parents[1] / "algorithms" / "ppo" / "ppo.yaml"
SOLVED = 475.0
_LAST = 20


def train(seed: int, weight: float) -> dict[str, Any]:
    """Returns a row of one run."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            f"seed={seed}",
            f"algorithm.mirror={weight}",
            "algorithm.mirror_observation=[-0.1, -1, -2, -3]",
            "algorithm.mirror_action=[1, 0.1]",
            "learner.target_return=null",
            "environment.clients=1",
            "environment.slots=8",
        ]
        run_experiment(CONFIG, Path(folder), overrides, command=("train",))
        curves = read_curves(Path(folder) / "metrics")
    asymmetry, returns = curves["Optimizer/asymmetry"], curves["Train/Return"]
    solved = np.flatnonzero(np.asarray(returns.values) >= SOLVED)
    return {
        "mirror": weight,
        "seed": seed,
        "asymmetry %": 100 * float(np.mean(asymmetry.values[-_LAST:])),
        "steps to 475": int(returns.steps[solved[0]]) if len(solved) else "-",
        "training mean": float(returns.values[-1]),
    }


def main() -> None:
    """Runs all, one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--weights", type=float, nargs="+", default=[0.0, 0.1, 1.0, 4.0])
    args = parser.parse_args()
    rows = []
    for weight in args.weights:
        runs = [train(seed, weight) for seed in args.seeds]
        means = {
            key: statistics.mean(run[key] for run in runs)
            for key in ("asymmetry %", "training mean")
        }
        rows += [*runs, {**runs[0], "seed": f"mean of {len(runs)}", "steps to 475": "", **means}]
    report("mirror loss, CartPole-v1", rows)


if __name__ == "__main__":
    main()
