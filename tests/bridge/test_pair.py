"""Pairs of sockets between a process and its child: frames, their end, who is woken."""

import contextlib
import socket
import threading

import pytest
from support.threads import Caller, wait_until

from relaax_like.bridge import frames
from relaax_like.bridge.pair import Pair, open_pair, receive_pairs
from relaax_like.v1 import experience_pb2


@pytest.fixture
def ends():
    one, other = map(Pair, socket.socketpair())
    with contextlib.closing(one), contextlib.closing(other):
        yield one, other


def make_request(sequence=1):
    header = experience_pb2.ExperienceHeader(sequence=sequence)
    return experience_pb2.ExperienceRequest(header=header)


def test_messages_and_chunks_come_out_as_they_went_in(ends):
    one, other = ends
    chunk = memoryview(bytes(range(256)) * 100)
    one.send(make_request(1))
    one.send(chunk)
    one.send(make_request(2))
    got = [frames.to_experience_request(other.receive()) for _ in range(3)]
    assert got == [make_request(1), chunk, make_request(2)]


def test_an_end_that_sends_no_more_still_hears_the_other(ends):
    one, other = ends
    one.send(make_request())
    one.end()
    assert other.receive() == make_request().SerializeToString()
    assert other.receive() is None
    other.send(make_request(7))
    assert one.receive() == make_request(7).SerializeToString()


def test_half_a_message_is_the_end():
    ours, theirs = socket.socketpair()
    theirs.sendall(b"\0\0\0\x09half")
    theirs.close()
    pair = Pair(ours)
    assert pair.receive() is None
    pair.close()


def test_close_wakes_a_receive_and_a_send_and_can_be_called_twice(ends):
    one, _ = ends

    def send_all():
        with contextlib.suppress(OSError):
            while True:  # until all buffers are full
                one.send(memoryview(bytes(1 << 16)))

    callers = [Caller(one.receive), Caller(send_all)]
    wait_until(lambda: threading.active_count() > 2, "both")
    one.close()
    one.close()
    assert [caller.get() for caller in callers] == [None, None]


def test_a_child_gets_its_end_of_each_pair_until_the_control_socket_closes():
    ours, theirs = socket.socketpair()
    pairs = [open_pair(ours) for _ in range(3)]
    received = receive_pairs(theirs)
    for sequence, pair in enumerate(pairs):
        pair.send(make_request(sequence))
        other = next(received)
        assert other.receive() == make_request(sequence).SerializeToString()
        other.close()
        assert pair.receive() is None
        pair.close()
    ours.close()
    assert next(received, None) is None
    theirs.close()


def test_a_pair_for_a_child_that_has_gone_is_refused():
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(OSError, match="Broken pipe"):
        open_pair(ours)
