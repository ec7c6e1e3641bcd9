"""The rlx server's transport: one asyncio loop, TCP, a thread for each session's plain agents."""

import asyncio
import contextlib
import itertools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from relaax_like.rlx_server.admission import Admission
from relaax_like.rlx_server.session import Session, error_to_bytes
from relaax_like.wire.errors import ProtocolError, RelaaxError
from relaax_like.wire.framing import HEADER, pack_frame, unpack_length
from relaax_like.wire.ports import describe_bind_failure

logger = logging.getLogger(__name__)

_WRITE_TIMEOUT_SEC = 30.0
_LINGER_SEC = 2.0


class RlxServer:
    """Serves sessions until it is stopped.

        server = RlxServer(make_session, admission, ...)
        port = await server.start("localhost", 7001)
        ...
        await server.stop()

    Args:
      make_session: builds the session of a new connection from its name.
      admission: lets connections in or turns them away.
      max_message_bytes: longest message that is read.
      hello_timeout_sec: a connection that has not said hello by then is closed.
      idle_timeout_sec: a client that sends nothing for so long is sent away.
    """

    def __init__(
        self,
        make_session: Callable[[str], Session],
        admission: Admission,
        *,
        max_message_bytes: int,
        hello_timeout_sec: float,
        idle_timeout_sec: float,
    ):
        self._make_session = make_session
        self._admission = admission
        self._max_message_bytes = max_message_bytes
        self._hello_timeout_sec = hello_timeout_sec
        self._idle_timeout_sec = idle_timeout_sec
        self._numbers = itertools.count(1)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def clients(self) -> int:
        """Connections at this moment."""
        return self._admission.clients

    async def start(self, host: str, port: int) -> int:
        """Binds and begins to serve; returns the real port.

        Raises:
          RelaaxError: the port is taken; names the process that holds it.
        """
        try:
            self._server = await asyncio.start_server(self._connect, host, port, backlog=512)
        except OSError as error:
            raise RelaaxError(
                f"cannot bind {host}:{port}: {describe_bind_failure(host, port)}"
            ) from error
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Takes no new clients, tells the others, and closes their sessions."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=3.0)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._converse(reader, writer)
        except (ConnectionError, TimeoutError, asyncio.CancelledError):
            pass
        except Exception:
            logger.exception("a connection ended with a defect of the server; others go on")
        finally:
            self._connections.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = f"session-{next(self._numbers)}"
        try:
            self._admission.enter()
        except ProtocolError as error:
            logger.warning("%s turned away: %s", name, error)
            await _send(writer, error_to_bytes(error))
            await _drain_input(reader)
            return
        session = self._make_session(name)
        # One thread per session: a slow or blocking agent holds up nobody else.
        thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        try:
            await self._serve(session, thread, reader, writer)
        finally:
            self._admission.leave()
            thread.submit(_close_quietly, session)
            thread.shutdown(wait=False)

    async def _serve(
        self,
        session: Session,
        thread: ThreadPoolExecutor,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            while not session.finished:
                body = await self._read(reader, session)
                if body is None:
                    return
                answer = await loop.run_in_executor(thread, session.receive, body)
                if answer is not None:
                    await _send(writer, answer)
            logger.info("%s: told that the training has finished", session.client_name)
        except ProtocolError as error:
            logger.warning("%s: %s: %s", session.client_name, error.code, error)
            await _send(writer, error_to_bytes(error))
        except asyncio.CancelledError:
            goodbye = ProtocolError("the rlx server is going down; reconnect", "UNAVAILABLE")
            writer.write(pack_frame(error_to_bytes(goodbye)))
            raise
        # Closing with unread input would reset the connection and lose the last answer.
        await _drain_input(reader)

    async def _read(self, reader: asyncio.StreamReader, session: Session) -> bytes | None:
        timeout = self._idle_timeout_sec if session.greeted else self._hello_timeout_sec
        try:
            async with asyncio.timeout(timeout):
                header = await reader.readexactly(HEADER.size)
                return await reader.readexactly(unpack_length(header, self._max_message_bytes))
        except asyncio.IncompleteReadError as error:
            if error.partial:
                logger.warning("%s: went away in the middle of a message", session.client_name)
            return None
        except TimeoutError:
            raise ProtocolError(
                f"nothing whole came for {timeout:g} s; connect again with the environment ready",
                "UNAVAILABLE",
            ) from None


async def _send(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(pack_frame(body))
    async with asyncio.timeout(_WRITE_TIMEOUT_SEC):
        await writer.drain()


async def _drain_input(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(_LINGER_SEC):
            while await reader.read(65536):
                pass


def _close_quietly(session: Session) -> None:
    try:
        session.close()
    except Exception:
        logger.exception("%s: closing its agents failed", session.client_name)


class ServerThread:
    """Runs an `RlxServer` in a thread with a loop of its own. A context manager.

    with ServerThread(server, "127.0.0.1", 0) as running:
        connect_to(running.port)
    """

    def __init__(self, server: RlxServer, host: str, port: int):
        self._server = server
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rlx-server")
        self._thread.start()
        try:
            self.port = self._call(server.start(host, port))
        except BaseException:
            self._stop_loop()
            raise

    def stop(self) -> None:
        """Stops the server and the thread; may be called twice."""
        if self._thread.is_alive():
            self._call(self._server.stop())
            self._stop_loop()

    def __enter__(self) -> "ServerThread":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _call(self, coroutine):  # type: ignore[no-untyped-def]
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Returns uvloop's event loop, or asyncio's own where uvloop is missing."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
