"""TLS handshakes: counted as unknown connections, and ended when there are too many."""

import asyncio
import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING, Any, cast

from relaax_like.rlx_server.client_log import ClientLog
from relaax_like.wire.errors import ProtocolError
from relaax_like.wire.tls import HANDSHAKE

if TYPE_CHECKING:
    from relaax_like.rlx_server.server import RlxServer

logger = logging.getLogger(__name__)


class Handshake(asyncio.Protocol):
    """Does the handshake of one accepted connection, then hands it over to a `Connection`.

    An event loop that does handshakes by itself neither limits nor reports how many are in
    progress.

    Attributes:
      address: of the peer, without the port.
      is_plain: whether the peer does not use TLS; its `Connection` sends it the error.

    Args:
      server: that accepted the connection.
      options: TLS options of the event loop.
    """

    def __init__(self, server: "RlxServer", options: dict[str, Any]):
        self.address = ""
        self.is_plain = False
        self._server = server
        self._options = options
        self._socket: socket.socket | None = None
        self._refusal = ""  # why it was turned away

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes the socket away from a transport that has read nothing of it yet."""
        # uvloop's transports have the methods, but not the base class.
        plain = cast(asyncio.Transport, transport)
        plain.pause_reading()
        with contextlib.suppress(OSError):  # the peer is gone, or no descriptor is left
            accepted = plain.get_extra_info("socket")
            self._socket = socket.socket(fileno=os.dup(accepted.fileno()))
            self.address = str(self._socket.getpeername()[0])
        plain.abort()
        if self.address:
            self._server.run(self._shake_hands())
        elif self._socket is not None:
            self._socket.close()

    def turn_away(self, error: ProtocolError) -> None:
        """Ends the handshake; the peer cannot receive the reason yet. See `Admission`."""
        assert self._socket is not None
        self._refusal = str(error)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    async def _shake_hands(self) -> None:
        assert self._socket is not None
        server = self._server
        server.admission.arrive(self)
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.is_plain = await self._read_first_byte() != HANDSHAKE[:1]
            options = {} if self.is_plain else self._options
            await server.loop.connect_accepted_socket(
                lambda: server.make_connection(self), self._socket, **options
            )
        except OSError as error:
            self._socket.close()
            self._log(error)
        finally:
            server.admission.leave(self)

    async def _read_first_byte(self) -> bytes:
        """Returns it without taking it out of the socket.

        Raises:
          OSError: none came in time, the peer has hung up, or was turned away.
        """
        assert self._socket is not None
        readable = asyncio.Event()
        self._server.loop.add_reader(self._socket, readable.set)
        try:
            await asyncio.wait_for(readable.wait(), self._options["ssl_handshake_timeout"])
        finally:
            self._server.loop.remove_reader(self._socket)
        if first := self._socket.recv(1, socket.MSG_PEEK):
            return first
        raise ConnectionResetError

    def _log(self, error: OSError) -> None:
        """Writes why the handshake failed; a peer that only hangs up is not worth a line."""
        if isinstance(error, BrokenPipeError | ConnectionResetError) and not self._refusal:
            return
        reason = getattr(error, "reason", None) or str(error)
        cause = self._refusal or (
            f"{reason.lower().replace('_', ' ')}; check the client's tls_ca, tls_cert and tls_key"
        )
        log = ClientLog(logger, self._server.log_budget, self.address)
        log.write(logging.WARNING, "%s: the TLS handshake failed: %s", self.address, cause)
