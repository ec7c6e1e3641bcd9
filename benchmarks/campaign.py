"""A list of learning runs, made one after another on each core, and continued where it ended.

    python -m benchmarks.campaign benchmarks/campaigns/replay.yaml [--jobs 2] [--list]

The file is a list of rows. Each has the arguments of `benchmarks.learning`, or with `peer: true` of
the part of `benchmarks.peers.learning` that runs Stable-Baselines3, and the minutes that one seed
is expected to take:

    - {config: algorithms/sac/sac.yaml, steps: 20000, seeds: [101, 102], command: train, minutes: 3}

Each seed is a process of its own on one core. Results are appended to benchmarks/results, where
those programs find them. A run is refused if the settings file is not committed, and its result is
not kept if that file has changed meanwhile. `--list` says what is missing and how long it takes.
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from benchmarks.learning import RESULTS, find_row, read_rows
from benchmarks.peers.learning import make_peer_key, name_peer_results

CHECKOUT = Path(__file__).parents[1]


class Row(BaseModel):
    """One line of a campaign: the same run with several seeds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: Path
    steps: int = Field(ge=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    minutes: float = Field(gt=0)
    command: Literal["run", "train"] = "run"
    version: Literal["latest", "best"] = "latest"
    set: tuple[str, ...] = ()
    peer: bool = False

    def find(self, seed: int) -> Mapping[str, Any] | None:
        """Returns the result of a seed; None: it is missing."""
        if not self.peer:
            path = RESULTS / f"{self.config.stem}.jsonl"
            return find_row(
                read_rows(path), self.config, self.set, seed, self.steps, self.command, self.version
            )
        key = make_peer_key(self.config, self.set, seed, self.steps, self.version)
        rows = read_rows(name_peer_results(self.config, "sb3"))
        return next((row for row in rows if key.items() <= row.items()), None)

    def make_command(self, seed: int) -> list[str]:
        """Returns the program of one seed."""
        module = "benchmarks.peers.learning" if self.peer else "benchmarks.learning"
        arguments = [str(self.config), "--steps", str(self.steps), "--seeds", str(seed)]
        arguments += ["--command", self.command, "--version", self.version]
        arguments += [f"--set={override}" for override in self.set]
        arguments += ["--only", "peer"] if self.peer else []
        return [sys.executable, "-m", module, *arguments]

    def describe(self, seed: int) -> str:
        """Returns a line for people."""
        whose = "Stable-Baselines3" if self.peer else "relaax_like"
        sets = "".join(f" {override}" for override in self.set)
        return f"{whose}: {self.config}{sets}, {self.steps:,} steps, seed {seed}"


def load_rows(path: Path) -> list[Row]:
    """Reads a campaign.

    Raises:
      SystemExit: the file is not one; says where.
    """
    try:
        return TypeAdapter(list[Row]).validate_python(yaml.safe_load(path.read_text()))
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise SystemExit(f"{path}: {error}") from None


def require_committed(rows: Sequence[Row]) -> None:
    """Refuses settings that nobody could repeat.

    Raises:
      SystemExit: a settings file is not committed; names it.
    """
    for config in sorted({row.config for row in rows}):
        status = subprocess.run(
            ["git", "status", "--porcelain", "--", str(config)],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            check=True,
        )
        if status.stdout or not (CHECKOUT / config).exists():
            raise SystemExit(f"{config}: not committed; commit it before the first counted run")


def run(rows: Sequence[Row], jobs: int) -> int:
    """Makes the missing runs; returns how many failed."""
    missing = [(row, seed) for row in rows for seed in row.seeds if row.find(seed) is None]
    cores: queue.SimpleQueue[int] = queue.SimpleQueue()
    for core in sorted(os.sched_getaffinity(0))[:jobs]:
        cores.put(core)

    def make(job: tuple[Row, int]) -> bool:
        row, seed = job
        core = cores.get()
        began = time.monotonic()
        try:
            done = subprocess.run(
                row.make_command(seed),
                cwd=CHECKOUT,
                capture_output=True,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            )
        finally:
            cores.put(core)
        minutes = (time.monotonic() - began) / 60
        result = row.find(seed)
        if done.returncode or result is None:
            print(f"FAILED {row.describe(seed)}\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
            return False
        shown = {name: result.get(name) for name in ("training_mean", "greedy_mean")}
        print(
            f"{row.describe(seed)}: {json.dumps(shown)}, {minutes:.1f} min of {row.minutes:g}",
            flush=True,
        )
        return True

    with ThreadPoolExecutor(jobs) as executor:
        return list(executor.map(make, missing)).count(False)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what is missing, or lists it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("campaign", type=Path)
    parser.add_argument("--jobs", type=int, default=1, help="cores, one run each; default: 1")
    parser.add_argument("--list", action="store_true", help="say what is missing, and stop")
    arguments = parser.parse_args(argv)
    rows = load_rows(arguments.campaign)
    if arguments.list:
        minutes = 0.0
        for row in rows:
            for seed in row.seeds:
                is_there = row.find(seed) is not None
                minutes += 0 if is_there else row.minutes
                print(f"{'there  ' if is_there else 'missing'} {row.describe(seed)}")
        print(f"about {minutes / max(arguments.jobs, 1):.0f} minutes with {arguments.jobs} jobs")
        return 0
    require_committed(rows)
    return 1 if run(rows, arguments.jobs) else 0


if __name__ == "__main__":
    sys.exit(main())
