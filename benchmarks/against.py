"""Hot paths of this working tree against those of another commit, in turns.

    python -m benchmarks.against COMMIT [--pairs 7] [--rows serving ...]

Checks the commit out beside this tree and starts the same program of both; then each is measured
for some seconds, in turns, in pairs whose order changes. Rows:

- `1x1 acting` ... `4x64 learning`: clients x slots of the null environment, driven by one process
  of this tree, against both servers with a2c; env steps/s, and what both servers and their learner
  used of the processor per step;
- `push-pull 10000`, `push-pull 1000000`: one worker, both sides of the same commit; rounds/s;
- `ppo's update`: `CompiledUpdates.update`, four epochs of eight minibatches; updates/s.

`ratio` is the median over the pairs of this tree's rate by the other's, with its 95 % interval (by
bootstrap); `cpu ratio` is the same of the processor time per step, the other's by this tree's.
Above 1 this tree is better. A row is slower if the upper end of its interval is below 0.97; where
the two ratios disagree, processor time decides (`waits longer`: the rate alone is lower).
"""

import argparse
import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from benchmarks.load import SPACES
from benchmarks.report import report
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.framing import HEADER, pack_frame
from relaax_like.wire.ndarray import write_ndarray
from relaax_like.wire.spaces import pack_arrays, space_to_message

CHECKOUT = Path(__file__).parents[1]
SERVING = (
    (1, 1, "acting"),
    (8, 1, "acting"),
    (4, 64, "acting"),
    (64, 1, "learning"),
    (4, 64, "learning"),
)
SIZES = (10_000, 1_000_000)
UPDATE = "ppo's update"
NAMES = (
    *(f"{clients}x{slots} {mode}" for clients, slots, mode in SERVING),
    *(f"push-pull {size}" for size in SIZES),
    UPDATE,
)
SLOWER = 0.97
_WARM_UP_SEC = {"acting": 6.0, "learning": 20.0}
_SEGMENT_SEC = 3.0
# What runs in the tree of a commit, and says what it has done on standard output.
_SERVE = """
import json, sys
from pathlib import Path
from benchmarks.cluster import start_servers
with start_servers(Path("algorithms/a2c/a2c.yaml")) as servers:
    numbers = {k: v for k, v in vars(servers).items() if not callable(v)}
    print(json.dumps(numbers), flush=True)
    sys.stdin.read()
"""
_STORE = "import sys; from benchmarks.push_pull import serve; serve(int(sys.argv[1]), 'memory')"
_PUSH = """
import sys
from benchmarks.push_pull import work
work(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), False)
"""
_UPDATE = """
import json, sys, time
from benchmarks.peers.update_cases import CASES
from benchmarks.peers.updates import make_ours
update = make_ours(CASES["mlp"])
for _ in range(5):
    update()
print("ready", flush=True)
for line in sys.stdin:
    count, began, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() < began + float(line):
        update()
        count += 1
    took = time.perf_counter() - began
    print(json.dumps([count / took, (time.process_time() - cpu) / count]), flush=True)
"""


class Measured(NamedTuple):
    """Of one segment: how much was done in a second, and processor seconds for each of it."""

    rate: float
    cpu_sec: float


# Measures for so many seconds.
Measure = Callable[[float], Measured]


