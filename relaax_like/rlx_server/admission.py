"""Admission: a new client is turned away before it can hurt those that are served."""

import psutil

from relaax_like.wire.errors import ProtocolError


class Admission:
    """Counts connections and watches the machine's free memory. Used from one thread.

    Args:
      max_clients: most connections at a time.
      min_free_memory_mb: least memory that must be available before a client is let in.
    """

    def __init__(self, max_clients: int, min_free_memory_mb: float):
        self._max_clients = max_clients
        self._min_free_memory_mb = min_free_memory_mb
        self.clients = 0

    def enter(self) -> None:
        """Lets one client in; `leave` must follow.

        Raises:
          ProtocolError: OVERLOADED.
        """
        if self.clients >= self._max_clients:
            raise ProtocolError(
                f"all {self._max_clients} places are taken (max_clients); try again later or use "
                "another rlx server",
                "OVERLOADED",
            )
        free_mb = psutil.virtual_memory().available / 2**20
        if free_mb < self._min_free_memory_mb:
            raise ProtocolError(
                f"{free_mb:.0f} MB of memory are free, {self._min_free_memory_mb:.0f} must be "
                "(min_free_memory_mb); try again later or use another rlx server",
                "OVERLOADED",
            )
        self.clients += 1

    def leave(self) -> None:
        """Lets one client out."""
        self.clients -= 1
