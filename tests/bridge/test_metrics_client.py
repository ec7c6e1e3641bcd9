"""The stub of the metrics service, with servers that come and go. Covers R15."""

import itertools
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.event_files import read_scalars

from relaax_like.bridge import metrics_client
from relaax_like.bridge.metrics_client import MetricsClient
from relaax_like.bridge.metrics_servicer import create_metrics_server
from relaax_like.config.address import Address
from relaax_like.metrics.recorder import TensorBoardRecorder
from relaax_like.v1 import metrics_pb2, metrics_pb2_grpc
from relaax_like.wire.errors import InvalidInputError

WAIT_SEC = 60


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[TensorBoardRecorder]:
    with TensorBoardRecorder(tmp_path) as recorder:
        yield recorder


@pytest.fixture
def serve(recorder: TensorBoardRecorder) -> Iterator[Callable[[int], tuple[grpc.Server, int]]]:
    """Starts metrics servers, and stops them at the end."""
    servers = []

    def start(port: int = 0) -> tuple[grpc.Server, int]:
        server, port = create_metrics_server(Address("127.0.0.1", port), recorder)
        server.start()
        servers.append(server)
        return server, port

    yield start
    for server in servers:
        server.stop(None).wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _zero() -> int:
    return 0


def test_points_are_recorded_by_the_server(
    serve: Any, recorder: TensorBoardRecorder, tmp_path: Path
) -> None:
    _, port = serve()
    steps = itertools.count(40)
    with MetricsClient(f"127.0.0.1:{port}", global_t=lambda: next(steps)) as client:
        client.scalar("a", 1.0)
        client.scalar("a", 2.0, 7)
        client.scalar("a", 3.0)
        assert client.flush(WAIT_SEC)
        assert client.dropped == 0
    assert recorder.flush()
    # The x is that of the moment of the call, also for points that were queued for a while.
    assert read_scalars(tmp_path)["a"] == [(40, 1.0), (7, 2.0), (42, 3.0)]


def test_more_points_than_fit_one_call_arrive_in_order(
    serve: Any, recorder: TensorBoardRecorder, tmp_path: Path
) -> None:
    _, port = serve()
    with MetricsClient(Address("127.0.0.1", port), global_t=_zero) as client:
        for x in range(5000):
            client.scalar("a", 1.0, x)
        assert client.flush(WAIT_SEC)  # `close` waits a second at most for each call
    assert client.dropped == 0
    assert recorder.flush()
    assert [x for x, _ in read_scalars(tmp_path)["a"]] == list(range(5000))


