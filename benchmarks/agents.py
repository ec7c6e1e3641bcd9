"""Speed of agents in one game, compared with as many environments of one agent.

    python -m benchmarks.agents [--rounds 5] [--algorithms ppo dqn]

Both do the same for each agent (`benchmarks.agents_games`) and are learned from by `relaax train`
with the same settings, alternating. Env steps per second of learning, without start and compiling.
The ratio is the median of the rounds' ratios, game to environments.
"""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import report

CHECKOUT = Path(__file__).parents[1]
AGENTS = 16
SIDES = {
    "one game": {"env": "pettingzoo:benchmarks.agents_games", "slots": 1},
    "environments": {"env": "benchmarks.agents_games:Walk-v0", "slots": AGENTS},
}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {"max_global_step": 200_000, "num_steps": 2048, "rollout_steps": 128, "epochs": 4},
    "dqn": {"max_global_step": 30_000},
}


def measure(algorithm: str, side: str) -> float:
    """Trains once; returns env steps per second."""
    settings = ALGORITHMS[algorithm]
    with tempfile.TemporaryDirectory() as folder:
        sets = [f"algorithm.{key}={value}" for key, value in settings.items()]
        sets += [f"environment.{key}={value}" for key, value in SIDES[side].items()]
        config = Path(folder) / "experiment.yaml"
        config.write_text(f"algorithm: {{name: {algorithm}}}\n")
        flags = [part for one in (*sets, f"run_dir={folder}/run") for part in ("--set", one)]
        command = [sys.executable, "-m", "relaax_like.cli.main", "train", str(config), *flags]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=CHECKOUT)
    found = re.search(r"([\d.]+) s learning", done.stdout + done.stderr)
    assert found is not None, done.stdout
    return settings["max_global_step"] / float(found[1])


def main() -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    args = parser.parse_args()
    rows = []
    for algorithm in args.algorithms:
        rates: dict[str, list[float]] = {side: [] for side in SIDES}
        for number in range(args.rounds):
            for side in list(SIDES)[:: -1 if number % 2 else 1]:
                rates[side].append(measure(algorithm, side))
        game, plain = rates.values()
        ratios = [one / other for one, other in zip(game, plain, strict=True)]
        rows.append(
            {
                "algorithm": algorithm,
                **{side: round(statistics.median(own)) for side, own in rates.items()},
                "ratio": f"{statistics.median(ratios):.2f}",
                "of each round": ", ".join(f"{one:.2f}" for one in ratios),
            }
        )
    report(f"{AGENTS} agents, env steps/s", rows)


if __name__ == "__main__":
    main()
