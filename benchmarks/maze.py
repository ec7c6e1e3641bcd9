"""PointMaze_UMaze-v3 with 20 recorded episodes: as a prior, or as the first steps of sac's table.

    python -m benchmarks.maze [--seeds 0 1 2] [--steps 60000]

`benchmarks.maze_client` has the maze and a script that knows the way; its packages are installed
into .venv-maze. The script's episodes are either a Minari data set, which is the prior of half of
each minibatch, or they are played at the start of the run, so that the table begins with them. In
both, learning begins after 1 000 steps of the policy, with one update for each further step.

Columns: steps of the policy until 90 of 100 episodes in a row, of the training, have reached the
goal, and the budget if they never did; how many of the last 100 did; how many of 100 greedy
episodes after the training. A JSON line per run is appended to benchmarks/results/maze.jsonl.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster import run_servers
from benchmarks.learning import RESULTS, append_row
from benchmarks.maze_client import DATA_SET
from benchmarks.peers.peer import start_peer
from benchmarks.report import report

_CONFIG = Path(__file__).parent / "maze.yaml"
_CLIENT = "benchmarks.maze_client"
_DEMONSTRATIONS, _WARM_UP, _WINDOW, _WANTED = 20, 1_000, 100, 90


def main(argv: Sequence[str] | None = None) -> None:
    """Measures all rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60_000)
    arguments = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINARI_DATASETS_PATH"] = folder
        recorded = ask("record", _DEMONSTRATIONS)[-1]["steps"]
        for seed in arguments.seeds:
            for how in ("prior", "table"):
                rows.append(measure(how, seed, arguments.steps, recorded))
                append_row(RESULTS / "maze.jsonl", rows[-1])
    report("maze", rows)


def measure(how: str, seed: int, steps: int, recorded: int) -> dict[str, Any]:
    """Trains once, then plays greedy episodes; returns a row."""
    scripted = _DEMONSTRATIONS if how == "table" else 0
    sets = [
        f"seed={seed}",
        "algorithm.state_size=null",
        "algorithm.num_actions=null",
        f"algorithm.warm_up_steps={_WARM_UP + (recorded if scripted else 0)}",
    ]
    if not scripted:
        sets += [f"algorithm.prior=minari:{DATA_SET}", "algorithm.prior_fraction=0.5"]
    began = time.monotonic()
    with run_servers(_CONFIG, *sets) as address:
        training = ask("play", address, steps, seed, scripted)
        took = time.monotonic() - began
        greedy = ask("evaluate", address, 100)
    return {
        "recordings": how,
        "seed": seed,
        "steps": steps,
        "recorded steps": recorded,
        "90 of 100 after": find_first(training, steps),
        "last 100": sum(episode["reached"] for episode in training[-_WINDOW:]),
        "greedy, 100": sum(episode["reached"] for episode in greedy),
        "wall, s": round(took),
    }


def find_first(episodes: Sequence[dict[str, Any]], steps: int) -> int:
    """Returns the steps until so many of the last episodes reached the goal."""
    for end in range(_WINDOW, len(episodes) + 1):
        if sum(episode["reached"] for episode in episodes[end - _WINDOW : end]) >= _WANTED:
            return int(episodes[end - 1]["steps"])
    return steps


def ask(*arguments: Any) -> list[dict[str, Any]]:
    """Runs `benchmarks.maze_client`; returns what it printed."""
    with start_peer(_CLIENT, *map(str, arguments), library="maze") as process:
        output, _ = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, [_CLIENT, *map(str, arguments)])
    return [json.loads(line) for line in output.splitlines()]


if __name__ == "__main__":
    main()
