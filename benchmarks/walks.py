"""How many functions, files and objects of ours a datum passes through.

    python -m benchmarks.walks                 # the tree of this file
    python -m benchmarks.walks --tree FOLDER   # another checkout, with the same environment

Real runs of `relaax run` and `relaax train` are observed with `sys.setprofile` in all of their
processes and threads, while they learn:

- observation: what is called while clients step and no rollout is complete;
- rollout: what a run that learns calls besides, from the complete rollout to the applied update and
  the values that are returned; once for each placement;
- transition: the same for a replay table and sac, in one process;
- key: the functions that are passed the value of `algorithm.batch_size` in sac, by itself or as a
  field of an argument other than `self`, and the names of these arguments and fields.

Functions count once, by their place, if they are called often enough: for an observation, in a
quarter of the messages that the rlx server receives; for rollouts and transitions, three times a
second. So what runs by the clock, or at the end of an episode, does not count. Objects are
instances of our classes whose methods are called as often, in the rlx server. Compiled code is not
seen.
"""

import argparse
import collections
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import report

ROOT = Path(__file__).parents[1]
# No counter of the run keeps this value for long.
_BATCH_SIZE = 397
_WARM_UP_SEC = 4.0
_WINDOW_SEC = 4.0
_LONGEST_SEC = 120.0
_UPDATES_PER_SEC = 3.0
# Called by asyncio for each read of a connection, in which a client has one message.
_RECEIVES = "buffer_updated"

# Imported by each Python process at its start. RECORD exists while calls are to be noted.
_PROFILER = """
import atexit, json, os, sys, threading, time

FOLDER, VALUE = os.environ["WALKS"], int(os.environ["WALKS_VALUE"])
TREE = os.environ["WALKS_TREE"] + "/"
NOT_OURS = tuple(TREE + name for name in (".venv", "tests", "benchmarks"))
RECORD = os.path.join(FOLDER, "record")
state = {"on": False}
calls, objects, held = {}, {}, {}

def fields(value):
    kind = type(value)
    if isinstance(value, dict):
        return value
    if not str(getattr(sys.modules.get(kind.__module__), "__file__", "")).startswith(TREE):
        return {}
    try:  # not getattr: an object that is being made can lack what its __getattr__ needs
        found = dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        found = {}
    for name in getattr(kind, "_fields", ()):
        found[name] = getattr(value, name)
    return found

def holds(value):
    return type(value) is int and value == VALUE

def note(frame, event, argument):
    if event != "call" or not state["on"]:
        return
    code = frame.f_code
    file = code.co_filename
    if not file.startswith(TREE) or file.startswith(NOT_OURS):
        return
    name = code.co_qualname
    if name.rsplit(".", 1)[-1].startswith("<") and not name.endswith("<lambda>"):
        return
    place = file[len(TREE):] + ":" + name
    calls[place] = calls.get(place, 0) + 1
    if VALUE:
        n = code.co_argcount + code.co_kwonlyargcount
        found = []
        for argument in code.co_varnames[:n]:
            value = frame.f_locals.get(argument)
            if argument == "self":
                continue
            if holds(value):
                found.append(argument)
            elif not isinstance(value, (str, bytes, float, type(None))):
                found += [str(key) for key, inner in list(fields(value).items()) if holds(inner)]
        for name in set(found):
            held.setdefault(place, {}).setdefault(name, 0)
            held[place][name] += 1
        return
    if code.co_argcount and code.co_varnames[0] == "self":
        me = frame.f_locals.get("self")
        objects.setdefault(place, {}).setdefault(id(me), type(me).__qualname__)

def write():
    path = os.path.join(FOLDER, f"walk-{os.getpid()}.json")
    with open(path + ".tmp", "w") as file:
        json.dump({"calls": calls, "objects": objects, "held": held}, file)
    os.replace(path + ".tmp", path)

def watch():
    while True:
        on = os.path.exists(RECORD)
        if state["on"] and not on:
            state["on"] = on
            write()
        state["on"] = on
        time.sleep(0.02)

if VALUE:
    state["on"] = True
    atexit.register(write)
else:
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
sys.setprofile(note)
threading.setprofile(note)
"""


