"""Channel: whole messages over a stream socket, between two processes of ours."""

import socket
import threading
from typing import Generic, TypeVar

from google.protobuf.message import Message

from relaax_like.wire.framing import HEADER

SentT = TypeVar("SentT", bound=Message)
ReceivedT = TypeVar("ReceivedT", bound=Message)


class Channel(Generic[SentT, ReceivedT]):
    """Frames of 4 bytes of length, big-endian, and a message.

    Any thread may send; one receives.

    Args:
      stream: a connected socket, closed with the channel.
      received: the class of the messages that come.
    """

    def __init__(self, stream: socket.socket, received: type[ReceivedT]):
        self._stream = stream
        self._received = received
        self._sending = threading.Lock()  # guards the stream's outgoing side

    def send(self, message: SentT) -> None:
        """Sends one message; waits while the other side does not read.

        Raises:
          OSError: the other side has gone.
        """
        body = message.SerializeToString()
        with self._sending:
            self._stream.sendall(HEADER.pack(len(body)) + body)

    def receive(self) -> ReceivedT | None:
        """Waits for the next message; None: the other side has gone."""
        header = self._read(HEADER.size)
        body = None if header is None else self._read(*HEADER.unpack(header))
        return None if body is None else self._received.FromString(body)

    def close(self) -> None:
        """Ends the stream, for a `receive` under way, too."""
        try:
            self._stream.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other side was quicker
            pass
        self._stream.close()

    def _read(self, size: int) -> bytes | None:
        """Reads so many bytes; None when the stream ends before."""
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                count = self._stream.recv_into(view)
            except OSError:
                count = 0
            if not count:
                return None
            view = view[count:]
        return bytes(data)