def test_a_proxy_of_the_environment_is_not_used(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{_free_port()}")  # where nothing listens
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    _, port = serve()
    with MetricsClient(f"127.0.0.1:{port}", global_t=_zero) as client:
        client.scalar("a", 1.0, 1)
        assert client.flush(WAIT_SEC)
        assert client.dropped == 0


def test_channel_of_the_caller_is_used_and_left_open(serve: Any, tmp_path: Path) -> None:
    _, port = serve()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for x in range(2):
            with MetricsClient(channel, global_t=_zero) as client:
                client.scalar("a", 1.0, x)
            assert client.dropped == 0


def test_points_wait_for_a_server_that_starts_later(
    serve: Any,
    recorder: TensorBoardRecorder,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_client, "_TELL_AFTER_SEC", 0.5)
    port = _free_port()
    with caplog.at_level(logging.INFO):
        with MetricsClient(f"127.0.0.1:{port}", global_t=_zero) as client:
            client.scalar("a", 1.0, 1)
            assert not client.flush(0.1)
            while "metrics could not be sent for" not in caplog.text:
                client.flush(0.1)
            serve(port)
            client.scalar("a", 2.0, 2)
            assert client.flush(WAIT_SEC)
    assert client.dropped == 0
    assert recorder.flush()
    assert read_scalars(tmp_path)["a"] == [(1, 1.0), (2, 2.0)]
    assert caplog.text.count("metrics could not be sent for") == 1
    assert "sending metrics again" in caplog.text


def test_points_arrive_after_a_restart_of_the_server(
    serve: Any, recorder: TensorBoardRecorder, tmp_path: Path
) -> None:
    server, port = serve()
    with MetricsClient(f"127.0.0.1:{port}", global_t=_zero) as client:
        client.scalar("a", 1.0, 1)
        assert client.flush(WAIT_SEC)
        server.stop(None).wait()
        serve(port)
        for x in range(2, 1000):
            client.scalar("a", 1.0, x)
            assert client.flush(WAIT_SEC)
            if client.dropped < x - 1:  # One call can be lost with the connection, not the next.
                break
    assert recorder.flush()
    recorded = [x for x, _ in read_scalars(tmp_path)["a"]]
    assert len(recorded) == len(set(recorded))
    assert len(recorded) + client.dropped == x


def test_a_server_that_is_gone_delays_no_end_and_needs_no_line(
    serve: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that only the end of the process can end a call.
    monkeypatch.setattr(metrics_client, "_CONNECT_TIMEOUT_SEC", 1e6)
    server, port = serve()
    client = MetricsClient(f"127.0.0.1:{port}", global_t=_zero)
    client.scalar("a", 1.0, 1)
    assert client.flush(WAIT_SEC)
    server.stop(None).wait()
    client.scalar("a", 2.0, 2)
    assert not client.flush(0.1)  # a call waits
    client.close(1e6)
    assert client.dropped == 1
    assert not caplog.text


def test_absent_server_costs_the_newest_points_and_never_blocks() -> None:
    with MetricsClient(f"127.0.0.1:{_free_port()}", global_t=_zero, max_queue=3) as client:
        for x in range(10):
            client.scalar("a", 1.0, x)
        assert client.dropped == 7
    assert client.dropped == 10


class _Failing(metrics_pb2_grpc.MetricsServicer):
    """Takes the first call's points and fails after it; answers the others."""

    def __init__(self) -> None:
        self.received: list[list[str]] = []

    def StoreScalars(self, request: Any, context: grpc.ServicerContext) -> Any:
        if not request.scalars:
            return metrics_pb2.StoreScalarsReply()
        self.received.append([scalar.name for scalar in request.scalars])
        if len(self.received) == 1:
            context.abort(grpc.StatusCode.UNAVAILABLE, "gone after the work was done")
        return metrics_pb2.StoreScalarsReply(dropped=1)


@pytest.fixture
def failing() -> Iterator[tuple[_Failing, int]]:
    servicer = _Failing()
    server = grpc.server(ThreadPoolExecutor(1))
    metrics_pb2_grpc.add_MetricsServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, port
    server.stop(None).wait()


def test_call_that_failed_midway_is_not_sent_twice(failing: tuple[_Failing, int]) -> None:
    servicer, port = failing
    with MetricsClient(f"127.0.0.1:{port}", global_t=_zero) as client:
        client.scalar("first", 1.0)
        assert client.flush(WAIT_SEC)
        assert client.dropped == 1
        client.scalar("second", 1.0)
        client.scalar("third", 1.0)
        assert client.flush(WAIT_SEC)
        # The server said that its queue took one of the two.
        assert client.dropped == 2
    assert [name for call in servicer.received for name in call] == ["first", "second", "third"]


def test_server_that_hangs_cannot_keep_close_for_ever() -> None:
    hanging, release = threading.Event(), threading.Event()

    class Hanging(metrics_pb2_grpc.MetricsServicer):
        def StoreScalars(self, request: Any, context: grpc.ServicerContext) -> Any:
            if request.scalars:
                hanging.set()
                release.wait(WAIT_SEC)
            return metrics_pb2.StoreScalarsReply()

    server = grpc.server(ThreadPoolExecutor(1))
    metrics_pb2_grpc.add_MetricsServicer_to_server(Hanging(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        client = MetricsClient(f"127.0.0.1:{port}", global_t=_zero)
        client.scalar("a", 1.0)
        client.close()
        assert hanging.is_set()
        client.scalar("b", 1.0)
        assert client.dropped == 2
        client.close()
    finally:
        release.set()
        server.stop(None).wait()


def test_bad_point_is_refused_where_it_is_made() -> None:
    with MetricsClient(f"127.0.0.1:{_free_port()}", global_t=_zero) as client:
        with pytest.raises(InvalidInputError, match="y is nan"):
            client.scalar("loss", float("nan"))
    assert client.dropped == 0


def test_server_that_passes_points_on_keeps_their_x(
    serve: Any, recorder: TensorBoardRecorder, tmp_path: Path
) -> None:
    _, port = serve()
    with MetricsClient(f"127.0.0.1:{port}", global_t=lambda: 12) as client:
        relay, relay_port = create_metrics_server(Address("127.0.0.1", 0), client)
        relay.start()
        with MetricsClient(f"127.0.0.1:{relay_port}", global_t=lambda: 11) as agent:
            agent.scalar("a", 1.0)
        relay.stop(None).wait()
    assert (agent.dropped, client.dropped) == (0, 0)
    assert recorder.flush()
    assert read_scalars(tmp_path) == {"a": [(11, 1.0)]}
