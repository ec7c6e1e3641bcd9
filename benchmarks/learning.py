"""Learning runs, one after another: `relaax run` (over the network) or `train`, then `relaax eval`.

    python -m benchmarks.learning algorithms/a2c/a2c.yaml --seeds 0 1 2 --steps 1000000
    python -m benchmarks.learning algorithms/ppo/ppo.yaml --steps 100000 --command train

Each run ends with its budget of steps, or at `target_return` where the configuration has one. Its
newest snapshot, or with `--version best` that of its best evaluation, then plays 100 greedy
episodes. A JSON line per seed is appended to benchmarks/results/NAME.jsonl as soon as it is there,
NAME being that of the YAML file. What is there, with the same file, command, overrides and budget,
is not repeated, so this program continues where it was broken off. `--fresh` repeats it.
"""

import argparse
import contextlib
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cluster import find_free_ports
from benchmarks.report import describe_machine, report

RESULTS = Path(__file__).parent / "results"
EPISODES = 100
_RELAAX = [sys.executable, "-u", "-m", "relaax_like.cli.main"]
# Lines of `relaax run` and `relaax eval`.
_FIRST_CLIENT = re.compile(r"session-\d+ is \S+: \d+ slot")
_RESUMED = re.compile(r"global_t is (\d+)")
_ENDED = re.compile(r"training has finished: (.*)")
_FINISHED = re.compile(r" finished: (.*)")
_LAST = re.compile(r"step ([\d,]+) \| .* mean return (\S+) \(last (\d+)\) .* (\d+) episodes")
_EVALUATION = re.compile(r"mean return (\S+) \+- (\S+) .* (\d+) greedy episodes")
_SUCCESS = re.compile(r"success rate (\S+);")


@dataclass(frozen=True, kw_only=True)
class Run:
    """What `relaax run` or `relaax train` printed, and when.

    Attributes:
      resumed_at: environment steps of the snapshot that it went on from; 0 without one.
      finished: what ended the training; "" when it did not end by itself.
      steps: environment steps.
      mean_return: of the last `return_episodes` training episodes; None without an episode.
      return_episodes: at most the configuration's `target_episodes`.
      wall_sec: from the command to its end.
      start_up_sec: the part until the first client is let in.
      learning_sec: the part from then to the training's end.
      finish_sec: the rest: clients are notified, the weights are saved, processes end.
    """

    resumed_at: int
    finished: str
    steps: int
    mean_return: float | None
    return_episodes: int
    wall_sec: float
    start_up_sec: float
    learning_sec: float
    finish_sec: float


