"""Board games learned by one policy for both seats, and how well it then plays.

    python -m benchmarks.games connect_four [--seeds 1 2 3] [--steps N] [--set KEY=VALUE]
    python -m benchmarks.games tictactoe

Trains the game's experiment with `relaax train`, and plays greedily with the last weights.
Connect four: 1 000 games against an opponent that draws its legal moves, 500 of them from each
seat. Tic-tac-toe: every game that can follow from the policy's moves, from each seat, and how many
of them it loses. One line per seed is appended to `benchmarks/results/games.jsonl`, unless
`--no-results`; seeds that are there already are not run again.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pettingzoo.classic import connect_four_v3, tictactoe_v3

import relaax_like

CHECKOUT = Path(__file__).parents[1]
RESULTS = CHECKOUT / "benchmarks" / "results" / "games.jsonl"
STEPS = {"connect_four": 1_000_000, "tictactoe": 300_000}
CONFIGS = {
    "connect_four": "benchmarks/campaigns/connect_four.yaml",
    "tictactoe": "algorithms/ppo/tictactoe.yaml",
}
_GAMES = 1000

# Chooses a move from what PettingZoo shows an agent.
Player = Callable[[Any], int]


def play_random(policy: Player, seed: int) -> dict[str, Any]:
    """Plays connect four against random legal moves; returns the results of both seats."""
    rng = np.random.default_rng(seed)

    def draw(seen: Any) -> int:
        return int(rng.choice(np.flatnonzero(seen["action_mask"])))

    won = drawn = 0
    env = connect_four_v3.env()
    for number in range(_GAMES):
        seat = number % 2
        env.reset()
        players: list[Player] = [draw, draw]
        players[seat] = policy
        rewards = _finish(env, dict(zip(env.possible_agents, players, strict=True)))
        won += rewards[seat] > 0
        drawn += rewards[seat] == 0
    return {"won": won, "drawn": drawn, "games": _GAMES}


def _finish(env: Any, players: dict[str, Player]) -> list[float]:
    """Plays a game to its end; returns the reward of each seat."""
    while not all(env.terminations.values()):
        agent = env.agent_selection
        env.step(players[agent](env.observe(agent)))
    return [env.rewards[agent] for agent in env.possible_agents]


def play_tree(policy: Player) -> dict[str, Any]:
    """Plays each line of tic-tac-toe that the policy allows; returns how many of them it loses."""
    lost = lines = 0
    env = tictactoe_v3.env()
    answers: dict[bytes, int] = {}

    def answer(seen: Any) -> int:
        key = seen["observation"].tobytes() + seen["action_mask"].tobytes()
        if key not in answers:
            answers[key] = policy(seen)
        return answers[key]

    for seat in (0, 1):
        pending: list[list[int]] = [[]]
        while pending:
            moves = pending.pop()
            env.reset()
            for move in moves:
                env.step(move)
            own = env.possible_agents[seat]
            while env.agent_selection == own and not all(env.terminations.values()):
                moves = [*moves, answer(env.observe(own))]
                env.step(moves[-1])
            if all(env.terminations.values()):
                lines += 1
                lost += env.rewards[own] < 0
                continue
            seen = env.observe(env.agent_selection)
            pending += [[*moves, int(move)] for move in np.flatnonzero(seen["action_mask"])]
    return {"lost": lost, "lines": lines}


def run(game: str, seed: int, steps: int, sets: Sequence[str]) -> dict[str, Any]:
    """Trains with one seed, and plays; returns the line for the results."""
    config = CHECKOUT / CONFIGS[game]
    with tempfile.TemporaryDirectory() as folder:
        own = (f"seed={seed}", f"algorithm.max_global_step={steps}", f"run_dir={folder}/run", *sets)
        flags = [part for one in own for part in ("--set", one)]
        began = time.monotonic()
        command = [sys.executable, "-m", "relaax_like.cli.main", "train", str(config), *flags]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        minutes = (time.monotonic() - began) / 60
        with relaax_like.load(f"{folder}/run") as policy:

            def choose(seen: Any) -> int:
                policy.reset()
                return int(policy.act(seen["observation"], mask=seen["action_mask"].astype(bool)))

            played = play_random(choose, seed) if game == "connect_four" else play_tree(choose)
    key = {"config": CONFIGS[game], "seed": seed, "steps": steps, "set": list(sets)}
    return {**key, **played, "minutes": round(minutes, 1)}


def main() -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("game", choices=STEPS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--steps", type=int, help="agent steps of the training")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--no-results", action="store_true", help="print the results only")
    args = parser.parse_args()
    steps = args.steps or STEPS[args.game]
    known = (
        [json.loads(line) for line in RESULTS.read_text().splitlines()]
        if (RESULTS.exists())
        else []
    )
    for seed in args.seeds:
        key = {"config": CONFIGS[args.game], "seed": seed, "steps": steps, "set": args.set}
        if any(key.items() <= row.items() for row in known) and not args.no_results:
            continue
        line = json.dumps(run(args.game, seed, steps, args.set))
        print(line, flush=True)
        if not args.no_results:
            with RESULTS.open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
