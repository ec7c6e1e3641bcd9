"""A bare prototype of the rlx dialogue, for scale: what this machine allows at best.

    python -m benchmarks.bare

uvloop, length-prefixed protobuf, the observations of all waiting clients through one 2x64 policy in
NumPy; real CartPole clients, as in `benchmarks.serving`. Nothing is checked, stored, measured,
greeted or learned, and no error has an answer: the rows are no aim, but a yardstick for one day.
"""

import asyncio
import json
import socket
import struct
import subprocess
import sys
import time
from typing import Any

import numpy as np

from benchmarks.report import report
from relaax_like.v1 import rlx_pb2

_LENGTH = struct.Struct(">I")
_WARM_UP_SEC = 4.0
ROWS = ((1, 1), (8, 1), (4, 64))


class Server:
    """Answers whatever comes with actions of a random network."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        shapes = ((4, 64), (64, 64), (64, 2))
        self._weights = [0.1 * self._random.standard_normal(s).astype(np.float32) for s in shapes]
        self._waiting: list[tuple[asyncio.Transport, np.ndarray]] = []

    def add(self, transport: asyncio.Transport, body: bytes) -> None:
        """Takes a step; it is answered when all sockets have been read."""
        step = rlx_pb2.ClientMessage.FromString(body).step
        rows = np.frombuffer(step.observations["observation"].data, np.float32).reshape(-1, 4)
        self._waiting.append((transport, rows))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._answer)

    def _answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        x = np.concatenate([rows for _, rows in waiting])
        for weights in self._weights[:-1]:
            x = np.tanh(x @ weights)
        logits = x @ self._weights[-1]
        actions = (logits + self._random.gumbel(size=logits.shape)).argmax(1)
        start = 0
        for transport, rows in waiting:
            message = rlx_pb2.ServerMessage()
            message.actions.actions["action"].data = actions[start : start + len(rows)].tobytes()
            start += len(rows)
            body = message.SerializeToString()
            transport.write(_LENGTH.pack(len(body)) + body)


class Connection(asyncio.Protocol):
    """Splits frames."""

    def __init__(self, server: Server):
        self._server = server
        self._data = b""

    def connection_made(self, transport: Any) -> None:
        """Keeps the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Hands whole messages on."""
        self._data += data
        while len(self._data) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack(self._data[: _LENGTH.size])[0]
            if len(self._data) < end:
                return
            body, self._data = self._data[_LENGTH.size : end], self._data[end:]
            self._server.add(self._transport, body)


def serve() -> None:
    """Serves on a free port, which is printed, until the process is killed."""
    import uvloop

    loop = uvloop.new_event_loop()
    server = Server()
    listening = loop.run_until_complete(
        loop.create_server(lambda: Connection(server), "127.0.0.1", 0)
    )
    print(listening.sockets[0].getsockname()[1], flush=True)
    loop.run_forever()


def play(port: int, slots: int, start_at: float, seconds: float) -> None:
    """Steps vectorised CartPole from a moment on for so long; prints the latencies."""
    import gymnasium

    env = gymnasium.make_vec("CartPole-v1", slots, vectorization_mode="vector_entry_point")
    connected = socket.create_connection(("127.0.0.1", port))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    message = rlx_pb2.ClientMessage()
    observations, _ = env.reset()
    latencies = []
    while time.time() < start_at + seconds:
        message.step.observations["observation"].data = observations.astype(np.float32).tobytes()
        body = message.SerializeToString()
        asked = time.perf_counter()
        connected.sendall(_LENGTH.pack(len(body)) + body)
        answer = rlx_pb2.ServerMessage.FromString(connected.recv(65536)[_LENGTH.size :])
        if time.time() >= start_at:
            latencies.append(time.perf_counter() - asked)
        actions = np.frombuffer(answer.actions.actions["action"].data, np.int64)
        observations = env.step(actions)[0]
    print(json.dumps(latencies))


def measure(clients: int, slots: int, seconds: float) -> dict[str, Any]:
    """Returns one row."""
    base = [sys.executable, "-m", "benchmarks.bare"]
    with subprocess.Popen([*base, "serve"], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        port = server.stdout.readline().decode().strip()
        window = [str(time.time() + _WARM_UP_SEC), str(seconds)]
        command = [*base, "play", port, str(slots), *window]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(clients)]
        latencies = np.concatenate([json.loads(one.communicate()[0]) for one in running])
        server.kill()
    return {
        "clients": clients,
        "slots": slots,
        "env steps/s": len(latencies) * slots / seconds,
        "act p50 us": 1e6 * float(np.percentile(latencies, 50)),
        "act p99 us": 1e6 * float(np.percentile(latencies, 99)),
    }


def main(seconds: float = 5.0) -> None:
    """Measures all rows."""
    report("bare prototype, CartPole", [measure(*row, seconds) for row in ROWS])


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            main()
        case ["serve"]:
            serve()
        case ["play", port, slots, start_at, seconds]:
            play(int(port), int(slots), float(start_at), float(seconds))
