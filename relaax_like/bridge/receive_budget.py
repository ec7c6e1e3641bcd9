"""Limits the memory of data that is being received, however many calls have begun to send.

The data of a push is its gradient; rollouts and publications count in the same way.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import grpc

from relaax_like.wire.errors import ServerUnavailableError

RequestT = TypeVar("RequestT")

# If the memory is used up, a push is ended that was silent for this long, or takes this long in
# total, plus one second per megabyte. Our clients give up at about that time.
_SILENT_SEC = 3.0
_TOTAL_SEC = 5.0
_BYTES_PER_SEC = 1_000_000
_POLL_SEC = 0.05


class SlowError(ServerUnavailableError):
    """A call was ended to release memory for others, or ended while it waited for memory."""


@dataclass(eq=False)
class IncomingPush:
    """One push (or rollout, or publication) that is being received.

    Attributes:
      num_bytes: memory that the push uses.
      context: context of its call.
      began: monotonic seconds of its start.
      heard: monotonic seconds of its newest message.
      cancelled: whether it was cancelled, because it was too slow while others waited.
    """

    num_bytes: int
    context: grpc.ServicerContext
    began: float
    heard: float
    cancelled: bool = False

    def note(self, requests: Iterator[RequestT]) -> Iterator[RequestT]:
        """Passes messages on and records when they arrived."""
        for request in requests:
            self.heard = time.monotonic()
            yield request

    def is_slow(self, now: float) -> bool:
        """Returns whether the push is so slow that it is cancelled if the memory is used up."""
        due = self.began + _TOTAL_SEC + self.num_bytes / _BYTES_PER_SEC
        return now > min(self.heard + _SILENT_SEC, due)


class ReceiveBudget:
    """Limits the memory for data that is being received. Thread-safe.

        with budget.admit(num_bytes, context) as incoming:
            push = messages_to_push(first, incoming.note(more), manifest)

    If the memory is used up, the next push waits for others to end, and slow ones are cancelled:
    those without a message for 3 s, and those that take more than 5 s plus 1 s per megabyte in
    total.

    Args:
      max_bytes: bytes of all pushes together; a single push can have more.
    """

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._changed = threading.Condition()  # guards the following attributes
        self._num_bytes = 0
        self._receptions: set[IncomingPush] = set()

    @contextlib.contextmanager
    def admit(self, num_bytes: int, context: grpc.ServicerContext) -> Iterator[IncomingPush]:
        """Waits for memory, and releases it after the block.

        Args:
          num_bytes: memory that the push needs.
          context: context of the push's call.

        Raises:
          SlowError: the push was cancelled meanwhile, or before there was memory for it.
        """
        reception = self._enter(num_bytes, context)
        try:
            yield reception
        except Exception:  # any error of a reader whose call has ended
            if reception.cancelled:
                raise SlowError(
                    "the call was too slow, and was aborted to release memory for others; retry"
                ) from None
            raise
        finally:
            with self._changed:
                self._num_bytes -= num_bytes
                self._receptions.remove(reception)
                self._changed.notify_all()

    def _enter(self, num_bytes: int, context: grpc.ServicerContext) -> IncomingPush:
        with self._changed:
            while self._num_bytes and self._num_bytes + num_bytes > self._max_bytes:
                if not context.is_active():
                    raise SlowError("the call ended before there was memory for its data; retry")
                self._cancel_slow()
                self._changed.wait(_POLL_SEC)
            now = time.monotonic()
            reception = IncomingPush(num_bytes, context, began=now, heard=now)
            self._num_bytes += num_bytes
            self._receptions.add(reception)
        return reception

    def _cancel_slow(self) -> None:
        now = time.monotonic()
        for reception in self._receptions:
            if not reception.cancelled and reception.is_slow(now):
                reception.cancelled = True
                reception.context.cancel()  # its thread wakes up, and releases the memory
