"""Rounds of push and reply over one gRPC stream that stays open: a call per push costs twice."""

import contextlib
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import grpc

from relaax_like.bridge import frames

_POLL_SEC = 0.2


class Rounds:
    """One client's `PushPull` stream: opened with the first round, and anew after a failure.

        rounds = Rounds(channel)
        with rounds.exchange(messages_of_a_push, timeout_sec) as replies:
            reply = messages.messages_to_reply(replies, manifest)
        rounds.close()

    Not thread-safe.
    """

    def __init__(self, channel: grpc.Channel):
        self._open_call = channel.stream_stream(
            "/relaax.v1.ParameterServer/PushPull",
            request_serializer=frames.to_bytes,
            response_deserializer=frames.to_push_pull_reply,
        )
        self._call: Any = None  # a grpc.Call that is an iterator, too
        # What gRPC's sending thread has still to take; None ends it. At most one push's chunks.
        self._outbox: queue.SimpleQueue[frames.Request | None] = queue.SimpleQueue()

    @contextlib.contextmanager
    def exchange(
        self, requests: Iterable[frames.Request], timeout_sec: float
    ) -> Iterator[Iterator[frames.Reply]]:
        """Sends one push; the block is to read its reply to the end, and no further.

        Raises:
          grpc.RpcError: no reply in time, or it was refused; the next one opens a new stream.
        """
        if self._call is None:
            self._outbox = queue.SimpleQueue()
            self._call = self._open_call(iter(self._outbox.get, None))
        call = self._call
        _deadlines.start(call, timeout_sec)
        try:
            for request in requests:
                self._outbox.put(request)
            yield call
        except BaseException:
            self.close()
            raise
        finally:
            _deadlines.stop(call)

    def close(self) -> None:
        """Ends the stream; may be called twice."""
        if self._call is not None:
            self._outbox.put(None)
            self._call.cancel()
            self._call = None


class _Deadlines:
    """Cancels calls that take too long: a stream has one deadline, and no round has its own.

    One thread serves all streams of a process. A timer for each round would be a thread for each.
    """

    def __init__(self) -> None:
        self._ends: dict[grpc.Call, float] = {}
        self._some = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, call: grpc.Call, timeout_sec: float) -> None:
        """Has the call cancelled when `stop` is not called in time."""
        self._ends[call] = time.monotonic() + timeout_sec
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._watch, name="deadlines", daemon=True
                    )
                    self._thread.start()
        if not self._some.is_set():
            self._some.set()

    def stop(self, call: grpc.Call) -> None:
        """Ends the watch over a call."""
        self._ends.pop(call, None)

    def _watch(self) -> None:
        while True:
            self._some.wait()
            time.sleep(_POLL_SEC)
            now = time.monotonic()
            for call, end in list(self._ends.items()):
                if now > end:
                    self._ends.pop(call, None)
                    call.cancel()
            if not self._ends:
                self._some.clear()
                if self._ends:  # one came in between
                    self._some.set()


_deadlines = _Deadlines()
