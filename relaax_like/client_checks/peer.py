"""The client's connection: messages in, messages out, and bytes that arrive as networks like it."""

import contextlib
import select
import socket
import time
from collections import deque
from collections.abc import Callable

from relaax_like.rlx_server.carrier import Carrier, Limit
from relaax_like.rlx_server.connection import choose_carrier
from relaax_like.rlx_server.frames import Frames
from relaax_like.wire.framing import MAX_MESSAGE_BYTES

_SLICE_SEC = 0.1
_PIECE_PAUSE_SEC = 0.03
_LIMIT = Limit(MAX_MESSAGE_BYTES, "no message is longer")


class Peer:
    """Receives and sends messages over the carrier that the client has chosen.

    Nothing is raised if what is sent can no longer arrive: what the client sent before can still be
    received.

    Args:
      connected: the accepted socket.
      check_time: called at least every 0.1 s while something is awaited; what it raises ends that.
    """

    def __init__(self, connected: socket.socket, check_time: Callable[[], None]):
        self._socket = connected
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._check_time = check_time
        self._carrier: Carrier = Frames()
        self._heard = False
        self._received: deque[bytes] = deque()

    @property
    def is_text(self) -> bool:
        """Whether messages are JSON, once one has been received."""
        return self._carrier.is_text is not False

    def receive(self, seconds: float) -> bytes:
        """Waits for one message.

        Raises:
          TimeoutError: no complete one arrived in time.
          EOFError: the client has closed the connection.
          ProtocolError: what has arrived is not a message, or is too long.
        """
        end = time.monotonic() + seconds
        while not self._received:
            while not select.select([self._socket], [], [], _SLICE_SEC)[0]:
                self._check_time()
                if time.monotonic() > end:
                    raise TimeoutError
            count = 0
            with contextlib.suppress(OSError):
                count = self._socket.recv_into(self._carrier.get_buffer())
            if not count:
                raise EOFError
            self._carrier.add(count)
            if not self._heard:
                self._heard = True
                self._carrier = choose_carrier(self._carrier, ())
            self._received += [
                bytes(body) for body in self._carrier.split(_LIMIT) if body is not None
            ]
            self._send(self._carrier.take_output())
            self._carrier.make_room(lambda nbytes: True)
            if self._carrier.is_over and not self._received:
                raise EOFError
        return self._received.popleft()

    def send(self, *bodies: bytes) -> None:
        """Sends messages, all in one packet if they fit."""
        self._send(b"".join(map(self._carrier.pack, bodies)))

    def send_in_pieces(self, body: bytes, stop: int | None = None) -> None:
        """Sends one message in small packets; `stop`: only its first bytes."""
        data = self._carrier.pack(body)[:stop]
        half = len(data) // 2
        for piece in (data[:2], data[2:5], data[5:half], data[half:]):
            self._send(piece)
            time.sleep(_PIECE_PAUSE_SEC)

    def end(self) -> None:
        """Sends nothing more, as a server after its last message."""
        self._send(self._carrier.end(None))
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Closes the connection, without a word. Idempotent."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(data)
