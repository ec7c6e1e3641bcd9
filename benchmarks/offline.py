"""Learning from recordings: bc, td3_bc and cql from the same 100 000 steps of Pendulum-v1.

    python -m benchmarks.offline                    # seeds 0 to 4
    python -m benchmarks.offline --seeds 0 --only td3_bc

1. sac is trained with algorithms/sac/sac.yaml, seed 0, for 3 000 steps and for 20 000 steps.
2. `relaax record` writes one folder, runs/pendulum-mixed: 50 000 steps of uniformly random actions,
   and 25 000 of each of the two policies, sampled as in training.
3. bc, td3_bc and cql each make 50 000 updates from it, with each seed; the weights of the last
   update then play 100 greedy episodes. A JSON line per run is appended to
   benchmarks/results/offline.jsonl as soon as it is there.

What is there is not repeated, so this program continues where it was broken off.
"""

import argparse
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning import _RELAAX, EPISODES, RESULTS, append_row, evaluate, read_rows
from benchmarks.report import report

ROOT = Path(__file__).parents[1]
RUNS = Path("runs")
MIXED = RUNS / "pendulum-mixed"
SAC = ROOT / "algorithms" / "sac" / "sac.yaml"
# Steps of training -> steps that its policy records.
TRAINED = {3_000: 25_000, 20_000: 25_000}
RANDOM_STEPS = 50_000
# By the settings files.
UPDATES = 50_000
ALGORITHMS = {
    "bc": ROOT / "algorithms" / "bc" / "pendulum.yaml",
    "td3_bc": ROOT / "algorithms" / "td3_bc" / "td3_bc.yaml",
    "cql": ROOT / "algorithms" / "cql" / "cql.yaml",
}


def run_relaax(*arguments: object) -> str:
    """Runs a command; returns its output.

    Raises:
      RuntimeError: it failed; its last lines are in the message.
    """
    done = subprocess.run(
        [*_RELAAX, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"relaax {' '.join(map(str, arguments))}:\n{done.stdout[-2000:]}")
    return done.stdout


def make_recordings() -> None:
    """Trains sac, and records; all or nothing, unless the folder exists."""
    if MIXED.is_dir():
        return
    unfinished = MIXED.with_name(f"{MIXED.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    record = ("--output", unfinished, "--append", "--set", "environment.slots=5")
    random = run_relaax("record", SAC, "--policy", "random", "--steps", RANDOM_STEPS, *record)
    print(f"random: {random.splitlines()[-1]}", flush=True)
    for steps, recorded in TRAINED.items():
        run_dir = RUNS / f"pendulum-sac-{steps}"
        run_relaax(
            "train",
            SAC,
            "--force",
            f"--run-dir={run_dir}",
            f"--max-global-step={steps}",
            "--seed=0",
        )
        said = run_relaax("record", run_dir, "--steps", recorded, *record)
        print(f"sac, {steps} steps: {said.splitlines()[-1]}", flush=True)
    unfinished.rename(MIXED)


def learn(algorithm: str, seed: int) -> dict[str, Any]:
    """Returns the row of one run."""
    file, run_dir = ALGORITHMS[algorithm], RUNS / f"pendulum-offline-{algorithm}-{seed}"
    began = time.perf_counter()
    run_relaax(
        *("train", file, "--force", f"--run-dir={run_dir}", f"--seed={seed}"),
        *(f"--offline={MIXED}", "--eval-freq=0"),
    )
    seconds = time.perf_counter() - began
    row = {**_key(algorithm, seed), **evaluate(run_dir), "greedy_episodes": EPISODES}
    return {**row, "wall_sec": round(seconds, 1)}


def _key(algorithm: str, seed: int) -> dict[str, Any]:
    return {"algorithm": algorithm, "seed": seed, "updates": UPDATES}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what is missing and shows all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2, 3, 4))
    parser.add_argument("--only", nargs="+", choices=ALGORITHMS, default=tuple(ALGORITHMS))
    args = parser.parse_args(argv)
    make_recordings()
    path, rows = RESULTS / "offline.jsonl", []
    for seed in args.seeds:
        for algorithm in args.only:
            key = _key(algorithm, seed)
            row = next((row for row in read_rows(path) if key.items() <= row.items()), None)
            if row is None:
                row = learn(algorithm, seed)
                append_row(path, row)
            rows.append(row)
            print(f"{algorithm}, seed {seed}: {row['greedy_mean']}", flush=True)
    columns = ("algorithm", "seed", "greedy_mean", "greedy_half_95", "wall_sec")
    report("offline, Pendulum-v1", [{name: row[name] for name in columns} for row in rows])


if __name__ == "__main__":
    main()
