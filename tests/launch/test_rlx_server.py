"""What the rlx server reports about its clients, whatever they are written in."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.bridge import make_backend
from support.rlx import RawClient, RecordingAgent, ServerThread, make_hello, make_next, make_start

from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.models import RlxServerConfig
from relaax_like.core.metrics import NullMetrics
from relaax_like.launch.rlx_server import _announce_link, make_rlx_server
from relaax_like.rlx_server.hosting import PlainHost
from relaax_like.runs.processes.process import EXIT_ERROR, EXIT_USAGE
from relaax_like.wire.errors import (
    InvalidInputError,
    NotAllowedError,
    ProtocolError,
    RelaaxError,
    ServerUnavailableError,
)
from relaax_like.wire.reports import Event, Report, Reporter, read_report


@contextlib.contextmanager
def serve() -> Iterator[tuple[int, Callable[[], Report]]]:
    """Serves; gives the port, and a function that waits for the next report."""
    reading, writing = os.pipe()
    settings = RlxServerConfig(min_free_memory_mb=0)
    with make_backend() as backend, open(reading, "rb") as lines:
        host = PlainHost(
            AlgorithmConfig(), RecordingAgent, lambda name: InProcessClient(backend, name)
        )
        server = make_rlx_server(settings, host, NullMetrics(), reporter=Reporter(writing))
        with ServerThread(server, "127.0.0.1", 0) as running:
            yield running.port, lambda: read_report(lines.readline())


def test_a_client_s_hello_its_first_step_and_its_end_are_reported() -> None:
    with serve() as (port, next_report):
        with RawClient(port) as refused:
            refused.ask(make_hello(slots=5000))
        with RawClient(port) as client:
            client.greet(client_name="maze-1")
            client.ask(make_start())
            for _ in range(3):
                client.ask(make_next())
        for event in (Event.JOINED, Event.STEPPED, Event.LEFT):
            assert next_report() == Report(event, "maze-1")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotAllowedError("no token"), EXIT_USAGE),
        (ProtocolError("the parameter server at localhost:7 answered UNIMPLEMENTED"), EXIT_ERROR),
        (InvalidInputError("manifest: two segments have one name"), EXIT_ERROR),
    ],
    ids=["no token", "another server", "another version"],
)
def test_a_wrong_parameter_server_ends_the_rlx_server_with_a_line(
    error: RelaaxError, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[RelaaxError] = [ServerUnavailableError("not yet"), error]
    requested: list[int] = []
    link: Any = SimpleNamespace(address="localhost:7")
    shutdown: Any = SimpleNamespace(requested=threading.Event(), request=requested.append)

    def ask(link: Any) -> None:
        raise answers.pop(0)

    assert not _announce_link(link, ask, shutdown)
    assert requested == [status]
    assert [record.getMessage() for record in caplog.records] == [str(error)]
