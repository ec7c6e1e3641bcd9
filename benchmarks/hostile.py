"""Hostile clients of the parameter server: what they do to the pushes of an honest one.

    python -m benchmarks.hostile [--seconds 10] [--parameters 10000] [--rate 100]
    python -m benchmarks.hostile --rlx [--seconds 10] [--attacks "no hello" ...]
    python -m benchmarks.hostile --jobs [--seconds 10]
    python -m benchmarks.hostile --learner [--seconds 10]
    python -m benchmarks.hostile --group [--seconds 10]

With `--rlx`, those of the rlx server: see `benchmarks.hostile_rlx`; with `--jobs`, those of a
coordinator: see `benchmarks.hostile_jobs`; with `--learner`, those of a learner in a process of its
own: see `benchmarks.hostile_learner`; with `--group`, those of learners in step: see
`benchmarks.hostile_group`. Without them:

The honest client pushes a gradient and takes the new values every 10 ms, over one stream. Beside it
a process of its own does one kind of harm, for as long as is measured; as often as it can, or at
most `--rate` times a second:

- `garbage`: connects, sends noise or half of an HTTP/2 hello, and connects again;
- `wrong pushes`: gradients of NaN, foreign layouts, damaged messages, one call after another;
- `1 000 episodes`: pushes of a gradient of NaN with as many episodes as can come in one;
- `reports`: of clients, with numbers of 2^63 and texts that a terminal would obey;
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
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import numpy as np
import psutil

from benchmarks import harms, hostile_group, hostile_jobs, hostile_learner, hostile_rlx
from benchmarks.report import report
from relaax_like.bridge.control import BridgeControl
from relaax_like.core.metrics import NullMetrics
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.v1 import parameter_server_pb2_grpc as pb_grpc

PERIOD_SEC = 0.01
PUSH_PULL = "/relaax.v1.ParameterServer/PushPull"


class Harm(harms.Harm):
    """What a hostile process knows, and the calls that it makes.

    Attributes:
      manifest: of the server.
    """

    def __init__(self, address: str):
        super().__init__(address)
        stub = pb_grpc.ParameterServerStub(self.channel)
        self.manifest = stub.GetManifest(pb.GetManifestRequest())

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


def pack(header: pb.PushHeader) -> bytes:
    """Returns a push as bytes."""
    return pb.PushPullRequest(header=header).SerializeToString()


def send_wrong_pushes(harm: Harm) -> Iterator[None]:
    """One call after another."""
    pushes = [harm.make_push(), harm.make_push(fingerprint=1)]
    yield from harm.send_each(PUSH_PULL, [*map(pack, pushes), harms.NOISE])


def send_episodes(harm: Harm) -> Iterator[None]:
    """The largest header that is read to its end."""
    push = pack(harm.make_push(episodes=[pb.Episode(length=1)] * 1_000))
    yield from harm.send_each(PUSH_PULL, [push])


def send_reports(harm: Harm) -> Iterator[None]:
    """Numbers that do not fit a status, alone or together with others."""
    odd = pb.ServedClient(name="\x1b[2J", late=1 << 63, p99_ms=np.nan)
    reports = [
        pb.ClientsReport(server_id=f"rlx-{number}", num_clients=count, clients=clients)
        for number in range(1000)
        for count, clients in ((1 << 63, []), (1 << 40, []), (1, [odd]))
    ]
    yield from harm.send_each(
        "/relaax.v1.ParameterServer/ReportClients", [one.SerializeToString() for one in reports]
    )


def send_too_large(harm: Harm) -> Iterator[None]:
    """A server that unpacked it would have to hold it."""
    message = bytes(10_000_000)
    while True:
        harm.send(PUSH_PULL, message, compression=grpc.Compression.Gzip)
        yield


def send_and_cancel(harm: Harm) -> Iterator[None]:
    """Sixteen calls under way, each cancelled when its turn comes again."""
    yield from harm.start_and_cancel(PUSH_PULL, itertools.repeat(pack(harm.make_push())))


def hold_half_pushes(harm: Harm) -> Iterator[None]:
    """Streams that stay as they are."""
    header = harm.make_push(first_chunk=b"")
    chunks = harm.manifest.gradient_bytes // 2 // 500_000
    rest = harm.manifest.gradient_bytes // 2 % 500_000

    def make_half(number: int) -> Iterator[bytes]:
        yield pack(header)
        for length in [500_000] * chunks + [rest]:
            yield pb.PushPullRequest(chunk=bytes(length)).SerializeToString()

    yield from harm.hold(PUSH_PULL, make_half, channels=10)


HARMS: dict[str, Callable[[Harm], Iterator[None]]] = {
    "garbage": harms.send_garbage,
    "wrong pushes": send_wrong_pushes,
    "1 000 episodes": send_episodes,
    "reports": send_reports,
    "too large": send_too_large,
    "cancelled": send_and_cancel,
    "half pushes": hold_half_pushes,
    "idle": harms.stay_idle,
    "a neighbour": harms.compute,
}


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
        server = stack.enter_context(
            harms.start_module("benchmarks.push_pull", "serve", parameters, "journal")
        )
        assert server.stdout is not None
        address = f"127.0.0.1:{json.loads(server.stdout.readline())['port']}"
        process = psutil.Process(server.pid)
        push(address, 0.5)
        harm = None
        if name in HARMS:
            harm = harms.start(stack, "benchmarks.hostile", name, address, rate)
        before = sum(process.cpu_times()[:2])
        began = time.monotonic()
        rounds = push(address, seconds)
        cpu = 100 * (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
        resident = process.memory_info().rss
        did = harms.end(harm)
    return {
        "beside": name,
        "which did": did,
        "pushes": len(rounds),
        **harms.summarize(rounds),
        "cpu % server": cpu,
        "MB resident": resident / 1e6,
    }


def main(argv: Sequence[str] = ()) -> None:
    """Measures all kinds, between two measurements of none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--parameters", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=float("inf"), help="of harm, a second")
    parser.add_argument("--rlx", action="store_true", help="attack the rlx server instead")
    parser.add_argument("--jobs", action="store_true", help="attack a coordinator instead")
    parser.add_argument("--learner", action="store_true", help="attack a learner instead")
    parser.add_argument("--group", action="store_true", help="attack learners in step instead")
    parser.add_argument("--attacks", nargs="+", choices=hostile_rlx.ATTACKS, default=())
    arguments = parser.parse_args(argv)
    if arguments.rlx:
        hostile_rlx.main(arguments.seconds, arguments.attacks)
        return
    if arguments.jobs:
        hostile_jobs.main(arguments.seconds)
        return
    if arguments.learner:
        hostile_learner.main(arguments.seconds)
        return
    if arguments.group:
        hostile_group.main(arguments.seconds)
        return
    rows = [
        measure(name, arguments.parameters, arguments.seconds, arguments.rate)
        for name in (harms.NOBODY, *HARMS, harms.NOBODY)
    ]
    report(f"hostile clients, {arguments.parameters:,} parameters", rows)


if __name__ == "__main__":
    if sys.argv[1:2] == [harms.ROLE]:
        harms.run(HARMS, sys.argv[2], Harm(sys.argv[3]), float(sys.argv[4]))
    else:
        main(sys.argv[1:])
