"""The bad network of the fault tests is as bad as they say, and no worse."""

import socket
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
from support.cluster import wait_until
from support.proxy import Proxy

SIZE = 200_000


class Echo:
    """A server that sends back what comes, and counts it."""

    def __init__(self) -> None:
        self.received = 0
        self.ended: list[str] = []  # how connections ended
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    self.received += len(data)
                    connection.sendall(data)
                self.ended.append("end")
            except OSError:
                self.ended.append("reset")

    def _start(self, target, *arguments) -> None:  # type: ignore[no-untyped-def]
        self._threads.append(threading.Thread(target=target, args=arguments))
        self._threads[-1].start()


@pytest.fixture
def echo() -> Iterator[Echo]:
    num_fds, num_threads = psutil.Process().num_fds(), threading.active_count()
    echo = Echo()
    yield echo
    echo.close()
    # Something that ran before can end meanwhile.
    assert psutil.Process().num_fds() <= num_fds
    assert threading.active_count() <= num_threads


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.port) as proxy:
        yield proxy


def connect(proxy: Proxy) -> socket.socket:
    host, _, port = proxy.address.partition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def send_and_receive(connection: socket.socket, data: bytes) -> bytes:
    sender = threading.Thread(target=connection.sendall, args=(data,))
    sender.start()
    received = b""
    while len(received) < len(data):
        piece = connection.recv(65536)
        assert piece
        received += piece
    sender.join()
    return received


def test_bytes_pass_unchanged_and_the_end_is_told(proxy, echo):
    data = bytes(range(256)) * (SIZE // 256)
    with connect(proxy) as connection:
        assert send_and_receive(connection, data) == data
        assert proxy.num_connections == 1
    wait_until(lambda: echo.ended == ["end"] and proxy.num_connections == 0, "the end")


def test_delay_and_throttle_take_their_time(proxy):
    with connect(proxy) as connection:
        proxy.delay_sec = 0.1
        start = time.monotonic()
        send_and_receive(connection, b"x")
        assert time.monotonic() - start >= 0.2
        proxy.delay_sec, proxy.bytes_per_sec = 0.0, 4.0 * SIZE
        start = time.monotonic()
        send_and_receive(connection, bytes(SIZE))
        assert time.monotonic() - start >= 0.25


def test_a_cut_ends_all_and_refuses_new_ones_until_it_is_mended(proxy, echo):
    with connect(proxy) as connection:
        send_and_receive(connection, b"x")
        proxy.cut()
        assert connection.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
    wait_until(lambda: len(echo.ended) == 1, "the end at the server")
    proxy.mend()
    with connect(proxy) as connection:
        assert send_and_receive(connection, b"again") == b"again"


def test_a_stall_holds_back_and_loses_nothing(proxy, echo):
    with connect(proxy) as connection:
        proxy.stall()
        connection.sendall(b"old")
        with connect(proxy) as other:
            other.sendall(b"new")
            assert (echo.received, echo.ended) == (0, [])
            proxy.mend()
            assert (connection.recv(9), other.recv(9)) == (b"old", b"new")


def test_a_reset_is_a_reset_at_both_ends(proxy, echo):
    with connect(proxy) as connection:
        send_and_receive(connection, b"x")
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    wait_until(lambda: echo.ended == ["reset"], "the reset at the server")
    with connect(proxy) as connection:
        assert send_and_receive(connection, b"again") == b"again"


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_reset_comes_in_the_middle(proxy, echo, direction):
    with connect(proxy) as connection:
        send_and_receive(connection, b"x")
        proxy.reset_after(direction, SIZE // 2)
        with pytest.raises(OSError, match=r"reset|[Bb]roken"):
            send_and_receive(connection, bytes(SIZE))
    assert not proxy.is_armed(direction)
    assert direction == "down" or echo.received < SIZE // 2
    with connect(proxy) as connection:  # once only
        assert len(send_and_receive(connection, bytes(SIZE))) == SIZE


@pytest.mark.parametrize("directions", [("up",), ("down",), ("up", "down")])
def test_half_open_swallows_and_tells_nobody(proxy, echo, directions):
    with connect(proxy) as connection:
        send_and_receive(connection, b"x")
        proxy.half_open(*directions)
        connection.sendall(b"lost")
        if "up" not in directions:
            wait_until(lambda: echo.received == 5, "what still goes up")
        with connect(proxy) as other:  # others are well
            assert send_and_receive(other, b"well") == b"well"
        connection.settimeout(0.05)
        with pytest.raises(TimeoutError):
            connection.recv(1)
    assert echo.received == (5 if "up" in directions else 9)


def test_without_a_server_connections_are_closed():
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.close()
    with Proxy(port) as proxy, connect(proxy) as connection:
        try:
            assert connection.recv(1) == b""
        except ConnectionResetError:
            pass
