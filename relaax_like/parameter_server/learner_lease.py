"""LearnerLease: decides which of several learner processes can publish."""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from relaax_like.wire import failpoints
from relaax_like.wire.errors import LeasedError, ServerUnavailableError, SnapshotError
from relaax_like.wire.syncing import replace_file

_LOG = logging.getLogger(__name__)
_FORMAT = 1
NAME = "lease.json"
LEASE_SEC = 6.0


class LearnerLease:
    """The lease of a run: at most one holder, whose term is higher than all earlier ones.

        lease = LearnerLease(checkpoint_dir)
        term = lease.grant("learner-17", "localhost:7002")
        lease.renew(term)
        lease.require(term)           # before each publication takes effect

    A term is written to the disk before it is returned, so that no later start grants it again.
    Without a file, the first term is the time in milliseconds since 1970: if the file was lost, an
    earlier holder cannot have the term of a later one. A lease that was not renewed in time can
    be granted to another holder; until then the old holder is still accepted. Time is measured by
    this process: after a restart of the server, the holder has the complete `lease_sec` again.

    Not thread-safe: its owner has a lock.

    Attributes:
      term: of the newest holder; 0: there was no holder yet, or the file is lost.
      holder: name of the newest holder; "" if there was none.
      address: where the newest holder takes experience; "" if there was none.
      lease_sec: how long a lease is kept without a renewal.

    Args:
      directory: folder of the lease's file; None: no file, the lease is lost with the process.
      lease_sec: as the attribute.
      clock: returns monotonic seconds.

    Raises:
      SnapshotError: the file cannot be read, is damaged, or has another format.
    """

    def __init__(
        self,
        directory: Path | None,
        lease_sec: float = LEASE_SEC,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.term = 0
        self.holder = self.address = ""
        self.lease_sec = lease_sec
        self._clock = clock
        self._path = None if directory is None else directory / NAME
        self._expires = clock() + lease_sec
        if self._path is not None and self._path.exists():
            self._read(self._path)

    @property
    def silent_sec(self) -> float:
        """Seconds since the holder took or renewed the lease, or since the server's start."""
        return self._clock() - (self._expires - self.lease_sec)

    def grant(self, holder: str, address: str) -> int:
        """Makes a learner the holder; returns its term. The newest holder gets the same term again.

        Args:
          holder: name of the learner's process, unique for each start.
          address: where the learner takes experience.

        Raises:
          ServerUnavailableError: another holder's lease has not run out, or the term could not be
            written; nothing has changed.
        """
        if holder != self.holder:
            left = self._expires - self._clock()
            if self.term and left > 0:
                raise ServerUnavailableError(
                    f"another learner, {self.holder} at {self.address}, holds the lease of this "
                    f"run, which ends in {left:.1f} s unless it is renewed; wait, or stop that "
                    "learner if it should not run"
                )
            term = self.term + 1 if self.term else time.time_ns() // 1_000_000
            self._write(term, holder, address)
            failpoints.hit("ps.after_lease_before_reply")
            self.term, self.holder, self.address = term, holder, address
            _LOG.info("%s at %s learns from now on (term %d)", holder, address, self.term)
        self._expires = self._clock() + self.lease_sec
        return self.term

    def renew(self, term: int) -> None:
        """Renews a lease.

        Raises:
          LeasedError: `term` is not the newest one: another learner holds the lease, or none does.
        """
        self.require(term)
        self._expires = self._clock() + self.lease_sec

    def require(self, term: int) -> None:
        """Checks that a learner is the newest holder.

        Raises:
          LeasedError: `term` is not the newest one: another learner holds the lease, or none does.
        """
        if term == self.term and self.term:
            return
        if not self.term:  # there was no learner yet, or the file of the lease is lost
            raise LeasedError(
                f"term {term} of the lease has ended: no learner holds the lease; restart this "
                "learner, so that it requests the lease"
            )
        raise LeasedError(
            f"term {term} of the lease has ended: {self.holder} at {self.address} learns with term "
            f"{self.term}; this learner cannot publish any more: do not restart it while the other "
            "one learns"
        )

    def _read(self, path: Path) -> None:
        try:
            data = json.loads(path.read_text("utf-8"))
            version = int(data["format"])
            if version == _FORMAT:
                self.term = int(data["term"])
                self.holder, self.address = str(data["holder"]), str(data["address"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise SnapshotError(
                f"{path}: the lease of the run's learner cannot be read "
                f"({type(error).__name__}: {error}); stop all "
                "learners of this run, then remove the file"
            ) from None
        if version != _FORMAT:
            raise SnapshotError(
                f"{path}: format {version}, but this version reads format {_FORMAT}; use the "
                "version of relaax_like that wrote it, or another checkpoint_dir"
            )

    def _write(self, term: int, holder: str, address: str) -> None:
        if self._path is None:
            return
        data = {"format": _FORMAT, "term": term, "holder": holder, "address": address}
        try:
            replace_file(self._path, json.dumps(data).encode())
        except OSError as error:
            raise ServerUnavailableError(
                f"{self._path}: the lease could not be written: {error}; free disk space or "
                "correct the permissions; the learner retries"
            ) from None
