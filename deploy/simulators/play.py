"""Plays 500 steps of each simulator of `rows.toml` through servers, and compares what arrived.

    python deploy/simulators/play.py [NAME ...] [--folder FOLDER]

Runs in the project's environment, whose servers it starts. Each row gets its own Python environment
in FOLDER (by default in the user's cache), with the base install and the pinned simulator; root is
not needed, but a network is. The simulator plays as by `relaax gym`. A row is green if the rewards,
the ends and all observations, including the last of each episode, are exactly those that the
simulator returned. A row whose Python is missing is skipped, which is not green. Not part of CI.
"""

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from newcomer import build_wheel  # noqa: E402 - of the folder deploy

STEPS = 500
LIMIT_SEC = 900.0
EXPERIMENT = """\
seed: 1
run_dir: run
relaax-parameter-server: {{bind: "localhost:{0}"}}
relaax-rlx-server: {{bind: "localhost:{1}", parameter_server: "localhost:{0}"}}
algorithm: {{path: "{2}", max_global_step: {3}, record: "{4}"}}
environment: {{program: OpenAI_Gym, env: played-elsewhere}}
"""


class RowError(Exception):
    """A row could not be played, or what arrived differs."""


def main() -> int:
    """Plays the rows; returns the exit status."""
    rows = tomllib.loads((HERE / "rows.toml").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description="Play each simulator through servers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows; default: all")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument("--folder", type=Path, default=cache / "relaax-simulators")
    args = parser.parse_args()
    if unknown := sorted({*args.names} - {*rows}):
        parser.error(f"no such rows: {', '.join(unknown)}; expected some of {', '.join(rows)}")
    args.folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(args.folder / "wheel", ignore_errors=True)
    wheel = build_wheel((args.folder / "wheel").resolve())
    counts = {"green": 0, "failed": 0, "skipped": 0}
    for name in args.names or rows:
        began = time.monotonic()
        try:
            result, text = play(name, rows[name], args.folder.resolve(), wheel)
        except (RowError, subprocess.SubprocessError, OSError) as error:
            result, text = "failed", str(error)
        counts[result] += 1
        print(f"{name:24} {result:8} {text} ({time.monotonic() - began:.0f} s)", flush=True)
    print(", ".join(f"{count} {result}" for result, count in counts.items()))
    return 1 if counts["failed"] or not counts["green"] else 0


def play(name: str, row: dict[str, Any], folder: Path, wheel: Path) -> tuple[str, str]:
    """Plays one row; returns how it ended, and what was seen.

    Raises:
      RowError: see the class.
    """
    version = row.get("python", "3.11")
    python = shutil.which(f"python{version}")
    # A version manager can have a program for each version that it knows, installed or not.
    if python is None or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        return "skipped", f"needs python{version}"
    venv = make_venv(python, row["packages"], folder / "environments", wheel)
    room = folder / "runs" / name
    shutil.rmtree(room, ignore_errors=True)
    room.mkdir(parents=True)
    if "module" in row:
        (room / "own.py").write_text(row["module"], encoding="utf-8")
    sent, arrived = room / "sent.jsonl", room / "arrived.jsonl"
    with start_servers(room, arrived) as port:
        argv = [venv / "bin" / "python", HERE / "recorded.py", sent, *row["command"].split()]
        settings = {key: text.format(venv=venv) for key, text in row.get("settings", {}).items()}
        played = subprocess.run(
            [*argv, "--rlx-server", f"localhost:{port}", "--seed", "1", "--quiet"],
            cwd=room,
            env={**os.environ, "PYTHONPATH": "", **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_SEC,
            text=True,
        )
    (room / "client.log").write_text(played.stdout, encoding="utf-8")
    if played.returncode:
        raise RowError(f"exit status {played.returncode}: {played.stdout.strip()[-600:]}")
    return "green", compare(read(sent), read(arrived), played.stdout)


def make_venv(python: str, packages: list[str], folder: Path, wheel: Path) -> Path:
    """Makes an environment with these packages, unless there is one, and installs the wheel.

    Raises:
      RowError: something cannot be installed.
    """
    key = hashlib.sha256(json.dumps([python, packages]).encode()).hexdigest()[:12]
    venv = folder / key
    pip = [venv / "bin" / "python", "-m", "pip", "install", "--quiet"]
    commands: list[list[Any]] = [[*pip, "--force-reinstall", "--no-deps", wheel]]
    if not (venv / "complete").exists():
        shutil.rmtree(venv, ignore_errors=True)
        commands = [[python, "-m", "venv", venv], [*pip, wheel, *packages]]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SEC)
        if done.returncode:
            raise RowError(f"installing failed: {done.stderr.strip()[-600:]}")
    (venv / "complete").touch()
    return venv


@contextlib.contextmanager
def start_servers(room: Path, arrived: Path) -> Iterator[int]:
    """Runs a parameter server and an rlx server; gives the port of the latter."""
    ports = find_free_ports(2)
    text = EXPERIMENT.format(*ports, HERE / "recorder", STEPS, arrived)
    (room / "experiment.yaml").write_text(text, encoding="utf-8")
    with contextlib.ExitStack() as stack:
        for server in ("relaax-parameter-server", "relaax-rlx-server"):
            log = stack.enter_context((room / f"{server}.log").open("w", encoding="utf-8"))
            process = subprocess.Popen(
                [Path(sys.executable).with_name(server), "-c", "experiment.yaml"],
                cwd=room,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
        yield ports[1]


def find_free_ports(count: int) -> list[int]:
    """Finds ports that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]


def read(file: Path) -> list[list[Any]]:
    """Reads the lines of a record."""
    if not file.exists():
        raise RowError(f"{file.name} was not written")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def compare(sent: list[list[Any]], arrived: list[list[Any]], printed: str) -> str:
    """Compares what a simulator returned with what agents received; returns what was seen.

    Raises:
      RowError: they differ.
    """
    for before, after in itertools.pairwise(sent):
        if before[0] == "step" and after[0] == "reset" and not before[2]:
            before[2] = "truncated"  # by --max-episode-steps
    while sent and len(sent) > len(arrived) and sent[-1][0] == "reset":
        sent.pop()  # of the episode after the last step, which is not played
    if len(sent) != len(arrived):
        raise RowError(f"{len(sent)} observations were sent, {len(arrived)} arrived")
    for index, (one, other) in enumerate(zip(sent, arrived, strict=True)):
        if one[:4] != other:
            raise RowError(f"observation {index} was sent as {one[:4]}, arrived as {other}")
    steps = [row for row in sent if row[0] == "step"]
    ends = [row[2] for row in steps if row[2]]
    if len(steps) != STEPS or f"{len(ends)} episodes, {STEPS} steps" not in printed:
        raise RowError(f"{len(steps)} steps and {len(ends)} episodes, but: {printed[-200:]}")
    parts = [f"{ends.count(kind)} {kind}" for kind in ("terminated", "truncated")]
    parts.append(f"{sum(bool(row[2] and row[4]) for row in steps)} last observations empty")
    return f"{STEPS} steps, rewards {sum(row[1] for row in steps):.6g}, {', '.join(parts)}"


if __name__ == "__main__":
    sys.exit(main())
