"""Learning runs of ours beside Stable-Baselines3's, or SBX's, with the same settings.

    python -m benchmarks.peers.learning algorithms/sac/sac.yaml --steps 20000 --command train \\
        --seeds 101 102 103 104 105

Arguments are those of `benchmarks.learning`, whose rows and runs are used for ours. The peer gets
the file's settings (`benchmarks.peers.translation` lists what differs), one torch thread, and the
same seeds and budget. Of both, the last weights play 100 fresh greedy episodes; with `--version
best` those of the best of 20 evaluations during the training, of `learner.num_eval_eps` episodes
each. The peer's rows are appended to benchmarks/results/NAME_LIBRARY.jsonl.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning import (
    EPISODES,
    RESULTS,
    append_row,
    digest,
    make_parser,
    read_rows,
    require_same,
    run_missing,
)
from benchmarks.peers.peer import run_peer
from benchmarks.peers.translation import make_settings
from benchmarks.report import report
from relaax_like.config.loader import load_experiment

_EVALUATIONS = 20
_COLUMNS = ("training_mean", "greedy_mean", "greedy_half_95", "wall_sec")


def make_peer_row(key: dict[str, Any], library: str) -> dict[str, Any]:
    """Returns a row of a peer.

    Args:
      key: config, overrides, seed, max_steps and version of the run.
      library: "sb3" or "sbx".
    """
    sets = [f"seed={key['seed']}", f"algorithm.max_global_step={key['max_steps']}"]
    experiment = load_experiment(Path(key["config"]), [*key["overrides"], *sets])
    settings = make_settings(experiment)
    settings["eval_episodes"] = EPISODES
    if key["version"] == "best":
        settings["evaluations"] = _EVALUATIONS
        settings["evaluation_episodes"] = experiment.learner.num_eval_eps
    result, wall_sec = run_peer(settings, library)
    assert result["evaluation"] is not None
    assert result["training_mean"] is not None
    return {
        **key,
        "steps": result["env_steps"],
        "updates": len(result["updates"]) * settings["hyperparameters"].get("gradient_steps", 1),
        "training_mean": round(result["training_mean"], 1),
        "training_episodes": result["training_episodes"],
        **result["evaluation"],
        "wall_sec": round(wall_sec, 1),
        "versions": result["versions"],
    }


def name_peer_results(config: Path, library: str) -> Path:
    """Returns the file of the peer's rows."""
    return RESULTS / f"{config.stem}_{library}.jsonl"


def make_peer_key(
    config: Path, overrides: Sequence[str], seed: int, steps: int, version: str
) -> dict[str, Any]:
    """Returns what tells one run of the peer from another."""
    return {
        "config": str(config),
        "overrides": list(overrides),
        "seed": seed,
        "max_steps": steps,
        "version": version,
    }


def run_missing_peers(
    config: Path,
    overrides: Sequence[str],
    seeds: Sequence[int],
    steps: int,
    version: str,
    fresh: bool,
    library: str,
) -> list[dict[str, Any]]:
    """Returns a row per seed of the peer; makes the runs that are missing, or all if `fresh`."""
    path = name_peer_results(config, library)
    kept = [] if fresh else read_rows(path)
    rows = []
    for seed in seeds:
        key = make_peer_key(config, overrides, seed, steps, version)
        row = next((row for row in kept if key.items() <= row.items()), None)
        if row is None:
            settings = digest(config)
            row = make_peer_row(key, library)
            require_same(config, settings)
            append_row(path, row)
        rows.append(row)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what is missing and shows all."""
    parser = make_parser(__doc__)
    parser.add_argument("--only", choices=("peer",), help="leave ours out")
    parser.add_argument("--library", choices=("sb3", "sbx"), default="sb3", help="the peer")
    args = vars(parser.parse_args(argv))
    only, library = args.pop("only"), args.pop("library")
    same = {name: value for name, value in args.items() if name != "command"}
    peers = run_missing_peers(**same, library=library)
    programs: dict[str, Sequence[Mapping[str, Any]]] = {library: peers}
    if only is None:
        programs = {"relaax": run_missing(**args), **programs}
    table = [
        {"program": name, "seed": row["seed"], **{column: row[column] for column in _COLUMNS}}
        for name, rows in programs.items()
        for row in rows
    ]
    report(f"learning, {args['config']}", table)


if __name__ == "__main__":
    main()
