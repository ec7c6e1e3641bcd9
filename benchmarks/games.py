"""Games of several agents learned by one policy, and how well it then plays.

    python -m benchmarks.games connect_four [--program sb3] [--seeds 1 2 3] [--steps N]
    python -m benchmarks.games simple_spread [--program sb3] [--set KEY=VALUE]
    python -m benchmarks.games tictactoe

`ours` trains the game's experiment with `relaax train`, and `sb3` Stable-Baselines3 with the same
settings (`benchmarks.peers.sb3_games`). Then the last weights play, without randomness of the
policy, as `benchmarks.playing` has it for both. Connect four: 1 000 games against an opponent that
draws its legal moves, 500 of them from each seat. Tic-tac-toe: every game that can follow from the
policy's moves, from each seat, and how many of them it loses. simple_spread: 1 000 games, and what
an agent earns in one; `training_mean` is the same of the last training episodes, of which there are
100, rounded up to the same number for each agent of each game.

One line per seed is appended to `benchmarks/results/games.jsonl`, unless `--no-results`; seeds that
are there already are not run again. The table at the end has the rows of both programs with these
seeds and settings, and the difference of their means with its 90 % interval (Welch's t over seeds).
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import relaax_like
from benchmarks.learning import RESULTS, append_row, read_rows, run_experiment
from benchmarks.peers.peer import CHECKOUT, train_with
from benchmarks.peers.translation import make_settings
from benchmarks.playing import PLAYS
from benchmarks.report import report
from relaax_like.config.loader import load_experiment

ROWS = RESULTS / "games.jsonl"

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Game:
    """A game, and how it is learned.

    Attributes:
      config: its experiment.
      steps: agent steps of the training.
      agents: their number in each game.
      measures: keys of a row that are compared.
    """

    config: str
    steps: int
    agents: int
    measures: Sequence[str]


GAMES = {
    "connect_four": Game(
        config="benchmarks/campaigns/connect_four.yaml",
        steps=1_000_000,
        agents=2,
        measures=("won",),
    ),
    "tictactoe": Game(
        config="algorithms/ppo/tictactoe.yaml", steps=300_000, agents=2, measures=("lost",)
    ),
    "simple_spread": Game(
        config="benchmarks/campaigns/simple_spread.yaml",
        steps=1_000_000,
        agents=3,
        measures=("greedy_mean", "training_mean"),
    ),
}


def run_ours(name: str, seed: int, sets: Sequence[str]) -> Row:
    """Trains with `relaax train`, and plays; returns the results."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        run = run_experiment(CHECKOUT / GAMES[name].config, run_dir, sets, command=("train",))
        with relaax_like.load(run_dir) as policy:

            def choose(seen: Any) -> int:
                policy.reset()
                if not isinstance(seen, dict):
                    return int(policy.act(seen))
                return int(policy.act(seen["observation"], mask=seen["action_mask"].astype(bool)))

            played = PLAYS[name](choose, seed)
    training = {"training_mean": run.mean_return, "training_episodes": run.return_episodes}
    return {
        "agent_steps": run.steps,
        **(training if "training_mean" in GAMES[name].measures else {}),
        **played,
        "minutes": round(run.wall_sec / 60, 1),
    }


def run_sb3(name: str, seed: int, sets: Sequence[str]) -> Row:
    """Trains with Stable-Baselines3, and plays; returns the results."""
    config = CHECKOUT / GAMES[name].config
    algorithm: Any = load_experiment(config, sets).algorithm
    # Theirs has one optimizer for actor and critic.
    one_rate = f"algorithm.critic_learning_rate={algorithm.learning_rate}"
    settings = make_settings(load_experiment(config, [*sets, one_rate]), GAMES[name].agents)
    result: Row = train_with("benchmarks.peers.sb3_games", settings, name)[0]
    return result


PROGRAMS: dict[str, Callable[[str, int, Sequence[str]], Row]] = {"ours": run_ours, "sb3": run_sb3}


def show(name: str, rows: Sequence[Row]) -> None:
    """Prints a table of rows, and the differences ours - sb3 if there are seeds of both."""
    columns = ("program", "seed", *GAMES[name].measures, "minutes")
    report(name, [{column: row[column] for column in columns} for row in rows])
    for measure in GAMES[name].measures:
        ours, theirs = (
            [row[measure] for row in rows if row["program"] == program] for program in PROGRAMS
        )
        if min(len(ours), len(theirs)) > 1:
            test = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.9)
            difference = np.mean(ours) - np.mean(theirs)
            print(
                f"{measure}, ours - sb3: {difference:.3f}, "
                f"90 % interval {test.low:.3f} to {test.high:.3f}"
            )


def main() -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("game", choices=GAMES)
    parser.add_argument("--program", choices=PROGRAMS, default="ours")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--steps", type=int, help="agent steps of the training")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--no-results", action="store_true", help="print the results only")
    args = parser.parse_args()
    game = GAMES[args.game]
    steps = args.steps or game.steps
    known = [] if args.no_results else read_rows(ROWS)
    own = {"config": game.config, "steps": steps, "set": args.set}
    for seed in args.seeds:
        key = {"program": args.program, **own, "seed": seed}
        if _find(known, key):
            continue
        sets = [f"seed={seed}", f"algorithm.max_global_step={steps}", *args.set]
        row = {**key, **PROGRAMS[args.program](args.game, seed, sets)}
        known.append(row)
        print(json.dumps(row), flush=True)
        if not args.no_results:
            append_row(ROWS, row)
    show(args.game, [row for row in _find(known, own) if row["seed"] in args.seeds])


def _find(rows: Sequence[Row], key: Mapping[str, Any]) -> list[Row]:
    return [row for row in rows if key.items() <= row.items()]


if __name__ == "__main__":
    main()
