"""What users wait for, in two minutes, beside the stored results of another commit.

    make quick-bench            # or: python -m benchmarks.quick [--against COMMIT]

Measures this working tree, and stores the result in build/quick/COMMIT.json. `ratio` is to the
newest other result there, or to COMMIT's: above 1 this tree is better. To compare with an older
commit, run this once in a checkout of it whose build/quick is the same folder. Rows:

- `relaax train ppo` of 30 720 steps: seconds until the environments are stepped, and of compiling
  (both with the files that an earlier start left), env steps/s of learning, and the largest memory
  that it had; medians of three runs;
- `relaax train sac`, 4 000 steps: updates/s, and this in percent of the same update alone;
- `acting`: one client of 64 and of 4 096 slots of CartPole, env steps/s.

Other work on the machine changes everything here, memory excepted.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import benchmarks.serving
from benchmarks.report import describe_machine, report

CHECKOUT = Path(__file__).parents[1]
FOLDER = CHECKOUT / "build" / "quick"
_RUNS = 3
_PPO_STEPS, _SAC_STEPS, _WARM_UP = 30_720, 4_000, 1_000
_TIMES = re.compile(r"([\d.]+) s to start, ([\d.]+) s compiling, ([\d.]+) s learning")
_CALLS = 100  # of the update alone
_SERVING_SEC = 3.0
# Rows of which less is better.
_COSTS = ("start", "compiling", "memory")


def train(algorithm: str, steps: int) -> dict[str, float]:
    """Runs `relaax train`; returns what it says about its time, and the memory in MB."""
    with tempfile.TemporaryDirectory() as folder:
        sets = (f"run_dir={folder}/run", f"algorithm.max_global_step={steps}")
        flags = [part for one in (*sets, "learner.target_return=null") for part in ("--set", one)]
        command = [sys.executable, "-m", "relaax_like.cli.main", "train", algorithm, *flags]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=CHECKOUT
        ) as process:
            assert process.stdout is not None
            output = process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
    found = _TIMES.search(output)
    if process.returncode or found is None:
        raise RuntimeError(f"{command} failed: {output[-2000:]}")
    names = ("start", "compiling", "learning")
    times = dict(zip(names, map(float, found.groups()), strict=True))
    return {**times, "memory": usage.ru_maxrss / 1024}


def measure_ppo() -> dict[str, float]:
    """Returns the rows of `relaax train ppo`."""
    train("ppo", 1024)  # compiles
    runs = [train("ppo", _PPO_STEPS) for _ in range(_RUNS)]
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    rate = _PPO_STEPS / medians.pop("learning")
    return {f"train ppo: {name}": value for name, value in medians.items()} | {
        "train ppo: env steps/s": rate
    }


def measure_sac() -> dict[str, float]:
    """Returns the rows of `relaax train sac`, which makes one update per step."""
    from benchmarks.peers.replay_updates import make_ours, make_overrides
    from relaax_like.config.loader import load_experiment

    train("sac", _WARM_UP + 100)  # compiles
    rate = (_SAC_STEPS - _WARM_UP) / train("sac", _SAC_STEPS)["learning"]
    experiment = load_experiment("sac", make_overrides("sac", 64, 64, 4))
    update = make_ours("sac", experiment.algorithm, 4)
    update()
    began = time.perf_counter()
    for _ in range(_CALLS):
        update()
    alone = 4 * _CALLS / (time.perf_counter() - began)
    return {"train sac: updates/s": rate, "train sac: % of the update alone": 100 * rate / alone}


def measure_slots() -> dict[str, float]:
    """Returns the rows of one client that acts."""
    benchmarks.serving.WARM_UP_SEC = 8.0
    limit = "relaax-rlx-server.max_slots_per_client=4096"
    return {
        f"acting, {slots} slots: env steps/s": benchmarks.serving.measure(
            "CartPole", "acting", 1, slots, _SERVING_SEC, limit
        )["env steps/s"]
        for slots in (64, 4096)
    }


def name_commit() -> str:
    """Returns the commit's short name, with "+" if the tree differs from it."""

    def ask(*command: str) -> str:
        return subprocess.run(
            ["git", *command], check=True, capture_output=True, text=True, cwd=CHECKOUT
        ).stdout.strip()

    return ask("rev-parse", "--short=10", "HEAD") + "+" * bool(ask("diff", "--name-only", "HEAD"))


def read_other(own: str, against: str | None) -> tuple[str, dict[str, float]]:
    """Returns the commit and the rows that were stored on this machine; "" without such a file."""
    files = sorted(FOLDER.glob(f"{against or ''}*.json"), key=lambda path: path.stat().st_mtime)
    for path in reversed(files):
        stored = json.loads(path.read_text())
        if path.stem != own and stored["machine"] == describe_machine():
            return path.stem, stored["rows"]
    return "", {}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", metavar="COMMIT", help="default: the newest other result")
    args = parser.parse_args(argv)
    own = name_commit()
    other, before = read_other(own, args.against)
    rows = {**measure_ppo(), **measure_sac(), **measure_slots()}
    FOLDER.mkdir(parents=True, exist_ok=True)
    stored = {"machine": describe_machine(), "rows": rows}
    (FOLDER / f"{own}.json").write_text(json.dumps(stored, indent=1) + "\n")
    table = []
    for name, value in rows.items():
        ratio = ""
        if name in before:
            is_cost = name.rpartition(": ")[2] in _COSTS
            ratio = f"{before[name] / value if is_cost else value / before[name]:.2f}"
        table.append({"row": name, own: value, other or "-": before.get(name, ""), "ratio": ratio})
    report("quick", table)


if __name__ == "__main__":
    main()
