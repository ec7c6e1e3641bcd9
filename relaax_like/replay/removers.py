"""Removers: choose the rows that make room for new ones."""

from typing import Protocol


class Remover(Protocol):
    """Chooses rows to evict. They are evicted in the order of their ids: the storage is a ring."""

    def find_oldest(self, oldest_id: int, next_id: int, capacity: int, num_rows: int) -> int:
        """Returns the id of the oldest row that is kept when up to `num_rows` rows are inserted.

        Args:
          oldest_id: id of the oldest row in the storage.
          next_id: id of the first new row.
          capacity: number of rows that the storage can hold.
          num_rows: number of rows that there must be room for, at most `capacity`.

        Returns:
          An id of at least `max(oldest_id, next_id + num_rows - capacity)`, at most `next_id`.
        """


class OldestFirst:
    """Evicts the oldest rows, and no more than necessary."""

    def find_oldest(self, oldest_id: int, next_id: int, capacity: int, num_rows: int) -> int:
        """See `Remover`."""
        return max(oldest_id, next_id + num_rows - capacity)
