"""How well ppo learns: ours in one process, and Stable-Baselines3's with the same settings.

    python -m benchmarks.ppo_learning [--env acrobot ...] [--seeds 0 1 2] [--program ours|sb3]

Each run uses up its budget of environment steps; then the newest weights play 100 fresh episodes
with their best actions. Ours is `relaax train` and `relaax eval` of algorithms/ppo/ENV.yaml;
theirs gets the same settings, as `benchmarks.peers.translation` says, with VecNormalize where the
file normalises.

A row per run is appended to benchmarks/results/ppo_ENV.jsonl as soon as it is there, and what is
there with the same settings is not run again without `--fresh`: call it as often as it takes. A run
of ours that was cut off resumes from its newest snapshot, in runs/benchmarks; `resumed_at` tells
the environment steps of that, and `wall_sec` is then of the last sitting alone. One of theirs
starts again.
"""

import argparse
import shutil
import statistics
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.learning import (
    EPISODES,
    RESULTS,
    append_row,
    evaluate,
    read_rows,
    run_experiment,
)
from benchmarks.peers.peer import CHECKOUT, run_peer
from benchmarks.peers.translation import make_settings
from benchmarks.report import report
from relaax_like.config.loader import load_experiment
from relaax_like.runs.folders.run_folder import find_progress

CONFIGS = CHECKOUT / "algorithms" / "ppo"
RUNS = CHECKOUT / "runs" / "benchmarks"
# Environment steps of a run, by the name of the YAML file.
STEPS = {
    "acrobot": 500_000,
    "lunar_lander": 1_000_000,
    "pendulum": 100_000,
    "half_cheetah": 1_000_000,
    "hopper": 1_000_000,
    "hopper_zoo": 1_000_000,
    "masked_cartpole": 250_000,
    "masked_cartpole_dense": 250_000,
}
# Another file's settings, but for these.
VARIANTS = {
    # PPO of RL Baselines3 Zoo, hyperparams/ppo.yml, which has them for Hopper-v3.
    "hopper_zoo": (
        "hopper",
        (
            "algorithm.network={layers: [256, 256], activation: relu}",
            "algorithm.log_std_init=-2",
            "algorithm.num_steps=512",
            "algorithm.rollout_steps=512",
            "algorithm.epochs=5",
            "algorithm.batch_size=32",
            "algorithm.learning_rate=9.80828e-5",
            "algorithm.critic_learning_rate=9.80828e-5",
            "algorithm.lr_schedule=constant",
            "algorithm.gamma=0.999",
            "algorithm.gae_lambda=0.99",
            "algorithm.entropy_coefficient=2.29519e-3",
            "algorithm.value_coefficient=0.835671",
            "algorithm.max_gradient_norm=0.7",
        ),
    ),
    "masked_cartpole_dense": (
        "masked_cartpole",
        (
            "algorithm.network={layers: [64, 64], activation: relu}",
            "algorithm.batch_size=256",
        ),
    ),
}
# Of an environment that is ours.
OURS_ALONE = ("masked_cartpole", "masked_cartpole_dense")

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is to be run, by either program.

    Attributes:
      env: name of the YAML file, or of a variant.
      seed: of the run.
      steps: environment steps.
    """

    env: str
    seed: int
    steps: int

    @property
    def config(self) -> Path:
        """The YAML file."""
        name, _ = VARIANTS.get(self.env, (self.env, ()))
        return CONFIGS / f"{name}.yaml"

    @property
    def overrides(self) -> list[str]:
        """What is changed of the YAML file: all its environments are in one process."""
        environment = load_experiment(self.config).environment
        assert environment is not None
        _, changes = VARIANTS.get(self.env, (self.env, ()))
        return [
            *changes,
            f"seed={self.seed}",
            f"algorithm.max_global_step={self.steps}",
            "learner.target_return=null",
            "environment.clients=1",
            f"environment.slots={environment.clients * environment.slots}",
        ]

    @property
    def settings(self) -> str:
        """A short name of the settings, another one if they are changed."""
        experiment = load_experiment(self.config, self.overrides)
        sections = (experiment.algorithm, experiment.environment)
        text = "".join(s.model_dump_json(exclude_defaults=True) for s in sections if s is not None)
        return f"{zlib.crc32(text.encode()):08x}"

    @property
    def run_dir(self) -> Path:
        """Where ours keeps what it needs to resume."""
        return RUNS / f"ppo-{self.env}-{self.settings}-{self.seed}"


def run_ours(run: Run) -> Row:
    """Trains ours, or resumes it; returns a row."""
    began = find_progress(run.run_dir / "checkpoints") is not None
    source, command = (run.run_dir, "resume") if began else (run.config, "train")
    done = run_experiment(source, run.run_dir, run.overrides, command=(command,))
    if "budget" not in done.finished:
        raise RuntimeError(f"{run.run_dir}: stopped at step {done.steps:,}; call again to go on")
    row = {
        "env_steps": done.steps,
        "training_mean": done.mean_return,
        "training_episodes": done.return_episodes,
        **evaluate(run.run_dir),
        "greedy_episodes": EPISODES,
        "wall_sec": round(done.wall_sec, 1),
        "resumed_at": done.resumed_at,
    }
    shutil.rmtree(run.run_dir)
    return row


def run_sb3_ppo(run: Run) -> Row:
    """Trains with Stable-Baselines3; returns a row."""
    settings = make_settings(load_experiment(run.config, run.overrides))
    settings["eval_episodes"] = EPISODES
    result, _ = run_peer(settings)
    assert result["evaluation"] is not None
    return {
        "env_steps": result["env_steps"],
        "training_mean": result["training_mean"],
        "training_episodes": result["training_episodes"],
        **result["evaluation"],
        "wall_sec": round(result["ended_sec"], 1),
        "versions": result["versions"],
    }


PROGRAMS: dict[str, Callable[[Run], Row]] = {"ours": run_ours, "sb3": run_sb3_ppo}


def learn(program: str, run: Run, fresh: bool) -> Row:
    """Returns a run's row: the newest that is there, or a new one."""
    path = RESULTS / f"ppo_{run.env}.jsonl"
    key = {"program": program, "seed": run.seed, "steps": run.steps, "settings": run.settings}
    kept = [row for row in read_rows(path) if key.items() <= row.items()]
    if kept and not fresh:
        return kept[-1]
    if fresh:
        shutil.rmtree(run.run_dir, ignore_errors=True)
    row = {**key, **PROGRAMS[program](run)}
    append_row(path, row)
    return row


