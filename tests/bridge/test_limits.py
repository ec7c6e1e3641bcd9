"""Calls that one address can have open at a time."""

import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from support.cluster import wait_until
from support.proxy import Proxy

from relaax_like.bridge.channel import make_interceptors
from relaax_like.bridge.servicer import ParameterServerServicer
from relaax_like.bridge.serving import add_service
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.v1 import parameter_server_pb2_grpc as pb_grpc

MAX_CALLS = 8


@pytest.fixture
def port(backend: ParameterServer) -> Iterator[int]:
    """A server that has eight calls at a time."""
    server = grpc.server(
        futures.ThreadPoolExecutor(MAX_CALLS),
        maximum_concurrent_rpcs=MAX_CALLS,
        interceptors=make_interceptors(None, MAX_CALLS),
    )
    add_service(server, ParameterServerServicer(backend))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None).wait()


class Idle:
    """A stream of pushes on which nothing is sent until it is cancelled."""

    def __init__(self, channel: grpc.Channel):
        self._over = threading.Event()
        self._call: Any = pb_grpc.ParameterServerStub(channel).PushPull(self._wait())

    def cancel(self) -> None:
        self._over.set()
        self._call.cancel()

    def _wait(self) -> Iterator[Any]:
        self._over.wait()
        yield from ()


def ask(channel: grpc.Channel) -> pb.Status:
    return pb_grpc.ParameterServerStub(channel).GetStatus(pb.GetStatusRequest(), timeout=10)


def test_an_address_that_has_half_of_all_calls_open_gets_no_more_and_others_do(port: int) -> None:
    with (
        grpc.insecure_channel(f"127.0.0.1:{port}") as greedy,
        Proxy(port, "127.0.0.2") as proxy,
        grpc.insecure_channel(proxy.address) as other,
    ):
        idle: list[Idle] = []
        while not is_full(greedy):  # which is a call, too
            idle.append(Idle(greedy))
        assert len(idle) >= MAX_CALLS // 2
        for _ in range(2 * MAX_CALLS):
            assert ask(other).global_t == 0
        assert is_full(greedy)
        # Some were refused perhaps; one that ends makes room.
        for call in idle[: len(idle) - MAX_CALLS // 2 + 1]:
            call.cancel()
        wait_until(lambda: not is_full(greedy), "a call that may be made again")
        for _ in range(2 * MAX_CALLS):  # a call can be answered before it is over
            wait_until(lambda: not is_full(greedy), "the end of the call before")
        for call in idle:
            call.cancel()


def is_full(channel: grpc.Channel) -> bool:
    try:
        ask(channel)
    except grpc.RpcError as error:
        said = f"{error.code()}: {error.details()}"
    else:
        return False
    most = "4 calls are open from ipv4:127.0.0.1, the maximum for one address"
    assert said.startswith(f"{grpc.StatusCode.RESOURCE_EXHAUSTED}: {most}")
    return True
