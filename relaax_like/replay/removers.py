"""Removers: which rows make room for new ones."""

from typing import Protocol


class Remover(Protocol):
    """Chooses rows to evict. They are evicted in the order of their ids: the storage is a ring."""

    def find_oldest(self, oldest_id: int, next_id: int, capacity: int, num_rows: int) -> int:
        """Returns the id of the oldest row that is kept when `num_rows` rows are inserted.

        Args:
          oldest_id: of the rows that are there.
          next_id: of the first new row.
          capacity: rows that the storage holds.
          num_rows: at most `capacity`.

        Returns:
          From `next_id + num_rows - capacity` and `oldest_id`, the greater, to `next_id`.
        """


class OldestFirst:
    """Evicts the oldest rows, and no more than necessary."""

    def find_oldest(self, oldest_id: int, next_id: int, capacity: int, num_rows: int) -> int:
        """See `Remover`."""
        return max(oldest_id, next_id + num_rows - capacity)
