"""Calls of our clients to a parameter server over gRPC, and its answers: see test_bytes.py."""

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from support.bridge import make_backend

from relaax_like.bridge.control import BridgeControl
from relaax_like.bridge.joining import GroupStream
from relaax_like.bridge.metrics_client import MetricsClient
from relaax_like.bridge.publishing import PublisherStub
from relaax_like.bridge.spaces_servicer import propose_spaces
from relaax_like.bridge.stub import ParameterServerStub
from relaax_like.config.combine import CombineConfig
from relaax_like.core.manifest import Variable
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.moments import Moments
from relaax_like.core.records import (
    Counts,
    Episode,
    GroupRequest,
    Playing,
    Publication,
    PublishTicket,
    Received,
    TableStatus,
)
from relaax_like.metrics.recorder import TensorBoardRecorder
from relaax_like.parameter_server.learner_lease import NAME, LearnerLease
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.wire.spaces import Box, Discrete, RunSpaces

_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
_VARIABLES = (
    Variable("w", np.arange(3, dtype=np.float32)),
    Variable("obs.count", np.zeros(()), kind="statistic"),
    Variable("obs.mean", np.zeros(2), kind="statistic"),
    Variable("obs.m2", np.zeros(2), kind="statistic"),
)
_GRADIENT = [np.array([0.5, -1, 2], np.float32)]


