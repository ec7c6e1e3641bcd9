"""The six properties of a link between a sender of experience and its far end, on each transport.

1. Per sender in order, each segment accepted at most once, sent again until accepted.
2. Accepted means in the log if there is one, else in memory; the answer says which.
3. Values: the latest wins, by epoch and version.
4. Bounded by credit; the sender never blocks an event loop.
5. A restart of the far end is a new epoch; segments that were not accepted are sent again or
   counted as lost.
6. `close` is idempotent and wakes everybody.

Each test runs on all transports. `EXCEPTIONS` lists where a transport does not have the property
by nature, and `FAULTS` where it should have it and does not. Both are strict: a transport that has
the property must leave the table.
"""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.links import (
    CARRIERS,
    Carrier,
    DirectCarrier,
    GrpcCarrier,
    Missing,
    Segment,
    Server,
    make_segments,
)
from support.threads import Caller, wait_until

from relaax_like.learn import gradient_learner, remote_learner
from relaax_like.wire.errors import InvalidInputError, RelaaxError

Test = TypeVar("Test", bound=Callable[..., Any])

DIRECT, THREAD = "direct call", "thread"
PAIR, GRPC = "socket pair", "gRPC"

_NO_CONNECTION = "the far end is in the same process: there is no connection that breaks"
_NO_BREAK = "a socket pair breaks only when a process ends; then segments are lost and counted"
_NO_RESTART = "the far end is in the sender's process and ends with it"
_ONE_LIFE = "a sender's socket, or its object, belongs to one start of one process"
_NO_LOG = "experience is in memory until it is learned from, and no answer says so"
_ORDERED = "values arrive in the order in which one source makes them; nothing compares versions"
_BY_AGENTS = "bounded by its agents: each has at most two rollouts under way"
_NO_WAIT = "nothing waits: the far end is there as soon as the sender is"
_NO_PROCESS = "no process is started"

# Name of a test -> transport -> why it does not have the property.
EXCEPTIONS: dict[str, dict[str, str]] = {
    "test_segments_accepted_without_the_sender_knowing_are_accepted_once": {
        DIRECT: _NO_CONNECTION,
        THREAD: _NO_CONNECTION,
        PAIR: _NO_BREAK,
    },
    "test_segments_not_accepted_before_a_break_are_sent_again": {
        DIRECT: _NO_CONNECTION,
        THREAD: _NO_CONNECTION,
        PAIR: _NO_BREAK,
    },
    "test_a_segment_whose_answer_was_lost_in_a_restart_is_handled_once": {
        DIRECT: _NO_RESTART,
        THREAD: _NO_RESTART,
    },
    "test_a_segment_of_an_earlier_incarnation_is_refused": {
        DIRECT: _ONE_LIFE,
        THREAD: _ONE_LIFE,
        PAIR: _ONE_LIFE,
    },
    "test_the_answer_says_whether_a_segment_is_in_a_log_or_in_memory": {
        DIRECT: _NO_LOG,
        THREAD: _NO_LOG,
        PAIR: _NO_LOG,
        GRPC: _NO_LOG,
    },
    "test_values_of_an_older_version_do_not_replace_newer_ones": {
        DIRECT: _ORDERED,
        THREAD: _ORDERED,
        PAIR: _ORDERED,
        GRPC: _ORDERED,
    },
    "test_a_sender_does_not_wait_for_a_frozen_far_end": {
        DIRECT: "learns in the thread of the agents, so that two runs of a seed are the same",
    },
    "test_a_held_far_end_gives_no_credit_back_and_then_each_credit_once": {
        DIRECT: "a sender waits in its call: it has no more than one segment under way",
    },
    "test_a_held_far_end_accepts_no_more_than_it_has_room_for": {
        DIRECT: "a sender waits in its call: it has no more than one segment under way",
        THREAD: _BY_AGENTS,
        PAIR: _BY_AGENTS,
    },
    "test_values_after_a_restart_replace_those_before_it": {
        DIRECT: _NO_RESTART,
        THREAD: _NO_RESTART,
    },
    "test_after_a_restart_each_segment_was_handled_or_is_counted_as_lost": {
        DIRECT: _NO_RESTART,
        THREAD: _NO_RESTART,
    },
    "test_after_a_restart_each_sender_has_its_credit_back_once": {
        DIRECT: _NO_RESTART,
        THREAD: _NO_RESTART,
    },
    "test_close_wakes_a_caller_that_waits_for_the_far_end": {
        DIRECT: _NO_WAIT,
        THREAD: _NO_WAIT,
    },
    "test_a_close_while_the_far_end_is_being_started_leaves_no_process": {
        DIRECT: _NO_PROCESS,
        THREAD: _NO_PROCESS,
        GRPC: "the sender does not start the parameter server",
    },
}

