"""Admission: a new client is refused before it can harm those that are already served."""

import threading
from collections import Counter
from typing import Protocol

import psutil

from relaax_like.wire.errors import ProtocolError

# Connections whose hello has not been accepted yet; no token is needed to be one of them.
MAX_UNKNOWN = 256
# Most bytes of a hello that they can have sent: each one, and all together.
MAX_HELLO_BYTES = 4 << 20
MAX_HELLO_BYTES_TOGETHER = 64 << 20


class Newcomer(Protocol):
    """A connection, as admission sees it.

    Attributes:
      address: of the peer, without the port.
    """

    address: str

    def turn_away(self, error: ProtocolError) -> None:
        """Sends the error, if the peer can receive it yet, and closes at once.

        Admission has forgotten the connection already.
        """


class Admission:
    """Counts connections and watches the machine's free memory.

    Connections are *unknown* until their hello has been accepted and *clients* from then on. They
    are counted separately, so that a peer without a token cannot take a client's place. When there
    are too many, the oldest unknown connection of the address with the most is closed.

        admission.arrive(connection)
        admission.reserve(connection, 4096)   # as its hello arrives
        admission.admit(connection)           # from any thread; everything else from one
        admission.leave(connection)

    Args:
      max_clients: maximum number of clients.
      min_free_memory_mb: minimum available memory, in MiB, for another client to be admitted.
      max_unknown: maximum number of unknown connections.
      hello_bytes: maximum number of bytes that unknown connections hold together.
    """

    def __init__(
        self,
        max_clients: int,
        min_free_memory_mb: float,
        *,
        max_unknown: int = MAX_UNKNOWN,
        hello_bytes: int = MAX_HELLO_BYTES_TOGETHER,
    ):
        self._max_clients = max_clients
        self._min_free_memory_mb = min_free_memory_mb
        self._max_unknown = max_unknown
        self._hello_bytes = hello_bytes
        self._lock = threading.Lock()  # guards the next two attributes
        # Connection -> bytes that it holds, in the order of arrival.
        self._unknown: dict[Newcomer, int] = {}
        self._clients: set[Newcomer] = set()

    @property
    def clients(self) -> int:
        """Current number of clients."""
        return len(self._clients)

    @property
    def unknown(self) -> int:
        """Number of connections whose hello has not been accepted yet."""
        return len(self._unknown)

    def arrive(self, connection: Newcomer) -> None:
        """Adds an unknown connection; closes an older one if there are too many."""
        victim = None
        with self._lock:
            self._unknown[connection] = 0
            if len(self._unknown) > self._max_unknown:
                crowd = _find_largest(Counter(one.address for one in self._unknown))
                victim = next(one for one in self._unknown if one.address == crowd)
                del self._unknown[victim]
        if victim is not None:
            victim.turn_away(
                ProtocolError(
                    f"more than {self._max_unknown} connections have no accepted hello yet, and "
                    "this is the oldest one from the address with the most; send the hello "
                    "immediately, or retry later",
                    "OVERLOADED",
                )
            )

    def reserve(self, connection: Newcomer, size: int) -> None:
        """Counts `size` more bytes that an unknown connection holds; ignores a client.

        While all together hold too much, the largest connection of the address that holds the most
        is closed, which can be this one.
        """
        victims = []
        with self._lock:
            if connection not in self._unknown:
                return
            self._unknown[connection] += size
            while sum(self._unknown.values()) > self._hello_bytes:
                held: Counter[str] = Counter()
                for one, nbytes in self._unknown.items():
                    held[one.address] += nbytes
                crowd = _find_largest(held)
                mine = [one for one in self._unknown if one.address == crowd]
                victim = max(mine, key=lambda one: self._unknown[one])
                del self._unknown[victim]
                victims.append(victim)
        for victim in victims:
            victim.turn_away(
                ProtocolError(
                    f"incomplete hellos hold more than {self._hello_bytes} bytes together, and "
                    "this is the largest one from the address that holds the most; send a shorter "
                    "hello, or retry later",
                    "OVERLOADED",
                )
            )

    def admit(self, connection: Newcomer) -> None:
        """Makes an unknown connection a client. Thread-safe.

        Raises:
          ProtocolError: too little memory is free, the maximum of clients is connected, or the
            connection is already closed; its code is OVERLOADED, and the connection does not become
            a client.
        """
        free_mb = psutil.virtual_memory().available / 2**20
        if free_mb < self._min_free_memory_mb:
            raise ProtocolError(
                f"only {int(free_mb)} MiB of memory is available, below the minimum of "
                f"{self._min_free_memory_mb:.0f} MiB (relaax-rlx-server.min_free_memory_mb); retry "
                "later, or use another rlx server",
                "OVERLOADED",
            )
        with self._lock:
            if connection not in self._unknown:
                raise ProtocolError("the connection is already closed", "OVERLOADED")
            if len(self._clients) >= self._max_clients:
                raise ProtocolError(
                    f"{self._max_clients} client{' is' if self._max_clients == 1 else 's are'} "
                    "connected, which is the maximum (relaax-rlx-server.max_clients); retry later, "
                    "or use another rlx server",
                    "OVERLOADED",
                )
            del self._unknown[connection]
            self._clients.add(connection)

    def leave(self, connection: Newcomer) -> None:
        """Forgets a connection, unknown or a client. Idempotent."""
        with self._lock:
            self._unknown.pop(connection, None)
            self._clients.discard(connection)


def _find_largest(counts: Counter[str]) -> str:
    return counts.most_common(1)[0][0]
