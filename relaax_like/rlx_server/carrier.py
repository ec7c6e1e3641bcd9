"""How messages travel over a connection: a carrier cuts them out of the bytes that arrive."""

import abc
from collections.abc import Callable, Iterator
from typing import NamedTuple

from relaax_like.rlx_server.codec import Body
from relaax_like.wire.errors import ProtocolError

# The buffer: its first size, by how much it grows at least and at most once a message does not fit,
# and the largest one that is kept for the next message.
FIRST_BYTES = 1 << 11
_GROWTH_BYTES = 1 << 15
_MAX_GROWTH_BYTES = 1 << 20
_KEPT_BYTES = 1 << 16


class Limit(NamedTuple):
    """The longest message that is accepted.

    Attributes:
      nbytes: its length.
      reason: what limits it, for errors.
    """

    nbytes: int
    reason: str


class Carrier(abc.ABC):
    """Cuts what a peer sends into messages, and packs those that it gets.

        view = carrier.get_buffer()
        ...                              # n bytes are read into it
        carrier.add(n)
        for body in carrier.split(limit):
            ...
        carrier.make_room(reserve)

    A message is a view of the buffer, and is valid until the next `add`.

    Attributes:
      is_text: whether its messages are text; None: the first one, which decides it, has not come.
      talks: whether it sends more than messages, or can close the conversation.
      skips_pings: whether pings of the client need not be yielded.
      is_known: whether the hello of the client was accepted; set by the owner.
      controls: number of frames without a part of a message in what was split last.

    Args:
      before: the carrier that it replaces, with what has arrived; None: none.
    """

    is_text: bool | None
    talks = False

    def __init__(self, before: "Carrier | None" = None) -> None:
        self.skips_pings = self.is_known = False
        self.controls = 0
        # Bytes [start, end) have arrived, but are not processed yet.
        self._data: bytearray = bytearray(FIRST_BYTES) if before is None else before._data
        self._start: int = 0 if before is None else before._start
        self._end: int = 0 if before is None else before._end
        self._room: int = 0 if before is None else before._room  # by how much the buffer will grow

    def get_buffer(self) -> memoryview:
        """Returns where the next bytes go; it is never empty."""
        if self._room:
            more, self._room = bytes(self._room), 0
            try:  # in place: a copy of some MB holds up all other connections
                del self._data[: self._start]
                self._data += more
            except BufferError:  # a message is still in use
                self._data = self._data[self._start : self._end] + more
            self._start, self._end = 0, self._end - self._start
        return memoryview(self._data)[self._end :]

    def add(self, nbytes: int) -> None:
        """Notes that so many bytes have arrived in the buffer."""
        self._end += nbytes

    @abc.abstractmethod
    def split(self, limit: Limit) -> Iterator[Body | None]:
        """Yields the complete messages; None: a ping that was skipped.

        Raises:
          ProtocolError: what has arrived cannot be a message, or one that is too long.
        """

    @abc.abstractmethod
    def pack(self, body: bytes) -> bytes:
        """Returns the bytes that carry a message."""

    def take_output(self) -> bytes:
        """Returns what has to be sent besides messages."""
        return b""

    def end(self, error: ProtocolError | None) -> bytes:
        """Returns what is sent after the last message.

        Args:
          error: why the connection ends; None: a regular end.
        """
        return b""

    @property
    def is_over(self) -> bool:
        """Whether the peer has closed the conversation."""
        return False

    def peek(self, length: int) -> bytes:
        """Returns at most so many bytes from the start of what is not processed yet."""
        return bytes(self._data[self._start : min(self._start + length, self._end)])

    @property
    def is_empty(self) -> bool:
        """Whether no message has been begun."""
        return self._start == self._end

    def make_room(self, reserve: Callable[[int], bool]) -> None:
        """Makes the buffer larger if it is full, with an unfinished message at its front.

        So memory grows with what was sent, not with what was announced. The buffer grows by as much
        as has arrived, at least by 32 KiB and at most by 1 MiB, but not beyond what was announced.

        Args:
          reserve: called with a number of bytes before they are allocated; returns whether the
            connection is still open.
        """
        if self._end < len(self._data):
            return
        begun = self._end - self._start
        room = min(max(_GROWTH_BYTES, begun), _MAX_GROWTH_BYTES)
        if announced := self._get_announced():
            room = min(room, max(announced - begun, _GROWTH_BYTES))
        if not begun or reserve(room):
            self._room = room

    def release(self) -> None:
        """Notes that no message is used any more."""
        if self.is_empty:
            self._start = self._end = self._room = 0
            if len(self._data) > _KEPT_BYTES:
                self._data = bytearray(FIRST_BYTES)

    def drop(self) -> None:
        """Drops all that has arrived."""
        self._data = bytearray(FIRST_BYTES)
        self._start = self._end = self._room = 0

    def _get_announced(self) -> int:
        """Returns the length that the unfinished message has announced; 0: not known."""
        return 0
