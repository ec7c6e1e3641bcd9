"""Naming the process that holds a port."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from relaax_like.wire.ports import describe_bind_failure, describe_port_holder


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", ""])
def test_own_listener_is_named(listener: socket.socket, host: str) -> None:
    holder = describe_port_holder(host, listener.getsockname()[1])
    assert holder.startswith(f"pid {os.getpid()} (")
    assert "python" in holder


def test_other_process_is_named_with_its_command() -> None:
    code = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); "
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, "marker-argument"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            holder = describe_port_holder("127.0.0.1", port)
        finally:
            process.kill()
    assert holder.startswith(f"pid {process.pid} (")
    assert len(holder) < 160


def test_wildcard_listener_holds_every_host() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        assert f"pid {os.getpid()} " in describe_port_holder("127.0.0.1", server.getsockname()[1])


def test_free_port_has_no_holder(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    listener.close()
    assert describe_port_holder("127.0.0.1", port) == ""


def test_connected_client_is_not_taken_for_the_listener(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()) as client:
        assert describe_port_holder("127.0.0.1", client.getsockname()[1]) == ""


def test_failure_sentence_names_holder_or_address(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    sentence = describe_bind_failure("127.0.0.1", port)
    assert sentence.startswith(f"port {port} is in use by pid {os.getpid()} (")
    assert "choose another port" in sentence
    listener.close()
    assert "192.0.2.1 is not an address of this machine" in describe_bind_failure("192.0.2.1", port)
