"""The metrics service over real connections. Covers R15."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.event_files import read_scalars

from relaax_like.bridge.metrics_servicer import MAX_POINTS, create_metrics_server
from relaax_like.config.address import Address
from relaax_like.metrics.recorder import TensorBoardRecorder
from relaax_like.v1 import metrics_pb2, metrics_pb2_grpc
from relaax_like.wire.errors import ConfigError

TIMEOUT_SEC = 20
Scalar = metrics_pb2.Scalar
Request = metrics_pb2.StoreScalarsRequest


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[TensorBoardRecorder]:
    with TensorBoardRecorder(tmp_path, global_t=lambda: 77, max_queue=20_000) as recorder:
        yield recorder


@pytest.fixture
def channel(recorder: TensorBoardRecorder) -> Iterator[grpc.Channel]:
    server, port = create_metrics_server(Address("localhost", 0), recorder)
    server.start()
    with grpc.insecure_channel(f"localhost:{port}") as channel:
        yield channel
    server.stop(None).wait()


def _store(channel: grpc.Channel, request: Any) -> metrics_pb2.StoreScalarsReply:
    return metrics_pb2_grpc.MetricsStub(channel).StoreScalars(request, timeout=TIMEOUT_SEC)


def test_points_arrive_with_their_x(
    channel: grpc.Channel, recorder: TensorBoardRecorder, tmp_path: Path
) -> None:
    named = [Scalar(name="a", y=1, x=5), Scalar(name="a", y=2, x=0), Scalar(name="a", y=3)]
    assert _store(channel, Request(scalars=named, global_t=9)).dropped == 0
    _store(channel, Request(scalars=[Scalar(name="a", y=4)]))
    assert recorder.flush()
    assert read_scalars(tmp_path) == {"a": [(5, 1.0), (0, 2.0), (9, 3.0), (77, 4.0)]}


@pytest.mark.parametrize(
    ("bad", "want"),
    [
        (Scalar(name="loss", y=float("nan")), "scalars[1] 'loss': y is nan, expected a finite"),
        (Scalar(name="loss", y=float("inf")), "scalars[1] 'loss': y is inf"),
        (Scalar(name="loss", y=1, x=float("nan")), "scalars[1] 'loss': x is nan"),
        (Scalar(y=1), "scalars[1]: name '' of length 0, expected 1 to 200"),
        (Scalar(name="n" * 201, y=1), "scalars[1]: name 'nnn"),
    ],
    ids=["NaN", "infinity", "x", "no name", "long name"],
)
def test_bad_point_is_named_and_nothing_of_its_request_is_recorded(
    channel: grpc.Channel, recorder: TensorBoardRecorder, tmp_path: Path, bad: Any, want: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        _store(channel, Request(scalars=[Scalar(name="good", y=1), bad]))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(caught.value.details()).startswith(want)
    _store(channel, Request(scalars=[Scalar(name="next", y=1)]))
    assert recorder.flush()
    assert list(read_scalars(tmp_path)) == ["next"]


def test_too_many_points_are_refused(channel: grpc.Channel) -> None:
    points = [Scalar(name="a", y=1)] * (MAX_POINTS + 1)
    with pytest.raises(grpc.RpcError) as caught:
        _store(channel, Request(scalars=points))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "10001 points, but at most 10000" in str(caught.value.details())
    assert _store(channel, Request(scalars=points[1:])).dropped == 0


def test_too_long_a_message_is_refused_before_it_is_read(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        _store(channel, Request(scalars=[Scalar(name="x" * (9 << 20), y=1)]))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_points_beyond_the_queue_are_counted_in_the_reply(tmp_path: Path) -> None:
    with TensorBoardRecorder(tmp_path, max_queue=1) as recorder:
        server, port = create_metrics_server(Address("localhost", 0), recorder)
        server.start()
        with grpc.insecure_channel(f"localhost:{port}") as channel:
            reply = _store(channel, Request(scalars=[Scalar(name="a", y=1, x=x) for x in range(5)]))
        server.stop(None).wait()
    assert reply.dropped == recorder.dropped == 4


def test_health_check_is_answered(channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", "relaax.v1.Metrics"):
        request = health_pb2.HealthCheckRequest(service=service)
        reply = health.Check(request, timeout=TIMEOUT_SEC)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_second_server_on_a_port_is_refused_and_the_holder_named(
    recorder: TensorBoardRecorder,
) -> None:
    server, port = create_metrics_server(Address("127.0.0.1", 0), recorder)
    server.start()
    try:
        with pytest.raises(ConfigError, match=f"port {port} is in use by pid {os.getpid()} "):
            create_metrics_server(Address("127.0.0.1", port), recorder)
    finally:
        server.stop(None).wait()


def test_port_of_a_plain_socket_is_refused(recorder: TensorBoardRecorder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        with pytest.raises(ConfigError, match="choose another port"):
            create_metrics_server(Address("127.0.0.1", holder.getsockname()[1]), recorder)


def test_address_of_another_machine_is_refused(recorder: TensorBoardRecorder) -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1 is not an address of this machine"):
        create_metrics_server(Address("192.0.2.1", 7002), recorder)
