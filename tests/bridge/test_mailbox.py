"""Mailboxes: messages between processes, in order, and an end of the waiting."""

import mmap
import platform
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.threads import Caller

from relaax_like.bridge import mailbox
from relaax_like.bridge.mailbox import Mailbox
from relaax_like.bridge.shared_memory import SharedVectors

# By the machine, not by what the module finds: it is to find mailboxes here.
IS_MEANT = sys.platform == "linux" and platform.machine() == "x86_64"
pytestmark = pytest.mark.skipif(not IS_MEANT, reason="Linux on x86-64 only")

ECHO = """
import sys
from relaax_like.bridge.shared_memory import SharedVectors
from relaax_like.v1.parameter_server_pb2 import SharedMemoryOffer
pid, descriptor, nonce = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])
vectors = SharedVectors.attach(SharedMemoryOffer(pid=pid, descriptor=descriptor, nonce=nonce), 8, 8)
while (letter := vectors.requests.take()) != b"end":
    vectors.replies.put(letter[::-1])
"""
LONGEST = mailbox.NUM_BYTES - 64


def make_pair():
    """Returns both ends of a mailbox, and its memory."""
    memory = np.frombuffer(mmap.mmap(-1, mailbox.NUM_BYTES), np.uint8)
    return Mailbox(memory), Mailbox(memory), memory


def test_they_are_offered_here():
    assert mailbox.SUPPORTED
    with SharedVectors.create(8, 8) as vectors:
        assert vectors.offer.mailboxes


def test_another_process_answers_one_message_after_another():
    with SharedVectors.create(8, 8) as vectors:
        one = vectors.offer
        argv = [sys.executable, "-c", ECHO, str(one.pid), str(one.descriptor), one.nonce.hex()]
        child = subprocess.Popen(argv)
        for number in range(2_000):
            letter = b"%d" % number * (number % 50)
            vectors.requests.put(letter)
            assert vectors.replies.take() == letter[::-1]
        vectors.requests.put(b"end")
        assert child.wait(30) == 0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=300) | st.just(bytes(LONGEST)), max_size=5))
def test_what_is_taken_is_what_was_put(letters):
    sender, receiver, _ = make_pair()
    for letter in letters:
        assert sender.fits(letter)
        sender.put(letter)
        assert receiver.take() == letter


def test_one_byte_more_than_there_is_room_for_does_not_fit():
    sender, *_ = make_pair()
    assert sender.fits(bytes(LONGEST))
    assert not sender.fits(bytes(LONGEST + 1))


def test_numbers_begin_anew_after_the_last():
    sender, receiver, _ = make_pair()
    sender._number = receiver._number = 2**31 - 2
    for letter in (b"last", b"zero", b"one"):
        sender.put(letter)
        assert receiver.take() == letter


def test_who_waits_is_woken_by_the_message_and_by_the_end():
    sender, receiver, _ = make_pair()
    caller = Caller(receiver.take)
    sender.put(b"hello")
    assert caller.get() == b"hello"
    caller = Caller(receiver.take)
    receiver.close()
    assert caller.get() is None
    receiver.close()
    assert receiver.take() is None


def test_an_end_between_two_looks_is_no_message():
    sender, receiver, _ = make_pair()
    sender.put(b"old")
    assert receiver.take() == b"old"
    words = receiver._words

    class ClosingWords:
        """Makes the end come just before the number is read."""

        def __getitem__(self, index):
            receiver._words = words
            receiver.close()
            return words[index]

    receiver._words = ClosingWords()
    assert receiver.take() is None


def test_what_was_withdrawn_is_empty():
    sender, receiver, _ = make_pair()
    sender.put(b"given up")
    sender.withdraw()
    assert receiver.take() == b""


def test_the_end_comes_even_while_the_other_side_writes_what_it_likes():
    sender, receiver, memory = make_pair()
    over = threading.Event()

    def scribble():
        rng = np.random.default_rng(0)
        while not over.is_set():
            memory[:64] = rng.integers(0, 256, 64, np.uint8)
            sender._wake()  # or each take can last until its next look, a second later

    thread = threading.Thread(target=scribble)
    thread.start()
    try:
        for _ in range(100):
            assert len(receiver.take()) <= LONGEST
        receiver.close()
        assert receiver.take() is None
    finally:
        over.set()
        thread.join()
