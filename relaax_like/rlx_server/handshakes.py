"""TLS handshakes: counted as unknown connections, and ended when there are too many."""

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any, cast

from relaax_like.wire.errors import ProtocolError

if TYPE_CHECKING:
    from relaax_like.rlx_server.server import RlxServer


class Handshake(asyncio.Protocol):
    """Does the handshake of one accepted connection, then hands it over to a `Connection`.

    An event loop that does handshakes by itself neither limits nor reports how many are in
    progress.

    Attributes:
      address: of the peer, without the port.

    Args:
      server: that accepted the connection.
      options: TLS options of the event loop.
    """

    def __init__(self, server: "RlxServer", options: dict[str, Any]):
        self.address = ""
        self._server = server
        self._options = options
        self._socket: socket.socket | None = None

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
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    async def _shake_hands(self) -> None:
        assert self._socket is not None
        server = self._server
        server.admission.arrive(self)
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await server.loop.connect_accepted_socket(
                lambda: server.make_connection(self), self._socket, **self._options
            )
        except OSError:
            self._socket.close()  # a peer's mistakes are not reported
        finally:
            server.admission.leave(self)