class Recorder:
    """A channel that notes the bytes of all messages.

    Attributes:
      lines: method and direction -> the messages. What is sent and received at the same time has no
        order between the two.

    Args:
      channel: that carries them.
    """

    def __init__(self, channel: grpc.Channel):
        self.lines: dict[str, list[bytes]] = {}
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        make = getattr(self._channel, name)
        return self._wrap(make) if name in _KINDS else make

    def _wrap(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def make_call(
            method: str, request_serializer: Any, response_deserializer: Any, **options: Any
        ) -> Any:
            name = method.rpartition(".")[2]
            sent = self.lines.setdefault(f"{name} >", [])
            received = self.lines.setdefault(f"{name} <", [])

            def write(message: Any) -> bytes:
                data = request_serializer(message)
                sent.append(_hide_time(data) if name == "ParameterServer/PushPull" else data)
                return data

            def read(data: bytes) -> Any:
                received.append(data)
                return response_deserializer(data)

            return make(method, write, read, **options)

        return make_call


def _hide_time(data: bytes) -> bytes:
    """Removes the time until the call's deadline."""
    request = pb.PushPullRequest.FromString(data)
    request.header.ClearField("timeout_sec")
    return request.SerializeToString()


@contextlib.contextmanager
def _serve(
    variables: Sequence[Variable] = _VARIABLES, **options: Any
) -> Iterator[tuple[Recorder, str, ParameterServer]]:
    """Gives a channel to a parameter server, its address, and itself."""
    with tempfile.TemporaryDirectory() as folder:
        # Files of a run before: without them, epoch and term would be the time.
        (Path(folder) / "epoch").write_text("1")
        data = {"format": 1, "term": 3, "holder": "golden", "address": "localhost:7002"}
        (Path(folder) / NAME).write_text(json.dumps(data))
        if options.pop("leases", False):
            options["learner_lease"] = LearnerLease(Path(folder))
        server = make_backend(variables, snapshots=Snapshots(Path(folder)), **options)
        with server, _open(server) as (recorder, address):
            yield recorder, address, server


@contextlib.contextmanager
def _open(server: ParameterServer) -> Iterator[tuple[Recorder, str]]:
    options: dict[str, Any] = {"propose": lambda spaces: spaces}
    if server.learner_address[1]:
        options["publisher"] = server
    served, port = BridgeControl().create_server("127.0.0.1:0", server, **options)
    served.start()
    address = f"127.0.0.1:{port}"
    try:
        with grpc.insecure_channel(address) as channel:
            yield Recorder(channel), address
    finally:
        served.stop(grace=None).wait()


def push(keep_stream_open: bool) -> dict[str, list[bytes]]:
    """A client that pushes a gradient, counts, and running statistics."""
    with _serve() as (recorder, address, server):
        stub = ParameterServerStub(
            recorder,  # type: ignore[arg-type]
            address,
            server.manifest,
            NullMetrics(),
            "golden",
            keep_stream_open=keep_stream_open,
            use_shared_memory=False,
        )
        stub._incarnation = 5  # else the time
        stub.get_values()
        stub.add_episodes((Playing("rlx-1/1", 2, 3), Episode(1.5, 3, 1)))
        stub.increment_global_t(3)
        stub.add_statistics("obs", Moments(2.0, np.ones(2), np.zeros(2)))
        stub.push_pull(_GRADIENT)
        stub.push_pull()
        stub.close()
    return recorder.lines


def publish() -> dict[str, list[bytes]]:
    """A learner in a process of its own: its lease, a publication, and counts."""
    with _serve(_VARIABLES[:1], leases=True) as (recorder, address, server):
        stub = PublisherStub(recorder, address)  # type: ignore[arg-type]
        term, _, lease, _ = stub.acquire("golden", "localhost:7002", server.manifest)
        stub.renew(term, TableStatus(2.5, 600))
        common: dict[str, Any] = {
            "env_steps": 64,
            "episodes": (Episode(1.5, 3, 1),),
            "received": {"rlx-1": Received(11, 7, 5)},
        }
        stub.publish(
            Publication(
                number=1,
                values=_GRADIENT[0].view(np.uint8),
                slots=lease.slots,
                steps={"default": 2},
                ticket=PublishTicket(term, 1),
                **common,
            )
        )
        stub.publish(Counts(ticket=PublishTicket(term, 2), **common))
        assert stub.find_learner() == "localhost:7002"
    return recorder.lines


def join() -> dict[str, list[bytes]]:
    """A learner that makes an update together with all others, of which there are none."""
    with _serve(combine=CombineConfig(method="sync")) as (recorder, address, server):
        stream = GroupStream(recorder, address, server.manifest, "golden")  # type: ignore[arg-type]
        entered = stream.exchange(GroupRequest(kind="enter", units=8))
        common = {"iteration": entered.iteration, "generation": entered.generation}
        stream.exchange(GroupRequest(kind="sum", tag="moments", sums=np.array([1.5, 2]), **common))
        stream.exchange(
            GroupRequest(
                kind="step",
                tag="step 0 0",
                sums=np.array([0.25]),
                gradient=_GRADIENT[0],
                clip={"": 1.0},
                **common,
            )
        )
        stream.exchange(GroupRequest(kind="leave"))
        stream.close()
    return recorder.lines


def propose() -> dict[str, list[bytes]]:
    """An rlx server that says which spaces its first client has, and one that asks for them."""
    with _serve() as (recorder, address, _):
        spaces = RunSpaces({"observation": Box(dtype="float32", shape=(2,))}, {"x": Discrete(n=3)})
        assert propose_spaces(recorder, address, spaces) == spaces  # type: ignore[arg-type]
        assert propose_spaces(recorder, address, None) is None  # type: ignore[arg-type]
    return recorder.lines


def send_points() -> dict[str, list[bytes]]:
    """A client that sends points of curves, one without an x."""
    with tempfile.TemporaryDirectory() as folder, TensorBoardRecorder(Path(folder)) as metrics:
        with _serve(metrics=metrics) as (recorder, _, _):
            client = MetricsClient(recorder, global_t=lambda: 7.0)  # type: ignore[arg-type]
            client.scalars([("a", 1.5, 3.0), ("b", -2.0, None)])
            client.close()
    return {what: sent[-1:] for what, sent in recorder.lines.items()}  # after calls without points


CALLS: dict[str, Callable[[], dict[str, list[bytes]]]] = {
    "push": lambda: push(keep_stream_open=False),
    "push in a stream": lambda: push(keep_stream_open=True),
    "publish": publish,
    "join": join,
    "propose": propose,
    "send points": send_points,
}


def make_calls(name: str) -> Sequence[tuple[str, list[bytes]]]:
    """Returns the messages of each method and direction that has some."""
    return [(f"{name}: {what}", sent) for what, sent in sorted(CALLS[name]().items()) if sent]
