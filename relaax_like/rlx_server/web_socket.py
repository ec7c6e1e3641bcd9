"""WebSocket: what browsers speak. A binary message is protobuf, a text message is JSON."""

import logging
from collections.abc import Callable, Collection, Iterator

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from relaax_like.config.origin import is_allowed
from relaax_like.rlx_server.carrier import FIRST_BYTES, Carrier, Limit
from relaax_like.rlx_server.codec import Body
from relaax_like.wire.errors import ProtocolError

_MAX_HEAD_BYTES = 8 << 10
_MAX_HEAD_LINES = 32
_HEAD_END = b"\r\n\r\n"
# A message in more fragments, and more frames without a message at a time, are refused.
_MAX_FRAGMENTS = 1000
_MAX_CONTROLS = 100
# Within a long message. Otherwise less is read at a time, so that it has few frames.
_READ_BYTES = 1 << 14
# Answers to requests that do not become a WebSocket. They repeat nothing of the request.
_REFUSALS = {
    "UNAUTHENTICATED": (
        "403 Forbidden",
        "Pages of this origin cannot connect, or this server uses TLS (wss://). List the origin in "
        "relaax-rlx-server.allowed_origins of the server's YAML file.\n",
    ),
    "OVERLOADED": ("503 Service Unavailable", "The server is full. Try again later.\n"),
    "UNAVAILABLE": ("503 Service Unavailable", "The server is closing, or waited too long.\n"),
    "OUT_OF_ORDER": (
        "426 Upgrade Required",
        "This is an rlx server: environments of relaax_like connect here. It has no pages; open a "
        "WebSocket at this address.\n",
    ),
}
_BAD_REQUEST = ("400 Bad Request", "This is not the opening of a WebSocket.\n")
_CLOSE_CODES = {
    "OVERLOADED": CloseCode.TRY_AGAIN_LATER,
    "UNAVAILABLE": CloseCode.GOING_AWAY,
    "AGENT_FAILED": CloseCode.INTERNAL_ERROR,
}
_quiet = logging.getLogger("relaax_like.web_socket")
_quiet.disabled = True  # the library would log each connection


