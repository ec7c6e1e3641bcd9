"""A small parameter server, and both ways to reach it."""

import contextlib
from collections.abc import Callable, Iterator

import pytest
from support.bridge import make_backend, serve

from relaax_like.bridge.control import BridgeControl
from relaax_like.bridge.in_process import InProcessClient
from relaax_like.core.roles import ParameterServerClient
from relaax_like.parameter_server.parameter_server import ParameterServer


@pytest.fixture
def backend() -> Iterator[ParameterServer]:
    with make_backend() as server:
        yield server


@pytest.fixture
def address(backend: ParameterServer) -> Iterator[str]:
    with serve(backend) as address:
        yield address


@pytest.fixture(params=["in_process", "grpc"])
def connect(
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[ParameterServer], ParameterServerClient]]:
    """Opens a client of a backend, in process or over a real socket."""
    with contextlib.ExitStack() as stack:

        def open_client(backend: ParameterServer) -> ParameterServerClient:
            if request.param == "in_process":
                return stack.enter_context(InProcessClient(backend))
            link = stack.enter_context(BridgeControl().connect(stack.enter_context(serve(backend))))
            return stack.enter_context(link.parameter_server_stub())

        yield open_client
