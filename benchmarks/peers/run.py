"""CartPole-v1 to a mean of 475 over 100 training episodes: ours beside Stable-Baselines3.

    make bench-peers            # or: python -m benchmarks.peers.run [--algorithm a2c|ppo]

Runs come one after another, each at most 300 s long. The peers are installed into .venv-peers. A
row per run is appended to benchmarks/results/cartpole_ALGORITHM.jsonl as soon as it is there; what
is there is not run again without `--fresh`.

a2c: `relaax run algorithms/a2c/a2c.yaml`, over the network, as it is. Of its `wall` seconds, from
the command to its end, `start` comes before learning: imports, and in ours servers and connections
until the first episode's end; `learn` lasts until the target is reached; `end` comes after it: in
ours, clients are notified and weights are saved.

ppo: `relaax run algorithms/ppo/ppo.yaml` with rl-baselines3-zoo's settings for CartPole-v1, and
`relaax train` with the same eight environments in its one process.
Here `start` lasts until the first update begins, in all programs; `compile` is what the first
update takes longer than the median of all; `learn` is the rest until the training is over; `end`
what comes after it.

Ratios are those of the medians to the first program's; more than 1: slower. Medians leave out the
runs that did not reach the target.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.learning import RESULTS, Run, append_row, read_rows, run_experiment
from benchmarks.peers.moments import make_moments, read_moments
from benchmarks.peers.peer import CHECKOUT, Result, Settings, install, run_peer
from benchmarks.peers.translation import make_settings
from benchmarks.report import report
from relaax_like.config.loader import load_experiment

A2C = CHECKOUT / "algorithms" / "a2c" / "a2c.yaml"
PPO = CHECKOUT / "algorithms" / "ppo" / "ppo.yaml"
# Where ppo.yaml differs from rl-baselines3-zoo's settings for CartPole-v1.
ZOO = (
    "algorithm.num_steps=256",
    "algorithm.max_global_step=100000",
    "algorithm.entropy_coefficient=0",
)
LIMIT_SEC = 300.0

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Programs side by side.

    Attributes:
      programs: name -> a function that runs one with a seed and returns its row. Ratios are to the
        first.
      seeds: by default.
      columns: of the table -> key of a row; the numbers, of which there are medians.
      ratios: the same, as ratios of the medians.
    """

    programs: Mapping[str, Callable[[int], Row]]
    seeds: Sequence[int]
    columns: Mapping[str, str]
    ratios: Mapping[str, str]


def run_a2c(seed: int) -> Row:
    """Returns a row of our a2c."""
    with tempfile.TemporaryDirectory() as folder:
        run = run_experiment(A2C, Path(folder), [f"seed={seed}"], LIMIT_SEC)
    return {
        **_describe(run),
        "start_up_sec": run.start_up_sec,
        "learning_sec": run.learning_sec,
        "finish_sec": run.finish_sec,
    }


def run_ppo(command: str, overrides: Sequence[str], seed: int) -> Row:
    """Returns a row of our ppo."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        run = run_experiment(
            PPO, Path(folder), [*overrides, f"seed={seed}"], LIMIT_SEC, (command, "--trace")
        )
        moments = read_moments(Path(folder), started)
    return {**_describe(run), **moments.split(float(moments.ends[-1]), run.wall_sec)}


def _describe(run: Run) -> Row:
    return {
        "reached": "reached the target" in run.finished,
        "env_steps": run.steps,
        "mean_return": run.mean_return,
        "wall_sec": run.wall_sec,
    }


def make_sb3_settings(algorithm: str, seed: int) -> Settings:
    """Returns rl-baselines3-zoo's settings for CartPole-v1."""
    settings = make_settings(load_experiment(PPO, [*ZOO, f"seed={seed}"]))
    settings["limit_sec"] = LIMIT_SEC
    if algorithm == "ppo":
        return settings
    return {
        **settings,
        "algorithm": "a2c",
        "steps": 500_000,
        "hyperparameters": {"ent_coef": 0.0},
        "falling": [],
        "policy": {},
    }


def run_sb3_as_a2c(algorithm: str, seed: int) -> Row:
    """Returns a row of Stable-Baselines3, of the kind of `run_a2c`."""
    result, wall_sec = run_peer(make_sb3_settings(algorithm, seed))
    return {
        **_describe_sb3(result),
        "start_up_sec": result["imported_sec"],
        "learning_sec": result["ended_sec"] - result["imported_sec"],
        "wall_sec": wall_sec,
        "finish_sec": wall_sec - result["ended_sec"],
    }


