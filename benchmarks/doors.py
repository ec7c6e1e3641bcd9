"""Carriers and codecs of the rlx server: env steps per second through each, alternating in one run.

    python -m benchmarks.doors [--seconds 3] [--rounds 5]

One process drives all connections of one kind: a client answers as soon as it is answered, with a
step that was packed before, so that mostly the server is measured. The environment has four numbers
and two actions; the agents exploit (a2c, 2x64 tanh). `ratio` is to frames, of the same round; the
row has the median of the rounds, and each ratio.

Aims: WebSocket with protobuf 0.9 of frames, JSON 0.6.
"""

import argparse
import base64
import json
import os
import selectors
import socket
import statistics
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cluster import run_servers
from benchmarks.report import report
from relaax_like.v1 import ndarray_pb2, rlx_pb2
from relaax_like.wire.framing import HEADER, pack_frame
from relaax_like.wire.ndarray import ndarray_to_message
from relaax_like.wire.spaces import Box, Discrete, space_to_message

CONFIG = Path(__file__).parents[1] / "algorithms" / "a2c" / "a2c.yaml"
ROWS = ((8, 1), (1, 64))  # clients, slots of each
DOORS = ("frames", "WebSocket, protobuf", "WebSocket, JSON", "lines of JSON")
_OPENING = (
    "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {}\r\n\r\n"
)


def make_messages(slots: int, is_json: bool) -> list[bytes]:
    """Returns the hello, the first step and all others, written."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(slots, 4)).astype(np.float32)
    if is_json:
        axis = {} if slots == 1 else {"slots": slots}
        rewards = 1.0 if slots == 1 else [1.0] * slots
        observation = (numbers[0] if slots == 1 else numbers).tolist()
        spaces = {"observation": {"box": [4]}, "action": {"discrete": 2}}
        hello = {"hello": {"name": "load", "mode": "exploit", **axis, **spaces}}
        first = {"act": {"observation": observation}}
        step = {"reward_and_act": {"reward": rewards, "observation": observation}}
        return [json.dumps(message).encode() for message in (hello, first, step)]

    def write(array: Any, dtype: str) -> ndarray_pb2.NdArray:
        return ndarray_to_message(np.asarray(array, dtype), ndarray_pb2.NdArray)

    greeting = rlx_pb2.Hello(
        protocol_version=1,
        client_name="load",
        slots=slots,
        observation_spaces={"observation": space_to_message(Box(dtype="float32", shape=(4,)))},
        action_spaces={"action": space_to_message(Discrete(n=2))},
        mode=rlx_pb2.EXPLOIT,
    )
    observations = {"observation": write(numbers, "float32")}
    steps = (
        rlx_pb2.Step(observations=observations),
        rlx_pb2.Step(
            observations=observations,
            rewards=write(np.ones(slots), "float32"),
            terminated=write(np.zeros(slots), "bool"),
            truncated=write(np.zeros(slots), "bool"),
        ),
    )
    written = [rlx_pb2.ClientMessage(hello=greeting)]
    written += [rlx_pb2.ClientMessage(step=step) for step in steps]
    return [message.SerializeToString() for message in written]


def pack_web(body: bytes, opcode: int) -> bytes:
    """Returns a client's frame, masked with zeros."""
    if len(body) < 126:
        head = bytes([0x80 | opcode, 0x80 | len(body)])
    else:
        head = bytes([0x80 | opcode, 0x80 | 126]) + struct.pack(">H", len(body))
    return head + bytes(4) + body


def count_frame(data: bytes) -> int:
    """Returns the length of the first answer; 0: it is not complete."""
    if len(data) < HEADER.size:
        return 0
    length = HEADER.size + int(HEADER.unpack(data[: HEADER.size])[0])
    return length if length <= len(data) else 0


def count_web(data: bytes) -> int:
    """See `count_frame`."""
    if len(data) < 4:
        return 0
    length = 2 + data[1] if data[1] < 126 else 4 + int(struct.unpack(">H", data[2:4])[0])
    return length if length <= len(data) else 0


def count_line(data: bytes) -> int:
    """See `count_frame`."""
    return data.find(b"\n") + 1


def connect(
    address: str, door: str, slots: int
) -> tuple[socket.socket, bytes, Callable[[bytes], int]]:
    """Opens a connection until after its first action; returns it, its step, and what counts."""
    host, port = address.rsplit(":", 1)
    one = socket.create_connection((host, int(port)))
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    messages = make_messages(slots, "JSON" in door)
    pack: Callable[[bytes], bytes] = pack_frame
    count = count_frame
    if door.startswith("WebSocket"):
        opcode = 1 if "JSON" in door else 2
        key = base64.b64encode(os.urandom(16)).decode()
        one.sendall(_OPENING.format(key).encode())
        while not one.recv(65536).endswith(b"\r\n\r\n"):
            continue
        pack, count = (lambda body: pack_web(body, opcode)), count_web
    elif "lines" in door:
        pack, count = (lambda body: body + b"\n"), count_line
    hello, first, step = map(pack, messages)
    for message in (hello, first):
        one.sendall(message)
        data = b""
        while not count(data):
            data += one.recv(65536)
    return one, step, count


def load(address: str, door: str, clients: int, slots: int, seconds: float) -> float:
    """Returns env steps per second."""
    selector = selectors.DefaultSelector()
    opened = [connect(address, door, slots) for _ in range(clients)]
    rest: dict[socket.socket, bytes] = {}
    for one, step, count in opened:
        rest[one] = b""
        selector.register(one, selectors.EVENT_READ, (step, count))
        one.sendall(step)
    answers = 0
    began = time.perf_counter()
    while time.perf_counter() < began + seconds:
        for key, _ in selector.select():
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            step, count = key.data
            rest[connection] += connection.recv(65536)
            if length := count(rest[connection]):
                rest[connection] = rest[connection][length:]
                answers += 1
                connection.sendall(step)
    took = time.perf_counter() - began
    for one, _, _ in opened:
        one.close()
    return answers * slots / took


def main(seconds: float, rounds: int) -> None:
    """Measures all rows."""
    rows = []
    with run_servers(CONFIG) as address:
        for clients, slots in ROWS:
            rates: dict[str, list[float]] = {door: [] for door in DOORS}
            load(address, DOORS[0], clients, slots, 1.0)
            for _ in range(rounds):
                for door in DOORS:
                    rates[door].append(load(address, door, clients, slots, seconds))
            for door in DOORS:
                pairs = zip(rates[door], rates[DOORS[0]], strict=True)
                ratios = [rate / frames for rate, frames in pairs]
                rows.append(
                    {
                        "clients x slots": f"{clients} x {slots}",
                        "door": door,
                        "env steps/s": statistics.median(rates[door]),
                        "ratio": statistics.median(ratios),
                        "ratios": " ".join(f"{ratio:.2f}" for ratio in ratios),
                    }
                )
    report("carriers and codecs", rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    main(arguments.seconds, arguments.rounds)
