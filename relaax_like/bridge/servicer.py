"""The `relaax.v1.ParameterServer` service: translates calls to a `ParameterServerBackend`."""

import functools
from collections.abc import Iterator
from typing import cast

import grpc

from relaax_like.bridge import frames, messages
from relaax_like.bridge.in_process import push_pull
from relaax_like.bridge.receive_budget import ReceiveBudget, SlowError
from relaax_like.bridge.shared_memory import SharedVectors, UnusableError
from relaax_like.bridge.shared_memory_lane import Part
from relaax_like.core.manifest import Manifest, manifest_to_message
from relaax_like.core.records import Push, Reply
from relaax_like.core.roles import ParameterServerBackend
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.wire import tracing
from relaax_like.wire.errors import (
    InvalidInputError,
    ServerUnavailableError,
    SnapshotError,
)

_MAX_WAIT_SEC = 60.0
# Memory for gradients that are being received: this many bytes, or this many gradients.
_RECEIVING_BYTES = 256 * 1024 * 1024
_RECEIVING_PUSHES = 16
# Maximum bytes of a message in addition to its array data.
_NAMES_BYTES = 64 * 1024


class ParameterServerServicer:
    """Serves our own clients: agents, rlx servers and operators. Thread-safe, like the backend.

    Args:
      backend: the parameter server.

    Attributes:
      manifest: of the run.
    """

    service = frames.PARAMETER_SERVER

    def __init__(self, backend: ParameterServerBackend):
        self.manifest = backend.manifest
        self._backend = backend
        self._manifest_message = manifest_to_message(backend.manifest)
        read = functools.partial(
            frames.to_push_pull_request, max_header_bytes=_max_header_bytes(backend.manifest)
        )
        self.readers = {"PushPull": read, "PushPullWhole": read}
        self._receiving = ReceiveBudget(
            max(_RECEIVING_BYTES, _RECEIVING_PUSHES * backend.manifest.gradient_bytes)
        )

    def GetManifest(
        self, request: pb.GetManifestRequest, context: grpc.ServicerContext
    ) -> pb.Manifest:
        """Answers with the layout of the flat vector."""
        return self._manifest_message

    def PushPull(
        self, request_iterator: Iterator[Part], context: grpc.ServicerContext
    ) -> Iterator[frames.Reply]:
        """Applies one push after another and returns newer values, if requested."""
        shared = None
        more = cast("Iterator[frames.Request]", request_iterator)  # after the first part
        try:
            for first in request_iterator:
                if isinstance(first, SharedVectors):
                    shared = first
                    yield pb.PushPullReply(answer=pb.SharedMemoryAnswer(accepted=True))
                    continue
                if isinstance(first, UnusableError):
                    yield pb.PushPullReply(answer=pb.SharedMemoryAnswer(reason=str(first)))
                    continue
                reply = self._push_pull(first, more, context, shared)
                with tracing.span("send values"):
                    yield from messages.reply_to_messages(reply, shared)
        finally:
            shared = None  # an exception's traceback would keep the memory for a while

    def PushPullWhole(self, request: frames.Request, context: grpc.ServicerContext) -> frames.Reply:
        """Applies one push and returns newer values, for a model that fits one message each way."""
        messages.validate_whole(self.manifest)
        (reply,) = messages.reply_to_messages(self._push_pull(request, iter(()), context))
        return reply

    def Pull(
        self, request: pb.PullRequest, context: grpc.ServicerContext
    ) -> Iterator[frames.Reply]:
        """Streams the newest values; without values if the client already has the newest."""
        have_version = request.have_version if request.have_any else None
        reply = self._backend.pull(request.client_id, have_version)
        with tracing.span("send values"):
            yield from messages.reply_to_messages(reply)

    def _push_pull(
        self,
        first: frames.Request,
        more: Iterator[frames.Request],
        context: grpc.ServicerContext,
        shared: SharedVectors | None = None,
    ) -> Reply:
        with tracing.span("read push"):
            push, header = self._read_push(first, more, context, shared)
        with tracing.span("push"):
            want, have = header.want_values, header.have_version
            longest = min(remaining_sec(context), header.timeout_sec or _MAX_WAIT_SEC)
            return push_pull(self._backend, push, want, have, longest)

    def _read_push(
        self,
        first: frames.Request,
        more: Iterator[frames.Request],
        context: grpc.ServicerContext,
        shared: SharedVectors | None,
    ) -> tuple[Push, pb.PushHeader]:
        num_bytes = messages.count_awaited_bytes(first, self.manifest)
        try:
            if not num_bytes:
                return messages.messages_to_push(first, more, self.manifest, shared)
            with self._receiving.admit(num_bytes, context) as reception:
                return messages.messages_to_push(first, reception.note(more), self.manifest)
        except InvalidInputError:
            self._backend.count_refused("malformed")
            raise
        except SlowError:
            self._backend.count_refused("slow")
            raise

    def GetStatus(self, request: pb.GetStatusRequest, context: grpc.ServicerContext) -> pb.Status:
        """Answers with the status."""
        return messages.status_to_message(self._backend.status())

    def ReportClients(
        self, request: pb.ClientsReport, context: grpc.ServicerContext
    ) -> pb.ClientsReportReply:
        """Receives an rlx server's report about its clients."""
        self._backend.report_clients(messages.message_to_report(request))
        return pb.ClientsReportReply()

    def Save(self, request: pb.SaveRequest, context: grpc.ServicerContext) -> pb.SaveReply:
        """Writes a snapshot now."""
        try:
            path = self._backend.save_checkpoint()
        except SnapshotError as error:
            raise ServerUnavailableError(str(error)) from error
        return pb.SaveReply(path="" if path is None else str(path.absolute()))

    def Stop(self, request: pb.StopRequest, context: grpc.ServicerContext) -> pb.StopReply:
        """Requests an orderly stop of the process."""
        self._backend.request_stop()
        return pb.StopReply()


def remaining_sec(context: grpc.ServicerContext) -> float:
    """Returns the seconds until the caller's deadline, at most 60."""
    remaining = context.time_remaining()
    return _MAX_WAIT_SEC if remaining is None else min(remaining, _MAX_WAIT_SEC)


def max_message_bytes(manifest: Manifest) -> int:
    """Returns an upper bound of the bytes of a message, of our protocol or of the tutorial's.

    A client can make a server allocate that much, and more once the message is parsed.
    """
    array = max((segment.num_bytes for segment in manifest.pushed), default=0)  # the tutorial's
    return max(_max_header_bytes(manifest), array + _NAMES_BYTES)


def _max_header_bytes(manifest: Manifest) -> int:
    statistics = sum(
        segment.num_bytes for found in manifest.statistics.values() for segment in found
    )
    return frames.MAX_HEADER_BYTES + statistics
