"""The rlx server: one event loop for all connections, one prediction for all ready sessions."""

import asyncio
import contextlib
import itertools
import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any

from relaax_like.agent.online_helper import AGENT_SHARE
from relaax_like.config.address import Address
from relaax_like.core.prediction import Prediction, Request
from relaax_like.core.records import MAX_SERVED_CLIENTS, ServedClient
from relaax_like.rlx_server.admission import Admission
from relaax_like.rlx_server.client_log import MAX_TRACE_LENGTH, LogBudget, shorten
from relaax_like.rlx_server.connection import ServerConnection
from relaax_like.rlx_server.handshakes import Handshake
from relaax_like.rlx_server.points import make_shared_budget
from relaax_like.rlx_server.session import Session
from relaax_like.wire import tracing
from relaax_like.wire.errors import ProtocolError, RelaaxError
from relaax_like.wire.ports import describe_bind_failure
from relaax_like.wire.tls import ServerTls

logger = logging.getLogger(__name__)

# A client that leaves answers unread for this long is disconnected.
_UNREAD_SEC = 30.0
# A client whose session failed within _FAILURE_SEC waits this long for the answer to its hello.
_FAILURE_SEC = 10.0
_GREETING_DELAY_SEC = 0.5
# If this many connections of an address have failed, with the count halved every second, its next
# connections wait before they are read.
_MANY_FAILURES = 50
# Longest wait for sessions to close; the runner kills the process 5 s after it asked it to stop.
_STOP_SEC = 3.0

# The shortest delay of an event loop, and the shortest limit of a client.
_TICK_SEC = 0.001

Predict = Callable[[Sequence[Request]], list[Prediction]]