def summarize(env: str, rows: Sequence[Row]) -> list[Row]:
    """Returns the table's part of one environment: each run, and the mean of each program's."""
    table = [
        _format(env, row["program"], str(row["seed"]), [row], f"+- {row['greedy_half_95']:.1f}")
        for row in rows
    ]
    for program in dict.fromkeys(row["program"] for row in rows):
        own = [row for row in rows if row["program"] == program]
        means = [row["greedy_mean"] for row in own]
        spread = f"{min(means):,.1f} to {max(means):,.1f}"
        table.append(_format(env, program, f"mean of {len(own)}", own, spread))
    return table


def _format(env: str, program: str, seed: str, rows: Sequence[Row], spread: str) -> Row:
    def mean(key: str) -> float:
        return statistics.mean(row[key] for row in rows)

    return {
        "environment": env,
        "steps": rows[0]["steps"],
        "program": program,
        "seed": seed,
        "training": mean("training_mean"),
        "greedy": mean("greedy_mean"),
        "spread": spread,
        "wall s": "resumed" if any(row.get("resumed_at") for row in rows) else mean("wall_sec"),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what is missing and shows all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", choices=STEPS, nargs="+", default=list(STEPS))
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--program", choices=PROGRAMS, help="default: both")
    parser.add_argument("--steps", type=int, help="of each run, instead of the environment's own")
    parser.add_argument("--fresh", action="store_true", help="run again what is there")
    args = parser.parse_args(argv)
    programs = list(PROGRAMS) if args.program is None else [args.program]
    rows: dict[str, list[Row]] = {env: [] for env in args.env}
    for env in args.env:
        for seed in args.seeds:
            for program in programs:
                if program == "sb3" and env in OURS_ALONE:
                    continue
                run = Run(env=env, seed=seed, steps=args.steps or STEPS[env])
                rows[env].append(learn(program, run, args.fresh))
    report("ppo, learning", [line for env in rows for line in summarize(env, rows[env])])


if __name__ == "__main__":
    main()