def run_experiment(
    config: Path,
    run_dir: Path,
    overrides: Sequence[str],
    limit_sec: float | None = None,
    command: Sequence[str] = ("run",),
) -> Run:
    """Runs an experiment, over the network on free ports.

    Args:
      config: the YAML file.
      run_dir: of the run.
      overrides: "section.key=value" each.
      limit_sec: after which the run is ended.
      command: of `relaax`, with flags; "train" runs it in one process.

    Raises:
      RuntimeError: it failed; its last lines are in the message.
    """
    ports = find_free_ports(3)
    sets = [
        f"run_dir={run_dir}",
        f"learner.bind=localhost:{ports[2]}",
        f"relaax-parameter-server.bind=localhost:{ports[0]}",
        f"relaax-rlx-server.bind=localhost:{ports[1]}",
        *overrides,
    ]
    arguments = [*command, str(config), *(f"--set={override}" for override in sets)]
    began = time.perf_counter()
    lines: list[tuple[float, str]] = []
    with subprocess.Popen(
        [*_RELAAX, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        with _terminating(process, limit_sec):
            lines = [(time.perf_counter() - began, line.rstrip()) for line in process.stdout]
    return _read_run(lines, time.perf_counter() - began)


@contextlib.contextmanager
def _terminating(process: subprocess.Popen[str], limit_sec: float | None) -> Iterator[None]:
    """Ends the run at the limit, and when we are interrupted."""
    timer = threading.Timer(limit_sec or threading.TIMEOUT_MAX, process.terminate)
    timer.daemon = True
    timer.start()
    try:
        yield
    except BaseException:
        process.terminate()
        raise
    finally:
        timer.cancel()


def _read_run(lines: Sequence[tuple[float, str]], wall_sec: float) -> Run:
    first = _find(_FIRST_CLIENT, lines)
    ended = _find(_ENDED, lines)
    finished = _find(_FINISHED, lines)
    resumed = _find(_RESUMED, lines)
    last = _find(_LAST, lines)
    if last is None:
        tail = "\n".join(line for _, line in lines[-20:])
        raise RuntimeError(f"relaax run did not come to an end:\n{tail}")
    start_up_sec = first[0] if first else wall_sec
    ended_sec = ended[0] if ended else wall_sec
    steps, mean, episodes, _ = last[1].groups()
    return Run(
        resumed_at=int(resumed[1].group(1)) if resumed else 0,
        finished=finished[1].group(1) if finished else "",
        steps=int(steps.replace(",", "")),
        mean_return=None if mean == "-" else float(mean),
        return_episodes=int(episodes),
        wall_sec=wall_sec,
        start_up_sec=start_up_sec,
        learning_sec=ended_sec - start_up_sec,
        finish_sec=wall_sec - ended_sec,
    )


def _find(
    pattern: re.Pattern[str], lines: Sequence[tuple[float, str]]
) -> tuple[float, re.Match[str]] | None:
    for seconds, line in lines:
        if match := pattern.search(line):
            return seconds, match
    return None


def evaluate(run_dir: Path, version: str = "latest") -> dict[str, float]:
    """Plays greedy episodes with a snapshot of a run.

    Args:
      run_dir: of the run.
      version: of `relaax eval`.

    Returns:
      Their mean return, half of the 95 % interval of the mean, and the share that was solved, if
      the environment reports it.

    Raises:
      RuntimeError: it failed.
    """
    command = [*_RELAAX, "eval", str(run_dir / "config.yaml"), f"--episodes={EPISODES}"]
    command.append(f"--version={version}")
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    match = _EVALUATION.search(done.stdout)
    if match is None:
        raise RuntimeError(f"relaax eval failed:\n{done.stdout[-2000:]}")
    found = {"greedy_mean": float(match.group(1)), "greedy_half_95": float(match.group(2))}
    success = _SUCCESS.search(done.stdout)
    return found if success is None else {**found, "success_rate": float(success.group(1))}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a file of results; none when there is no such file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Appends a row, with the machine that it was measured on."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps({**row, "machine": describe_machine()}) + "\n")


def learn(
    config: Path,
    overrides: Sequence[str],
    seed: int,
    steps: int,
    command: str,
    version: str = "latest",
) -> dict[str, Any]:
    """Returns one seed's row."""
    settings = digest(config)
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        sets = [*overrides, f"seed={seed}", f"algorithm.max_global_step={steps}"]
        run = run_experiment(config, run_dir, sets, command=[command])
        evaluation = evaluate(run_dir, version)
    require_same(config, settings)
    # Lines of `relaax train` do not say when the first client was let in.
    learning = {"learning_sec": round(run.learning_sec, 1)} if command == "run" else {}
    return {
        **_key(config, overrides, seed, steps, command, version),
        "settings": settings,
        "finished": run.finished,
        "steps": run.steps,
        "training_mean": run.mean_return,
        "training_episodes": run.return_episodes,
        **evaluation,
        "greedy_episodes": EPISODES,
        "wall_sec": round(run.wall_sec, 1),
        **learning,
    }


def digest(config: Path) -> str:
    """Returns what tells one content of a settings file from another."""
    return hashlib.sha256(config.read_bytes()).hexdigest()[:12]


def require_same(config: Path, settings: str) -> None:
    """Refuses a result whose settings file has changed since the run began.

    Raises:
      RuntimeError: it has.
    """
    if digest(config) != settings:
        raise RuntimeError(f"{config} has changed since this run began; its result is not kept")


def find_row(
    rows: Sequence[Mapping[str, Any]],
    config: Path,
    overrides: Sequence[str],
    seed: int,
    steps: int,
    command: str,
    version: str,
) -> Mapping[str, Any] | None:
    """Returns the row of a run with the present settings; None: there is none."""
    key = _key(config, overrides, seed, steps, command, version)
    settings = digest(config)  # older rows do not have it
    for row in rows:
        if _is_of(row, key) and row.get("settings", settings) == settings:
            return row
    return None


def _key(
    config: Path, overrides: Sequence[str], seed: int, steps: int, command: str, version: str
) -> dict[str, Any]:
    """Returns what tells one run from another; rows do not name `run` and `latest`."""
    key: dict[str, Any] = {
        "config": str(config),
        "overrides": list(overrides),
        "seed": seed,
        "max_steps": steps,
    }
    if command != "run":
        key["command"] = command
    return key if version == "latest" else {**key, "version": version}


def _is_of(row: Mapping[str, Any], key: Mapping[str, Any]) -> bool:
    same = all(row.get(name) == key.get(name) for name in ("command", "version"))
    return same and key.items() <= row.items()


def run_missing(
    config: Path,
    overrides: Sequence[str],
    seeds: Sequence[int],
    steps: int,
    command: str,
    version: str,
    fresh: bool = False,
) -> list[Mapping[str, Any]]:
    """Returns a row per seed; makes the runs that are missing, or all if `fresh`."""
    path = RESULTS / f"{config.stem}.jsonl"
    kept = [] if fresh else read_rows(path)
    rows: list[Mapping[str, Any]] = []
    for seed in seeds:
        row = find_row(kept, config, overrides, seed, steps, command, version)
        if row is None:
            row = learn(config, overrides, seed, steps, command, version)
            append_row(path, row)
        rows.append(row)
    return rows


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser of the arguments of `run_missing`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("config", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--steps", type=int, required=True, help="algorithm.max_global_step")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--command", choices=("run", "train"), default="run")
    parser.add_argument("--version", choices=("latest", "best"), default="latest")
    parser.add_argument("--fresh", action="store_true", help="run again what is there")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what is missing and shows all."""
    args = make_parser(__doc__).parse_args(argv)
    rows = run_missing(**vars(args))
    columns = ("seed", "steps", "training_mean", "greedy_mean", "greedy_half_95", "wall_sec")
    report(f"learning, {args.config}", [{name: row[name] for name in columns} for row in rows])


if __name__ == "__main__":
    main()
