"""What the rlx server reports about its clients, whatever they are written in."""

import contextlib
import os
from collections.abc import Callable, Iterator

from support.bridge import make_backend
from support.rlx import RawClient, RecordingAgent, ServerThread, make_hello, make_next, make_start

from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.models import RlxServerConfig
from relaax_like.core.metrics import NullMetrics
from relaax_like.launch.rlx_server import make_rlx_server
from relaax_like.rlx_server.hosting import PlainHost
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
            refused.ask(make_hello(slots=1000))
        with RawClient(port) as client:
            client.greet(client_name="maze-1")
            client.ask(make_start())
            for _ in range(3):
                client.ask(make_next())
        for event in (Event.JOINED, Event.STEPPED, Event.LEFT):
            assert next_report() == Report(event, "maze-1")
