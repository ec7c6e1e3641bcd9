"""Pairs of sockets, one for each stream of experience between a process and its child.

The child receives its end of each pair through a *control* socket, with which it was started. Over
a pair both send frames: 4 bytes of length, big-endian, and a message of `relaax.v1.Experience`.
"""

import contextlib
import socket
from collections.abc import Iterator

from google.protobuf.message import Message

from relaax_like.bridge import frames
from relaax_like.wire.framing import HEADER, pack_frame

_BUFFER_BYTES = 256 * 1024


class Pair:
    """One end of a pair. One thread sends, and one receives.

    Args:
      stream: a connected socket, which `close` closes.
    """

    def __init__(self, stream: socket.socket):
        self._stream = stream
        # Each call that waits can delay its thread by milliseconds, until it has the interpreter.
        self._file = stream.makefile("rb", _BUFFER_BYTES)

    def send(self, part: Message | memoryview) -> None:
        """Sends a message, or the bytes of a chunk; waits while the other end does not read.

        Raises:
          OSError: one of the ends is closed.
        """
        self._stream.sendall(pack_frame(frames.to_bytes(part)))

    def receive(self) -> bytes | None:
        """Waits for the next message; None: the other end sends no more, or this end is closed."""
        try:
            header = self._file.read(HEADER.size)
            if len(header) < HEADER.size:
                return None
            (length,) = HEADER.unpack(header)
            body = self._file.read(length)
        except (OSError, ValueError):  # reset, or closed by another thread
            return None
        return body if len(body) == length else None

    def end(self) -> None:
        """Ends the sending direction; messages can still be received."""
        self._shut_down(socket.SHUT_WR)

    def close(self) -> None:
        """Ends both directions and wakes a `receive` in progress. Idempotent."""
        self._shut_down(socket.SHUT_RDWR)
        self._file.close()
        self._stream.close()

    def _shut_down(self, how: int) -> None:
        with contextlib.suppress(OSError):  # the other end was faster, or it is closed
            self._stream.shutdown(how)


def open_pair(control: socket.socket) -> Pair:
    """Makes a pair, and sends one end to the child; returns the other.

    Raises:
      OSError: the child has exited, or there are no descriptors left.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            socket.send_fds(control, [b"\0"], [theirs.fileno()])
        except OSError:
            ours.close()
            raise
    return Pair(ours)


def receive_pairs(control: socket.socket) -> Iterator[Pair]:
    """Yields the child's end of each pair, until the parent closes the control socket."""
    with contextlib.suppress(OSError):  # a reset is an end, too
        while (received := socket.recv_fds(control, 1, 1))[0]:
            yield Pair(socket.socket(fileno=received[1][0]))