# Name of a test -> transport -> what is wrong, and where.
FAULTS: dict[str, dict[str, str]] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" not in metafunc.fixturenames:
        return
    exceptions = EXCEPTIONS.get(metafunc.function.__name__, {})
    faults = FAULTS.get(metafunc.function.__name__, {})
    params = []
    for name in CARRIERS:
        marks = [
            pytest.mark.xfail(strict=True, reason=table[name], raises=(AssertionError, Missing))
            for table in (exceptions, faults)
            if name in table
        ]
        params.append(pytest.param(name, marks=marks, id=name))
    metafunc.parametrize("name", params)


def needs(*names: str) -> Callable[[Test], Test]:
    """Names the methods of `Carrier` without which a test cannot run: it does not start then."""

    def mark(test: Test) -> Test:
        test.needs = names  # type: ignore[attr-defined]
        return test

    return mark


def test_each_exception_names_a_test_and_a_transport() -> None:
    for table in (EXCEPTIONS, FAULTS):
        for test, reasons in table.items():
            assert callable(globals()[test])
            assert set(reasons) <= set(CARRIERS)
    assert not [t for t in FAULTS if set(FAULTS[t]) & set(EXCEPTIONS.get(t, {}))]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_learner, "_START_WAIT_SEC", 60.0)
    # A restart is immediate, and a close waits only briefly for a far end that does not respond.
    monkeypatch.setattr(remote_learner, "_MIN_RESTART_SEC", 0.02)
    monkeypatch.setattr(remote_learner, "_MIN_PAUSE_SEC", 0.02)
    monkeypatch.setattr(remote_learner, "_MAX_PAUSE_SEC", 0.1)
    for module in (gradient_learner, remote_learner):
        monkeypatch.setattr(module, "_STOP_SEC", 0.2)