def start(stack: contextlib.ExitStack, tree: Path, code: str, *arguments: object) -> Any:
    """Starts a program with the modules of a tree."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(tree), "TF_CPP_MIN_LOG_LEVEL": "3"}
    process = stack.enter_context(
        subprocess.Popen(
            command,
            cwd=tree,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    )
    assert process.stdin is not None
    stack.callback(process.stdin.close)
    return process


# The rlx server.


def make_frames(slots: int, exploit: bool) -> tuple[bytes, bytes, bytes]:
    """Returns hello, first step and each other step of a client that sees nothing but zeros."""
    hello = rlx_pb2.Hello(
        protocol_version=1,
        client_name="against",
        slots=slots,
        observation_spaces={"observation": space_to_message(SPACES[0])},
        action_spaces={"action": space_to_message(SPACES[1])},
        mode=rlx_pb2.EXPLOIT if exploit else rlx_pb2.TRAIN,
    )
    step = rlx_pb2.Step()
    pack_arrays({"observation": np.zeros((slots, 4), np.float32)}, step.observations)
    first = rlx_pb2.ClientMessage(step=step)
    later = rlx_pb2.ClientMessage(step=step)
    for name, array in (
        ("rewards", np.ones(slots, np.float32)),
        ("terminated", np.zeros(slots, np.bool_)),
        ("truncated", np.zeros(slots, np.bool_)),
    ):
        write_ndarray(array, getattr(later.step, name))
    messages = (rlx_pb2.ClientMessage(hello=hello), first, later)
    frames = [pack_frame(message.SerializeToString()) for message in messages]
    return frames[0], frames[1], frames[2]


class Clients:
    """Connections that are stepped as soon as each is answered."""

    def __init__(self, address: str, clients: int, slots: int, exploit: bool):
        hello, first, self._step = make_frames(slots, exploit)
        self._slots = slots
        self._selector = selectors.DefaultSelector()
        for _ in range(clients):
            self._selector.register(_join(address, hello, first), selectors.EVENT_READ)

    def step(self, seconds: float) -> float:
        """Steps for so long; returns env steps per second."""
        for key in self._selector.get_map().values():
            key.fileobj.sendall(self._step)  # type: ignore[union-attr]
        waiting, answers = len(self._selector.get_map()), 0
        began = time.perf_counter()
        while waiting:
            for key, _ in self._selector.select(60.0):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                _read(one)
                answers += 1
                if time.perf_counter() < began + seconds:
                    one.sendall(self._step)
                else:
                    waiting -= 1
        return answers * self._slots / (time.perf_counter() - began)


def _join(address: str, hello: bytes, first: bytes) -> socket.socket:
    """Connects, and tries again while the server has no learner yet."""
    host, _, port = address.rpartition(":")
    until = time.monotonic() + 60.0
    while True:
        one = socket.create_connection((host, int(port)), 60)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for frame in (hello, first):
                one.sendall(frame)
                _read(one)
        except ConnectionError:
            one.close()
            if time.monotonic() > until:
                raise
            time.sleep(1.0)
        else:
            return one


def _read(one: socket.socket) -> None:
    """Reads one answer; there is never more."""
    data = one.recv(65536)
    while len(data) < HEADER.size or len(data) < HEADER.size + HEADER.unpack(data[:4])[0]:
        more = one.recv(65536)
        if not more:
            raise ConnectionError(f"the server has closed; it sent {data!r}")
        data += more


def prepare_serving(
    stack: contextlib.ExitStack, tree: Path, clients: int, slots: int, mode: str
) -> Measure:
    """Starts the servers of a tree and plays until all is compiled."""
    servers = json.loads(start(stack, tree, _SERVE).stdout.readline())
    playing = Clients(servers["address"], clients, slots, mode == "acting")
    playing.step(_WARM_UP_SEC[mode])
    processes = [psutil.Process(servers[name]) for name in ("rlx_server", "parameter_server")]
    processes += processes[0].children(recursive=True)

    def measure(seconds: float) -> Measured:
        before = sum(sum(process.cpu_times()[:2]) for process in processes)
        rate = playing.step(seconds)
        after = sum(sum(process.cpu_times()[:2]) for process in processes)
        return Measured(rate, (after - before) / (rate * seconds))

    return measure


# The parameter server.


def prepare_push_pull(stack: contextlib.ExitStack, tree: Path, size: int) -> Measure:
    """Starts the parameter server of a tree; each segment is a worker's life."""
    server = start(stack, tree, _STORE, size)
    address = f"127.0.0.1:{json.loads(server.stdout.readline())['port']}"
    process = psutil.Process(server.pid)

    def measure(seconds: float) -> Measured:
        with contextlib.ExitStack() as own:
            worker = start(own, tree, _PUSH, address, size, seconds)
            both = process, psutil.Process(worker.pid)
            worker.stdout.readline()
            before = sum(sum(one.cpu_times()[:2]) for one in both)
            worker.stdin.write("go\n")
            worker.stdin.flush()
            time.sleep(seconds)
            after = sum(sum(one.cpu_times()[:2]) for one in both)
            rounds = json.loads(worker.stdout.readline())
        return Measured(len(rounds) / sum(rounds), (after - before) / len(rounds))

    return measure


