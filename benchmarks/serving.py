"""Serving: env steps per second through the rlx server with batch-native agents (a2c, 2x64 tanh).

    python -m benchmarks.serving
    python -m benchmarks.serving --path compiled
    python -m benchmarks.serving --placement server

Environments and servers share the machine. Each row is a number of clients times the slots of each.
`acting` clients exploit; `learning` ones store rollouts, from which all the servers learn. Clients
of CartPole are a process each. The null environment answers at once: one process drives all its
connections, each stepped as soon as it is answered, which measures the server. `C` is the null
environment in clients written in C (`benchmarks.c_client`), a process each, which take little
processor time from the servers beside them; needs a C compiler.

The policy acts in NumPy; with `--path compiled` it is one that cannot, and acts in compiled calls.

With `--placement server` all is ppo (2x64 tanh for each of actor and critic), learned by the
parameter server from large iterations: 128 steps of all slots, 4 epochs of 8 minibatches. Agents
wait while it learns, so that each acts with the newest values: the rate is of sampling and learning
one after the other.
"""

import argparse
import json
import selectors
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.c_client import compile_client
from benchmarks.cluster import run_servers
from benchmarks.report import report
from relaax_like.client import RlxClient
from relaax_like.client.client import Retry
from relaax_like.v1 import ndarray_pb2, rlx_pb2
from relaax_like.wire.framing import HEADER, pack_frame
from relaax_like.wire.ndarray import ndarray_to_message
from relaax_like.wire.spaces import Box, Discrete, space_to_message

CONFIG = Path(__file__).parents[1] / "algorithms" / "a2c" / "a2c.yaml"
PPO = CONFIG.parents[1] / "ppo" / "ppo.yaml"
COMPILED = Path(__file__).parent / "compiled_a2c"
SPACES = Box(dtype="float32", shape=(4,)), Discrete(n=2)
WARM_UP_SEC = 15.0


def play(address: str, slots: int, exploit: bool, start_at: float, seconds: float) -> None:
    """Steps vectorised CartPole from a moment on for so long; prints steps and latencies."""
    import gymnasium

    env = gymnasium.make_vec("CartPole-v1", slots, vectorization_mode="vector_entry_point")
    retry = Retry(min_sleep_sec=0.2, max_sleep_sec=0.5)
    latencies: list[float] = []
    began = 0.0
    with RlxClient(address, *SPACES, slots=slots, exploit=exploit, retry=retry) as client:
        observations, _ = env.reset()
        result = client.step(observations)
        while time.time() < start_at + seconds:
            if not began and time.time() >= start_at:
                began, latencies = time.perf_counter(), []
            observations, rewards, terminated, truncated, _ = env.step(result.actions)
            asked = time.perf_counter()
            result = client.step(
                observations, rewards, terminated | truncated, np.zeros(slots, np.bool_)
            )
            latencies.append(time.perf_counter() - asked)
        elapsed = time.perf_counter() - began
    print(json.dumps({"sec": elapsed, "latencies": latencies}))


def load(address: str, clients: int, exploit: bool, start_at: float, seconds: float) -> None:
    """Drives many one-slot connections of the null environment from one process."""
    host, _, port = address.rpartition(":")
    selector = selectors.DefaultSelector()
    hello, first, step = (
        pack_frame(message.SerializeToString()) for message in _make_messages(exploit)
    )
    sockets = [socket.create_connection((host, int(port)), 20) for _ in range(clients)]
    for one in sockets:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for message in (hello, first):
            one.sendall(message)
            _read(one)
    by_number = {one.fileno(): one for one in sockets}
    asked = {}
    for one in sockets:
        selector.register(one, selectors.EVENT_READ)
        one.sendall(step)
        asked[one] = time.perf_counter()
    latencies: list[float] = []
    began = 0.0
    while time.time() < start_at + seconds:
        if not began and time.time() >= start_at:
            began, latencies = time.perf_counter(), []
        for key, _ in selector.select(1.0):
            one = by_number[key.fd]
            one.recv(65536)
            now = time.perf_counter()
            latencies.append(now - asked[one])
            asked[one] = now
            one.sendall(step)
    print(json.dumps({"sec": time.perf_counter() - began, "latencies": latencies}))