@pytest.fixture
def senders() -> int:
    return 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The far end of all tests of gRPC: it takes long to start."""
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.kill()


@pytest.fixture
def stopped_link(
    name: str, senders: int, tmp_path: Path, server: Server, request: pytest.FixtureRequest
) -> Iterator[Carrier]:
    """A link that was not started."""
    for needed in getattr(request.function, "needs", ()):
        if getattr(CARRIERS[name], needed) is getattr(Carrier, needed):
            raise Missing(needed)
    if name == GRPC:
        carrier: Carrier = GrpcCarrier(tmp_path, senders, server)
    else:
        carrier = CARRIERS[name](tmp_path, senders)
    try:
        yield carrier
    finally:
        carrier.close()
        carrier.tear_down()


@pytest.fixture
def link(stopped_link: Carrier) -> Carrier:
    stopped_link.start()
    return stopped_link


@pytest.fixture
def wait_sec(request: pytest.FixtureRequest) -> float:
    """How long to wait for a call to return: briefly only where it is known that it does not."""
    return 0.2 if request.node.get_closest_marker("xfail") else 30.0


# 1. Per sender in order, each segment accepted at most once, sent again until accepted.


@pytest.mark.parametrize("senders", [2])
def test_segments_of_each_sender_are_handled_once_and_in_order(link: Carrier) -> None:
    sent = [make_segments(8, sender) for sender in (0, 1)]

    def send_all(segments: list[Segment]) -> None:
        for segment in segments:
            link.send(segment)

    senders = [Caller(functools.partial(send_all, segments)) for segments in sent]
    for sender in senders:
        sender.get()
    link.wait_received(16)
    for segments in sent:
        assert [s for s in link.received() if s.sender == segments[0].sender] == segments


def test_segments_of_one_sender_stay_in_order_beside_those_of_another_size(link: Carrier) -> None:
    first, *rest = make_segments(3)
    other = Segment(1, 1)
    with contextlib.ExitStack() as stack:
        if not isinstance(link, DirectCarrier):
            stack.enter_context(link.held())
        link.send(first)
        link.wait_under_way(1)
        link.send(other, slots=8)
        for segment in rest:
            link.send(segment)
    link.wait_received(4)
    assert sorted(link.received()) == sorted([first, *rest, other])
    assert [segment for segment in link.received() if segment != other] == [first, *rest]


@needs("muted", "cut")
def test_segments_accepted_without_the_sender_knowing_are_accepted_once(link: Carrier) -> None:
    segments = make_segments(4)
    with link.muted():
        for segment in segments:
            link.send(segment)
        link.wait_received(4)
        link.cut()
        link.mend()
    # What is sent again goes ahead of these.
    sent = [*segments, *link.send_through(first=10)]
    received = link.received()
    assert received[:4] == segments
    assert received == sorted(set(received))
    assert len(received) + link.lost() == len(sent)


@needs("held", "cut")
def test_segments_not_accepted_before_a_break_are_sent_again(link: Carrier) -> None:
    segments = make_segments(link.capacity + 3)
    with link.held():
        for segment in segments:
            link.send(segment)
        wait_until(link.was_full, "a full far end")
        link.cut()
        wait_until(link.is_away, "the sender to know that the connection is broken")
        assert link.answered() == []
        assert link.accepted() == segments[: link.capacity]
        link.mend()
    link.wait_received(len(segments))
    assert link.received() == segments
    assert link.lost() == 0


@needs("muted", "restart_far_end")
def test_a_segment_whose_answer_was_lost_in_a_restart_is_handled_once(link: Carrier) -> None:
    first = Segment(0, 1)
    with link.muted():
        link.send(first)
        link.wait_received(1)
        link.restart_far_end()
    # What is sent again goes ahead of these.
    link.send_through(first=10)
    assert link.received().count(first) == 1


@needs("send_of_earlier_incarnation")
def test_a_segment_of_an_earlier_incarnation_is_refused(link: Carrier) -> None:
    link.send(Segment(0, 1))
    link.wait_received(1)
    with pytest.raises(InvalidInputError, match="incarnation"):
        link.send_of_earlier_incarnation(Segment(0, 2))
    link.send(Segment(0, 3))
    link.wait_received(2)
    assert link.received() == [Segment(0, 1), Segment(0, 3)]


# 2. Accepted means in the log if there is one, else in memory; the answer says which.


@needs("answered")
def test_a_segment_is_answered_after_the_far_end_has_handled_it(link: Carrier) -> None:
    segments = make_segments(6)
    for segment in segments:
        link.send(segment)
    wait_until(lambda: sorted(link.answered()) == segments, "all answers")
    assert link.answered_early() == []


@needs("get_log_notices")
def test_the_answer_says_whether_a_segment_is_in_a_log_or_in_memory(link: Carrier) -> None:
    link.send(Segment(0, 1))
    link.wait_received(1)
    assert link.get_log_notices()


# 3. Values: the latest wins, by epoch and version.


def test_the_newest_values_win(link: Carrier) -> None:
    _publish(link, 5)
    versions = [version for version, _ in link.seen()]
    assert versions == sorted(versions)
    assert link.seen()[-1] == link.newest()


@needs("publish_older")
def test_values_of_an_older_version_do_not_replace_newer_ones(link: Carrier) -> None:
    _publish(link, 3)
    newest = link.newest()
    link.publish_older()
    assert link.seen()[-1] == newest


@needs("restart_far_end")
def test_values_after_a_restart_replace_those_before_it(link: Carrier) -> None:
    _publish(link, 3)
    # The second time the version is the same, and only the epoch shows that the values are not.
    for _ in range(2):
        before, (version, _) = len(link.seen()), link.seen()[-1]
        link.restart_far_end(forgets=True)
        link.wait_newest(more_than=before)
        assert link.seen()[-1][0] <= version
        assert link.seen()[-1] == link.newest()


def _publish(link: Carrier, versions: int) -> None:
    """Publishes versions, and waits until the last one has arrived."""
    wanted = link.newest()[0] + versions
    for _ in range(versions):
        link.publish()
    wait_until(lambda: link.newest()[0] == wanted, f"version {wanted}")
    link.wait_newest()


# 4. Bounded by credit; the sender never blocks an event loop.


def test_a_sender_does_not_wait_for_a_frozen_far_end(link: Carrier, wait_sec: float) -> None:
    with link.frozen():
        sender = Caller(link.send_much)
        sender.join(wait_sec)
        assert not sender.is_alive()
    link.wait_received(12)
    assert link.received() == make_segments(12)


@needs("held", "answered")
def test_a_held_far_end_gives_no_credit_back_and_then_each_credit_once(link: Carrier) -> None:
    segments = make_segments(4)
    with link.held():
        for segment in segments:
            link.send(segment)
        assert link.answered() == []
    wait_until(lambda: len(link.answered()) >= len(segments), "all answers")
    link.send(Segment(0, 5))
    wait_until(lambda: Segment(0, 5) in link.answered(), "one more answer")
    assert sorted(link.answered()) == make_segments(5)
    assert link.answered_early() == []


@needs("held", "accepted")
def test_a_held_far_end_accepts_no_more_than_it_has_room_for(link: Carrier) -> None:
    segments = make_segments(link.capacity + 5)
    with link.held():
        for segment in segments:
            link.send(segment)
        wait_until(
            lambda: link.was_full() or len(link.accepted()) == len(segments), "a full far end"
        )
        assert link.accepted() == segments[: link.capacity]
    link.wait_received(len(segments))
    assert link.received() == segments
    assert link.lost() == 0


# 5. A restart of the far end is a new epoch; segments are sent again or counted as lost.


@needs("held", "answered", "restart_far_end")
def test_after_a_restart_each_segment_was_handled_or_is_counted_as_lost(link: Carrier) -> None:
    sent = make_segments(1)
    link.send(sent[0])
    wait_until(lambda: link.answered() == sent, "the answer")  # else it can count as lost
    with link.held():
        under_way = make_segments(link.most_under_way, first=2)
        for segment in under_way:
            link.send(segment)
        link.wait_under_way(link.most_under_way)
        link.restart_far_end()
    sent += under_way + link.send_through(first=20)
    assert len(set(link.received())) == len(link.received())
    received = [segment for segment in link.received() if segment in sent]
    assert received == sorted(received)
    assert len(received) + link.lost() == len(sent)


@needs("held", "answered", "restart_far_end")
def test_after_a_restart_each_sender_has_its_credit_back_once(link: Carrier) -> None:
    segments = make_segments(link.most_under_way)
    with link.held():
        for segment in segments:
            link.send(segment)
        assert link.answered() == []
        link.wait_under_way(link.most_under_way)
        link.restart_far_end()
    segments += link.send_through(first=20)
    wait_until(lambda: len(link.answered()) >= len(segments), "all answers")
    assert sorted(link.answered()) == segments


# 6. `close` is idempotent and wakes everybody.


def test_a_second_close_does_nothing_and_nothing_is_left(stopped_link: Carrier) -> None:
    link = stopped_link
    before = set(threading.enumerate())
    link.start()
    link.send(Segment(0, 1))
    link.wait_received(1)
    link.close()
    link.close()

    def find_left() -> list[threading.Thread]:
        # The product names its threads; those of gRPC end with their channel.
        new = set(threading.enumerate()) - before
        return [thread for thread in new if not thread.name.startswith("Thread-")]

    wait_until(lambda: not find_left(), "the end of all threads")
    assert link.find_pids() == []


def test_close_does_not_wait_for_a_frozen_far_end(link: Carrier, wait_sec: float) -> None:
    with link.frozen():
        if not isinstance(link, DirectCarrier):  # its senders would wait, too
            for segment in make_segments(4):
                link.send(segment)
        closing = Caller(link.close)
        closing.join(wait_sec)
        assert not closing.is_alive()
        assert closing.error is None
        wait_until(lambda: link.find_pids() == [], "the end of all processes")


@needs("make_waiter")
def test_close_wakes_a_caller_that_waits_for_the_far_end(
    stopped_link: Carrier, wait_sec: float
) -> None:
    waiter = Caller(stopped_link.make_waiter())
    stopped_link.close()
    waiter.join(wait_sec)
    assert not waiter.is_alive()
    assert waiter.error is None or isinstance(waiter.error, RelaaxError)


@needs("begin_start")
def test_a_close_while_the_far_end_is_being_started_leaves_no_process(
    stopped_link: Carrier, wait_sec: float
) -> None:
    let_start = stopped_link.begin_start()
    closing = Caller(stopped_link.close)
    closing.join(1.0)  # it is free to wait for the start
    let_start()
    closing.get()
    end = time.monotonic() + wait_sec
    while left := stopped_link.find_pids():
        assert time.monotonic() < end, f"left: {left}"
        time.sleep(0.01)
