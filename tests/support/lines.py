"""A line to a server that can hang, refuse, and break in the middle, as a network does."""

import contextlib
import socket
import threading
from types import TracebackType


class Line:
    """Hands bytes of TCP connections on to a server.

        with Line(server_port) as line:
            connect(line.port)
            line.hang()
            ...
            line.mend()

    Attributes:
      port: where it listens, on 127.0.0.1.
    """

    def __init__(self, server_port: int):
        """Starts to listen."""
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._flowing = threading.Event()
        self._flowing.set()
        self._lock = threading.Lock()  # guards all that follows
        self._connections: set[socket.socket] = set()
        self._bytes_left: int | None = None
        self._refusing = False
        threading.Thread(target=self._accept, daemon=True).start()

    def hang(self) -> None:
        """Holds all bytes back; connections are still accepted."""
        self._flowing.clear()

    def refuse(self) -> None:
        """Breaks all connections, and new ones at once."""
        with self._lock:
            self._refusing = True
            self._break()

    def break_after(self, sent_bytes: int) -> None:
        """Refuses as soon as so many more bytes would have been sent to the server."""
        with self._lock:
            self._bytes_left = sent_bytes

    @property
    def is_broken(self) -> bool:
        """Whether it refuses."""
        return self._refusing

    def mend(self) -> None:
        """Makes it a good line again."""
        with self._lock:
            self._refusing = False
            self._bytes_left = None
        self._flowing.set()

    def close(self) -> None:
        """Breaks all connections for good."""
        self.refuse()
        self._listener.close()
        self._flowing.set()

    def __enter__(self) -> "Line":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _break(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._refusing:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._server_port))
                self._connections |= {client, server}
            for source, target, counts in [(client, server, True), (server, client, False)]:
                threading.Thread(
                    target=self._pump, args=(source, target, counts), daemon=True
                ).start()

    def _pump(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 14):
                self._flowing.wait()
                if counts:
                    self._count(len(piece))
                target.sendall(piece)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def _count(self, size: int) -> None:
        with self._lock:
            if self._bytes_left is None:
                return
            self._bytes_left -= size
            if self._bytes_left < 0:
                self._refusing = True
                self._break()
