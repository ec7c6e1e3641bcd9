"""Hostile learners of a group in step: what they do to the updates of two honest ones.

A parameter server with `combine.method: sync` and `combine.max_wait_sec: 0.5` is a process of its
own, without TensorFlow. Two honest learners make an update together every 50 ms: each enters an
iteration, sums two numbers, and steps with a gradient. `round` is the time until both have the new
values. Beside them a process of its own does one kind of harm, with the lowest priority:

- `garbage`: connects, sends noise or half of an HTTP/2 hello, and connects again;
- `wrong joins`: of another format, model or name, and damaged messages;
- `long requests`: a member's requests of 4 000 000 empty names of variable groups;
- `too large`: messages of 100 MB, compressed to 100 kB;
- `NaN`: a member whose gradients are not finite; it joins again after each refusal;
- `other sums`: a member that sums other numbers than the rest of the group;
- `half gradients`: 60 members that have sent half a gradient, and then nothing;
- `cancelled`: joins that are cancelled after a moment;
- `silent`: 60 members that have joined, and then say nothing;
- `silent again`: members that join, one every 100 ms, and then say nothing;
- `silent inside`: a member that enters each iteration, and then says nothing until it is left out;
- `idle`: 500 TCP connections and 500 HTTP/2 ones that say nothing;
- `a neighbour`: none; it computes.

`alone` is the number of rounds in which an honest learner was without the others, `refused` that of
updates that ended with an error. `resident` is the server's memory afterwards.
"""

import contextlib
import itertools
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from typing import Any

import grpc
import numpy as np
import psutil

from benchmarks import harms, push_pull
from benchmarks.report import report
from relaax_like.bridge.control import BridgeControl, Link
from relaax_like.config.combine import CombineConfig
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.records import GroupKind, GroupReply, GroupRequest
from relaax_like.core.roles import GroupConnection
from relaax_like.v1 import group_pb2 as pb
from relaax_like.wire.errors import RelaaxError

MODULE = "benchmarks.hostile_group"
JOIN = "/relaax.v1.LearnerGroup/Join"
PERIOD_SEC = 0.05
MAX_WAIT_SEC = 0.5
PARAMETERS = 200_000  # a gradient of two chunks
_CHUNK_BYTES = 400_000


