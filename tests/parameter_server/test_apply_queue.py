"""ApplyQueue: one thread at a time handles all that wait."""

import itertools
import threading
from collections.abc import Iterator, Sequence

import pytest
from support.threads import Caller, wait_until

from relaax_like.parameter_server.apply_queue import ApplyQueue, FullError
from relaax_like.wire.errors import ServerUnavailableError


class Handler:
    """Doubles numbers, each batch when it is let; a negative one fails."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)
        self.inside = 0

    def __call__(self, items: Sequence[int]) -> Sequence[int | Exception]:
        self.inside += 1
        assert self.inside == 1
        self.batches.append(list(items))
        if items:
            self.entered.release()
            assert self.open.wait(10)
        self.inside -= 1
        return [2 * item if item >= 0 else ValueError(f"negative: {item}") for item in items]


@pytest.fixture
def handler() -> Iterator[Handler]:
    handler = Handler()
    yield handler
    handler.open.set()


def submit(turns: ApplyQueue[int, int], item: int) -> Caller:
    """Submits from a thread of its own; returns when the item waits or is being handled."""
    waiting = len(turns._waiting)
    caller = Caller(lambda: turns.submit(item))
    wait_until(lambda: len(turns._waiting) > waiting, "it waits")
    return caller


def test_what_came_meanwhile_is_handled_together_in_order(handler: Handler) -> None:
    turns: ApplyQueue[int, int] = ApplyQueue(handler, 64)
    first = Caller(lambda: turns.submit(1))
    assert handler.entered.acquire(timeout=10)
    others = [submit(turns, item) for item in (2, 3, -4, 5)]
    handler.open.set()
    assert first.get() == 2
    assert [others[i].get() for i in (0, 1, 3)] == [4, 6, 10]
    with pytest.raises(ValueError, match="negative: -4"):
        others[2].get()
    assert [batch for batch in handler.batches if batch] == [[1], [2, 3, -4, 5]]


def test_a_lone_item_is_handled_by_its_own_thread(handler: Handler) -> None:
    handler.open.set()
    threads = threading.active_count()
    turns: ApplyQueue[int, int] = ApplyQueue(handler, 1)
    assert [turns.submit(item, 1.0) for item in range(3)] == [0, 2, 4]
    assert threading.active_count() == threads


def test_more_than_may_wait_are_refused(handler: Handler) -> None:
    turns: ApplyQueue[int, int] = ApplyQueue(handler, 2)
    callers = [Caller(lambda: turns.submit(1))]
    assert handler.entered.acquire(timeout=10)
    callers += [submit(turns, 2), submit(turns, 3)]
    with pytest.raises(FullError):
        turns.submit(4)
    handler.open.set()
    assert [caller.get() for caller in callers] == [2, 4, 6]


def test_an_item_that_nobody_began_with_in_time_is_withdrawn(handler: Handler) -> None:
    turns: ApplyQueue[int, int] = ApplyQueue(handler, 64)
    first = Caller(lambda: turns.submit(1))
    assert handler.entered.acquire(timeout=10)
    with pytest.raises(TimeoutError):
        turns.submit(7, 0.02)
    assert len(turns._waiting) == 0
    handler.open.set()
    assert first.get() == 2
    assert turns.submit(3) == 6
    assert not any(7 in batch for batch in handler.batches)


def test_one_that_was_begun_with_in_the_last_moment_is_waited_for(handler: Handler) -> None:
    turns: ApplyQueue[int, int] = ApplyQueue(handler, 64)
    turn = turns._turn

    class LateTurn:
        """Its time is over when somebody has begun with what waits."""

        def acquire(self, timeout: float = -1) -> bool:
            if timeout < 0:
                return turn.acquire()
            wait_until(lambda: len(turns._waiting) == 0, "the last moment")
            return False

        def release(self) -> None:
            turn.release()

    turns._turn = LateTurn()  # type: ignore[assignment]
    first = Caller(lambda: turns.submit(1))
    assert handler.entered.acquire(timeout=10)
    second = submit(turns, 2)
    third = Caller(lambda: turns.submit(3, 1.0))
    wait_until(lambda: len(turns._waiting) == 2, "two wait")
    handler.open.set()
    assert (first.get(), second.get(), third.get()) == (2, 4, 6)
    assert handler.batches[1] == [2, 3]


def test_close_handles_what_waits_and_takes_no_more(handler: Handler) -> None:
    turns: ApplyQueue[int, int] = ApplyQueue(handler, 64)
    first = Caller(lambda: turns.submit(1))
    assert handler.entered.acquire(timeout=10)
    second = submit(turns, 2)
    closing = Caller(turns.close)
    wait_until(lambda: turns._closed, "it closes")
    with pytest.raises(ServerUnavailableError, match="closing"):
        turns.submit(3)
    handler.open.set()
    closing.get()
    assert (first.get(), second.get()) == (2, 4)
    turns.close()


def test_each_of_many_items_is_handled_once(handler: Handler) -> None:
    handler.open.set()
    turns: ApplyQueue[int, int] = ApplyQueue(handler, 64)

    def work(start: int) -> list[int]:
        return [turns.submit(item) for item in range(start, start + 300)]

    callers = [Caller(lambda start=start: work(start)) for start in range(0, 2400, 300)]
    results = [caller.get() for caller in callers]
    assert results == [[2 * i for i in range(s, s + 300)] for s in range(0, 2400, 300)]
    assert sorted(itertools.chain(*handler.batches)) == list(range(2400))
