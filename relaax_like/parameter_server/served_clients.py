"""Reports of rlx servers about their clients, for `relaax status`."""

import threading
import time
from collections.abc import Callable

from relaax_like.core.records import MAX_SERVED_CLIENTS, ClientsReport, ServedClient

_FORGET_SEC = 10.0
_MAX_SERVERS = 1000


class ServedClients:
    """Keeps the newest report of each rlx server for ten seconds; at most 1000. Thread-safe.

    Args:
      clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._lock = threading.Lock()
        self._reports: dict[str, tuple[float, ClientsReport]] = {}  # oldest first

    def take(self, report: ClientsReport) -> None:
        """Stores a report, which replaces the previous one of the same server."""
        with self._lock:
            self._reports.pop(report.server_id, None)
            self._reports[report.server_id] = self._clock(), report
            if len(self._reports) > _MAX_SERVERS:
                del self._reports[next(iter(self._reports))]

    def find(self) -> tuple[tuple[ServedClient, ...], int]:
        """Returns at most 100 clients, and the total number of clients.

        Clients that stall come first, then those with the most late answers.
        """
        with self._lock:
            limit = self._clock() - _FORGET_SEC
            reports = [report for came, report in self._reports.values() if came >= limit]
        clients = [client for report in reports for client in report.clients]
        clients.sort(key=lambda client: (bool(client.stall), client.late), reverse=True)
        return tuple(clients[:MAX_SERVED_CLIENTS]), sum(r.num_clients for r in reports)
