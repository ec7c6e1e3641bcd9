"""Acknowledged steps of a run whose parameter server is killed again and again.

    python -m benchmarks.goodput --folder build/goodput [--kills 120] [--life 15] [--quiet 60]

`relaax run` trains a2c in 64 slots, beside the agents. The parameter server is killed so many
seconds after the first acknowledged push of each of its lives. Every push of the run is in a log of
its sender. Goodput is the rate of acknowledged environment steps, from the first kill to the first
push after the last one, over the mean of the rates before and after, without kills. Then all pushes
are applied once more, one after another: no acknowledged one is lost, none is applied twice, and
weights and optimizers are those of the run's last snapshot, bit by bit.

An interrupted benchmark continues: the same folder has the run, the logs and the number of kills.
"""

import argparse
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.cluster import find_free_ports
from benchmarks.report import report

ROOT = Path(__file__).parents[1]
A2C = ROOT / "algorithms" / "a2c" / "a2c.yaml"
SETS = [
    "learner.placement=agent",
    "learner.target_return=null",
    "algorithm.max_global_step=1000000000",
    "algorithm.state_size=4",
    "algorithm.num_actions=2",
    "algorithm.network={layers: [32]}",
    "environment.clients=1",
    "environment.slots=64",
]
# kind, sequence, version, time, environment steps, bytes of names of groups, bytes of an array
_RECORD = struct.Struct("<cQQdQII")
_VALUES, _SENT, _ACKNOWLEDGED = b"v", b"s", b"a"


@dataclass
class Pushed:
    """One push of the log.

    Attributes:
      at: seconds since 1970 when it was acknowledged; 0: it was not.
      version: of the answer.
    """

    env_steps: int
    groups: tuple[str, ...]
    gradient: np.ndarray | None
    at: float = 0.0
    version: int = 0


def note_pushes(stub: Any) -> None:
    """Makes all objects of the stub's class note their pushes, and the first values."""
    path = Path(os.environ["RELAAX_PUSH_LOG"]) / f"{time.time_ns()}-{os.getpid()}.log"
    file: Any = None

    def write(kind: bytes, sequence: int, version: int, env_steps: int = 0, **rest: Any) -> None:
        nonlocal file
        file = file or path.open("wb", buffering=0)
        groups = ",".join(rest.get("groups", ())).encode()
        array = rest.get("array")
        data = b"" if array is None else array.tobytes()
        head = (kind, sequence, version, time.time(), env_steps, len(groups), len(data))
        file.write(_RECORD.pack(*head) + groups + data)

    push_pull, pull = stub._call_push_pull, stub._call_pull

    def call_push_pull(self: Any, push: Any, want_values: bool, have_version: int) -> Any:
        assert not push.statistics, "statistics are not noted"
        gradient = None if push.gradient is None else push.gradient.view(np.uint8)
        fields = {"groups": push.groups, "array": gradient}
        write(_SENT, push.sequence, 0, push.env_steps, **fields)
        reply = push_pull(self, push, want_values, have_version)
        if reply.outcome in ("applied", "nothing"):
            write(_ACKNOWLEDGED, push.sequence, reply.version, push.env_steps)
        return reply

    def call_pull(self: Any, have_version: int | None) -> Any:
        reply = pull(self, have_version)
        if reply.version == 0 and reply.values is not None:
            write(_VALUES, 0, 0, array=reply.values.flat)
        return reply

    stub._call_push_pull, stub._call_pull = call_push_pull, call_pull


def read_logs(folder: Path) -> tuple[np.ndarray | None, list[Pushed]]:
    """Returns the initial values, and all pushes in the order in which they were sent."""
    values, pushes = None, []
    for path in sorted(folder.glob("*.log")):
        sent: dict[int, Pushed] = {}
        for kind, sequence, version, at, steps, groups, data in _read_records(path):
            if kind == _VALUES:
                values = np.frombuffer(data, np.uint8) if values is None else values
            elif kind == _SENT:
                names = tuple(filter(None, groups.decode().split(",")))
                gradient = np.frombuffer(data, np.uint8) if data else None
                sent[sequence] = Pushed(steps, names, gradient)
                pushes.append(sent[sequence])
            else:
                sent[sequence].at, sent[sequence].version = at, version
    return values, pushes


def _read_records(path: Path) -> Iterator[tuple[bytes, int, int, float, int, bytes, bytes]]:
    with path.open("rb") as file:
        while len(head := file.read(_RECORD.size)) == _RECORD.size:
            kind, sequence, version, at, steps, names, size = _RECORD.unpack(head)
            groups, data = file.read(names), file.read(size)
            if len(data) == size:
                yield kind, sequence, version, at, steps, groups, data


def count_acknowledged(folder: Path) -> int:
    """Returns the number of acknowledgements so far; reads only what is new."""
    count = 0
    for path in folder.glob("*.log"):
        offset, known = _seen.get(path, (0, 0))
        with path.open("rb") as file:
            file.seek(offset)
            while len(head := file.read(_RECORD.size)) == _RECORD.size:
                kind, _, _, _, _, names, size = _RECORD.unpack(head)
                if file.tell() + names + size > os.fstat(file.fileno()).st_size:
                    break
                file.seek(names + size, os.SEEK_CUR)
                offset = file.tell()
                known += kind == _ACKNOWLEDGED
        _seen[path] = offset, known
        count += known
    return count


_seen: dict[Path, tuple[int, int]] = {}