def record(
    tree: Path, command: list[str], value: int = 0, begun: Sequence[str] = ("steps/s",)
) -> list[dict[str, Any]]:
    """Runs a command of the tree's `relaax`; returns what each of its processes has called.

    Args:
      tree: a checkout.
      command: arguments of `relaax`.
      value: a number that is looked for from the start of each process to its end; 0: all calls are
        noted, for some seconds while the run learns.
      begun: what the run prints when it learns, or plays.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "sitecustomize.py").write_text(_PROFILER)
        environment = {
            **os.environ,
            "PYTHONPATH": f"{folder}:{tree}",
            "WALKS": str(folder),
            "WALKS_TREE": str(tree.resolve()),
            "WALKS_VALUE": str(value),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        program = [sys.executable, "-m", "relaax_like.cli.main", *command]
        log = folder / "log"
        with log.open("w") as output:
            process = subprocess.Popen(
                program, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            if value:
                process.wait(timeout=_LONGEST_SEC)
            else:
                _wait_for_steps(process, log, begun)
                time.sleep(_WARM_UP_SEC)
                (folder / "record").touch()
                time.sleep(_WINDOW_SEC)
                (folder / "record").unlink()
                time.sleep(1.0)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.wait(timeout=_LONGEST_SEC)
        found = [json.loads(path.read_text()) for path in folder.glob("walk-*.json")]
        if not any(one["calls"] for one in found):
            raise SystemExit(f"{' '.join(command)}: nothing was called\n{log.read_text()}")
        return found


def _wait_for_steps(process: subprocess.Popen[bytes], log: Path, words: Sequence[str]) -> None:
    """Waits until the run shows that it counts steps, or that its clients play."""
    end = time.monotonic() + _LONGEST_SEC
    while time.monotonic() < end and process.poll() is None:
        if any(word in log.read_text() for word in words):
            return
        time.sleep(0.1)
    raise SystemExit(f"no steps after {_LONGEST_SEC:.0f} s, or it has ended:\n{log.read_text()}")


def get_calls(found: list[dict[str, Any]], least: float) -> set[str]:
    """Returns the functions that a process has called so many times, FILE:NAME."""
    return {call for one in found for call, number in one["calls"].items() if number >= least}


def count_messages(found: list[dict[str, Any]]) -> int:
    """Returns how many messages the rlx server has received from each of two clients."""
    receives = (n for one in found for call, n in one["calls"].items() if _RECEIVES in call)
    return max(receives) // 2


def count_objects(found: list[dict[str, Any]], least: float) -> dict[str, int]:
    """Returns class -> number of its instances in the rlx server whose methods were called."""
    kinds: dict[str, str] = {}
    for one in found:
        if any(_RECEIVES in call for call in one["calls"]):
            for call, instances in one["objects"].items():
                if one["calls"][call] >= least:
                    kinds |= instances
    return dict(sorted(collections.Counter(kinds.values()).items()))


def make_row(walk: str, calls: set[str], **others: Any) -> dict[str, Any]:
    """Returns a row of the table."""
    files = {call.partition(":")[0] for call in calls}
    return {"walk": walk, "functions": len(calls), "files": len(files), **others}


def main() -> None:
    """Prints the table; with --list, also the functions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout to observe")
    parser.add_argument("--json", type=Path, help="file for the functions of each walk")
    arguments = parser.parse_args()
    common = ["--set", "relaax-parameter-server.progress_interval_sec=1"]
    rollouts = ["--set", "algorithm.rollout_steps=8", "--set", "algorithm.max_global_step=1e8"]
    rollouts += ["--set", "learner.target_return=null"]
    # No rollout is complete while it is observed.
    none = ["--set", "algorithm.rollout_steps=65536", "--set", "algorithm.num_steps=524288"]
    ppo = ["run", "ppo", "--set", "algorithm.num_steps=512", *common, *rollouts]
    few = ["--set", "algorithm.num_steps=64", "--set", "algorithm.batch_size=32"]
    quiet = record(arguments.tree, [*ppo, *none], begun=["slot(s)"])
    least = count_messages(quiet) / 4
    observation = get_calls(quiet, least)
    updates = _UPDATES_PER_SEC * _WINDOW_SEC
    anything = get_calls(quiet, 1)
    walks = {"observation": observation}
    for placement, algorithm in (("server", "ppo"), ("agent", "a2c")):
        run = ["run", algorithm, "--set", f"learner.placement={placement}", *common, *rollouts]
        found = record(arguments.tree, [*run, *(few if algorithm == "ppo" else ())])
        walks[f"rollout, {placement}"] = get_calls(found, updates) - anything
    local = ["train", "sac", *common, *rollouts[2:]]
    idle = ["--set", "algorithm.warm_up_steps=90000"]
    played = get_calls(record(arguments.tree, [*local, *idle]), 1)
    walks["transition"] = get_calls(record(arguments.tree, local), updates) - played
    size = [f"algorithm.batch_size={_BATCH_SIZE}", "algorithm.max_global_step=1100"]
    sets = [word for one in size for word in ("--set", one)]
    seen = record(arguments.tree, ["train", "sac", *sets], _BATCH_SIZE)
    held = {
        (place, name)
        for one in seen
        for place, names in one["held"].items()
        for name, number in names.items()
        if number > one["calls"][place] / 3  # not a counter that has reached the value
    }
    walks["key"] = {place for place, _ in held}
    rows = [make_row(name, calls) for name, calls in walks.items()]
    report("walks", rows)
    objects = count_objects(quiet, least / 2)
    print("objects of the rlx server:", ", ".join(f"{n} {kind}" for kind, n in objects.items()))
    print("names of the key:", ", ".join(sorted({name for _, name in held})))
    if arguments.json:
        arguments.json.write_text(
            json.dumps({name: sorted(calls) for name, calls in walks.items()}, indent=1)
        )


if __name__ == "__main__":
    main()