# The update.


def prepare_update(stack: contextlib.ExitStack, tree: Path) -> Measure:
    """Compiles the update of a tree."""
    process = start(stack, tree, _UPDATE)
    process.stdout.readline()

    def measure(seconds: float) -> Measured:
        process.stdin.write(f"{seconds}\n")
        process.stdin.flush()
        return Measured(*json.loads(process.stdout.readline()))

    return measure


def prepare(stack: contextlib.ExitStack, tree: Path, name: str) -> Measure:
    """Starts what a row needs, with the modules of a tree."""
    if name == UPDATE:
        return prepare_update(stack, tree)
    for size in SIZES:
        if name == f"push-pull {size}":
            return prepare_push_pull(stack, tree, size)
    clients, slots, mode = SERVING[NAMES.index(name)]
    return prepare_serving(stack, tree, clients, slots, mode)


def measure_row(name: str, trees: Sequence[Path], pairs: int) -> dict[str, Any]:
    """Returns a row.

    Args:
      name: of `NAMES`.
      trees: this one, and the other.
      pairs: of segments.
    """
    took: list[list[Measured]] = [[], []]
    with contextlib.ExitStack() as stack:
        measures = [prepare(stack, tree, name) for tree in trees]
        for pair in range(pairs):
            for which in (0, 1) if pair % 2 else (1, 0):
                took[which].append(measures[which](_SEGMENT_SEC))
    ours, theirs = (np.array(one) for one in took)
    rates = ours[:, 0] / theirs[:, 0]
    cpu = theirs[:, 1] / ours[:, 1]
    low, high = compute_interval(rates)
    cpu_low, cpu_high = compute_interval(cpu)
    return {
        "row": name,
        "ours": float(np.median(ours[:, 0])),
        "theirs": float(np.median(theirs[:, 0])),
        "ratio": f"{np.median(rates):.3f} ({low:.3f} to {high:.3f})",
        "cpu us": 1e6 * float(np.median(ours[:, 1])),
        "cpu ratio": f"{np.median(cpu):.3f} ({cpu_low:.3f} to {cpu_high:.3f})",
        "verdict": judge(high, cpu_high),
    }


def compute_interval(ratios: np.ndarray) -> tuple[float, float]:
    """Returns the 95 % interval of the median, by bootstrap with 10 000 draws."""
    draws = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.percentile(np.median(draws, 1), [2.5, 97.5])
    return float(low), float(high)


def judge(high: float, cpu_high: float) -> str:
    """Returns `slower`, or "", from the upper ends of both intervals; processor time decides."""
    return "slower" if cpu_high < SLOWER else "" if high >= SLOWER else "waits longer"


@contextlib.contextmanager
def check_out(commit: str) -> Iterator[Path]:
    """Gives a folder with a commit."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(CHECKOUT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", tree, commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", tree], check=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures the rows that are asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", metavar="COMMIT", help="what to compare this tree with")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--rows", nargs="+", choices=NAMES, default=NAMES, metavar="ROW")
    arguments = parser.parse_args(argv)
    began = time.monotonic()
    with check_out(arguments.commit) as tree:
        rows = [measure_row(name, (CHECKOUT, tree), arguments.pairs) for name in arguments.rows]
    report(f"this tree against {arguments.commit}", rows)
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