class WebSocket(Carrier):
    """See `Carrier`.

    Args:
      before: see `Carrier`.
      allowed_origins: of pages that can connect; see `is_allowed`.
    """

    is_text = None
    talks = True

    def __init__(self, before: Carrier, allowed_origins: Collection[str]):
        super().__init__(before)
        self._allowed_origins = allowed_origins
        self._protocol = ServerProtocol(logger=_quiet)
        self._head: bytearray | None = bytearray()  # of the request; None: it is complete
        self._parts: list[bytes] = []  # of an unfinished message
        self._held = self._reserved = 0  # bytes of an unfinished message
        self._has_ended = False  # whether our close frame was given out

    def split(self, limit: Limit) -> Iterator[Body | None]:
        """See `Carrier`."""
        data = bytes(self._data[self._start : self._end])
        self._start = self._end = 0
        self._held += len(data)
        self.controls = 0
        if self._head is not None:
            data = self._read_head(data)
        if not data:
            return
        protocol = self._protocol
        protocol.max_message_size = limit.nbytes
        protocol.receive_data(data)
        for event in protocol.events_received():
            if isinstance(event, Request):
                self._open(event)
                continue
            assert isinstance(event, Frame)
            if event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                if (body := self._add(event)) is not None:
                    yield body
                continue
            self.controls += 1
            if self.controls > _MAX_CONTROLS:
                raise ProtocolError(
                    f"received more than {_MAX_CONTROLS} control frames at once, expected few; do "
                    "not send pings before the answers to earlier ones",
                    "OUT_OF_ORDER",
                )
        if error := protocol.handshake_exc or protocol.parser_exc:
            raise ProtocolError(
                f"{error}; send masked frames of RFC 6455, and messages of at most {limit.nbytes} "
                f"bytes: {limit.reason}"
            )

    def pack(self, body: bytes) -> bytes:
        """See `Carrier`."""
        if self._protocol.state is State.CONNECTING or self._has_ended:
            return self.take_output()
        opcode = Opcode.BINARY if self.is_text is False else Opcode.TEXT
        # Before a close frame of the library, which it prepares at once after a wrong frame.
        return Frame(opcode, body).serialize(mask=False) + self.take_output()

    def take_output(self) -> bytes:
        """See `Carrier`."""
        self._has_ended = self.is_over
        return b"".join(self._protocol.data_to_send())

    def end(self, error: ProtocolError | None) -> bytes:
        """See `Carrier`."""
        protocol = self._protocol
        if protocol.state is State.CONNECTING:
            status, text = _REFUSALS.get(error.code if error else "UNAVAILABLE", _BAD_REQUEST)
            return (
                f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
                f"Content-Length: {len(text)}\r\nX-Content-Type-Options: nosniff\r\n"
                f"Cache-Control: no-store\r\nConnection: close\r\n\r\n{text}"
            ).encode()
        if protocol.state is State.OPEN:
            code = CloseCode.NORMAL_CLOSURE
            if error is not None:
                code = _CLOSE_CODES.get(error.code, CloseCode.POLICY_VIOLATION)
            protocol.send_close(code)
        return self.take_output()

    @property
    def is_over(self) -> bool:
        """See `Carrier`."""
        return self._protocol.state in (State.CLOSING, State.CLOSED)

    @property
    def is_empty(self) -> bool:
        """See `Carrier`."""
        return not self._held

    def make_room(self, reserve: Callable[[int], bool]) -> None:
        """See `Carrier`."""
        if self._held > self._reserved:
            more, self._reserved = self._held - self._reserved, self._held
            # An unknown peer is read in small pieces, however much it sends.
            is_long = self.is_known and self._held > FIRST_BYTES
            if reserve(more) and is_long and len(self._data) < _READ_BYTES:
                self._data = bytearray(_READ_BYTES)

    def release(self) -> None:
        """See `Carrier`."""
        if not self._held and len(self._data) > FIRST_BYTES:
            self._data = bytearray(FIRST_BYTES)

    def drop(self) -> None:
        """See `Carrier`."""
        super().drop()
        self._parts, self._held = [], 0
        self._protocol = ServerProtocol(logger=_quiet)  # the old one holds what has arrived

    def _read_head(self, data: bytes) -> bytes:
        """Adds to the head of the request; returns all that has arrived, once it is complete."""
        assert self._head is not None
        head = self._head
        head += data
        end = head.find(_HEAD_END)
        length = len(head) if end < 0 else end
        if not b"GET ".startswith(head[:4]) or head[:4] == b"":
            raise ProtocolError(
                "received text that begins with a letter, but is not the opening of a WebSocket; "
                "send frames, a WebSocket, or lines of JSON"
            )
        if length > _MAX_HEAD_BYTES or head.count(b"\n", 0, length) >= _MAX_HEAD_LINES:
            raise ProtocolError(
                f"the opening of a WebSocket has {length} bytes or more, expected at most "
                f"{_MAX_HEAD_BYTES} in {_MAX_HEAD_LINES} lines; remove the page's cookies"
            )
        if end < 0:
            return b""
        self._head = None
        return bytes(head)

    def _open(self, request: Request) -> None:
        self._held = self._reserved = 0
        origins = request.headers.get_all("Origin")
        for origin in origins:
            if len(origins) > 1 or not is_allowed(origin, self._allowed_origins):
                raise ProtocolError(
                    f"a page of the origin {origin!r:.100} wanted to connect; list it in "
                    "relaax-rlx-server.allowed_origins if that is wanted",
                    "UNAUTHENTICATED",
                )
        if "Upgrade" not in request.headers:
            raise ProtocolError(
                "received a request for a page, expected the opening of a WebSocket; use ws:// or "
                "wss:// instead of http",
                "OUT_OF_ORDER",
            )
        response = self._protocol.accept(request)
        if response.status_code != 101:
            raise ProtocolError(
                f"received a wrong opening of a WebSocket: {self._protocol.handshake_exc}; use "
                "another library"
            )
        self._protocol.send_response(response)

    def _add(self, frame: Frame) -> bytes | None:
        """Adds to the unfinished message; returns it, if this was its last fragment."""
        if frame.opcode is not Opcode.CONT:
            is_text = frame.opcode is Opcode.TEXT
            if self.is_text is None:
                self.is_text = is_text
            if is_text is not self.is_text:
                names = ("binary", "text")
                raise ProtocolError(
                    f"received a {names[is_text]} message after {names[not is_text]} ones; send "
                    "all messages of a connection as text (JSON), or all as binary (protobuf)"
                )
        self._parts.append(bytes(frame.data))
        if len(self._parts) > _MAX_FRAGMENTS:
            raise ProtocolError(
                f"received a message in more than {_MAX_FRAGMENTS} fragments; send longer ones"
            )
        if not frame.fin:
            return None
        body = b"".join(self._parts)
        self._parts, self._held, self._reserved = [], 0, 0
        return body
