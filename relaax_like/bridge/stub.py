"""The stub: the client of a remote parameter server, with the methods of a local one."""

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np

from relaax_like.bridge import errors, frames, messages
from relaax_like.bridge.chunks import fits_one
from relaax_like.bridge.client import BufferingClient, make_client_id
from relaax_like.bridge.joining import GroupStream
from relaax_like.bridge.push_stream import PushStream
from relaax_like.bridge.serving import open_method
from relaax_like.config.address import parse_address
from relaax_like.core.buffers import BufferPool
from relaax_like.core.manifest import Manifest
from relaax_like.core.metrics import Metrics
from relaax_like.core.records import Push, Reply
from relaax_like.core.roles import GroupConnection
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.v1 import parameter_server_pb2_grpc as pb_grpc
from relaax_like.wire.errors import ServerUnavailableError

logger = logging.getLogger(__name__)

# A call can take this long, plus ten seconds per megabyte of data: a link of 1 Mbit/s is enough. A
# server that has exited is detected sooner, by keepalive.
CALL_TIMEOUT_SEC = 5.0
_BYTES_PER_SEC = 100_000
# How long a call waits for a server that did not answer the last call.
_PROBE_SEC = 0.25
# Timeout of that server's answer; longer than keepalive needs to detect a dead connection.
_PROBE_TIMEOUT_SEC = 60.0
# How long a push without an answer is repeated: a server restarts in about a second.
_RETRY_SEC = 2.0
_RETRY_SLEEP_SEC = (0.05, 0.15)


class Health:
    """What all stubs of a link share: whether the server was available, and its `global_t`.

    Thread-safe.

    A server that did not answer is probed by one call for all stubs, which stays open while agents
    continue. So an answer that takes longer than agents wait is also received, and keepalive, which
    only checks connections with open calls, detects a dead connection.

    Attributes:
      away: whether the last call, except for refused ones, failed with ServerUnavailableError:
        there was no answer, or the server was busy or closing.
      global_t: largest `global_t` that was received; 0: none yet.
    """

    def __init__(self) -> None:
        self.away = False
        self.global_t = 0
        self._lock = threading.Lock()
        self._probe: Any = None  # a grpc.Future that is also a grpc.Call

    def note_global_t(self, global_t: int) -> None:
        """Notes a `global_t` that was received."""
        # Unlocked: in the worst case, two threads keep the older of two numbers.
        self.global_t = max(self.global_t, global_t)

    def wait(self, ask: Callable[[], Any], server: str = errors.PARAMETER_SERVER) -> None:
        """Waits briefly until the server has answered.

        Args:
          ask: starts a call, and returns its future.
          server: what the server is, and its address, for the error.

        Raises:
          grpc.RpcError: the server cannot be reached.
          ServerUnavailableError: the server has not answered yet.
        """
        with self._lock:
            probe = self._probe
            if probe is None or (probe.done() and probe.code() is not grpc.StatusCode.OK):
                probe = self._probe = ask()
        try:
            probe.result(_PROBE_SEC)
        except grpc.FutureTimeoutError:
            raise ServerUnavailableError(f"{server} has not replied yet; retry later") from None
        with self._lock:
            if self._probe is probe:
                self._probe = None


