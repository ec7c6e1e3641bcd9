"""One client's TCP connection: frames in, messages to its session, answers out."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, cast

from relaax_like.rlx_server.session import PENDING, Session, error_to_bytes
from relaax_like.wire import tracing
from relaax_like.wire.errors import ProtocolError
from relaax_like.wire.framing import HEADER, pack_frame, unpack_length
from relaax_like.wire.tls import HANDSHAKE

if TYPE_CHECKING:
    from relaax_like.rlx_server.server import RlxServer

logger = logging.getLogger(__name__)

Body = bytes | memoryview

# The protocol is a dialogue: a client that sends ahead so far is not following it.
_MAX_QUEUED = 100
_LINGER_SEC = 2.0
# Room for a message of most clients; larger ones make room for themselves.
_INPUT_BYTES = 1 << 15
_ABORT_SEC = 10.0
_MAX_UNWANTED = 4 << 20


class Connection(asyncio.BufferedProtocol):
    """Feeds a session, one message at a time.

    A session that may block runs in a thread of its own; any other in the event loop, where its
    predictions are made together with those of all sessions that are ready at the same moment.

    Attributes:
      last_heard: monotonic time of the newest whole message.
      unread_since: monotonic time since when the client leaves answers unread; None: it reads.
    """

    def __init__(self, server: "RlxServer", session: Session):
        self.session = session
        self.last_heard = time.monotonic()
        self.unread_since: float | None = None
        self._server = server
        self._transport: asyncio.Transport | None = None
        # The socket is read into it: bytes [_start, _end) have come and were not looked at yet.
        self._input = bytearray(_INPUT_BYTES)
        self._start = self._end = 0
        self._unwanted = 0
        self._queue: deque[Body] = deque()
        self._busy = False
        self._closing = False
        self._client_done = False
        self._thread: ThreadPoolExecutor | None = None
        self._admitted = False

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Lets the client in, or turns it away."""
        # uvloop's transports have the methods, but not the base class.
        self._transport = cast(asyncio.Transport, transport)
        try:
            self._server.admission.enter()
        except ProtocolError as error:
            self.fail(error)
            return
        self._admitted = True
        self._server.connections.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns where the next bytes go."""
        if self._end == len(self._input):
            self._make_room()
        return memoryview(self._input)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Takes bytes as they come."""
        self._end += nbytes
        if self._closing:
            self._start = self._end = 0
            # What it had under way is read, so that it can read our last word; no more than that.
            self._unwanted += nbytes
            if self._unwanted > _MAX_UNWANTED:
                self.abort()
            return
        mark = tracing.begin()
        try:
            self._split_frames()
        except ProtocolError as error:
            self.fail(error)
            return
        finally:
            tracing.end("read frames", mark)
        self._next()
        if self._queue:
            # The buffer is about to be written to; few clients send ahead.
            self._queue = deque(map(bytes, self._queue))
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._input) > _INPUT_BYTES:
                self._input = bytearray(_INPUT_BYTES)

    def eof_received(self) -> bool:
        """Notes that the client will send no more; what it has sent is still answered."""
        if self._start != self._end and not self._closing:
            logger.warning("%s: went away in the middle of a message", self.session.client_name)
        self._client_done = True
        # Keeps our half open while an answer is on its way; TLS has no halves.
        return self._busy and not self._closing and not self._encrypted

    def connection_lost(self, exc: Exception | None) -> None:
        """Closes the session; other sessions do not notice."""
        self._closing = True
        self._queue.clear()
        self._server.connections.discard(self)
        if self._admitted:
            self._admitted = False
            self._server.admission.leave()
        self._close_session()

    def pause_writing(self) -> None:
        """Reads no more from a client that does not read its answers: nothing piles up for it."""
        assert self._transport is not None
        self.unread_since = time.monotonic()
        if not self._closing:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Reads again: the client has caught up."""
        assert self._transport is not None
        self.unread_since = None
        if not self._closing:
            self._transport.resume_reading()

    # What the server calls.

    def abort(self) -> None:
        """Cuts the connection without a word, as the client reads none."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def busy(self) -> bool:
        """Whether a message of the client is being answered."""
        return self._busy

    @property
    def open(self) -> bool:
        """Whether answers can still be sent."""
        return not self._closing

    def send_answer(self, answer: bytes) -> None:
        """Sends the answer to the message at hand and goes on with the next one."""
        self._busy = False
        if self._closing or self._transport is None:
            return
        self._transport.write(pack_frame(answer))
        if self.session.finished:
            logger.info("%s: told that the training has finished", self.session.client_name)
            self._close_soon()
            return
        self._next()
        if self._client_done and not self._busy:
            self._close_soon()

    def fail(self, error: ProtocolError) -> None:
        """Tells the client what is wrong and closes."""
        self._busy = False
        if self._closing or self._transport is None:
            return
        logger.warning("%s: %s: %s", self.session.client_name, error.code, error)
        if self.session.greeted:
            self._server.note_failure(self.session.client_name)
        self._transport.write(pack_frame(error_to_bytes(error)))
        self._close_soon()

    @property
    def _encrypted(self) -> bool:
        assert self._transport is not None
        return self._transport.get_extra_info("sslcontext") is not None

    def _make_room(self) -> None:
        """Moves an unfinished message to the front of a buffer twice as large as what has come.

        So memory grows with what was sent, never with what was announced.
        """
        begun = self._input[self._start : self._end]
        self._input = begun + bytearray(max(_INPUT_BYTES, len(begun)))
        self._start, self._end = 0, len(begun)

    def _split_frames(self) -> None:
        data = memoryview(self._input)
        if not self.session.greeted and data[self._start : self._start + 2] == HANDSHAKE:
            raise ProtocolError(
                "a TLS handshake came, but this server speaks in the clear: connect without tls_ca,"
                " or set up TLS in the server's section security"
            )
        while self._end - self._start >= HEADER.size:
            body = self._start + HEADER.size
            length = unpack_length(data[self._start : body], self._server.max_message_bytes)
            if self._end - body < length:
                break
            self._queue.append(data[body : body + length])
            # Whole messages only: single bytes now and then do not keep a connection alive.
            self.last_heard = time.monotonic()
            self._start = body + length
        if len(self._queue) > _MAX_QUEUED:
            raise ProtocolError(
                f"more than {_MAX_QUEUED} messages sent ahead; wait for the answer to each step",
                "OUT_OF_ORDER",
            )

    def _next(self) -> None:
        while self._queue and not self._busy and not self._closing:
            self._busy = True
            body = self._queue.popleft()
            if self.session.blocking:
                self._run(self._receive_in_thread, bytes(body))
                return
            mark = tracing.begin()
            try:
                answer = self.session.receive(body)
            except ProtocolError as error:
                self.fail(error)
                return
            finally:
                tracing.end("read step", mark)
            if answer is PENDING:
                self._server.predict_soon(self)
                return
            self._busy = False
            if isinstance(answer, bytes):
                self.send_answer(answer)

    def _receive_in_thread(self, body: bytes) -> None:
        loop = self._server.loop
        greeted = self.session.greeted
        try:
            with tracing.span("agent step"):
                answer = self.session.receive(body)
        except ProtocolError as error:
            loop.call_soon_threadsafe(self.fail, error)
            return
        if not greeted:
            # One that comes back at once with the same nonsense is not to keep the others waiting.
            time.sleep(self._server.get_greeting_delay(self.session.client_name))
        if isinstance(answer, bytes):
            loop.call_soon_threadsafe(self.send_answer, answer)
        else:
            loop.call_soon_threadsafe(self._go_on)

    def _close_session(self) -> None:
        """Closes the agents: in their thread, which may be busy with them, where they have one."""
        if self._thread is None:
            _close_quietly(self.session)
            return
        closing = self._thread.submit(_close_quietly, self.session)
        self._server.closing = {f for f in self._server.closing if not f.done()} | {closing}
        self._thread.shutdown(wait=False)

    def _go_on(self) -> None:
        self._busy = False
        self._next()
        if self._client_done and not self._busy and not self._closing:
            self._close_soon()

    def _run(self, function: Callable[..., None], *arguments: object) -> None:
        if self._thread is None:
            name = self.session.name
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._thread.submit(function, *arguments)

    def _close_soon(self) -> None:
        """Lets the client read the last answer: closing with unread input would reset it away."""
        self._closing = True
        self._queue.clear()
        assert self._transport is not None
        # `close` waits until all is written, which a client that reads nothing prevents.
        self._server.loop.call_later(_ABORT_SEC, self._transport.abort)
        if self._client_done:
            self._transport.close()
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._server.loop.call_later(_LINGER_SEC, self._transport.close)


def _close_quietly(session: Session) -> None:
    try:
        session.close()
    except Exception:
        logger.exception("%s: closing its agents failed", session.client_name)
