"""The gRPC service of the coordinator."""

import functools
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from relaax_like.addons.coordinator.coordinator import MAX_SLAVES, Coordinator, NoSuchJobError
from relaax_like.addons.coordinator.job import (
    MAX_CONFIG_BYTES,
    MAX_MESSAGE_BYTES,
    validate_format,
    validate_name,
    validate_size,
)
from relaax_like.addons.coordinator.job_queue import QueueFullError
from relaax_like.addons.coordinator.tasks import NameInUseError, RefusedAttemptError
from relaax_like.addons.coordinator.versions import pack_version
from relaax_like.bridge.channel import bind, make_server
from relaax_like.bridge.errors import abort
from relaax_like.bridge.serving import add_health
from relaax_like.config.address import Address
from relaax_like.config.job_keys import validate_job_config
from relaax_like.v1 import coordinator_pb2 as pb
from relaax_like.v1 import coordinator_pb2_grpc as pb_grpc
from relaax_like.wire.errors import (
    ConfigError,
    InvalidInputError,
    RelaaxError,
    ServerUnavailableError,
)
from relaax_like.wire.security import ServerSecurity

SERVICE = "relaax.v1.Coordinator"
# A poll of each slave, and as many other calls; one address can have half of them.
_MAX_CALLS = 4 * MAX_SLAVES
_VERSION_SEC = 600.0
_CODES = (
    (RefusedAttemptError, grpc.StatusCode.FAILED_PRECONDITION),
    (NoSuchJobError, grpc.StatusCode.NOT_FOUND),
    (NameInUseError, grpc.StatusCode.ALREADY_EXISTS),
    (QueueFullError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (ConfigError, grpc.StatusCode.INVALID_ARGUMENT),
)


def _answer(context: grpc.ServicerContext, request: Any, act: Callable[[], Any]) -> Any:
    try:
        validate_format(request.format, "coordinator")
        if "slave" in request.DESCRIPTOR.fields_by_name:
            validate_name(request.slave, "slave")
        return act()
    except RelaaxError as error:
        abort(context, error, _CODES)


def _answering(act: Callable[[Any, Any], Any]) -> Callable[[Any, Any, grpc.ServicerContext], Any]:
    """Makes a method that returns the reply to a request one of the gRPC service."""

    @functools.wraps(act)
    def answer(servicer: Any, request: Any, context: grpc.ServicerContext) -> Any:
        return _answer(context, request, lambda: act(servicer, request))

    return answer


class CoordinatorServicer(pb_grpc.CoordinatorServicer):
    """The gRPC service: checks the formats and settings of requests, and calls the coordinator.

    Args:
      coordinator: the coordinator to serve.
    """

    def __init__(self, coordinator: Coordinator):
        self._coordinator = coordinator

    @_answering
    def Submit(self, request: pb.SubmitRequest) -> pb.SubmitReply:
        """Adds a job."""
        validate_size(request.config, MAX_CONFIG_BYTES, "config")
        try:
            config = json.loads(request.config)
        except (ValueError, RecursionError):
            raise InvalidInputError(
                f"config: {request.config[:80]!r} is not valid JSON; update the client"
            ) from None
        validate_job_config(config)
        number = self._coordinator.submit(request.key, request.name, config, request.collectors)
        return pb.SubmitReply(job=number)

    @_answering
    def List(self, request: pb.ListRequest) -> pb.ListReply:
        """Describes jobs and slaves."""
        return self._coordinator.list_jobs(request.job, request.after)

    @_answering
    def Cancel(self, request: pb.CancelRequest) -> pb.CancelReply:
        """Cancels a job."""
        self._coordinator.cancel(request.job)
        return pb.CancelReply()

    @_answering
    def SetCollectors(self, request: pb.SetCollectorsRequest) -> pb.SetCollectorsReply:
        """Adds collectors to a job, or removes some."""
        self._coordinator.set_collectors(request.job, request.collectors)
        return pb.SetCollectorsReply()

    def Poll(self, request: pb.PollRequest, context: grpc.ServicerContext) -> pb.PollReply:
        """Records what a slave does, and returns tasks for it."""
        return _answer(
            context, request, lambda: self._coordinator.poll(request, context.add_callback)
        )

    @_answering
    def Report(self, request: pb.ReportRequest) -> pb.ReportReply:
        """Records results of tasks, and the end of an attempt."""
        return pb.ReportReply(accepted=self._coordinator.report(request))

    @_answering
    def Leave(self, request: pb.LeaveRequest) -> pb.LeaveReply:
        """Forgets a slave."""
        self._coordinator.leave(request.slave, request.incarnation)
        return pb.LeaveReply()

    def SendVersion(
        self, requests: Iterator[pb.VersionPart], context: grpc.ServicerContext
    ) -> pb.SendVersionReply:
        """Stores a version of a job."""
        first = next(requests, pb.VersionPart())
        header = first.header

        def receive() -> pb.SendVersionReply:
            parts = itertools.chain([first], requests)
            return pb.SendVersionReply(version=self._coordinator.receive_version(header, parts))

        return _answer(context, header, receive)

    def GetVersion(
        self, request: pb.GetVersionRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.VersionPart]:
        """Sends a job's newest version."""
        folder = _answer(context, request, lambda: self._coordinator.find_version(request))
        try:
            yield from pack_version(folder)
        except (OSError, InvalidInputError) as error:
            abort(
                context,
                ServerUnavailableError(
                    f"{folder}: the version cannot be read ({error}); check the coordinator's disk"
                ),
            )


def create_coordinator_server(
    address: Address, coordinator: Coordinator, security: ServerSecurity | None = None
) -> tuple[grpc.Server, int]:
    """Builds a server with this service and gRPC health checks; the caller starts and stops it.

    Args:
      address: to listen on; port 0 means any free port.
      coordinator: owned by the caller, which closes it before the server is stopped.
      security: what clients must present; None: nothing, and no TLS.

    Returns:
      The server, and its actual port.

    Raises:
      ConfigError: the port is taken, or the address cannot be used on this machine; the error
        names the process that holds the port, if possible.
    """
    server = make_server("coordinator", _MAX_CALLS, security, MAX_MESSAGE_BYTES)
    pb_grpc.add_CoordinatorServicer_to_server(CoordinatorServicer(coordinator), server)
    add_health(server, SERVICE)
    try:
        return server, bind(server, str(address), security)
    except RelaaxError as error:
        raise ConfigError(f"the coordinator: {error}") from None
