"""CartPole-v1 to a mean of 475 over 100 training episodes: ours beside Stable-Baselines3.

    make bench-peers            # or: python -m benchmarks.peers.run

Ours is `relaax run algorithms/a2c/a2c.yaml`, over the network, as it is. The peers are installed
into .venv-peers. Runs come one after another, each at most 300 s long. A row per run is appended to
benchmarks/results/cartpole_a2c.jsonl as soon as it is there; what is there is not run again without
`--fresh`.

Columns, seconds: `wall` from the command to its end. Of that `start` comes before learning:
imports, and in ours servers and connections until the first episode's end; `learn` lasts until the
target is reached; `end` comes after it: in ours clients are told and weights are saved. Ratios are
those of the medians to ours; more than 1: slower than ours. Medians leave out the runs that did not
reach the target.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning import RESULTS, append_row, read_rows, run_experiment
from benchmarks.report import report

CHECKOUT = Path(__file__).parents[2]
CONFIG = CHECKOUT / "algorithms" / "a2c" / "a2c.yaml"
REQUIREMENTS = Path(__file__).parent / "requirements.txt"
VENV = CHECKOUT / ".venv-peers"
RESULT = RESULTS / "cartpole_a2c.jsonl"
OURS = "relaax a2c"
PROGRAMS = (OURS, "sb3 a2c", "sb3 ppo")
LIMIT_SEC = 300.0
_PARTS = ("wall_sec", "start_up_sec", "learning_sec", "finish_sec")
_COLUMNS = {
    "program": "program",
    "seed": "seed",
    "target": "reached",
    "steps": "env_steps",
    **dict(zip(("wall", "start", "learn", "end"), _PARTS, strict=True)),
}
_RATIOS = {"wall x": "wall_sec", "learn x": "learning_sec"}


def install() -> Path:
    """Installs the peers, unless just these are there; returns their Python."""
    python, installed = VENV / "bin" / "python", VENV / "installed.txt"
    wanted = REQUIREMENTS.read_text()
    if not installed.exists() or installed.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--requirement", str(REQUIREMENTS)]
        subprocess.run(pip, check=True)
        installed.write_text(wanted)
    return python


def run_ours(seed: int) -> dict[str, Any]:
    """Returns a row of ours."""
    with tempfile.TemporaryDirectory() as folder:
        run = run_experiment(CONFIG, Path(folder), [f"seed={seed}"], LIMIT_SEC)
    return {
        "reached": "reached the target" in run.finished,
        "env_steps": run.steps,
        "mean_return": run.mean_return,
        "wall_sec": run.wall_sec,
        "start_up_sec": run.start_up_sec,
        "learning_sec": run.learning_sec,
        "finish_sec": run.finish_sec,
    }


def run_peer(python: Path, algorithm: str, seed: int) -> dict[str, Any]:
    """Returns a row of Stable-Baselines3."""
    began = time.monotonic()
    arguments = [algorithm, str(seed), str(began), str(LIMIT_SEC)]
    done = subprocess.run(
        [python, "-m", "benchmarks.peers.sb3", *arguments],
        cwd=CHECKOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=LIMIT_SEC + 60,
    )
    wall_sec = time.monotonic() - began
    row = json.loads(done.stdout)
    finish_sec = wall_sec - row["start_up_sec"] - row["learning_sec"]
    return {**row, "wall_sec": wall_sec, "finish_sec": finish_sec}


def measure(program: str, seed: int) -> dict[str, Any]:
    """Returns the row of one run."""
    row = run_ours(seed) if program == OURS else run_peer(install(), program.split()[1], seed)
    return {"program": program, "seed": seed, **row}


def summarize(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the table: all runs, and then each program's medians with ratios to ours."""
    table = [_format({**row, "reached": "yes" if row["reached"] else "no"}) for row in rows]
    medians = [_median(program, rows) for program in PROGRAMS]
    for median in medians:
        table.append({**_format(median), **_ratios(median, medians[0])})
    return table


def _format(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **{column: row[name] for column, name in _COLUMNS.items()},
        **dict.fromkeys(_RATIOS, ""),
    }


def _median(program: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    mine = [row for row in rows if row["program"] == program]
    reached = [row for row in mine if row["reached"]]
    median: dict[str, Any] = {
        name: statistics.median([row[name] for row in reached]) if reached else "-"
        for name in ("env_steps", *_PARTS)
    }
    share = f"{len(reached)} of {len(mine)}"
    return {"program": program, "seed": "median", "reached": share, **median}


def _ratios(median: dict[str, Any], ours: dict[str, Any]) -> dict[str, str]:
    return {
        column: f"{median[name] / ours[name]:.2f}"
        for column, name in _RATIOS.items()
        if "-" not in (median[name], ours[name])
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what is missing and shows all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--fresh", action="store_true", help="forget the rows that are there")
    args = parser.parse_args(argv)
    if args.fresh:
        RESULT.unlink(missing_ok=True)
    install()
    wanted = [(program, seed) for seed in args.seeds for program in PROGRAMS]
    done = {(row["program"], row["seed"]) for row in read_rows(RESULT)}
    for program, seed in wanted:
        if (program, seed) not in done:
            append_row(RESULT, measure(program, seed))
    rows = [row for row in read_rows(RESULT) if (row["program"], row["seed"]) in wanted]
    report("CartPole-v1 to a mean of 475", summarize(rows))


if __name__ == "__main__":
    main()
