"""Two policies with different spaces in one run: hunters and prey of MPE's simple_tag.

    python -m benchmarks.tag [--command train run] [--learn hunters prey both] [--seeds 1 2 3 4 5]

Trains `benchmarks/campaigns/simple_tag.yaml`, with `relaax train` (one process) or with
`relaax run` (servers and a client): one side against the other's first version, which is frozen, or
both. Then a side's last version (greedily), its first version and random actions play games against
the other side's first version; first versions draw their actions, as a policy does that does not
learn. Measured is the mean return of a game: of the three hunters together (10 each for a catch),
and of the prey; of a frozen side, the version at the end. A line per run is appended to
`benchmarks/results/tag.jsonl`; runs that are there are not repeated.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpe2 import simple_tag_v3

import relaax_like

CHECKOUT = Path(__file__).parents[1]
CONFIG = CHECKOUT / "benchmarks" / "campaigns" / "simple_tag.yaml"
RESULTS = CHECKOUT / "benchmarks" / "results" / "tag.jsonl"
SIDES = ("hunters", "prey")
BOTH = "both"
_GAMES = 500

# Chooses an action from what one agent sees.
Player = Callable[[np.ndarray], int]


def play(players: dict[str, Player], seed: int) -> dict[str, float]:
    """Plays games; returns the mean return of a game of each side."""
    env = simple_tag_v3.parallel_env()
    returns = dict.fromkeys(SIDES, 0.0)
    for number in range(_GAMES):
        seen, _ = env.reset(seed=seed + number)
        while env.agents:
            actions = {agent: players[_find_side(agent)](seen[agent]) for agent in env.agents}
            seen, rewards, *_ = env.step(actions)
            for agent, reward in rewards.items():
                returns[_find_side(agent)] += reward / _GAMES
    return returns


def _find_side(agent: str) -> str:
    return SIDES[agent.startswith("agent")]


def run(command: str, learn: str, seed: int, sets: list[str]) -> dict[str, Any]:
    """Trains with one seed, and plays; returns the line for the results."""
    learning = SIDES if learn == BOTH else (learn,)
    with tempfile.TemporaryDirectory() as folder:
        trained = f"policies_to_train=[{', '.join(learning)}]"
        own = (f"seed={seed}", f"run_dir={folder}/run", trained, *sets)
        flags = [part for one in own for part in ("--set", one)]
        began = time.monotonic()
        line = [sys.executable, "-m", "relaax_like.cli.main", command, str(CONFIG), *flags]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
        minutes = (time.monotonic() - began) / 60
        found: dict[str, Any] = {}
        for side, other in zip(SIDES, SIDES[::-1], strict=True):
            if side not in learning:
                with relaax_like.load(f"{folder}/run/policies/{side}") as policy:
                    found[side] = {"version": policy.version}
                continue
            opponent = _load(f"{folder}/run/policies/{other}", 0, greedy=False)
            players = {
                "last": _load(f"{folder}/run/policies/{side}", "latest"),
                "first": _load(f"{folder}/run/policies/{side}", 0, greedy=False),
                "random": _draw(seed),
            }
            found[side] = {
                name: round(play({side: player, other: opponent}, 10_000 * seed)[side], 2)
                for name, player in players.items()
            }
    key = {"command": command, "learn": learn, "seed": seed, "set": sets}
    return {**key, **found, "minutes": round(minutes, 1)}


def _load(folder: str, version: str | int, greedy: bool = True) -> Player:
    policy = relaax_like.load(folder, version)
    return lambda seen: int(policy.act(seen, greedy))


def _draw(seed: int) -> Player:
    rng = np.random.default_rng(seed)
    return lambda seen: int(rng.integers(5))


def main() -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--command", nargs="+", choices=("train", "run"), default=["train", "run"])
    parser.add_argument("--learn", nargs="+", choices=(*SIDES, BOTH), default=[*SIDES, BOTH])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--no-results", action="store_true", help="print the results only")
    args = parser.parse_args()
    text = RESULTS.read_text() if RESULTS.exists() else ""
    known = [json.loads(line) for line in text.splitlines()]
    for command, learn, seed in itertools.product(args.command, args.learn, args.seeds):
        key = {"command": command, "learn": learn, "seed": seed, "set": args.set}
        if any(key.items() <= row.items() for row in known) and not args.no_results:
            continue
        line = json.dumps(run(command, learn, seed, args.set))
        print(line, flush=True)
        if not args.no_results:
            with RESULTS.open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
