"""CartPole-v1 until 475 through the client of each language: steps, time, code, processor time.

    python -m benchmarks.clients [--clients c lua ...] [--seeds 1 2 3]

Each run has ppo with the settings of algorithms/ppo/ppo.yaml, both servers, and eight episodes at a
time: eight processes with one pole each, or one page with eight. It ends when the mean return of
the last 100 training episodes reaches 475, or with a budget of 300 000 steps. A JSON line per run
is appended to benchmarks/results/clients.jsonl; what is there is not repeated.

`seconds` are from the start of the clients to the end of the parameter server, with compiling.
`us/step` is processor time of all client processes per step, with their start; that of a page is
the whole browser's, which draws all the time. `lines` are code lines of the client's library and of
its CartPole, without physics that clients share.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.cluster import start_servers
from benchmarks.report import describe_machine, report
from relaax_like.parameter_server.snapshots import read_latest

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / "environments"
RESULTS = Path(__file__).parent / "results" / "clients.jsonl"
CONFIG = ROOT / "algorithms" / "ppo" / "ppo.yaml"
EPISODES_AT_A_TIME, TARGET, BUDGET, LIMIT_SEC = 8, 475.0, 300_000, 600.0
_COMMENT = {".js": "//", ".lua": "--", ".gd": "#", ".py": "#", "": "#"}
_CHROMIUM = (
    "chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run"
)


class Client(NamedTuple):
    """A client.

    Attributes:
      argv: of its program, in `environments`.
      files: library and CartPole, in `environments`; their lines are counted.
      takes_seed: whether it has a flag `--seed`.
      is_page: whether a browser has to open what it serves.
    """

    argv: str
    files: str
    takes_seed: bool = True
    is_page: bool = False


CLIENTS = {
    "Python": Client("OpenAI_Gym/main --env CartPole-v1", ""),
    "C": Client("c/main", "c/rlx.c c/rlx.h c/rlx_wire.c c/rlx_wire.h c/cartpole.c"),
    "C++": Client("c/main --cpp", "c/rlx.hpp c/cartpole.cpp"),
    "C#": Client("csharp/main", "csharp/Rlx.cs csharp/CartPole.cs"),
    "JavaScript, Node": Client(
        "javascript/main", "javascript/rlx.js javascript/cartpole.js javascript/play.js"
    ),
    "JavaScript, Chromium": Client(
        "browser/main", "javascript/rlx.js javascript/cartpole.js browser/page.js", is_page=True
    ),
    "GDScript, Godot 3": Client("godot3/main", "godot3/rlx.gd godot3/cartpole.gd", False),
    "Lua": Client("lua/main", "lua/rlx.lua lua/cartpole.lua", False),
}


def count_lines(names: str) -> int:
    """Returns the number of code lines of files."""
    count = 0
    for path in (ENVIRONMENTS / name for name in names.split()):
        text = path.read_text(encoding="utf-8")
        mark = _COMMENT.get(path.suffix, "//")
        if mark == "//":
            text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        mark = re.escape(mark)
        count += sum(not re.fullmatch(rf"\s*({mark}.*)?", line) for line in text.splitlines())
    return count


def play(name: str, seed: int) -> dict[str, Any]:
    """Makes one run; returns its row."""
    client = CLIENTS[name]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sets = [
            f"seed={seed}",
            f"run_dir={folder}",
            f"learner.target_return={TARGET}",
            f"algorithm.max_global_step={BUDGET}",
        ]
        servers = stack.enter_context(start_servers(CONFIG, *sets))
        server = psutil.Process(servers.parameter_server)
        began = time.monotonic()
        processes = start_clients(client, servers.address, seed, folder)
        stack.callback(kill, processes)
        deadline, used = began + LIMIT_SEC, 0.0
        while time.monotonic() < deadline and server.status() != psutil.STATUS_ZOMBIE:
            used = max(used, read_seconds(processes))
            time.sleep(0.1)
        seconds = time.monotonic() - began
        state = read_latest(folder / "checkpoints")
        assert state is not None
        used = max(used, read_seconds(processes)) if client.is_page else wait_all(processes)
    return {
        "client": name,
        "seed": seed,
        "steps": state.global_t,
        "reached": state.global_t < BUDGET,
        "seconds": round(seconds, 1),
        "us/step": round(1e6 * used / state.global_t, 1),
        "lines": count_lines(client.files) or None,
        "machine": describe_machine(),
    }


def start_clients(
    client: Client, address: str, seed: int, folder: Path
) -> list[subprocess.Popen[str]]:
    """Starts the client's processes, and a browser if it is a page."""
    program, *flags = client.argv.split()
    base = [str(ENVIRONMENTS / program), *flags, "--rlx-server", address]
    env = {**os.environ, "RELAAX_QUIET": "1"}
    if client.is_page:
        argv = [*base, "--num-envs", str(EPISODES_AT_A_TIME), "--seed", str(seed)]
        page = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert page.stdout is not None
        url = page.stdout.readline().split()[-1]
        argv = [*_CHROMIUM.split(), f"--user-data-dir={folder / 'browser'}", url]
        with (folder / "browser.log").open("w") as log:
            return [page, subprocess.Popen(argv, stdout=log, stderr=log, text=True)]
    processes = []
    for number in range(EPISODES_AT_A_TIME):
        more = ["--seed", str(seed * EPISODES_AT_A_TIME + number)] if client.takes_seed else []
        argv = [*base, "--name", f"client-{number}", *more]
        processes.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL, env=env, text=True))
    return processes


def read_seconds(processes: Sequence[subprocess.Popen[str]]) -> float:
    """Returns the processor seconds that processes and their children have used so far."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            one = psutil.Process(process.pid)
            for part in (one, *one.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    total += sum(part.cpu_times()[:2])
    return total


def wait_all(processes: Sequence[subprocess.Popen[str]]) -> float:
    """Waits until processes have ended; returns the processor seconds that they used."""
    total = 0.0
    for process in processes:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        total += usage.ru_utime + usage.ru_stime
    return total


def kill(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Kills processes that are left, and their children."""
    for process in processes:
        if process.poll() is None:
            one = psutil.Process(process.pid)
            for part in (*one.children(recursive=True), one):
                with contextlib.suppress(psutil.Error):
                    part.kill()
            process.wait()


def main() -> None:
    """Runs what is asked for, and prints all rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    args = parser.parse_args()
    rows = []
    if RESULTS.exists():
        rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    for seed in args.seeds:
        for name in args.clients:
            if not any((row["client"], row["seed"]) == (name, seed) for row in rows):
                rows.append(play(name, seed))
                print(rows[-1], file=sys.stderr)
                with RESULTS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    shown = [{k: v for k, v in row.items() if k != "machine"} for row in rows]
    report("clients of all languages, CartPole-v1 until 475 over 100 episodes", shown)


if __name__ == "__main__":
    main()
