"""AsyncDataLoader: fetches the next batches while a learner trains on the current one."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from relaax_like.wire.errors import ConfigError

# Maximum number of waiting batches, so that the data are not too old.
_MAX_BATCHES_AHEAD = 2
# Pause after a `get_data` that returned None, in case it does not wait itself.
_NOTHING_YET_SEC = 0.001
_CLOSE_SEC = 5.0


# Returns that number of items; None: there are too few yet, and it is called again. It should wait
# for them, but at most a second: a loader that closes waits for it. With several workers it is
# called from several threads at once.
GetData = Callable[[int], Any]


class AsyncDataLoader(Iterator[Any]):
    """Yields batches in the order in which they were requested.

        loader = AsyncDataLoader(get_data, batch_size=64)
        for batch in loader:  # until `close`
            learn(batch)

    At most two batches are fetched ahead, or one chunk per worker if that is more. An error of
    `get_data` is raised by `next` in place of its batch; afterwards there are no more batches. Only
    one thread can call `next`.

    Args:
      get_data: returns items.
      batch_size: number of items in a batch.
      num_workers: number of threads, each of which fetches one chunk at a time.
      chunk_size: number of items requested from `get_data` at once; None: batch_size.
      collate_fn: makes a batch of what `get_data` returned; for several chunks, of the list of
        their items. Called by the consumer.

    Raises:
      ConfigError: a size below 1, or batches that do not consist of complete chunks.
    """

    def __init__(
        self,
        get_data: GetData,
        batch_size: int,
        num_workers: int = 1,
        chunk_size: int | None = None,
        collate_fn: Callable[[Any], Any] = lambda items: items,
    ):
        chunk_size = batch_size if chunk_size is None else chunk_size
        for name, size in (
            ("batch_size", batch_size),
            ("num_workers", num_workers),
            ("chunk_size", chunk_size),
        ):
            if size < 1:
                raise ConfigError(f"{name} is {size}, expected 1 or more")
        if batch_size % chunk_size:
            raise ConfigError(
                f"batch_size {batch_size} is not a multiple of chunk_size {chunk_size}; a batch "
                "consists of complete chunks: change one of them"
            )
        self._get_data = get_data
        self._chunk_size = chunk_size
        self._chunks_per_batch = batch_size // chunk_size
        self._collate_fn = collate_fn
        self._max_ahead = max(_MAX_BATCHES_AHEAD * self._chunks_per_batch, num_workers)
        self._condition = threading.Condition()
        # All below are guarded by _condition. Chunks are numbered in the order of batches.
        self._next_to_fetch = 0
        self._next_to_give = 0
        self._ready: dict[int, Any] = {}
        self._failures: dict[int, BaseException] = {}
        self._stopped = False
        self._workers = [
            threading.Thread(target=self._fetch_chunks, name=f"data loader {i}", daemon=True)
            for i in range(num_workers)
        ]
        for worker in self._workers:
            worker.start()

    def __next__(self) -> Any:
        """Waits for the next batch and returns it.

        Raises:
          StopIteration: the loader was stopped, or has failed before.
          RuntimeError: `get_data` raised StopIteration.
          Exception: an error of `get_data` or `collate_fn`.
        """
        chunks = [self._take() for _ in range(self._chunks_per_batch)]
        if len(chunks) == 1:
            return self._collate_fn(chunks[0])
        return self._collate_fn([item for chunk in chunks for item in chunk])

    def stop(self) -> None:
        """Stops the loader, and wakes a waiting consumer; returns immediately. Idempotent."""
        with self._condition:
            self._stopped = True
            self._ready.clear()
            self._condition.notify_all()

    def close(self, timeout_sec: float = _CLOSE_SEC) -> None:
        """Stops the loader, and waits for its threads, which finish their calls of `get_data`.

        Args:
          timeout_sec: longest wait; threads that take longer end by themselves.
        """
        self.stop()
        end = time.monotonic() + timeout_sec
        for worker in self._workers:
            if worker is not threading.current_thread():
                worker.join(max(0.0, end - time.monotonic()))

    def _take(self) -> Any:
        with self._condition:
            number = self._next_to_give
            self._condition.wait_for(
                lambda: self._stopped or number in self._ready or number in self._failures
            )
            if self._stopped:
                raise StopIteration
            self._next_to_give += 1
            self._condition.notify_all()
            if number in self._ready:
                return self._ready.pop(number)
            failure = self._failures.pop(number)
        self.stop()
        if isinstance(failure, StopIteration):  # a mistake there, not the end of the loader
            raise RuntimeError(
                "get_data raised StopIteration; return None while there are no items"
            ) from failure
        raise failure

    def _fetch_chunks(self) -> None:
        while (number := self._take_number()) is not None:
            try:
                chunk = self._fetch()
            except BaseException as error:  # whatever it is, the consumer waits for it
                with self._condition:
                    self._failures[number] = error
                    self._condition.notify_all()
                return
            with self._condition:
                if not self._stopped:
                    self._ready[number] = chunk
                    self._condition.notify_all()

    def _take_number(self) -> int | None:
        """Waits until the next chunk can be fetched; returns its number, or None at the end."""
        with self._condition:
            self._condition.wait_for(
                lambda: self._stopped or self._next_to_fetch - self._next_to_give < self._max_ahead
            )
            if self._stopped:
                return None
            self._next_to_fetch += 1
            return self._next_to_fetch - 1

    def _fetch(self) -> Any:
        """Calls `get_data` until it returns items; returns None if the loader was stopped."""
        while (chunk := self._get_data(self._chunk_size)) is None:
            with self._condition:
                if self._condition.wait_for(lambda: self._stopped, _NOTHING_YET_SEC):
                    break
        return chunk
