"""Messages through shared memory between two processes, which wake each other by a futex.

A small gRPC message wakes four threads, each on an idle core: gRPC's own thread and the caller's
thread in either process. A message in a mailbox wakes one thread.
"""

import ctypes
import functools
import platform
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

NUM_BYTES = 64 * 1024
_HEAD_BYTES = 64
# Longest sleep without a check: `close` might be called just before it.
_LOOK_SEC = 1
_FUTEX, _WAIT, _WAKE = 202, 0, 1  # linux/futex.h, and its number on x86-64
_NUMBER, _LENGTH = 0, 1
_CLOSING = 1 << 31  # a number that no message has


class _Timespec(ctypes.Structure):
    _fields_ = (("sec", ctypes.c_long), ("nsec", ctypes.c_long))


_LOOK = ctypes.byref(_Timespec(_LOOK_SEC, 0))


def _load_futex() -> Callable[[int, int, int, Any], int]:
    """Returns futex(2): address, operation, value, timeout -> -1 for an error."""
    syscall = ctypes.CDLL(None).syscall
    syscall.argtypes = (
        ctypes.c_long,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_uint32,
        ctypes.c_void_p,
    )
    return functools.partial(syscall, _FUTEX)


def _find_support() -> bool:
    # If other processors see the stores of one processor in order, they see a message's number
    # after its bytes. Otherwise that requires instructions that Python does not provide.
    is_x86_64 = platform.machine() == "x86_64" and sys.maxsize > 1 << 32
    if sys.platform != "linux" or not is_x86_64:
        return False
    word = ctypes.c_uint32()
    return _load_futex()(ctypes.addressof(word), _WAKE, 1, None) == 0  # a sandbox might forbid it


SUPPORTED = _find_support()


class Mailbox:
    """Passes messages in one direction, one at a time, from one sender to one receiver.

        replies.put(data)      # one process
        data = replies.take()  # the other

    The sender must not put a message before it knows that the previous message was taken, for
    example by a reply. Either process can write anything to the memory at any time: then the other
    process receives wrong messages, or none, but nothing worse happens.

    Args:
      memory: `[NUM_BYTES] uint8`, zeros at first, the same in both processes.
    """

    def __init__(self, memory: np.ndarray):
        self._words = memory[:_HEAD_BYTES].view(np.uint32)
        self._area = memory[_HEAD_BYTES:]
        self._address = memory.ctypes.data + 4 * _NUMBER
        self._futex = _load_futex()
        self._number = 0  # of the newest message that this process has put or taken
        self._closed = False

    def fits(self, data: bytes) -> bool:
        """Returns whether a message is short enough."""
        return len(data) <= len(self._area)

    def put(self, data: bytes) -> None:
        """Puts a message, which must fit, and wakes the receiver."""
        words = self._words
        self._area[: len(data)] = np.frombuffer(data, np.uint8)
        words[_LENGTH] = len(data)
        self._number = (self._number + 1) % _CLOSING
        words[_NUMBER] = self._number
        self._wake()

    def take(self) -> bytes | None:
        """Waits for the next message; None: `close` was called in this process."""
        words = self._words
        while True:
            number = int(words[_NUMBER])
            # Checked after the number: `close` changes it to one that no message has.
            if self._closed:
                return None
            if number != self._number:
                self._number = number
                return self._area[: words[_LENGTH]].tobytes()
            self._futex(self._address, _WAIT, number, _LOOK)

    def withdraw(self) -> None:
        """Makes the newest message empty, unless it was taken; nothing must be put afterwards."""
        self._words[_LENGTH] = 0

    def close(self) -> None:
        """Ends `take` in this process. Idempotent and thread-safe."""
        self._closed = True
        self._words[_NUMBER] |= _CLOSING
        self._wake()

    def _wake(self) -> None:
        self._futex(self._address, _WAKE, 1, None)
