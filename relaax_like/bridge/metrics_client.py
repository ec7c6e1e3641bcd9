"""Sends metrics to the process that records them."""

import logging
import math
import time
from collections.abc import Callable

import grpc

from relaax_like.bridge.channel import make_channel
from relaax_like.config.address import Address
from relaax_like.metrics.buffered import DEFAULT_MAX_QUEUE, START, BufferedMetrics, Point
from relaax_like.v1 import metrics_pb2, metrics_pb2_grpc
from relaax_like.wire.security import ClientSecurity

_MAX_POINTS_PER_CALL = 2_000
_CALL_TIMEOUT_SEC = 5.0
_CLOSE_TIMEOUT_SEC = 1.0
_CONNECT_TIMEOUT_SEC = 1.0
# A server that is restarted, or ends first at the end of the training, is not worth a line.
_TELL_AFTER_SEC = 10.0
_CHANNEL_OPTIONS = [
    # gRPC's own limit is two minutes, which is too long after a metrics server has restarted.
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # Otherwise an http_proxy in the environment would intercept calls to this machine.
    ("grpc.enable_http_proxy", 0),
]

_log = logging.getLogger(__name__)


class MetricsClient(BufferedMetrics):
    """The stub of a metrics service, which the metrics server and the parameter server provide.

        with MetricsClient("localhost:7002", global_t=lambda: client.global_t) as metrics:
            metrics.scalar("episode reward", 17.0)

    Points are kept in memory while the server is not available, up to `max_queue`; then new ones
    are dropped and counted. Each point is recorded at most once: points of a call that failed
    midway are dropped and never sent again.
    """

    def __init__(
        self,
        server: str | Address | grpc.Channel,
        global_t: Callable[[], float],
        max_queue: int = DEFAULT_MAX_QUEUE,
        security: ClientSecurity | None = None,
    ):
        """Connects in the background; an absent server is not an error.

        Args:
          server: an address, or a channel that the caller owns and closes.
          global_t: returns the x of points without one; must be fast.
          max_queue: maximum number of points in memory; more are dropped.
          security: token and certificates for an address; None: no token and no TLS.

        Raises:
          ConfigError: a file that `security` names cannot be used.
          ValueError: `max_queue` is below 1.
        """
        super().__init__("metrics client", global_t, max_queue)
        self._owned: grpc.Channel | None = None
        if isinstance(server, str | Address):
            server = self._owned = make_channel(str(server), security, _CHANNEL_OPTIONS)
        self._channel = server
        self._stub = metrics_pb2_grpc.MetricsStub(self._channel)
        self._check: grpc.Future | None = None  # whether the server answers
        self._failing_since = math.inf
        self._has_told = False
        self._start()

    def close(self, timeout_sec: float = 2 * _CLOSE_TIMEOUT_SEC + 1.0) -> None:
        """Sends what is queued, if the server answers quickly, and disconnects. Idempotent.

        A channel that the caller owns stays open.
        """
        with self._condition:
            self._closing = True
        if self._check is not None:
            self._check.cancel()
        super().close(timeout_sec)

    def _consume(self, points: list[Point], closing: bool) -> int:
        batch = points[:_MAX_POINTS_PER_CALL]
        # Points that were never sent can be kept; those of a failed call cannot, because the server
        # might have received them. An empty call first checks whether the server answers.
        done = 0
        try:
            self._check = self._stub.StoreScalars.future(
                metrics_pb2.StoreScalarsRequest(),
                timeout=_CONNECT_TIMEOUT_SEC,
                wait_for_ready=not closing,
            )
            self._check.result()
            done = len(batch)
            self._send(batch, _CLOSE_TIMEOUT_SEC if closing else _CALL_TIMEOUT_SEC)
        except grpc.FutureCancelledError:
            pass
        except grpc.RpcError as error:
            self._count_dropped(done)
            self._note_failing(f"{error.code().name}: {error.details()}")
        return done

    def _send(self, points: list[Point], timeout_sec: float) -> None:
        starts = [round(p.x) for p in points if p.name == START]
        request = metrics_pb2.StoreScalarsRequest(
            scalars=[
                metrics_pb2.Scalar(name=p.name, y=p.y, x=p.x) for p in points if p.name != START
            ],
            started_at=starts[-1] if starts else None,
        )
        reply = self._stub.StoreScalars(request, timeout=timeout_sec)
        if reply.dropped:
            self._count_dropped(reply.dropped)
        if self._has_told:
            _log.info("sending metrics again; dropped so far: %d", self.dropped)
        self._failing_since, self._has_told = math.inf, False

    def _note_failing(self, reason: str) -> None:
        now = time.monotonic()
        self._failing_since = min(self._failing_since, now)
        if now - self._failing_since >= _TELL_AFTER_SEC and not self._has_told:
            self._has_told = True
            _log.warning("metrics could not be sent for %g s (%s)", _TELL_AFTER_SEC, reason)

    def _finish(self) -> None:
        if self._owned is not None:
            self._owned.close()