def _make_messages(exploit: bool) -> list[rlx_pb2.ClientMessage]:
    def array(values: Any, dtype: str) -> ndarray_pb2.NdArray:
        return ndarray_to_message(np.asarray(values, dtype), ndarray_pb2.NdArray)

    hello = rlx_pb2.Hello(
        protocol_version=1,
        client_name="null",
        slots=1,
        observation_spaces={"observation": space_to_message(SPACES[0])},
        action_spaces={"action": space_to_message(SPACES[1])},
        mode=rlx_pb2.EXPLOIT if exploit else rlx_pb2.TRAIN,
    )
    observations = {"observation": array(np.zeros((1, 4)), "float32")}
    step = rlx_pb2.Step(
        observations=observations,
        rewards=array([1.0], "float32"),
        terminated=array([False], "bool"),
        truncated=array([False], "bool"),
    )
    return [
        rlx_pb2.ClientMessage(hello=hello),
        rlx_pb2.ClientMessage(step=rlx_pb2.Step(observations=observations)),
        rlx_pb2.ClientMessage(step=step),
    ]


def _read(one: socket.socket) -> bytes:
    data = b""
    while len(data) < HEADER.size or len(data) < HEADER.size + HEADER.unpack(data[:4])[0]:
        data += one.recv(65536)
    return data


def play_in_c(
    address: str, clients: int, exploit: bool, start_at: float, seconds: float
) -> list[dict[str, Any]]:
    """Runs clients in C; returns what `play` prints, of each."""
    start = time.monotonic() + start_at - time.time()
    with compile_client() as program:
        command = [str(program), address, "0", *(["exploit"] if exploit else [])]
        running = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(clients)
        ]
        results = []
        for process in running:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == "ready\n"
            process.stdin.write(f"{start} {seconds}\n")
            process.stdin.flush()
        for process in running:
            results.append({**json.loads(process.communicate()[0]), "sec": seconds})
    return results


def measure(
    environment: str,
    mode: str,
    clients: int,
    slots: int,
    seconds: float,
    *sets: str,
    config: Path = CONFIG,
) -> dict[str, Any]:
    """Returns one row."""
    with run_servers(config, *sets) as address:
        start_at = time.time() + WARM_UP_SEC
        if environment == "C":
            results = play_in_c(address, clients, mode == "acting", start_at, seconds)
        else:
            command = [sys.executable, "-m", "benchmarks.serving", environment, mode, address]
            command += [str(clients), str(slots), str(start_at), str(seconds)]
            processes = 1 if environment == "null" else clients
            running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(processes)]
            results = [json.loads(process.communicate()[0]) for process in running]
    latencies = np.concatenate([result["latencies"] for result in results])
    steps = sum(len(r["latencies"]) * slots / r["sec"] for r in results)
    return {
        "environment": environment,
        "mode": mode,
        "clients": clients,
        "slots": slots,
        "env steps/s": steps,
        "act p50 us": 1e6 * float(np.percentile(latencies, 50)),
        "act p99 us": 1e6 * float(np.percentile(latencies, 99)),
    }


# Environment, clients, slots of each.
ROWS = (
    ("CartPole", 1, 1),
    ("CartPole", 8, 1),
    ("C", 1, 1),
    ("C", 8, 1),
    ("null", 64, 1),
    ("CartPole", 4, 64),
)
MODES = ("acting", "learning")


# Clients of so many slots whose parameter server learns.
PPO_ROWS = ((1, 64), (2, 64), (4, 64))
_STEPS, _EPOCHS, _MINIBATCHES = 128, 4, 8


def measure_ppo(clients: int, slots: int, seconds: float) -> dict[str, Any]:
    """Returns a row of clients whose parameter server learns."""
    rows = _STEPS * clients * slots
    sets = (
        f"algorithm.num_steps={rows}",
        f"algorithm.rollout_steps={_STEPS}",
        f"algorithm.epochs={_EPOCHS}",
        f"algorithm.batch_size={rows // _MINIBATCHES}",
    )
    return measure("CartPole", "learning", clients, slots, seconds, *sets, config=PPO)


def main(path: str = "NumPy", placement: str = "agent", seconds: float = 6.0) -> None:
    """Measures all rows."""
    if placement == "server":
        report("serving, ppo", [measure_ppo(*row, seconds) for row in PPO_ROWS])
        return
    sets = (f"algorithm.path={COMPILED}", "algorithm.name=null") if path == "compiled" else ()
    rows = [
        measure(environment, mode, clients, slots, seconds, *sets)
        for environment, clients, slots in ROWS
        for mode in MODES
    ]
    report(f"serving, {path} path", rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", choices=("NumPy", "compiled"), default="NumPy")
    parser.add_argument("--placement", choices=("agent", "server"), default="agent")
    parser.add_argument("--seconds", type=float, default=6.0)
    # What it starts itself as.
    parser.add_argument("load", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.load:
        main(args.path, args.placement, args.seconds)
    else:
        environment, mode, address, clients, slots, start_at, seconds = args.load
        window, exploit = (float(start_at), float(seconds)), mode == "acting"
        if environment == "null":
            load(address, int(clients), exploit, *window)
        else:
            play(address, int(slots), exploit, *window)
