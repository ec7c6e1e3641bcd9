"""Hostile clients of the parameter server: what they do to the pushes of an honest one.

    python -m benchmarks.hostile [--seconds 10] [--parameters 10000] [--rate 100]
    python -m benchmarks.hostile --rlx [--seconds 10] [--attacks "no hello" ...]
    python -m benchmarks.hostile --jobs [--seconds 10]

With `--rlx`, those of the rlx server: see `benchmarks.hostile_rlx`; with `--jobs`, those of a
coordinator: see `benchmarks.hostile_jobs`. Without them:

The honest client pushes a gradient and takes the new values every 10 ms, over one stream. Beside it
a process of its own does one kind of harm, for as long as is measured; as often as it can, or at
most `--rate` times a second:

- `garbage`: connects, sends noise or half of an HTTP/2 hello, and connects again;
- `wrong pushes`: gradients of NaN, foreign layouts, damaged messages, one call after another;
- `1 000 episodes`: pushes of a gradient of NaN with as many episodes as can come in one;
- `too large`: messages of 100 MB, compressed to 100 kB;
- `cancelled`: pushes that are cancelled after a moment;
- `half pushes`: 300 streams that have sent half a gradient, and then nothing;
- `idle`: 500 TCP connections and 500 HTTP/2 ones that say nothing;
- `a neighbour`: none; it computes, and shows what any busy program beside the server costs.

It gives way to the others' use of the processor (nice 19): it would run on a machine of its own.
The server answers it nevertheless, and that is what is measured.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import numpy as np
import psutil

from benchmarks import hostile_jobs, hostile_rlx
from benchmarks.report import report
from relaax_like.bridge.control import BridgeControl
from relaax_like.core.metrics import NullMetrics
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.v1 import parameter_server_pb2_grpc as pb_grpc

PERIOD_SEC = 0.01
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
PUSH_PULL = "/relaax.v1.ParameterServer/PushPull"
NOISE = random.Random(1).randbytes(10_000)


class Harm:
    """What a hostile process knows, and the calls that it makes.

    Attributes:
      address: of the server, host and port.
      channel: to it.
      manifest: of the server.
    """

    def __init__(self, address: str):
        host, _, port = address.rpartition(":")
        self.address = host, int(port)
        self.channel = self.open_channel()
        stub = pb_grpc.ParameterServerStub(self.channel)
        self.manifest = stub.GetManifest(pb.GetManifestRequest())

    def open_channel(self) -> grpc.Channel:
        """Opens a channel with a connection of its own."""
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        return grpc.insecure_channel("{}:{}".format(*self.address), options)

    def make_push(self, number: float = np.nan, **fields: Any) -> pb.PushHeader:
        """Returns a whole push with a gradient of that number."""
        gradient = np.full(self.manifest.gradient_bytes // 4, number, np.float32)
        good: dict[str, Any] = {
            "client_id": "hostile",
            "gradient_bytes": gradient.nbytes,
            "fingerprint": self.manifest.fingerprint,
            "first_chunk": gradient.tobytes(),
        }
        return pb.PushHeader(**{**good, **fields})

    def send(self, *messages: bytes, **options: Any) -> None:
        """Makes a call and waits for its end, which is a refusal."""
        with contextlib.suppress(grpc.RpcError):
            list(open_stream(self.channel)(iter(messages), timeout=30, **options))


def open_stream(channel: grpc.Channel) -> Callable[..., Any]:
    """Returns `PushPull` of bytes."""
    return channel.stream_stream(PUSH_PULL, request_serializer=bytes, response_deserializer=bytes)


def pack(header: pb.PushHeader) -> bytes:
    """Returns a push as bytes."""
    return pb.PushPullRequest(header=header).SerializeToString()


def send_garbage(harm: Harm) -> Iterator[None]:
    """One connection after another."""
    for data in itertools.cycle([NOISE, HELLO + NOISE, b"GET / HTTP/1.1\r\n\r\n", HELLO[:20]]):
        with socket.create_connection(harm.address) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(data)
        yield


def send_wrong_pushes(harm: Harm) -> Iterator[None]:
    """One call after another."""
    pushes = [pack(harm.make_push()), pack(harm.make_push(fingerprint=1)), NOISE]
    for push in itertools.cycle(pushes):
        harm.send(push)
        yield


def send_episodes(harm: Harm) -> Iterator[None]:
    """The largest header that is read to its end."""
    push = pack(harm.make_push(episodes=[pb.Episode(length=1)] * 1_000))
    while True:
        harm.send(push)
        yield


def send_too_large(harm: Harm) -> Iterator[None]:
    """A server that unpacked it would have to hold it."""
    message = bytes(10_000_000)
    while True:
        harm.send(message, compression=grpc.Compression.Gzip)
        yield


def send_and_cancel(harm: Harm) -> Iterator[None]:
    """Sixteen calls under way, each cancelled when its turn comes again."""
    push, calls = pack(harm.make_push()), []
    while True:
        calls.append(open_stream(harm.channel)(iter([push]), timeout=30))
        if len(calls) > 16:
            calls.pop(0).cancel()
        yield


def hold_half_pushes(harm: Harm) -> Iterator[None]:
    """Streams that stay as they are."""
    header = harm.make_push(first_chunk=b"")
    chunks = harm.manifest.gradient_bytes // 2 // 500_000
    rest = harm.manifest.gradient_bytes // 2 % 500_000
    forever = threading.Event()

    def send() -> Iterator[bytes]:
        yield pack(header)
        for length in [500_000] * chunks + [rest]:
            yield pb.PushPullRequest(chunk=bytes(length)).SerializeToString()
        forever.wait()

    channels = [harm.open_channel() for _ in range(10)]
    calls = [open_stream(channels[n % 10])(send()) for n in range(300)]
    while calls:
        time.sleep(1)
        yield


def stay_idle(harm: Harm) -> Iterator[None]:
    """Connections that stay as they are."""
    connections = [socket.create_connection(harm.address) for _ in range(1000)]
    for connection in connections[::2]:
        connection.sendall(HELLO)
    while True:
        time.sleep(1)
        yield


def compute(harm: Harm) -> Iterator[None]:
    """A millisecond of work, again and again."""
    while True:
        sum(range(50_000))
        yield


HARMS: dict[str, Callable[[Harm], Iterator[None]]] = {
    "garbage": send_garbage,
    "wrong pushes": send_wrong_pushes,
    "1 000 episodes": send_episodes,
    "too large": send_too_large,
    "cancelled": send_and_cancel,
    "half pushes": hold_half_pushes,
    "idle": stay_idle,
    "a neighbour": compute,
}
NOBODY = "nobody"


def do_harm(name: str, address: str, rate: float) -> None:
    """Does one kind of harm until standard input ends; prints how often it was done.

    Args:
      name: a key of `HARMS`.
      address: of the server.
      rate: how often a second at most.
    """
    os.nice(19)
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    began = time.monotonic()
    for count, _ in enumerate(HARMS[name](Harm(address))):
        if count == 0:
            print("ready", flush=True)
        time.sleep(max(0.0, began + (count + 1) / rate - time.monotonic()))
        if ended.is_set():
            print(f"{count / (time.monotonic() - began):,.0f}/s", flush=True)
            os._exit(0)  # calls that are never to end would be waited for


def push(address: str, seconds: float) -> list[float]:
    """Pushes at an even pace; returns the seconds of each round."""
    rounds = []
    with BridgeControl().connect(address) as link:
        with link.parameter_server_stub(metrics=NullMetrics(), keep_stream_open=True) as client:
            gradient = [np.full_like(array, 1e-3) for array in client.get_values()]
            for number in range(int(seconds / PERIOD_SEC)):
                start = time.perf_counter()
                client.push_pull(gradient)
                rounds.append(time.perf_counter() - start)
                if number % 100 == 99 and sum(rounds) > 2 * seconds:
                    break  # so slow that it shows
                time.sleep(max(0.0, PERIOD_SEC - rounds[-1]))
    return rounds


def measure(name: str, parameters: int, seconds: float, rate: float) -> dict[str, Any]:
    """Returns the row of one kind of harm, at most so often a second, or of none."""
    with contextlib.ExitStack() as stack:
        server = _start(stack, "benchmarks.push_pull", "serve", parameters, "journal")
        assert server.stdout is not None
        address = f"127.0.0.1:{json.loads(server.stdout.readline())['port']}"
        process = psutil.Process(server.pid)
        push(address, 0.5)
        did = "-"
        if name in HARMS:
            harm = _start(stack, "benchmarks.hostile", "harm", name, address, rate)
            assert harm.stdout is not None
            assert harm.stdout.readline() == "ready\n", f"{name}: it did not begin"
        before = sum(process.cpu_times()[:2])
        began = time.monotonic()
        rounds = push(address, seconds)
        cpu = 100 * (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
        resident = process.memory_info().rss
        if name in HARMS:
            did = harm.communicate()[0].strip()
    return {
        "beside": name,
        "which did": did,
        "pushes": len(rounds),
        "p50 ms": 1e3 * float(np.percentile(rounds, 50)),
        "p99 ms": 1e3 * float(np.percentile(rounds, 99)),
        "max ms": 1e3 * max(rounds),
        "cpu % server": cpu,
        "MB resident": resident / 1e6,
    }


def _start(stack: contextlib.ExitStack, module: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def main(argv: Sequence[str] = ()) -> None:
    """Measures all kinds, between two measurements of none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--parameters", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=float("inf"), help="of harm, a second")
    parser.add_argument("--rlx", action="store_true", help="attack the rlx server instead")
    parser.add_argument("--jobs", action="store_true", help="attack a coordinator instead")
    parser.add_argument("--attacks", nargs="+", choices=hostile_rlx.ATTACKS, default=())
    arguments = parser.parse_args(argv)
    if arguments.rlx:
        hostile_rlx.main(arguments.seconds, arguments.attacks)
        return
    if arguments.jobs:
        hostile_jobs.main(arguments.seconds)
        return
    rows = [
        measure(name, arguments.parameters, arguments.seconds, arguments.rate)
        for name in (NOBODY, *HARMS, NOBODY)
    ]
    report(f"hostile clients, {arguments.parameters:,} parameters", rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["harm"]:
        do_harm(sys.argv[2], sys.argv[3], float(sys.argv[4]))
    else:
        main(sys.argv[1:])
