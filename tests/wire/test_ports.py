"""Binding a port, and naming the process that holds one."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from relaax_like.wire.ports import bind_socket, describe_bind_failure, describe_port_holder


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_name_with_both_kinds_of_addresses_is_bound_as_ipv4() -> None:
    with bind_socket("localhost", 0) as one, bind_socket("localhost", 0) as other:
        assert one.getsockname()[0] == "127.0.0.1"
        assert one.getsockname()[1] != other.getsockname()[1]


def test_a_name_with_an_ipv6_address_alone_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda _, *rest, **more: resolve("::1", *rest, **more)
    )
    with bind_socket("simulator", 0) as bound:
        assert bound.getsockname()[0] == "::1"


def test_an_address_of_another_machine_is_not_bound() -> None:
    with pytest.raises(OSError, match="assign requested address"):
        bind_socket("192.0.2.1", 0)


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
