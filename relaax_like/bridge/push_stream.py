"""Sends pushes over one gRPC stream that stays open: a call per push costs twice as much."""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from relaax_like.bridge import frames, messages
from relaax_like.bridge.serving import open_method
from relaax_like.bridge.shared_memory import SharedVectors, UnusableError
from relaax_like.core.buffers import BufferPool
from relaax_like.core.manifest import Manifest
from relaax_like.core.records import Push, Reply
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.wire.errors import InvalidInputError, RelaaxError

_POLL_SEC = 0.2


class PushStream:
    """One client's `PushPull` stream: opened with the first push, and again after a failure.

        stream = PushStream(channel, manifest, pool, use_shared_memory=True)
        reply = stream.push_pull(push, want_values, have_version, timeout_sec)
        stream.close()

    If both sides have agreed on it, gradients and values pass through memory that both processes
    share, and so do messages that fit a mailbox, where mailboxes are supported. The stream then
    carries all other messages, and shows whether the other process exits. Not thread-safe.

    Args:
      channel: to the server.
      manifest: of the run.
      pool: of buffers for values.
      use_shared_memory: whether to offer shared memory; the server must be on this machine.
    """

    def __init__(
        self, channel: grpc.Channel, manifest: Manifest, pool: BufferPool, use_shared_memory: bool
    ):
        self._manifest = manifest
        self._pool = pool
        self._use_shared_memory = use_shared_memory
        self._pid = os.getpid()
        self._shared: SharedVectors | None = None
        self._open_call = open_method(
            channel, frames.PARAMETER_SERVER, "PushPull", frames.to_push_pull_reply
        )
        self._call: Any = None  # a grpc.Call that is also an iterator
        # Messages that gRPC's sending thread has not taken yet; None ends it. At most one push.
        self._outbox: queue.SimpleQueue[frames.Request | None] = queue.SimpleQueue()

    @property
    def gradient_buffer(self) -> np.ndarray | None:
        """Buffer for the next push's gradient, `[gradient_bytes] uint8`; None: no shared memory.

        A gradient in the buffer need not be copied.
        """
        return None if self._shared is None else self._shared.gradient

    def push_pull(
        self, push: Push, want_values: bool, have_version: int, timeout_sec: float
    ) -> Reply:
        """Sends one push and reads its reply.

        Args:
          push: to send.
          want_values: whether the reply contains values newer than `have_version`.
          have_version: version of the values that the client has.
          timeout_sec: longest wait for the reply.

        Raises:
          grpc.RpcError: no reply in time, or it was refused; the next push opens a new stream.
          InvalidInputError: the reply is not valid, or does not match the manifest.
          RelaaxError: this process was forked from the one that made this object.
          ValueError: this process has closed the channel.
        """
        if os.getpid() != self._pid:
            raise RelaaxError(
                "this process was forked from the one that connected to the parameter server; "
                "connect again in this process"
            )
        with self._limited(timeout_sec) as call:
            shared = self._shared
            if shared is not None and push.gradient is not None:
                _put(push.gradient, shared.gradient)
            for request in messages.push_to_messages(
                push, want_values, have_version, shared is not None, timeout_sec
            ):
                self._send(request, shared)
            replies = call if shared is None else _take_replies(shared, call)
            return messages.messages_to_reply(replies, self._manifest, self._pool, shared)

    def _send(self, request: frames.Request, shared: SharedVectors | None) -> None:
        """Sends by mailbox if the message fits; else by stream, with an empty mailbox message."""
        if shared is None or not shared.offer.mailboxes:
            self._outbox.put(request)
            return
        letter = frames.to_bytes(request)
        if not shared.requests.fits(letter):
            self._outbox.put(request)
            letter = b""
        shared.requests.put(letter)

    def close(self) -> None:
        """Ends the stream. Idempotent."""
        # In a forked process, everything still belongs to the other process.
        if self._call is not None and os.getpid() == self._pid:
            if self._shared is not None:
                # If the server has not read it yet, it must not apply a push that is abandoned.
                self._shared.requests.withdraw()
            self._outbox.put(None)
            self._call.cancel()
            self._call = None
        self._shared = None  # the server might still read it: the next stream has a new one

    @contextlib.contextmanager
    def _limited(self, timeout_sec: float) -> Iterator[Any]:
        """Yields the open stream, which ends if the block takes too long or fails."""
        is_new = self._call is None
        if is_new:
            self._outbox = queue.SimpleQueue()
            self._call = self._open_call(iter(self._outbox.get, None))
        call = self._call
        _deadlines.start(call, timeout_sec)
        try:
            if is_new and self._use_shared_memory:
                self._offer_memory(call)
            yield call
        except BaseException:
            self.close()
            raise
        finally:
            _deadlines.stop(call)

    def _offer_memory(self, call: Any) -> None:
        gradient_bytes, values_bytes = self._manifest.gradient_bytes, self._manifest.total_bytes
        try:
            with SharedVectors.create(gradient_bytes, values_bytes) as vectors:
                self._outbox.put(pb.PushPullRequest(offer=vectors.offer))
                answer = next(call)
        except UnusableError:
            self._use_shared_memory = False
            return
        if isinstance(answer, pb.PushPullReply) and answer.answer.accepted:
            self._shared = vectors
            if not call.add_callback(vectors.replies.close):  # it has already ended
                vectors.replies.close()
        else:
            self._use_shared_memory = False


def _take_replies(shared: SharedVectors, call: Any) -> Iterator[frames.Reply]:
    """Yields the parts of the server's reply, from the mailbox or else from the stream."""
    letter = shared.replies.take() if shared.offer.mailboxes else b""
    if not letter:
        yield from call
        return
    try:
        yield frames.to_push_pull_reply(letter)
    except DecodeError:
        raise InvalidInputError(
            f"reply: {len(letter)} bytes that are not a valid PushPullReply message; run the same "
            "version of relaax_like on both ends",
            "header",
        ) from None


def _put(gradient: np.ndarray, buffer: np.ndarray) -> None:
    """Copies a gradient, unless it is already in the buffer."""
    target = buffer[: gradient.nbytes]
    if gradient.ctypes.data != target.ctypes.data:
        target[...] = gradient.view(np.uint8)


class _Deadlines:
    """Cancels calls that take too long: a gRPC stream has one deadline, not one per push.

    One thread watches all streams of a process; a timer for each push would need a thread each.
    """

    def __init__(self) -> None:
        self._ends: dict[grpc.Call, float] = {}
        self._some = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, call: grpc.Call, timeout_sec: float) -> None:
        """Cancels the call after `timeout_sec`, unless `stop` is called before."""
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
        """Stops watching a call."""
        self._ends.pop(call, None)

    def _watch(self) -> None:
        while True:
            self._some.wait()
            time.sleep(_POLL_SEC)
            self._cancel_late()
            if not self._ends:
                self._some.clear()
                if self._ends:  # one came in between
                    self._some.set()

    def _cancel_late(self) -> None:
        # Not in `_watch`, whose variables would hold a call, and its memory, until the next push.
        now = time.monotonic()
        for call, end in list(self._ends.items()):
            if now > end:
                self._ends.pop(call, None)
                call.cancel()


_deadlines = _Deadlines()
