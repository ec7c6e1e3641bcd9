"""The role of what keeps pushes between two snapshots. A new way to keep them is one class."""

from collections.abc import Iterator

from relaax_like.core.records import Durability
from relaax_like.parameter_server.records import Position, Record


class PushLog:
    """Keeps nothing: after a crash, a run continues from its newest snapshot.

        for record in log.replay(position): ...     # of the newest snapshot
        log.append(record)
        log.settle()                                # then acknowledge
        index = log.begin_snapshot()                # together with taking the state
        log.end_snapshot(index)                     # once it is on the disk

    Used by the apply thread; `begin_snapshot` and `end_snapshot` by another, the first while
    nothing is applied.

    Attributes:
      durability: what survives a crash at this moment.
      needs_snapshot: a run must begin with a snapshot, which records are applied to.
    """

    durability: Durability = "snapshot"
    needs_snapshot: bool = False

    @property
    def unsynced_records(self) -> int:
        """Records that a power cut would lose."""
        return 0

    @property
    def unsynced_bytes(self) -> int:
        """Their bytes."""
        return 0

    @property
    def total_bytes(self) -> int:
        """Bytes on the disk."""
        return 0

    @property
    def failed(self) -> str:
        """Why nothing can be acknowledged any more; "" while it can."""
        return ""

    def replay(self, start: Position | None) -> Iterator[Record]:
        """Yields the records behind a snapshot; afterwards more can be appended.

        Args:
          start: the position of the snapshot; None: there is no snapshot.

        Raises:
          JournalError: records are damaged or missing, or of another model; or there are records
            and no snapshot.
        """
        yield from ()

    def append(self, record: Record) -> None:
        """Keeps a record, if pushes are kept at this moment.

        Raises:
          ServerUnavailableError: none can be kept any more; nothing must be acknowledged.
        """

    def require_sound(self) -> None:
        """Checks that what was appended earlier can be acknowledged now.

        Raises:
          ServerUnavailableError: the disk has failed since.
        """

    def settle(self) -> None:
        """Makes what was appended as safe as promised; then it can be acknowledged.

        Raises:
          ServerUnavailableError: it cannot be, nor anything later; nothing must be acknowledged.
        """

    def begin_snapshot(self) -> int | None:
        """Returns the index of the first record that this snapshot lacks; None: there are none."""
        return None

    def end_snapshot(self, index: int) -> None:
        """Frees the records that two snapshots contain.

        Args:
          index: that `begin_snapshot` returned for the newest one.
        """

    def close(self) -> None:
        """Syncs and closes. Idempotent."""