def run_sb3_ppo(seed: int) -> Row:
    """Returns a row of Stable-Baselines3's PPO, of the kind of `run_ppo`."""
    result, wall_sec = run_peer(make_sb3_settings("ppo", seed))
    split = make_moments(result["updates"]).split(result["ended_sec"], wall_sec)
    return {**_describe_sb3(result), "wall_sec": wall_sec, **split}


def _describe_sb3(result: Result) -> Row:
    return {
        "reached": result["reached"],
        "env_steps": result["env_steps"],
        "mean_return": result["training_mean"],
        "versions": result["versions"],
    }


COMPARISONS = {
    "a2c": Comparison(
        programs={
            "relaax a2c": run_a2c,
            "sb3 a2c": lambda seed: run_sb3_as_a2c("a2c", seed),
            "sb3 ppo": lambda seed: run_sb3_as_a2c("ppo", seed),
        },
        seeds=range(3),
        columns={
            "steps": "env_steps",
            "wall": "wall_sec",
            "start": "start_up_sec",
            "learn": "learning_sec",
            "end": "finish_sec",
        },
        ratios={"wall x": "wall_sec", "learn x": "learning_sec"},
    ),
    "ppo": Comparison(
        programs={
            "relaax ppo serial": lambda seed: run_ppo("train", ZOO, seed),
            "relaax ppo": lambda seed: run_ppo("run", ZOO, seed),
            "sb3 ppo": run_sb3_ppo,
        },
        seeds=range(5),
        columns={
            "steps": "env_steps",
            "wall": "wall_sec",
            "start": "start_sec",
            "compile": "compile_sec",
            "learn": "learn_sec",
            "end": "finish_sec",
        },
        ratios={"wall x": "wall_sec", "learn x": "learn_sec"},
    ),
}


def summarize(comparison: Comparison, rows: Sequence[Row]) -> list[Row]:
    """Returns the table: all runs, and then each program's medians with ratios to the first's."""
    columns, ratios = comparison.columns, comparison.ratios
    table: list[Row] = []
    for row in rows:
        identity = {"program": row["program"], "seed": row["seed"]}
        numbers = {column: row[key] for column, key in columns.items()}
        target = "yes" if row["reached"] else "no"
        table.append({**identity, "target": target, **numbers, **dict.fromkeys(ratios, "")})
    medians = {name: _median(name, list(columns.values()), rows) for name in comparison.programs}
    first = next(iter(medians.values()))
    for program, median in medians.items():
        mine = [row["reached"] for row in rows if row["program"] == program]
        identity = {"program": program, "seed": "median", "target": f"{sum(mine)} of {len(mine)}"}
        numbers = {column: median.get(key, "-") for column, key in columns.items()}
        compared = {
            column: f"{median[key] / first[key]:.2f}" if median and first else "-"
            for column, key in ratios.items()
        }
        table.append({**identity, **numbers, **compared})
    return table


def _median(program: str, keys: Sequence[str], rows: Sequence[Row]) -> dict[str, float]:
    """Returns the medians of a program's runs that reached the target; {} without one."""
    mine = [row for row in rows if row["program"] == program and row["reached"]]
    return {key: statistics.median([row[key] for row in mine]) for key in keys} if mine else {}


def compare(algorithm: str, seeds: Sequence[int] | None, fresh: bool) -> None:
    """Runs what is missing of a comparison and shows all."""
    comparison = COMPARISONS[algorithm]
    path = RESULTS / f"cartpole_{algorithm}.jsonl"
    if fresh:
        path.unlink(missing_ok=True)
    wanted = [(name, s) for s in seeds or comparison.seeds for name in comparison.programs]
    done = {(row["program"], row["seed"]) for row in read_rows(path)}
    for program, seed in wanted:
        if (program, seed) not in done:
            row = comparison.programs[program](seed)
            append_row(path, {"program": program, "seed": seed, **row})
    rows = [row for row in read_rows(path) if (row["program"], row["seed"]) in wanted]
    report(f"CartPole-v1 to a mean of 475, {algorithm}", summarize(comparison, rows))


def main(argv: Sequence[str] | None = None) -> None:
    """Makes one comparison, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=COMPARISONS, help="default: both")
    parser.add_argument("--seeds", type=int, nargs="+", help="default: 0 1 2; of ppo 0 to 4")
    parser.add_argument("--fresh", action="store_true", help="forget the rows that are there")
    args = parser.parse_args(argv)
    install()
    for algorithm in COMPARISONS if args.algorithm is None else [args.algorithm]:
        compare(algorithm, args.seeds, args.fresh)


if __name__ == "__main__":
    main()
