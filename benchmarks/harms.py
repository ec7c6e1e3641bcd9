"""What the hostile processes of `benchmarks.hostile` have in common, whatever they attack.

harm = start(stack, "benchmarks.hostile", name, address)   # in the process that measures
...
did = end(harm)

run(HARMS, name, Harm(address))                             # in the hostile process
"""

import contextlib
import itertools
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import grpc
import numpy as np

HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
GOAWAY = bytes([0, 0, 16, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]) + b"any text"
NOISE = random.Random(1).randbytes(10_000)
# The row in which nobody attacks.
NOBODY = "nobody"
ROLE = "harm"  # first argument of a hostile process


class Harm:
    """A channel to a server, below our own clients.

    Attributes:
      address: host and port.
      channel: to it.
    """

    def __init__(self, address: str):
        host, _, port = address.rpartition(":")
        self.address = host, int(port)
        self.channel = self.open_channel()

    def open_channel(self) -> grpc.Channel:
        """Opens a channel with a connection of its own."""
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        return grpc.insecure_channel("{}:{}".format(*self.address), options)

    def call(
        self,
        method: str,
        messages: Iterator[bytes],
        channel: grpc.Channel | None = None,
        **options: Any,
    ) -> Any:
        """Starts a call of any method, `/service/method`; the caller reads its replies."""
        options = {"timeout": 30, **options}
        multi = (channel or self.channel).stream_stream(
            method, request_serializer=bytes, response_deserializer=bytes
        )
        return multi(messages, **options)

    def send(self, method: str, *messages: bytes, **options: Any) -> None:
        """Makes a call and waits for its end, which is usually a refusal."""
        with contextlib.suppress(grpc.RpcError):
            list(self.call(method, iter(messages), **options))

    def send_each(self, method: str, messages: Sequence[bytes]) -> Iterator[None]:
        """Makes one call after another, each with one of the messages."""
        for message in itertools.cycle(messages):
            self.send(method, message)
            yield

    def start_and_cancel(self, method: str, messages: Iterator[bytes]) -> Iterator[None]:
        """Sixteen calls under way, each with the next message, cancelled when its turn returns."""
        calls: list[Any] = []
        for message in messages:
            calls.append(self.call(method, iter([message])))
            if len(calls) > 16:
                calls.pop(0).cancel()
            yield

    def hold(
        self,
        method: str,
        messages: Callable[[int], Iterator[bytes]],
        channels: int = 1,
        count: int = 300,
    ) -> Iterator[None]:
        """Calls that send messages, then nothing, and stay open.

        Args:
          method: of the calls.
          messages: returns those of a call, by its number.
          channels: so many connections are shared by the calls.
          count: of the calls.
        """
        forever = threading.Event()

        def send(number: int) -> Iterator[bytes]:
            yield from messages(number)
            forever.wait()

        own = [self.channel, *(self.open_channel() for _ in range(channels - 1))]
        calls = [self.call(method, send(n), own[n % channels], timeout=None) for n in range(count)]
        while calls:
            time.sleep(1)
            yield


HarmT = TypeVar("HarmT", bound=Harm)
Harms = Mapping[str, Callable[[HarmT], Iterator[None]]]


def send_garbage(harm: Harm) -> Iterator[None]:
    """One connection after another."""
    for data in itertools.cycle(
        [NOISE, HELLO + NOISE, HELLO + GOAWAY, b"GET / HTTP/1.1\r\n\r\n", HELLO[:20]]
    ):
        with socket.create_connection(harm.address) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(data)
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


def run(harms: Harms[HarmT], name: str, harm: HarmT, rate: float = float("inf")) -> None:
    """Does one kind of harm until standard input ends; prints how often it was done.

    Args:
      harms: all kinds.
      name: which one.
      harm: its argument.
      rate: how often a second at most.
    """
    os.nice(19)
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    began = time.monotonic()
    for count, _ in enumerate(harms[name](harm)):
        if count == 0:
            print("ready", flush=True)
        time.sleep(max(0.0, began + (count + 1) / rate - time.monotonic()))
        if ended.is_set():
            print(f"{count / (time.monotonic() - began):,.0f}/s", flush=True)
            os._exit(0)  # calls that are never to end would be waited for


@contextlib.contextmanager
def start_module(module: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Starts a module with pipes to its standard input and output, and kills it at the end."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def start(
    stack: contextlib.ExitStack, module: str, name: str, *arguments: object
) -> subprocess.Popen[str]:
    """Starts a hostile process, which is killed with the stack, and waits until it has begun."""
    process = stack.enter_context(start_module(module, ROLE, name, *arguments))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", f"{name}: it did not begin"
    return process


def end(process: subprocess.Popen[str] | None) -> str:
    """Ends a hostile process; returns how often it did its harm, "-" without a process."""
    return "-" if process is None else process.communicate()[0].strip()


def summarize(rounds: Sequence[float]) -> dict[str, float]:
    """Returns columns of a table: percentiles of seconds, in ms."""
    return {
        "p50 ms": 1e3 * float(np.percentile(rounds, 50)),
        "p99 ms": 1e3 * float(np.percentile(rounds, 99)),
        "max ms": 1e3 * max(rounds),
    }