class RlxServer:
    """Serves sessions until it is stopped.

        server = RlxServer(make_session, admission, ...)
        port = await server.start("localhost", 7001)
        ...
        await server.stop()

    Args:
      make_session: builds the session of a new connection from its name.
      admission: admits clients or turns them away.
      max_message_bytes: longest message that is read.
      hello_timeout_sec: a connection that has not sent a hello within this time is closed.
      idle_timeout_sec: a client that sends nothing for this long is disconnected.
      predict: answers the requests of batch-native agents; None when all agents are plain.
      tls: certificate of the server, read again when it changes; None: no TLS.
      allowed_origins: of web pages that can connect; see `is_allowed`.

    Attributes:
      loop: the event loop, once started.
      admission: as the argument.
      max_message_bytes: as the argument.
      connections: the open connections.
      closing: sessions that are being closed in their threads.
      allowed_origins: as the argument.
      log_budget: limits the log lines that clients cause.
      points: limits the curve points of all clients together.
    """

    def __init__(
        self,
        make_session: Callable[[str], Session],
        admission: Admission,
        *,
        max_message_bytes: int,
        hello_timeout_sec: float,
        idle_timeout_sec: float,
        predict: Predict | None = None,
        tls: ServerTls | None = None,
        allowed_origins: Collection[str] = (),
    ):
        self.admission = admission
        self.max_message_bytes = max_message_bytes
        self.allowed_origins = frozenset(allowed_origins)
        self.connections: set[ServerConnection] = set()
        self.closing: set[Future[None]] = set()
        self.log_budget = LogBudget()
        self.points = make_shared_budget()
        self._make_session = make_session
        self._hello_timeout_sec = hello_timeout_sec
        self._idle_timeout_sec = idle_timeout_sec
        self._predict = predict
        self._tls = tls
        self._refresh_tls: Callable[[], None] = lambda: None
        self._numbers = itertools.count(1)
        self._server: asyncio.Server | None = None
        # Tasks: the periodic sweep, and handshakes.
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending: list[ServerConnection] = []
        self._waiting: set[ServerConnection] = set()
        self._flush_scheduled = False
        self._has_slow_predictions = False
        # (name, address) of a client -> when its session failed.
        self._failures: dict[tuple[str, str], float] = {}
        self._failures_of: Counter[str] = Counter()  # by address

    @property
    def clients(self) -> int:
        """Current number of connections whose hello was accepted."""
        return self.admission.clients

    def note_failure(self, client_name: str | None, address: str) -> None:
        """Remembers a connection that failed, for the next ones.

        Args:
          client_name: from its hello, if that had been accepted.
          address: of the peer, without the port.
        """
        self._failures_of[address] += 1
        if client_name is not None:
            self._failures[client_name, address] = time.monotonic()

    def get_reading_delay(self, address: str) -> float:
        """Returns how many seconds a new connection waits before it is read."""
        return _GREETING_DELAY_SEC if self._failures_of[address] > _MANY_FAILURES else 0.0

    def get_greeting_delay(self, client_name: str, address: str) -> float:
        """Returns how many seconds this client waits for the answer to its hello."""
        failed = self._failures.get((client_name, address), float("-inf"))
        return _GREETING_DELAY_SEC if time.monotonic() - failed < _FAILURE_SEC else 0.0

    def describe_clients(self) -> tuple[list[ServedClient], int]:
        """Returns the status of at most 100 clients, and the number of all; call from any thread.

        Clients where one side is silent come first (see `ServerConnection.describe_stall`), then
        those with the most late answers.
        """
        now = time.monotonic()
        served = [c for c in list(self.connections) if c.open and c.session.greeted]
        stalls = {c: stall for c in served if (stall := c.describe_stall(now))}
        served.sort(key=lambda c: (c in stalls, c.session.times.late), reverse=True)
        chosen = served[:MAX_SERVED_CLIENTS]
        return [c.session.describe(stalls.get(c, "")) for c in chosen], len(served)

    async def start(self, host: str, port: int) -> int:
        """Binds and starts to serve; returns the actual port.

        Raises:
          RelaaxError: the address cannot be bound; if the port is taken, the error names the
            process that holds it, or says how to find it.
          ConfigError: a TLS file cannot be used.
        """
        self.loop = asyncio.get_running_loop()
        try:
            self._server = await self.loop.create_server(
                self._make_protocol_factory(), host, port, backlog=512
            )
        except OSError as error:
            raise RelaaxError(
                f"cannot bind {Address(host, port)}: {describe_bind_failure(host, port)}"
            ) from error
        self.run(self._sweep())
        return int(self._server.sockets[0].getsockname()[1])

    def make_connection(self, handshake: Handshake | None = None) -> ServerConnection:
        """Makes the protocol object that serves a new connection.

        Args:
          handshake: the TLS handshake that it replaces; None: no TLS.
        """
        session = self._make_session(f"session-{next(self._numbers)}")
        return ServerConnection(self, session, handshake)

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine until it ends, or until the server stops."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _make_protocol_factory(self) -> Callable[[], asyncio.BaseProtocol]:
        if self._tls is None:
            return self.make_connection
        tls, context, loaded = self._tls, self._tls.make_context(), self._tls.get()

        def refresh() -> None:
            nonlocal loaded
            loaded = tls.refresh(context, loaded)

        self._refresh_tls = refresh
        options = {
            "ssl": context,
            "ssl_handshake_timeout": self._hello_timeout_sec,
            # No waiting for the peer's close message: a client that has left does not send it.
            "ssl_shutdown_timeout": _STOP_SEC,
        }
        return lambda: Handshake(self, options)

    async def stop(self) -> None:
        """Accepts no more clients, notifies the others, and closes their sessions: 3 s at most."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        goodbye = ProtocolError("the rlx server is shutting down; reconnect", "UNAVAILABLE")
        for connection in list(self.connections):
            connection.fail(goodbye)
        deadline = self.loop.time() + _STOP_SEC
        while self.is_closing and self.loop.time() < deadline:
            await asyncio.sleep(0.01)

    @property
    def is_closing(self) -> bool:
        """Whether sessions are still being closed; their agents are sending what is pending."""
        self.closing = {future for future in self.closing if not future.done()}
        return bool(self.connections or self.closing)

    def predict_soon(self, connection: ServerConnection) -> None:
        """Answers a pending step with the next predictions, once its session is ready."""
        if not connection.session.ready:
            self._waiting.add(connection)
            limit = connection.session.max_wait_sec
            if limit is not None:  # its agent waits for only a part of this time
                self.loop.call_later(limit * AGENT_SHARE, self._wake_one, connection)
            return
        self._pending.append(connection)
        if len(self.connections) == 1:  # nobody else can have sent a step
            self._flush()
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            # After all sockets that are readable now have been read.
            self.loop.call_soon(self._flush)

    def wake(self) -> None:
        """Re-checks sessions that were not ready. Thread-safe."""
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nothing waits
            self.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        ready = [c for c in self._waiting if not c.open or c.session.ready]
        for connection in ready:
            self._waiting.discard(connection)
            if connection.open:
                self.predict_soon(connection)

    def _wake_one(self, connection: ServerConnection) -> None:
        if connection not in self._waiting:
            return
        if connection.open and not connection.session.ready:  # the loop's clock was late
            self.loop.call_later(_TICK_SEC, self._wake_one, connection)
            return
        self._waiting.discard(connection)
        if connection.open:
            self.predict_soon(connection)

    def _flush(self) -> None:
        self._flush_scheduled = False
        pending, self._pending = self._pending, []
        asking, requests = [], []
        for connection in pending:
            if not connection.open:
                continue
            try:
                request = connection.session.request()
                if request is None:
                    self._send(connection, None)
                    continue
            except ProtocolError as error:
                connection.fail(error)
                continue
            asking.append(connection)
            requests.append(request)
        if asking:
            self._answer(asking, requests)

    def _answer(self, asking: list[ServerConnection], requests: list[Request]) -> None:
        assert self._predict is not None
        try:
            mark = tracing.begin()
            began = time.monotonic()
            predictions = self._predict(requests)
            ended = time.monotonic()
            mark = tracing.end("predict", mark)
        except Exception as error:
            if len(asking) > 1:  # one by one, so that only the session that caused it fails
                for connection, request in zip(asking, requests, strict=True):
                    self._answer([connection], [request])
                return
            session = asking[0].session
            trace = shorten(traceback.format_exc(), MAX_TRACE_LENGTH)
            session.log.write(
                logging.ERROR, "%s: the prediction failed", session.client_name, trace=trace
            )
            what = str(error) if isinstance(error, RelaaxError) else repr(error)
            asking[0].fail(
                ProtocolError(
                    f"the prediction failed: {what}; see the rlx server's log", "AGENT_FAILED"
                )
            )
            return
        for connection, prediction in zip(asking, predictions, strict=True):
            try:
                self._send(connection, prediction, began, ended)
            except ProtocolError as error:
                connection.fail(error)
        if ended - began > _TICK_SEC and not self._has_slow_predictions:
            self._note_prediction(asking, ended - began)
        tracing.end("answer", mark)
        tracing.count("sessions per prediction", len(asking))

    def _note_prediction(self, asking: list[ServerConnection], seconds: float) -> None:
        """Warns once if predictions take longer than the limit of a client."""
        limits = [limit for c in asking if (limit := c.session.max_wait_sec) is not None]
        if limits and seconds > min(limits):
            self._has_slow_predictions = True
            logger.warning(
                "one prediction for %d client(s) took %.1f ms, but max_wait_ms of one of them is "
                "%.0f; use a smaller network, fewer clients per server, or a larger max_wait_ms",
                len(asking),
                1e3 * seconds,
                1e3 * min(limits),
            )

    def _send(
        self,
        connection: ServerConnection,
        prediction: Prediction | None,
        began: float = 0.0,
        ended: float = 0.0,
    ) -> None:
        answer = connection.session.answer(prediction, began, ended)
        if isinstance(answer, bytes):
            connection.send_answer(answer)
        else:  # its agent has another request
            self.predict_soon(connection)

    async def _sweep(self) -> None:
        """Checks all connections, again and again.

        Pings clients that wait, reports silences, and disconnects clients that are silent for too
        long or do not read.
        """
        interval = min(self._hello_timeout_sec, self._idle_timeout_sec) / 4
        while True:
            await asyncio.sleep(min(max(interval, 0.02), 1.0))
            try:
                self._sweep_once()
            except Exception:
                logger.exception("checking the connections failed; the next check follows")

    def _sweep_once(self) -> None:
        now = time.monotonic()
        self._failures = {n: t for n, t in self._failures.items() if now - t < _FAILURE_SEC}
        self._failures_of = Counter({a: n // 2 for a, n in self._failures_of.items() if n > 1})
        self._wake()  # sessions whose wait has lasted too long
        self._refresh_tls()
        for address, lines in self.log_budget.take_suppressed().items():
            logger.warning("%s: %d more lines about its clients", address, lines)
        for connection in list(self.connections):
            unread = connection.unread_since
            if unread is not None and now - unread > _UNREAD_SEC:
                connection.session.log.write(
                    logging.WARNING,
                    "%s: does not read replies; disconnected",
                    connection.session.client_name,
                )
                connection.abort()
                continue
            connection.ping()
            connection.log_stall(now)
            greeted = connection.session.greeted
            timeout = self._idle_timeout_sec if greeted else self._hello_timeout_sec
            if now - connection.last_heard > timeout and not connection.busy:
                key, cure = "hello_timeout_sec", "reconnect, and send the hello at once"
                if greeted:
                    key, cure = "idle_timeout_sec", "reconnect once the environment is ready"
                connection.fail(
                    ProtocolError(
                        f"no complete message received for {timeout:g} s "
                        f"(relaax-rlx-server.{key}); {cure}",
                        "UNAVAILABLE",
                    )
                )


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Returns uvloop's event loop, or asyncio's own if uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