class ParameterServerStub(BufferingClient):
    """A remote parameter server, as one agent or learner sees it. Calls have deadlines.

    Methods that call the server raise the errors of `ParameterServerClient`, and also
    NotAllowedError, if an agent's token is required, ProtocolError, if something else listens at
    the address or the server has failed, and InvalidInputError, if an answer is not valid. With an
    open stream, they raise RelaaxError in a process that was forked from the one that made this
    object.

    Args:
      channel: to the server; owned by the caller.
      address: `host:port` of the server.
      manifest: of the run.
      metrics: the recorder.
      client_id: unique in the run; "": a new name.
      health: shared by the stubs of a link; None: a new one.
      keep_stream_open: keep a stream open between pushes, as always for a model whose values do not
        fit one chunk.
      use_shared_memory: with an open stream to a loopback address, use shared memory if possible:
        chunks are copied six times, shared memory once, and it wakes fewer threads.

    Raises:
      ConfigError: `address` is not `host:port`.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        address: str,
        manifest: Manifest,
        metrics: Metrics,
        client_id: str = "",
        health: Health | None = None,
        keep_stream_open: bool = False,
        use_shared_memory: bool = True,
    ):
        super().__init__(manifest, client_id or make_client_id(), metrics)
        self._health = health or Health()
        self._stub = pb_grpc.ParameterServerStub(channel)
        self._pull = open_method(
            channel, frames.PARAMETER_SERVER, "Pull", frames.to_push_pull_reply
        )
        self._address = address
        # An open stream needs a thread at each end; a call with one message each way does not.
        whole = fits_one(manifest.total_bytes) and not keep_stream_open
        self._channel = channel
        self._pool = BufferPool(manifest.total_bytes)
        self._push_stream: PushStream | None = None
        if not whole:
            shares = use_shared_memory and parse_address(address).is_loopback
            self._push_stream = PushStream(channel, manifest, self._pool, shares)
        num_bytes = 2 * manifest.total_bytes  # gradient and statistics up, values down
        self._timeout_sec = CALL_TIMEOUT_SEC + num_bytes / _BYTES_PER_SEC

    def _get_gradient_buffer(self) -> np.ndarray | None:
        return None if self._push_stream is None else self._push_stream.gradient_buffer

    def _take(self, reply: Reply) -> None:
        super()._take(reply)
        self._health.note_global_t(reply.global_t)

    def _open_group(self) -> GroupConnection:
        return GroupStream(self._channel, self._address, self._manifest, self.client_id)

    def _call_push_pull(self, push: Push, want_values: bool, have_version: int) -> Reply:
        """Sends a push; if the server has just become unavailable, repeats it for about 2 s.

        The server applies it once.
        """
        was_away, give_up = self._health.away, time.monotonic() + _RETRY_SEC
        while True:
            try:
                return self._send(push, want_values, have_version)
            except ServerUnavailableError:
                if was_away or time.monotonic() > give_up:
                    raise
                time.sleep(random.uniform(*_RETRY_SLEEP_SEC))

    def _send(self, push: Push, want_values: bool, have_version: int) -> Reply:
        with self._watch_health():
            if self._push_stream is not None:
                return self._push_stream.push_pull(
                    push, want_values, have_version, self._timeout_sec
                )
            (request,) = messages.push_to_messages(push, want_values, have_version)
            reply = self._stub.PushPullWhole(request, timeout=self._timeout_sec)
            return messages.messages_to_reply([reply], self.manifest, self._pool)

    def _call_pull(self, have_version: int | None) -> Reply:
        request = pb.PullRequest(
            client_id=self.client_id,
            have_version=have_version or 0,
            have_any=have_version is not None,
        )
        with self._watch_health():
            replies = self._pull(request, timeout=self._timeout_sec)
            reply = messages.messages_to_reply(replies, self.manifest, self._pool)
            for _ in replies:  # makes gRPC notice the end of the call
                pass
            return reply

    def close(self) -> None:
        """Sends what is pending, if the server answers, and ends the stream. Idempotent."""
        try:
            super().close()
        finally:
            if self._push_stream is not None:
                self._push_stream.close()

    @contextlib.contextmanager
    def _watch_health(self) -> Iterator[None]:
        """Probes an unavailable server briefly before each call, so that agents do not stall."""
        health = self._health
        try:
            with errors.translate(self._address):
                if health.away:
                    health.wait(self._ask, f"{errors.PARAMETER_SERVER} at {self._address}")
                yield
        except ServerUnavailableError:
            health.away = True
            raise
        health.away = False

    def _ask(self) -> Any:
        return self._stub.GetManifest.future(pb.GetManifestRequest(), timeout=_PROBE_TIMEOUT_SEC)
