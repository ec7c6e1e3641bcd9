"""The prefetching loader: order, bounds, failures and its end. covers D8"""

import itertools
import threading
from typing import Any

import pytest
from support.threads import WAIT_SEC, Caller, wait_until

from relaax_like.learn.data_loader import AsyncDataLoader
from relaax_like.wire.errors import ConfigError


class Counter:
    """A `get_data` that counts items up, over all of its callers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items = itertools.count()
        self.sizes: list[int] = []

    def __call__(self, batch_size: int, /) -> list[int]:
        with self._lock:
            self.sizes.append(batch_size)
            return list(itertools.islice(self._items, batch_size))


def count_workers() -> int:
    return sum(thread.name.startswith("data loader") for thread in threading.enumerate())


def test_batches_come_in_order_with_the_size_that_was_asked_for() -> None:
    source = Counter()
    loader = AsyncDataLoader(source, batch_size=4)
    assert [next(loader) for _ in range(5)] == [list(range(4 * n, 4 * n + 4)) for n in range(5)]
    loader.close()
    assert set(source.sizes) == {4}


def test_a_chunk_that_comes_late_keeps_its_place() -> None:
    """One worker is held up in its call while the other fetches all seven chunks behind it."""
    source = Counter()
    release = threading.Event()

    def get_data(batch_size: int, /) -> list[int]:
        items = source(batch_size)
        if items == [0]:
            assert release.wait(WAIT_SEC)
        return items

    loader = AsyncDataLoader(get_data, batch_size=4, num_workers=2, chunk_size=1)
    wait_until(lambda: len(source.sizes) == 8, "two batches of four chunks")
    release.set()
    got = next(loader) + next(loader)
    loader.close()
    # Which of the two first calls is the first chunk's is up to the workers' start.
    assert sorted(got[:2]) == [0, 1]
    assert got[2:] == list(range(2, 8))


def test_no_more_than_two_batches_are_fetched_ahead() -> None:
    source = Counter()
    loader = AsyncDataLoader(source, batch_size=4, num_workers=2, chunk_size=2)
    wait_until(lambda: len(source.sizes) == 4, "two batches of two chunks")
    next(loader)
    wait_until(lambda: len(source.sizes) == 6, "one batch more")
    loader.close()
    assert len(source.sizes) == 6


def test_nothing_yet_is_asked_for_again() -> None:
    answers = iter([None, None, [1], None, [2]])
    loader = AsyncDataLoader(lambda batch_size: next(answers, None), batch_size=1)
    assert [next(loader), next(loader)] == [[1], [2]]
    loader.close()


def test_one_chunk_goes_to_collate_as_it_is_and_several_as_one_list() -> None:
    whole = AsyncDataLoader(lambda n: {"rows": n}, batch_size=4, collate_fn=lambda x: [x])
    assert next(whole) == [{"rows": 4}]
    whole.close()
    parts = AsyncDataLoader(lambda n: range(n), batch_size=4, chunk_size=2, collate_fn=sum)
    assert next(parts) == 0 + 1 + 0 + 1
    parts.close()


class SourceError(Exception):
    pass


@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_failure_is_raised_in_its_turn_and_ends_the_loader(num_workers: int) -> None:
    source = Counter()
    failed = threading.Event()

    def get_data(batch_size: int, /) -> Any:
        items = source(batch_size)
        if items[0] >= 2:
            failed.set()
            raise SourceError("no more")
        return items

    loader = AsyncDataLoader(get_data, batch_size=1, num_workers=num_workers)
    got: list[Any] = []
    with pytest.raises(SourceError, match="no more"):
        got.extend(loader)
    if num_workers == 1:
        assert got == [[0], [1]]
    with pytest.raises(StopIteration):
        next(loader)
    loader.close()
    assert failed.is_set()
    assert count_workers() == 0


def test_a_stop_iteration_of_the_source_is_a_failure_and_no_end() -> None:
    empty: Any = iter(())
    loader = AsyncDataLoader(lambda n: next(empty), batch_size=1)
    with pytest.raises(RuntimeError, match="get_data raised StopIteration"):
        next(loader)
    loader.close()


def test_an_exit_of_a_worker_does_not_leave_the_consumer_waiting() -> None:
    def get_data(batch_size: int, /) -> Any:
        raise SystemExit(3)

    loader = AsyncDataLoader(get_data, batch_size=1)
    with pytest.raises(SystemExit):
        next(loader)
    loader.close()


@pytest.mark.parametrize("end", ["stop", "close"])
def test_a_consumer_that_waits_is_let_go_when_the_loader_ends(end: str) -> None:
    asked = threading.Event()

    def get_data(batch_size: int, /) -> None:
        asked.set()

    loader = AsyncDataLoader(get_data, batch_size=1, num_workers=2)
    consumer = Caller(lambda: list(loader))
    assert asked.wait(WAIT_SEC)
    getattr(loader, end)()
    assert consumer.get() == []
    loader.close()
    loader.close()
    assert count_workers() == 0


def test_workers_that_wait_for_room_end_with_the_loader() -> None:
    source = Counter()
    loader = AsyncDataLoader(source, batch_size=1, num_workers=3)
    wait_until(lambda: len(source.sizes) == 3, "all workers have fetched")
    loader.close()
    assert count_workers() == 0
    with pytest.raises(StopIteration):  # what was ready is dropped
        next(loader)


@pytest.mark.parametrize(
    ("sizes", "want"),
    [
        ((0, 1, None), "batch_size is 0, expected 1 or more"),
        ((1, 0, None), "num_workers is 0"),
        ((4, 1, 0), "chunk_size is 0"),
        ((4, 1, 3), "batch_size 4 is not a multiple of chunk_size 3"),
        ((4, 1, 8), "batch_size 4 is not a multiple of chunk_size 8"),
    ],
)
def test_sizes_that_give_no_batches_are_refused(sizes: Any, want: str) -> None:
    with pytest.raises(ConfigError, match=want):
        AsyncDataLoader(Counter(), *sizes)