class Member:
    """A learner without a model.

    Args:
      link: to the parameter server.
      name: of the learner.
    """

    def __init__(self, link: Link, name: str):
        self._link = link
        self._name = name
        self._connection: GroupConnection | None = None
        self._newest = GroupReply(outcome="out")
        self.gradient = np.full(PARAMETERS, 1e-3, np.float32)
        self.sums = np.ones(2)

    def update(self) -> bool:
        """Makes one update; returns whether it was made in the first iteration, with others.

        Raises:
          RelaaxError: it was refused.
        """
        for attempt in itertools.count():
            if self.enter().outcome != "done":
                continue
            if self._repeat("sum", sums=self.sums) and self._repeat("step", gradient=self.gradient):
                self.exchange("leave")
                return attempt == 0 and self._newest.learners > 1
        raise AssertionError("unreachable")

    def enter(self) -> GroupReply:
        """Joins, unless it has, and enters the next iteration."""
        if self._connection is None:
            client = self._link.parameter_server_stub(self._name, NullMetrics())
            self._connection = client.join_group()
        self._newest = self.exchange("enter", units=8)
        return self._newest

    def exchange(self, kind: GroupKind, **fields: Any) -> GroupReply:
        """Makes one request in the newest iteration."""
        assert self._connection is not None
        newest = self._newest
        place = {"iteration": newest.iteration, "generation": newest.generation}
        try:
            return self._connection.exchange(GroupRequest(kind=kind, **{**place, **fields}))
        except RelaaxError:
            self.close()
            raise

    def close(self) -> None:
        """Leaves the group."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _repeat(self, kind: GroupKind, **fields: Any) -> bool:
        """Makes a request again while others leave; False: this learner is out."""
        while True:
            reply = self.exchange(kind, tag=kind, **fields)
            if reply.outcome == "out":
                return False
            self._newest = reply
            if reply.outcome == "done":
                return True


class Harm(harms.Harm):
    """What a hostile process knows.

    Attributes:
      link: to the parameter server.
      fingerprint: of its model.
    """

    def __init__(self, address: str):
        super().__init__(address)
        self.link = BridgeControl().connect(address)
        self.fingerprint = self.link.wait(10.0).fingerprint

    def join(self, name: str = "hostile", **fields: Any) -> bytes:
        """Returns the first message of a learner."""
        good = {"format": 1, "learner": name, "fingerprint": self.fingerprint}
        return pack(**{**good, **fields})


def pack(**fields: Any) -> bytes:
    """Returns a request as bytes."""
    return pb.GroupPart(header=pb.GroupRequest(**fields)).SerializeToString()


def send_wrong_joins(harm: Harm) -> Iterator[None]:
    """One call after another."""
    names = [harm.join(""), harm.join("x" * 2_000_000)]
    messages = [harm.join(format=9), harm.join(fingerprint=1), *names]
    yield from harm.send_each(JOIN, [*messages, harms.NOISE, b"\xff" * 10_000])


def send_long_requests(harm: Harm) -> Iterator[None]:
    """One call after another."""
    groups = b"\x52\x00" * 4_000_000  # of the field `groups`
    length = bytearray()
    number = len(groups)
    while number > 0x7F:
        length.append(number & 0x7F | 0x80)
        number >>= 7
    request = b"\x0a" + bytes([*length, number]) + groups
    while True:
        harm.send(JOIN, harm.join(), request)
        yield


def send_too_large(harm: Harm) -> Iterator[None]:
    """A server that unpacked it would have to hold it."""
    while True:
        harm.send(JOIN, bytes(100_000_000), compression=grpc.Compression.Gzip)
        yield


def send_nan(harm: Harm) -> Iterator[None]:
    """One iteration after another."""
    member = Member(harm.link, "hostile")
    member.gradient = np.full(PARAMETERS, np.nan, np.float32)
    yield from _update(member)


def send_other_sums(harm: Harm) -> Iterator[None]:
    """One iteration after another."""
    member = Member(harm.link, "hostile")
    member.sums = np.ones(3)
    yield from _update(member)


def _update(member: Member) -> Iterator[None]:
    while True:
        with contextlib.suppress(RelaaxError):
            member.update()
        yield


def hold_half_gradients(harm: Harm) -> Iterator[None]:
    """Streams that stay as they are."""
    chunk = pb.GroupPart(chunk=bytes(_CHUNK_BYTES)).SerializeToString()

    def make_half(number: int) -> Iterator[bytes]:
        yield harm.join(f"half-{number % 60}")
        yield pack(kind=3, gradient_bytes=4 * PARAMETERS)
        yield chunk

    yield from harm.hold(JOIN, make_half, channels=10, count=60)


def send_and_cancel(harm: Harm) -> Iterator[None]:
    """Sixteen joins under way, each cancelled when its turn comes again."""
    joins = (harm.join(f"flighty-{number}") for number in itertools.count())
    yield from harm.start_and_cancel(JOIN, joins)


def hold_silent(harm: Harm) -> Iterator[None]:
    """Streams that stay as they are."""
    yield from harm.hold(JOIN, lambda n: iter([harm.join(f"silent-{n}")]), count=60)


def send_silent_again(harm: Harm) -> Iterator[None]:
    """Each leaves when thirty others have come."""
    calls: list[Any] = []
    for number in itertools.count():
        stay = itertools.chain([harm.join(f"silent-{number}")], _wait_forever())
        calls.append(harm.call(JOIN, stay, timeout=None))
        if len(calls) > 30:
            calls.pop(0).cancel()
        time.sleep(0.1)
        yield


def _wait_forever() -> Iterator[bytes]:
    while True:
        time.sleep(1000)
        yield b""


def stay_silent_inside(harm: Harm) -> Iterator[None]:
    """One iteration after another."""
    member = Member(harm.link, "hostile")
    while True:
        with contextlib.suppress(RelaaxError):
            member.enter()
            time.sleep(1.1 * MAX_WAIT_SEC)
        yield


HARMS: dict[str, Callable[[Harm], Iterator[None]]] = {
    "garbage": harms.send_garbage,
    "wrong joins": send_wrong_joins,
    "long requests": send_long_requests,
    "too large": send_too_large,
    "NaN": send_nan,
    "other sums": send_other_sums,
    "half gradients": hold_half_gradients,
    "cancelled": send_and_cancel,
    "silent": hold_silent,
    "silent again": send_silent_again,
    "silent inside": stay_silent_inside,
    "idle": harms.stay_idle,
    "a neighbour": harms.compute,
}


class Honest:
    """Two learners, each with a thread of its own."""

    def __init__(self, link: Link):
        self._members = [Member(link, f"honest-{number}") for number in (1, 2)]
        self._threads = ThreadPoolExecutor(2)

    def work(self, seconds: float) -> tuple[list[float], int, int]:
        """Returns the seconds of each round; how many were alone; and how many were refused."""
        rounds: list[float] = []
        alone = refused = 0
        for _ in range(int(seconds / PERIOD_SEC)):
            begun = time.perf_counter()
            updates = [self._threads.submit(member.update) for member in self._members]
            together = []
            for update in updates:
                try:
                    together.append(update.result(3 * seconds))
                except LateError:
                    rounds.append(time.perf_counter() - begun)
                    return rounds, alone, refused  # it would take forever
                except RelaaxError:
                    refused += 1
            rounds.append(time.perf_counter() - begun)
            alone += not all(together)
            if sum(rounds) > 3 * seconds:
                break  # so slow that it shows
            time.sleep(max(0.0, PERIOD_SEC - rounds[-1]))
        return rounds, alone, refused

    def close(self) -> None:
        """Leaves the group."""
        for member in self._members:
            member.close()
        self._threads.shutdown()


def serve() -> None:
    """Serves until standard input ends."""
    logging.basicConfig(filename=os.devnull)  # a line for each learner that is left out
    combine = CombineConfig(method="sync", max_wait_sec=MAX_WAIT_SEC)
    push_pull.serve(PARAMETERS, "journal", combine)


def measure(name: str, seconds: float) -> dict[str, Any]:
    """Returns the row of one kind of harm, or of none."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(harms.start_module(MODULE, "serve"))
        assert server.stdout is not None
        address = f"127.0.0.1:{json.loads(server.stdout.readline())['port']}"
        link = stack.enter_context(BridgeControl().connect(address))
        honest = stack.enter_context(contextlib.closing(Honest(link)))
        harm = harms.start(stack, MODULE, name, address) if name in HARMS else None
        # Not counted: nobody made updates while the hostile process started, so that a hostile
        # learner that waited for the honest ones has left them behind.
        honest.work(1.0)
        rounds, alone, refused = honest.work(seconds)
        resident = psutil.Process(server.pid).memory_info().rss
        did = harms.end(harm)
    return {
        "beside": name,
        "which did": did,
        "rounds": len(rounds),
        **harms.summarize(rounds),
        "alone": alone,
        "refused": refused,
        "MB resident": resident / 1e6,
    }


def main(seconds: float) -> None:
    """Measures all kinds, between two measurements of none."""
    rows = [measure(name, seconds) for name in (harms.NOBODY, *HARMS, harms.NOBODY)]
    report("hostile learners of a group", rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve()
    elif sys.argv[1:2] == [harms.ROLE]:
        harms.run(HARMS, sys.argv[2], Harm(sys.argv[3]))
    else:
        main(float(sys.argv[1]) if sys.argv[1:] else 10.0)
