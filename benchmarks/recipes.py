"""Do the recipes of docs/algorithms.md learn? Each is made as the page says, and trained.

    python -m benchmarks.recipes --seeds 1 2 3

The recipes are the two changes of a2c, step by step, and the folders of docs/examples; a2c itself
stands beside its copies. Each run is `relaax train` with the recipe's own settings, up to its
budget or target; its newest snapshot then plays 100 greedy episodes. A row per recipe and seed is
appended to benchmarks/results/recipes.jsonl; what is there, with the same files, is not repeated.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning import RESULTS, append_row, evaluate, read_rows, run_experiment
from benchmarks.report import report

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "algorithms.md").read_text("utf-8")
_STEPS = PAGE[PAGE.index("## Changing an algorithm") : PAGE.index("## Heads of your own")]
COPYING, TRYING = re.findall(r"```sh\n(.*?)```", _STEPS, re.DOTALL)
_CHANGES = re.findall(r"```diff\n# (\S+)/(\S+)\n(.*?)```", _STEPS, re.DOTALL)
COPIES = ("smooth_a2c", "target_a2c")
FOLDERS = ("minimal", "own_heads")
# Of a2c and its copies, which end at their target.
_MAX_STEPS = 1_000_000


def run_commands(commands: str, folder: Path) -> str:
    """Runs a block of the page's commands up to the first that fails.

    Returns:
      What they print.

    Raises:
      AssertionError: one has failed.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", commands],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def make_copy(folder: Path, name: str) -> Path:
    """Follows the page up to its last change of a copy of a2c.

    Args:
      folder: where `relaax examples --copy mine` is run.
      name: of the copy.

    Returns:
      The folder of algorithms.

    Raises:
      AssertionError: the page does not fit a2c.
    """
    run_commands(COPYING.replace("smooth_a2c", name), folder)
    algorithms = folder / "mine" / "algorithms"
    for owner, file, diff in _CHANGES:
        if owner != name and file.endswith(".py"):
            continue
        path = algorithms / name / file.replace(owner, name)
        lines = diff.splitlines(keepends=True)
        old, new = (
            "".join(line[1:] for line in lines if line[0] in signs) for signs in (" -", " +")
        )
        text = path.read_text()
        assert text.count(old) == 1, f"{path} does not have\n{old}"
        path.write_text(text.replace(old, new))
    return algorithms


def find_recipes(folder: Path) -> Iterator[tuple[str, Path, int | None]]:
    """Yields each recipe, made in a folder: its name, experiment, and budget, if not its own."""
    yield "a2c", ROOT / "algorithms" / "a2c" / "a2c.yaml", _MAX_STEPS
    for name in COPIES:
        (folder / name).mkdir()
        experiment = make_copy(folder / name, name) / name / f"{name}.yaml"
        yield name, experiment, _MAX_STEPS
    for name in FOLDERS:
        yield name, ROOT / "docs" / "examples" / name / f"{name}.yaml", None


def learn(experiment: Path, seed: int, steps: int | None) -> dict[str, Any]:
    """Trains one seed, and plays with what it has learned; returns a row."""
    budget = [] if steps is None else [f"algorithm.max_global_step={steps}"]
    with tempfile.TemporaryDirectory() as run_dir:
        run = run_experiment(
            experiment, Path(run_dir), [*budget, f"seed={seed}"], command=["train"]
        )
        evaluation = evaluate(Path(run_dir))
    return {
        "steps": run.steps,
        "training_mean": run.mean_return,
        **evaluation,
        "finished": run.finished,
        "wall_sec": round(run.wall_sec, 1),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Trains what is missing, and shows all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3))
    parser.add_argument("--fresh", action="store_true", help="train again what is there")
    args = parser.parse_args(argv)
    path = RESULTS / "recipes.jsonl"
    kept = [] if args.fresh else read_rows(path)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, experiment, steps in find_recipes(Path(folder)):
            files = sorted([*experiment.parent.glob("*.py"), experiment])
            content = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
            for seed in args.seeds:
                key = {"recipe": name, "seed": seed, "files": content[:12]}
                row = next((row for row in kept if key.items() <= row.items()), None)
                if row is None:
                    row = {**key, **learn(experiment, seed, steps)}
                    append_row(path, row)
                rows.append(row)
    columns = ("recipe", "seed", "steps", "training_mean", "greedy_mean", "wall_sec")
    report("recipes of docs/algorithms.md", [{name: row[name] for name in columns} for row in rows])


if __name__ == "__main__":
    main()
