"""Proxy: a bad network between clients and a server of this machine.

    with Proxy(server_port) as proxy:
        history = History(proxy.address)
        proxy.delay_sec, proxy.bytes_per_sec = 0.05, 125_000
        proxy.cut()
        ...
        proxy.mend()

Nothing is ever sent twice or changed. "up" is from the clients to the server, "down" the way back.
"""

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Literal

from support.cluster import find_free_port

Direction = Literal["up", "down"]
# When a piece is due, by the clock of `time.monotonic`, and its bytes; none: the end.
_Pieces = asyncio.Queue[tuple[float, bytes]]
_HOST = "127.0.0.1"
_PIECE_BYTES = 16 * 1024
# Pieces under way in one direction of a connection; then the sender has to wait, as in TCP.
_MAX_PIECES = 64
# A close with this says reset, not end.
_LINGER_NOT_AT_ALL = struct.pack("ii", 1, 0)


class _Line:
    """One direction of all connections together."""

    def __init__(self) -> None:
        self.free_at = 0.0  # when all that was sent has passed, by the clock of `time.monotonic`
        self.forwarded_bytes = 0
        self.swallowed_bytes = 0
        self.reset_at: int | None = None  # of the forwarded bytes


class _Connection:
    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter):
        self.ends = (client, server)
        self.dead: set[Direction] = set()  # directions in which all is swallowed

    def close(self) -> None:
        for end in self.ends:
            end.close()

    def reset(self) -> None:
        for end in self.ends:
            raw = end.get_extra_info("socket")
            with contextlib.suppress(OSError):  # closed already
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT_AT_ALL)
            end.transport.abort()


class Proxy:
    """Forwards connections, in a thread of its own. A context manager.

    Attributes:
      address: where clients connect.
      delay_sec: each byte comes later by so much, in each direction.
      bytes_per_sec: of all connections together, in each direction; None: as fast as it goes.
    """

    def __init__(self, port: int, source: str = _HOST):
        """Listens on a free port and forwards to `port` of this machine, where nobody need be.

        The server sees connections from `source`, an address of the loopback interface.
        """
        self._source = source
        self.delay_sec = 0.0
        self.bytes_per_sec: float | None = None
        self._target = port
        self._port = find_free_port()
        self.address = f"{_HOST}:{self._port}"
        # All that follows belongs to the loop's thread.
        self._lines: dict[Direction, _Line] = {"up": _Line(), "down": _Line()}
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # one of each connection
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._open.set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._thread.start()
        self._run(self._listen)

    @property
    def num_connections(self) -> int:
        """Connections that neither end has closed."""
        return len(self._connections)

    def cut(self) -> None:
        """Closes all connections and refuses new ones, until `mend`."""

        async def cut() -> None:
            await self._stop_listening()
            for connection in tuple(self._connections):
                connection.close()

        self._run(cut)

    def stall(self) -> None:
        """Holds everything back, also on new connections, until `mend`: nothing is lost."""
        self._run(self._close_gate)

    def mend(self) -> None:
        """Ends `cut` and `stall`."""
        self._run(self._listen)

    def reset(self) -> None:
        """Resets all connections; new ones are welcome."""
        self._run(self._reset)

    def reset_after(self, direction: Direction, num_bytes: int) -> None:
        """Resets all connections once, when so many more bytes have gone in that direction."""

        async def arm() -> None:
            line = self._lines[direction]
            line.reset_at = line.forwarded_bytes + num_bytes

        self._run(arm)

    def is_armed(self, direction: Direction) -> bool:
        """Whether the reset of `reset_after` is still to come."""
        return self._lines[direction].reset_at is not None

    def get_forwarded_bytes(self, direction: Direction) -> int:
        """Returns how much has passed."""
        return self._lines[direction].forwarded_bytes

    def get_swallowed_bytes(self, direction: Direction) -> int:
        """Returns how much `half_open` has swallowed."""
        return self._lines[direction].swallowed_bytes

    def half_open(self, *directions: Direction) -> None:
        """From now on swallows what comes on the connections that there are, and tells nobody."""

        async def kill() -> None:
            for connection in self._connections:
                connection.dead.update(directions)

        self._run(kill)

    def close(self) -> None:
        """Resets all connections and ends the thread."""
        if self._loop.is_closed():
            return

        async def end() -> None:
            await self._stop_listening()
            await self._reset()
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._run(end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self, action: Callable[[], object]) -> None:
        asyncio.run_coroutine_threadsafe(action(), self._loop).result(10)  # type: ignore[arg-type]

    # In the loop's thread.

    async def _listen(self) -> None:
        self._open.set()
        if self._listener is None:
            self._listener = await asyncio.start_server(self._start, _HOST, self._port)

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _close_gate(self) -> None:
        self._open.clear()

    async def _reset(self) -> None:
        for connection in tuple(self._connections):
            connection.reset()

    def _start(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._forward(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(
        self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter
    ) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(
                _HOST, self._target, local_addr=(self._source, 0)
            )
        except OSError:
            client_writer.transport.abort()
            return
        connection = _Connection(client_writer, server_writer)
        self._connections.add(connection)
        tasks: list[asyncio.Task[None]] = []
        senders: list[asyncio.Task[None]] = []
        ways: tuple[tuple[Direction, asyncio.StreamReader, asyncio.StreamWriter], ...] = (
            ("up", client_reader, server_writer),
            ("down", server_reader, client_writer),
        )
        for direction, reader, writer in ways:
            pieces: _Pieces = asyncio.Queue(_MAX_PIECES)
            sender = self._loop.create_task(self._send(direction, pieces, writer, connection))
            receiver = self._loop.create_task(self._receive(reader, pieces, sender))
            senders.append(sender)
            tasks += [sender, receiver]
        try:
            await asyncio.wait(senders, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            self._connections.discard(connection)
            connection.close()

    async def _receive(
        self, reader: asyncio.StreamReader, pieces: _Pieces, sender: "asyncio.Task[None]"
    ) -> None:
        try:
            while data := await reader.read(_PIECE_BYTES):
                await pieces.put((time.monotonic() + self.delay_sec, data))
        except OSError:  # reset by one end, or by us
            sender.cancel()
        else:
            await pieces.put((time.monotonic() + self.delay_sec, b""))

    async def _send(
        self,
        direction: Direction,
        pieces: _Pieces,
        writer: asyncio.StreamWriter,
        connection: _Connection,
    ) -> None:
        line = self._lines[direction]
        while True:
            due, data = await pieces.get()
            await asyncio.sleep(due - time.monotonic())
            await self._pass(line, len(data))
            await self._open.wait()
            if direction in connection.dead:
                line.swallowed_bytes += len(data)
                continue
            if not data:
                return
            line.forwarded_bytes += len(data)
            if line.reset_at is not None and line.forwarded_bytes >= line.reset_at:
                line.reset_at = None
                await self._reset()
                return
            writer.write(data)
            with contextlib.suppress(OSError):  # the reader of this end hears of it, too
                await writer.drain()

    async def _pass(self, line: _Line, num_bytes: int) -> None:
        """Waits until the line has taken so many bytes."""
        if self.bytes_per_sec is None:
            return
        line.free_at = max(line.free_at, time.monotonic()) + num_bytes / self.bytes_per_sec
        await asyncio.sleep(line.free_at - time.monotonic())
