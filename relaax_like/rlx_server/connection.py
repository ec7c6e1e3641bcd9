"""One client's TCP connection: frames in, messages to its session, answers out."""

import asyncio
import logging
import socket
import string
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, cast

from relaax_like.rlx_server.carrier import Carrier, Limit
from relaax_like.rlx_server.client_log import MAX_TRACE_LENGTH, ClientLog, shorten
from relaax_like.rlx_server.codec import Body
from relaax_like.rlx_server.frames import Frames
from relaax_like.rlx_server.greeting import PING
from relaax_like.rlx_server.json_codec import JsonCodec
from relaax_like.rlx_server.lines import Lines
from relaax_like.rlx_server.protobuf_codec import ProtobufCodec
from relaax_like.rlx_server.session import PENDING, PREPARING_SEC, Session
from relaax_like.rlx_server.web_socket import WebSocket
from relaax_like.wire import tracing
from relaax_like.wire.errors import ProtocolError
from relaax_like.wire.framing import HEADER
from relaax_like.wire.tls import HANDSHAKE

if TYPE_CHECKING:
    from relaax_like.rlx_server.handshakes import Handshake
    from relaax_like.rlx_server.server import RlxServer

logger = logging.getLogger(__name__)

# The protocol is a dialogue: a client that sends this many messages ahead does not follow it.
_MAX_QUEUED = 100
# A client whose points are dropped pauses for this multiple of the time that its message took, and
# for at least this long, because the message also had to be read. So its share of the loop's time
# stays small, however fast it sends.
_REST_FACTOR = 10.0
_MIN_REST_SEC = 0.1
# So does one that sends more pings of its carrier than these at once.
_FEW_CONTROLS = 4
# A peer that vanished silently is noticed after 30 + 3 * 10 s.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
_LINGER_SEC = 2.0
_ABORT_SEC = 10.0
_TEXT = frozenset(string.printable.encode())
# A longer silence is reported.
_STALL_SEC = 10.0
# Interval of pings to a waiting client.
_PING_SEC = 5.0
_MAX_UNWANTED = 4 << 20
# What closing connections still receive goes here, and nobody reads it; they rest after each read.
_unwanted_buffer = memoryview(bytearray(1 << 16))
_UNWANTED_REST_SEC = 0.01
_KEY = "relaax-rlx-server.max_message_bytes"
_SESSION_LIMIT = f"the spaces of the hello and {_KEY} limit them"


def choose_carrier(carrier: Carrier, allowed_origins: Collection[str]) -> Carrier:
    """Chooses by the first bytes, which no length of a first frame has if they are text.

    Args:
      carrier: holds what has arrived.
      allowed_origins: of pages that can connect.
    """
    start = carrier.peek(HEADER.size)
    if not all(character in _TEXT for character in start):
        return carrier
    return WebSocket(carrier, allowed_origins) if start[:1].isupper() else Lines(carrier)


