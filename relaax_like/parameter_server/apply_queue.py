"""ApplyQueue: one thread at a time handles the items of all waiting callers."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from relaax_like.wire.errors import ServerUnavailableError

Item = TypeVar("Item")
Result = TypeVar("Result")


class FullError(ServerUnavailableError):
    """The maximum number of items is waiting."""


class _Entry(Generic[Item, Result]):
    __slots__ = ("item", "outcome")

    def __init__(self, item: Item):
        self.item: Item | None = item
        self.outcome: Result | Exception | None = None


class ApplyQueue(Generic[Item, Result]):
    """Runs `handle` for the items of many threads, in the order of their arrival.

        queue = ApplyQueue(handle, size=64)
        result = queue.submit(item, timeout_sec)      # from any thread

    There is no separate thread, which would cost two thread switches per item: the first caller
    handles its own item, and the next one handles all items that have arrived meanwhile.

    Args:
      handle: receives items, oldest first, and returns one result for each, or an exception for its
        caller. Called by one thread at a time; must not raise. `close` can pass no items.
      size: maximum number of waiting items.
    """

    def __init__(self, handle: Callable[[Sequence[Item]], Sequence[Result | Exception]], size: int):
        self.size = size
        self._handle = handle
        self._turn = threading.Lock()  # held while items are handled
        self._guard = threading.Lock()  # guards all attributes below; never held for long
        self._waiting: deque[_Entry[Item, Result]] = deque()
        self._closed = False

    def submit(self, item: Item, timeout_sec: float | None = None) -> Result:
        """Waits until the item has been handled; returns its result.

        Args:
          item: to handle.
          timeout_sec: longest wait for the beginning of the handling; None: no limit.

        Raises:
          FullError: too many items are waiting.
          ServerUnavailableError: the queue is closed.
          TimeoutError: the item was not handled in time; it has been withdrawn.
          Exception: the one that `handle` returned for the item.
        """
        entry: _Entry[Item, Result] = _Entry(item)
        with self._guard:
            if self._closed:
                raise ServerUnavailableError("the parameter server is closing; reconnect later")
            if len(self._waiting) >= self.size:
                raise FullError(
                    f"the parameter server is busy: its queue is full (size {self.size}); retry "
                    "later"
                )
            self._waiting.append(entry)
        if not self._turn.acquire(timeout=-1 if timeout_sec is None else max(0.0, timeout_sec)):
            if self._withdraw(entry):
                raise TimeoutError
            self._turn.acquire()  # its handling began at the last moment
        try:
            if entry.outcome is None:
                self._handle_waiting()
        finally:
            self._turn.release()
        outcome = entry.outcome
        if isinstance(outcome, Exception):
            raise outcome
        assert outcome is not None
        return outcome

    def close(self) -> None:
        """Accepts no more items and returns when all have been handled. Idempotent."""
        with self._guard:
            self._closed = True
        with self._turn:
            self._handle_waiting()

    def _withdraw(self, entry: _Entry[Item, Result]) -> bool:
        with self._guard:
            if entry in self._waiting:
                self._waiting.remove(entry)
                return True
        return False

    def _handle_waiting(self) -> None:
        with self._guard:
            entries = list(self._waiting)
            self._waiting.clear()
        items = [entry.item for entry in entries if entry.item is not None]
        for entry, outcome in zip(entries, self._handle(items), strict=True):
            entry.item = None  # it can be large
            entry.outcome = outcome