class Run:
    """The training, which continues the folder's run.

    Args:
      folder: of the benchmark.
    """

    def __init__(self, folder: Path):
        self._logs = folder / "pushes"
        self._logs.mkdir(parents=True, exist_ok=True)
        ps, rlx = find_free_ports(2)
        sets = [
            *SETS,
            f"run_dir={folder / 'run'}",
            f"relaax-parameter-server.bind=localhost:{ps}",
            f"relaax-rlx-server.bind=localhost:{rlx}",
        ]
        command = [str(Path(sys.executable).with_name("relaax")), "run", str(A2C)]
        environment = {
            **os.environ,
            "RELAAX_PUSH_LOG": str(self._logs),
            "PYTHONPATH": f"{ROOT / 'benchmarks' / 'push_log'}{os.pathsep}{ROOT}",
        }
        with (folder / "output.txt").open("ab") as output:
            self._process = subprocess.Popen(
                [*command, *(f"--set={one}" for one in sets)],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait_pushes(self, more: int = 1) -> None:
        """Waits until pushes have been acknowledged since the call.

        Raises:
          RuntimeError: the run has ended.
        """
        wanted = count_acknowledged(self._logs) + more
        while count_acknowledged(self._logs) < wanted:
            if self._process.poll() is not None:
                raise RuntimeError("the run has ended; see output.txt")
            time.sleep(0.02)

    def kill_parameter_server(self) -> None:
        """Kills it, which the run then starts again."""
        for child in psutil.Process(self._process.pid).children():
            if any("parameter" in part for part in child.cmdline()[:3]):
                child.kill()
                child.wait(10)
                return
        raise RuntimeError("there is no parameter server")

    def stop(self) -> None:
        """Ends the run, which writes its last snapshot."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)


def compute_rate(pushes: Sequence[Pushed], first: float, last: float) -> float:
    """Returns the acknowledged steps per second in a span of time."""
    return sum(one.env_steps for one in pushes if first <= one.at < last) / (last - first)


def replay(folder: Path) -> dict[str, Any]:
    """Applies the pushes of the logs, and compares the result with the run's last snapshot."""
    from relaax_like.algorithm.model import get_variables
    from relaax_like.config.loader import load_experiment
    from relaax_like.core.manifest import find_follows, make_manifest
    from relaax_like.launch.algorithm_code import make_model
    from relaax_like.parameter_server.snapshots import read_latest
    from relaax_like.parameter_server.store import Store

    experiment = load_experiment(A2C, SETS)
    variables = get_variables(make_model(experiment))
    manifest = make_manifest(variables)
    values, pushes = read_logs(folder / "pushes")
    saved = read_latest(folder / "run" / "checkpoints")
    assert values is not None, "no process has pulled the initial values"
    assert saved is not None, "the run has written no snapshot"
    store = Store(manifest, values, experiment.optimizers, find_follows(variables))
    # A push without an acknowledgement can have been applied before a crash: the versions of the
    # answers to later pushes say so.
    unsure: list[Pushed] = []
    lost = twice = 0
    for one in [*pushes, Pushed(0, (), None, 1.0, saved.version)]:
        if not one.at:
            unsure.append(one)
            continue
        before = one.version - (one.gradient is not None)
        for earlier in unsure:
            if earlier.gradient is not None and store.version < before:
                _apply(store, earlier)
        unsure = []
        lost += store.version > before  # the server has fewer versions than it had acknowledged
        twice += store.version < before
        _apply(store, one)
    same = store.values.flat.tobytes() == saved.values.tobytes() and all(
        slots.tobytes() == saved.slots[group].tobytes()
        for group, slots in store.export_state().slots.items()
    )
    return {
        "pushes": len(pushes),
        "acknowledged": sum(one.at > 0 for one in pushes),
        "lost": lost,
        "twice": twice,
        "bit-equal": same,
    }


def _apply(store: Any, push: Pushed) -> None:
    gradient = None if push.gradient is None else push.gradient.view(np.float32)
    groups = () if gradient is None else push.groups
    if gradient is not None or push.env_steps:
        store.commit(store.prepare(gradient, push.env_steps, None, groups))


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=120)
    parser.add_argument("--life", type=float, default=15.0, help="seconds from push to kill")
    parser.add_argument("--quiet", type=float, default=60.0, help="seconds before and after")
    options = parser.parse_args(argv)
    folder: Path = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    notes = folder / "progress.json"
    progress: dict[str, Any] = {"kills": 0, "before": [], "under_kills": [], "after": []}
    if notes.exists():
        progress = json.loads(notes.read_text("utf-8"))

    def keep(name: str, began: float) -> None:
        progress[name].append([began, time.time()])
        notes.write_text(json.dumps(progress), "utf-8")

    if not progress["after"]:
        run = Run(folder)
        try:
            run.wait_pushes(100)  # compiled, and in step
            if not progress["before"]:
                began = time.time()
                time.sleep(options.quiet)
                keep("before", began)
            while progress["kills"] < options.kills:
                began = time.time()
                run.kill_parameter_server()
                run.wait_pushes()
                time.sleep(options.life)
                progress["kills"] += 1
                keep("under_kills", began)
                print(f"{progress['kills']} of {options.kills} kills", flush=True)
            began = time.time()
            time.sleep(options.quiet)
            keep("after", began)
        finally:
            run.stop()
    _, pushes = read_logs(folder / "pushes")
    rates = {
        name: sum(compute_rate(pushes, *span) * (span[1] - span[0]) for span in progress[name])
        / sum(last - first for first, last in progress[name])
        for name in ("before", "under_kills", "after")
    }
    quiet = (rates["before"] + rates["after"]) / 2
    row = {
        "kills": progress["kills"],
        "steps/s before": rates["before"],
        "under kills": rates["under_kills"],
        "after": rates["after"],
        "goodput": f"{100 * rates['under_kills'] / quiet:.1f} %",
        **replay(folder),
    }
    report("goodput", [row])


if __name__ == "__main__":
    main()
