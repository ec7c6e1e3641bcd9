"""The role that keeps pushes between two snapshots. A new way to keep them is one class."""

from collections.abc import Iterator

from relaax_like.core.records import Durability
from relaax_like.parameter_server.records import Position, Record


class PushLog:
    """Keeps the pushes since the newest snapshot; this base class keeps none.

    With it, a run continues from its newest snapshot after a crash.

        for record in log.replay(position): ...     # position of the newest snapshot
        log.append(record)
        log.settle()                                # then acknowledge
        index = log.begin_snapshot()                # together with taking the state
        log.end_snapshot(index)                     # once it is on the disk

    Used by the apply thread; another thread calls `begin_snapshot`, while nothing is applied, and
    `end_snapshot`. Any thread can read attributes and properties.

    Attributes:
      durability: what currently survives a crash.
      needs_snapshot: a run must begin with a snapshot, to which records are applied.
      given_up_version: version up to which records are kept, as the log was given up; None: it was
        not.
    """

    durability: Durability = "snapshot"
    needs_snapshot: bool = False
    given_up_version: int | None = None

    @property
    def unsynced_records(self) -> int:
        """Number of records that are not synced; a power cut can lose them."""
        return 0

    @property
    def unsynced_bytes(self) -> int:
        """Number of bytes that are not synced; a power cut can lose them."""
        return 0

    @property
    def total_bytes(self) -> int:
        """Size of the records on the disk, in bytes."""
        return 0

    @property
    def failed(self) -> str:
        """Why nothing can be acknowledged any more; "" if pushes can be acknowledged."""
        return ""

    def replay(self, start: Position | None) -> Iterator[Record]:
        """Yields the records after a snapshot; afterwards more can be appended.

        Args:
          start: the position of the snapshot; None: there is no snapshot.

        Raises:
          JournalError: records are damaged or missing, or of another model or format; there are
            records but no snapshot; or they cannot be read, or more cannot be written.
        """
        yield from ()

    def append(self, record: Record) -> None:
        """Keeps a record, if pushes are currently kept.

        Raises:
          ServerUnavailableError: no record can be kept any more; nothing must be acknowledged.
        """

    def require_sound(self) -> None:
        """Checks that what was appended earlier can be acknowledged now.

        Raises:
          ServerUnavailableError: the disk has failed since.
        """

    def settle(self) -> None:
        """Makes appended records as durable as promised, so that they can be acknowledged.

        Raises:
          ServerUnavailableError: that failed for good; nothing must be acknowledged.
        """

    def begin_snapshot(self) -> int | None:
        """Returns the index of the first record after this snapshot; None: no records are kept."""
        return None

    def end_snapshot(self, index: int) -> None:
        """Drops the records that the two newest snapshots contain.

        Args:
          index: the index that `begin_snapshot` returned for the newest one.
        """

    def resume(self) -> None:
        """Keeps records again after it was given up.

        The newest snapshot on the disk has everything, and nothing takes effect during the call.
        """

    def close(self) -> None:
        """Syncs and closes. Idempotent.

        Raises:
          JournalError: the last sync failed.
        """