class ServerConnection(asyncio.BufferedProtocol):
    """Feeds a session, one message at a time.

    A session that can block, as each one can until its hello is answered, runs in its own thread;
    any other in the event loop, where its predictions are batched with those of all sessions that
    are ready at the same moment. Each turn of the loop handles at most one message of a connection;
    while others wait, nothing more is read.

    Attributes:
      session: as the argument.
      address: of the peer, without the port.
      last_heard: monotonic time of the newest complete message, or of the newest answer, which
        restarts the client's timeout.
      busy: whether a message of the client is being processed.
      unread_since: monotonic time since when the client has not read answers; None: it reads.

    Args:
      server: to which the connection belongs.
      session: receives its messages.
      handshake: the TLS handshake that it replaces; None: no TLS.
    """

    def __init__(self, server: "RlxServer", session: Session, handshake: "Handshake | None" = None):
        self.session = session
        self.address = ""
        self.last_heard = time.monotonic()
        self.unread_since: float | None = None
        self._server = server
        self._handshake = handshake
        self._is_plain = handshake is not None and handshake.is_plain
        self._transport: asyncio.Transport | None = None
        self._carrier: Carrier = Frames()
        self._limit: Limit | None = None  # of messages after the hello, once it was accepted
        self._chosen = False  # whether the carrier is that of the client
        self._heard = False  # whether it has sent a message
        self._unwanted = 0
        # Complete messages in the carrier's buffer that wait for their turn, and when they arrived.
        self._queue: deque[tuple[Body, float]] = deque()
        self._turn_due = False
        self._reading = True
        self._resting = False  # nothing is read yet
        # Whether the current message came after Ready.
        self._greeted = False
        self._pinged_at = 0.0
        self._logged_silence = 0.0  # `last_heard` of the newest silence that was logged
        self.busy = False
        self._closing = False
        self._client_done = False
        self._thread: ThreadPoolExecutor | None = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Registers the connection; it is unknown until its hello has been accepted."""
        # uvloop's transports have the methods, but not the base class.
        self._transport = cast(asyncio.Transport, transport)
        self.address = _get_address(self._transport)
        _keep_alive(self._transport)
        session, server = self.session, self._server
        session.log = ClientLog(logger, server.log_budget, self.address)
        session.points.shared = server.points
        session.admit = lambda: server.admission.admit(self)
        server.connections.add(self)
        if self._handshake is not None:
            server.admission.leave(self._handshake)
            self._handshake = None
        server.admission.arrive(self)
        if delay := server.get_reading_delay(self.address):
            self._resting = True
            server.loop.call_later(delay, self._end_rest)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns where the next bytes go.

        There is always room: uvloop crashes if a transport is closed or paused in here, so anything
        that can do so is done when bytes have arrived.
        """
        return _unwanted_buffer if self._closing else self._carrier.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Processes the bytes that have arrived."""
        if self._closing:
            # What was in transit is read, so that the client can read our last message; no more.
            self._unwanted += nbytes
            if self._unwanted > _MAX_UNWANTED:
                self.abort()
            else:
                self._rest(_UNWANTED_REST_SEC)
            return
        # Otherwise 32 reads of an unknown peer that sends much would follow each other.
        gets_turns = not self.session.greeted and nbytes == len(self._carrier.get_buffer())
        self._carrier.add(nbytes)
        if self._resting:  # uvloop starts to read although reading was paused at the start
            self._set_reading()
            return
        mark = tracing.begin()
        try:
            self._split()
        except ProtocolError as error:
            self.fail(error)
            return
        finally:
            tracing.end("read frames", mark)
        if self._carrier.talks:
            self._write(self._carrier.take_output())
            if self._carrier.is_over and self._transport is not None:
                self._closing = True
                self._transport.close()
                return
        if self._carrier.controls > _FEW_CONTROLS:
            self._rest(_MIN_REST_SEC)
        elif gets_turns:
            self._rest(0.0)
        self._next()
        self._carrier.make_room(self._reserve)

    def eof_received(self) -> bool:
        """Notes that the client will send no more; without TLS, what it sent is still answered.

        Returns:
          Whether the transport stays open for the answers.
        """
        if not (self._carrier.is_empty or self._closing):
            self._warn("disconnected in the middle of a message")
        self._client_done = True
        # Keeps our direction open while an answer is in transit; TLS cannot be half-closed.
        under_way = self.busy or self._turn_due or self._resting or bool(self._queue)
        return under_way and not self._closing and not self._encrypted

    def connection_lost(self, exc: Exception | None) -> None:
        """Closes the session; other sessions are not affected."""
        self._closing = True
        self._queue.clear()
        self._server.connections.discard(self)
        self._server.admission.leave(self)
        self._close_session()

    def pause_writing(self) -> None:
        """Stops reading from a client that does not read its answers, so that none pile up."""
        self.unread_since = time.monotonic()
        self._set_reading()

    def resume_writing(self) -> None:
        """Reads again: the client has caught up."""
        self.unread_since = None
        self._set_reading()

    # What the server calls.

    def abort(self) -> None:
        """Aborts the connection without a message: the client does not read, or sends too much."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def describe_stall(self, now: float) -> str:
        """Returns which side has been silent for a long time, and the client's last message.

        Args:
          now: monotonic seconds.

        Returns:
          "" if neither has been silent for more than 10 s, before the hello has been answered, or
          once the connection is being closed.
        """
        silent = now - self.last_heard
        if silent <= _STALL_SEC or self._closing or not self.session.greeted:
            return ""
        last = self.session.last_message
        if self.busy:
            return (
                f"the server has not answered for {silent:.0f} s; it waits for "
                f"{self.session.describe_wait()}; last message of the client: {last}"
            )
        return f"the client has been silent for {silent:.0f} s; its last message: {last}"

    def log_stall(self, now: float) -> None:
        """Logs which side is silent, once per silence.

        Args:
          now: monotonic seconds.
        """
        if self._logged_silence == self.last_heard:
            return
        if stall := self.describe_stall(now):
            self._logged_silence = self.last_heard
            self._warn(stall)

    @property
    def open(self) -> bool:
        """Whether answers can still be sent."""
        return not self._closing

    def send_answer(self, answer: bytes) -> None:
        """Sends the answer to the current message; the next one gets the loop's next turn.

        If the answer notifies the client of the end of training, closes instead.
        """
        self.busy = False
        if self._closing or self._transport is None:
            return
        self._transport.write(self._carrier.pack(answer))
        self.last_heard = time.monotonic()
        if self._thread is not None and not self.session.blocking:  # it was for the hello
            self._thread.shutdown(wait=False)
            self._thread = None
        if self.session.finished:
            self.session.log.write(
                logging.INFO,
                "%s: notified of the end",
                self.session.client_name,
            )
            self._close_soon()
            return
        self._go_on()

    def ping(self) -> None:
        """Pings a client that waits for its agents and supports pings, so that it keeps waiting.

        Does nothing if agents can block, or for longer than `PREPARING_SEC` before `Ready`: an
        agent that hangs must be noticed.
        """
        now = time.monotonic()
        if self._greeted:
            waits = not self.session.blocking and self.session.has_feature(PING)
        else:
            waits = self.session.is_preparing and now - self.last_heard < PREPARING_SEC
        if (
            self.busy
            and not self._closing
            and waits
            and now - max(self._pinged_at, self.last_heard) > _PING_SEC
        ):
            assert self._transport is not None
            self._pinged_at = now
            self._transport.write(self._carrier.pack(self.session.codec.ping))

    def turn_away(self, error: ProtocolError) -> None:
        """Sends an unknown client the reason, and closes at once; see `Admission`."""
        transport = self._transport
        if transport is None:
            return
        if not self._closing:
            self._warn(f"{error.code}: {error}")
            self._write(self._carrier.pack(self.session.write_error(error)))
            self._write(self._carrier.end(error))
        self._closing = True
        self._queue.clear()
        self._carrier.drop()
        transport.close()
        self._server.loop.call_later(_ABORT_SEC, transport.abort)

    def fail(self, error: ProtocolError) -> None:
        """Sends the client the error and closes."""
        self.busy = False
        if self._closing or self._transport is None:
            return
        self._warn(f"{error.code}: {error}")
        name = self.session.client_name if self.session.greeted else None
        self._server.note_failure(name, self.address)
        self._write(self._carrier.pack(self.session.write_error(error)))
        self._close_soon(error)

    @property
    def _encrypted(self) -> bool:
        assert self._transport is not None
        return self._transport.get_extra_info("sslcontext") is not None

    def _warn(self, what: str) -> None:
        self.session.log.write(logging.WARNING, "%s: %s", self.session.client_name, what)

    def _reserve(self, nbytes: int) -> bool:
        """Counts bytes that an unfinished hello needs; returns whether it was not turned away."""
        if not self.session.greeted:
            self._server.admission.reserve(self, nbytes)
        return not self._closing

    def _find_limit(self) -> Limit:
        if nbytes := self.session.max_message_bytes:
            self._limit = Limit(nbytes, _SESSION_LIMIT)
            return self._limit
        longest = self.session.codec.max_hello_bytes
        reason = f"a hello has at most {longest} bytes, and no message more than {_KEY}"
        return Limit(min(longest, self._server.max_message_bytes), reason)

    def _split(self) -> None:
        carrier, session = self._carrier, self.session
        if not self._chosen and not carrier.is_empty:
            self._chosen = True
            carrier = self._carrier = choose_carrier(carrier, self._server.allowed_origins)
            if carrier.is_text is not False:
                session.codec = JsonCodec()  # unless its first message is not text
        if not session.greeted and carrier.peek(len(HANDSHAKE)) == HANDSHAKE:
            raise ProtocolError(
                "received a TLS handshake, but this server does not use TLS; connect without "
                "tls_ca, or configure TLS in the `security` section of the server's YAML file"
            )
        if self._is_plain:
            raise ProtocolError(
                "this server uses TLS: set tls_ca; in a page, wss://", "UNAUTHENTICATED"
            )
        carrier.is_known = session.greeted
        for body in carrier.split(self._limit or self._find_limit()):
            # Complete messages only: occasional single bytes do not keep a connection alive.
            self.last_heard = time.monotonic()
            if not self._heard:  # the first message
                self._heard = True
                if carrier.is_text is False:
                    session.codec = ProtobufCodec()
            if body is not None and not (carrier.skips_pings and session.codec.is_ping(body)):
                self._queue.append((body, self.last_heard))
        if len(self._queue) > _MAX_QUEUED:
            raise ProtocolError(
                f"received more than {_MAX_QUEUED} messages ahead of their replies; wait for the "
                "reply to each step, and send several points of curves in one message",
                "OUT_OF_ORDER",
            )

    def _set_reading(self) -> None:
        """Reads only while no message waits for its turn, no answer is unread, and no pause is on.

        After the last message, reads what the client still had in transit.
        """
        waits = not self._closing and (self._queue or self.unread_since is not None)
        wanted = not (waits or self._resting)
        if wanted != self._reading and self._transport is not None:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _rest(self, delay_sec: float) -> None:
        """Reads nothing for a while."""
        self._resting = True
        self._set_reading()
        self._server.loop.call_later(delay_sec, self._end_rest)

    def _end_rest(self) -> None:
        self._resting = False
        if self._transport is None or self._closing:
            self._set_reading()
            return
        self.buffer_updated(0)  # processes what has arrived meanwhile
        if self._client_done and not (self._queue or self.busy or self._closing):
            self._close_soon()

    def _next(self) -> None:
        """Handles one message, and leaves the following ones to the loop's next turn."""
        if self._queue and not (self.busy or self._closing or self._turn_due):
            self._handle(*self._queue.popleft())
        if not self._queue:
            self._carrier.release()
        self._set_reading()

    def _handle(self, body: Body, received_at: float) -> None:
        self.busy = True
        if not self._greeted and self.session.greeted:
            self._greeted = True
            self._carrier.skips_pings = self.session.has_feature(PING)
        if self.session.blocking:
            self._run(self._receive_in_thread, bytes(body), received_at)
            return
        began = time.perf_counter()
        mark = tracing.begin()
        try:
            answer = self.session.receive(body, received_at)
        except ProtocolError as error:
            self.fail(error)
            return
        finally:
            tracing.end("read step", mark)
        if answer is PENDING:
            self._server.predict_soon(self)
            return
        if isinstance(answer, bytes):
            self.busy = False
            self.send_answer(answer)
        else:
            self._store_points(time.perf_counter() - began)

    def _store_points(self, took_sec: float) -> None:
        """Stores points of the newest message, some in each turn of the loop."""
        if self._closing:
            return  # the session's end stores the rest
        began = time.perf_counter()
        more = self.session.points.store()
        took_sec += time.perf_counter() - began
        if more:
            self._server.loop.call_soon(self._store_points, took_sec)
        else:
            self._go_on(self._get_rest(took_sec))

    def _get_rest(self, took_sec: float) -> float:
        if not self.session.points.dropped:
            return 0.0
        return max(took_sec * _REST_FACTOR, _MIN_REST_SEC)

    def _go_on(self, rest_sec: float = 0.0) -> None:
        """Schedules the next message for the loop's next turn, or for the end of a pause."""
        self.busy = False
        if self._closing:
            return
        if not self._queue and self._client_done:
            self._close_soon()
        elif (self._queue or rest_sec) and not self._turn_due:
            self._turn_due = True
            if rest_sec:
                self._server.loop.call_later(rest_sec, self._take_turn)
            else:
                self._server.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn_due = False
        self._next()
        if self._client_done and not (self._queue or self.busy or self._closing):
            self._close_soon()

    def _receive_in_thread(self, body: bytes, received_at: float) -> None:
        loop = self._server.loop
        greeted = self.session.greeted
        began = time.perf_counter()
        try:
            with tracing.span("agent step"):
                answer = self.session.receive(body, received_at)
                while self.session.points.store():
                    pass
        except ProtocolError as error:
            loop.call_soon_threadsafe(self.fail, error)
            return
        if not greeted:
            # A client that retries at once with the same bad hello must not delay the others.
            time.sleep(self._server.get_greeting_delay(self.session.client_name, self.address))
        if isinstance(answer, bytes):
            loop.call_soon_threadsafe(self.send_answer, answer)
        else:
            rest_sec = self._get_rest(time.perf_counter() - began)
            loop.call_soon_threadsafe(self._go_on, rest_sec)

    def _close_session(self) -> None:
        """Closes the agents, if any, in the thread that might be using them, or in a new one."""
        if self._thread is None and not self.session.greeted:
            _close_quietly(self.session)
            return
        closing = self._run(_close_quietly, self.session)
        self._server.closing = {f for f in self._server.closing if not f.done()} | {closing}
        assert self._thread is not None
        self._thread.shutdown(wait=False)

    def _run(self, function: Callable[..., None], *arguments: object) -> Future[None]:
        if self._thread is None:
            name = self.session.name
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        return self._thread.submit(function, *arguments)

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None:
            self._transport.write(data)

    def _close_soon(self, error: ProtocolError | None = None) -> None:
        """Closes when the client had time to read the last answer.

        Closing at once, with unread input, would discard the answer.
        """
        self._closing = True
        self._write(self._carrier.end(error))
        self._queue.clear()
        self._carrier.drop()
        self._set_reading()
        assert self._transport is not None
        # `close` waits until everything is written, which a client that does not read prevents.
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
        session.log.write(
            logging.ERROR,
            "%s: closing its agents failed",
            session.client_name,
            trace=shorten(traceback.format_exc(), MAX_TRACE_LENGTH),
        )


def _get_address(transport: asyncio.Transport) -> str:
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""


def _keep_alive(transport: asyncio.Transport) -> None:
    """Makes the kernel check periodically whether an idle peer still exists."""
    connected = transport.get_extra_info("socket")
    if connected is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        if hasattr(socket, name):  # not on every system
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
