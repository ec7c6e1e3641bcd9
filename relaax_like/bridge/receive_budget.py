"""Gradients that are still being received: their memory is bounded, however many have begun."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import grpc

from relaax_like.wire.errors import ServerUnavailableError

RequestT = TypeVar("RequestT")

# Where there is no room left, a push ends that was silent for so long, or takes so long altogether:
# that many seconds, and one more for each megabyte. A client of ours gives up about then.
_SILENT_SEC = 3.0
_TOTAL_SEC = 5.0
_BYTES_PER_SEC = 1_000_000
_POLL_SEC = 0.05


class SlowError(ServerUnavailableError):
    """A push was ended to make room for others."""


@dataclass(eq=False)
class IncomingPush:
    """One push whose gradient is on its way.

    Attributes:
      num_bytes: memory that it takes.
      context: of its call.
      began: seconds of the monotonic clock.
      heard: the same, when its newest message came.
      cancelled: it was too slow while others waited.
    """

    num_bytes: int
    context: grpc.ServicerContext
    began: float
    heard: float
    cancelled: bool = False

    def note(self, requests: Iterator[RequestT]) -> Iterator[RequestT]:
        """Hands messages on and notes when they came."""
        for request in requests:
            self.heard = time.monotonic()
            yield request

    def is_slow(self, now: float) -> bool:
        """Returns whether it has to make room where there is none."""
        due = self.began + _TOTAL_SEC + self.num_bytes / _BYTES_PER_SEC
        return now > min(self.heard + _SILENT_SEC, due)


class ReceiveBudget:
    """Room for the gradients that are being received. Thread-safe.

        with receiving.admit(num_bytes, context) as reception:
            push = messages_to_push(first, reception.note(more), manifest)

    When it is used up, the next push waits for others to end, and slow ones are cancelled: a client
    that sends half of a gradient and then nothing delays the others for seconds at most.

    Args:
      max_bytes: of all together; a single push can have more.
    """

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._changed = threading.Condition()  # guards what follows
        self._num_bytes = 0
        self._receptions: set[IncomingPush] = set()

    @contextlib.contextmanager
    def admit(self, num_bytes: int, context: grpc.ServicerContext) -> Iterator[IncomingPush]:
        """Waits for room, and gives it back after the block.

        Raises:
          SlowError: the push was cancelled meanwhile, or given up before there was room for it.
        """
        reception = self._enter(num_bytes, context)
        try:
            yield reception
        except Exception:  # whatever a reader makes of a call that is no more
            if reception.cancelled:
                raise SlowError("push: aborted to make room for others; retry") from None
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
                    raise SlowError("push: cancelled before there was room for it")
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
                reception.context.cancel()  # its thread wakes up, and gives the room back
