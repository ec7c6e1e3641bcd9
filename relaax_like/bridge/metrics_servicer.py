"""The gRPC service that records metrics: of the metrics server, parameter server or learner."""

import grpc

from relaax_like.bridge.channel import bind, make_server
from relaax_like.bridge.serving import add_health
from relaax_like.config.address import Address
from relaax_like.core.metrics import Metrics
from relaax_like.metrics.buffered import MAX_X, BufferedMetrics, select_valid, validate_point
from relaax_like.v1 import metrics_pb2, metrics_pb2_grpc
from relaax_like.wire.errors import ConfigError, InvalidInputError, RelaaxError
from relaax_like.wire.security import ServerSecurity

SERVICE = "relaax.v1.Metrics"
MAX_POINTS = 10_000
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
_MAX_WORKERS = 4
_MAX_CALLS = 64


class MetricsServicer(metrics_pb2_grpc.MetricsServicer):
    """Answers `StoreScalars`: passes the points to a recorder.

    Args:
      recorder: writes the points, or sends them to another process (`MetricsClient`).
    """

    def __init__(self, recorder: Metrics):
        self._recorder = recorder

    def StoreScalars(
        self, request: metrics_pb2.StoreScalarsRequest, context: grpc.ServicerContext
    ) -> metrics_pb2.StoreScalarsReply:
        """Records all points of a request, or none if one of them is invalid.

        The reply has the number of points that the recorder dropped.
        """
        try:
            points = unpack_scalars(request)
        except InvalidInputError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if not context.is_active():  # The caller has given up and counted them as lost.
            return metrics_pb2.StoreScalarsReply()
        if request.HasField("started_at"):
            self._recorder.start_at(min(request.started_at, int(MAX_X)))
        return metrics_pb2.StoreScalarsReply(dropped=self._recorder.scalars(points))


def unpack_scalars(
    request: metrics_pb2.StoreScalarsRequest,
) -> list[tuple[str, float, float | None]]:
    """Validates a received request and returns its points, (name, y, x), for `Metrics.scalars`.

    For a point without x, x is the request's `global_t`; None if that is 0.

    Raises:
      InvalidInputError: there are too many points, or one is not valid; the error names it.
    """
    if len(request.scalars) > MAX_POINTS:
        raise InvalidInputError(
            f"scalars: {len(request.scalars)} points, but at most {MAX_POINTS} are allowed; "
            "send several requests"
        )
    newest = float(request.global_t) or None
    points = [(s.name, s.y, s.x if s.HasField("x") else newest) for s in request.scalars]
    if select_valid(points)[1] is not None:
        for index, point in enumerate(points):
            validate_point(*point, f"scalars[{index}]")
    return points


def add_metrics_servicer(server: grpc.Server, recorder: Metrics) -> None:
    """Adds the service to a server, which can have other services."""
    metrics_pb2_grpc.add_MetricsServicer_to_server(MetricsServicer(recorder), server)


def create_metrics_server(
    address: Address, recorder: BufferedMetrics, security: ServerSecurity | None = None
) -> tuple[grpc.Server, int]:
    """Builds a server with this service and gRPC health checks; the caller starts and stops it.

    Args:
      address: to listen on; port 0 means any free port.
      recorder: owned by the caller, which closes it after the server has stopped.
      security: what clients must present; None: nothing, and no TLS.

    Returns:
      The server, and its actual port.

    Raises:
      ConfigError: the port is taken, or the address cannot be used on this machine.
    """
    name = "metrics server"
    server = make_server(name, _MAX_CALLS, security, MAX_MESSAGE_BYTES, threads=_MAX_WORKERS)
    add_metrics_servicer(server, recorder)
    add_health(server, SERVICE)
    try:
        return server, bind(server, str(address), security)
    except RelaaxError as error:
        raise ConfigError(f"relaax-metrics-server.bind (--bind): {error}") from None
