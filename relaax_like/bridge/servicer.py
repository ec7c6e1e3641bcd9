"""The `relaax.v1.ParameterServer` service: translates calls to a `ParameterServerBackend`."""

from collections.abc import Iterator

import grpc

from relaax_like.bridge import errors, messages
from relaax_like.bridge.in_process import push_pull
from relaax_like.bridge.manifest import manifest_to_message
from relaax_like.bridge.service import ParameterServerBackend, Push, Reply
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.v1 import parameter_server_pb2_grpc as pb_grpc
from relaax_like.wire import tracing
from relaax_like.wire.errors import InvalidInputError

_MAX_WAIT_SEC = 60.0


class ParameterServerServicer(pb_grpc.ParameterServerServicer):
    """Serves our own agents. Thread-safe, as the backend is."""

    def __init__(self, backend: ParameterServerBackend):
        self._backend = backend
        self._manifest = manifest_to_message(backend.manifest)

    def GetManifest(
        self, request: pb.GetManifestRequest, context: grpc.ServicerContext
    ) -> pb.Manifest:
        """Answers with the layout of the flat vector."""
        return self._manifest

    def PushPull(
        self, request_iterator: Iterator[pb.PushPullRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.PushPullReply]:
        """Applies one push and streams newer values back, if wanted."""
        reply = self._push_pull(request_iterator, context)
        with tracing.span("send values"):
            yield from messages.reply_to_messages(reply)

    def PushPullWhole(
        self, request: pb.PushPullRequest, context: grpc.ServicerContext
    ) -> pb.PushPullReply:
        """Does the same for a model that fits one message each way."""
        try:
            messages.validate_whole(self._backend.manifest)
        except InvalidInputError as error:
            errors.abort(context, error)
        (reply,) = messages.reply_to_messages(self._push_pull(iter([request]), context))
        return reply

    def Pull(
        self, request: pb.PullRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.PushPullReply]:
        """Streams the newest values, or none when the client's are the newest."""
        have_version = request.have_version if request.have_any else None
        try:
            reply = self._backend.pull(request.client_id, have_version)
        except Exception as error:
            errors.abort(context, error)
        with tracing.span("send values"):
            yield from messages.reply_to_messages(reply)

    def _push_pull(
        self, requests: Iterator[pb.PushPullRequest], context: grpc.ServicerContext
    ) -> Reply:
        try:
            with tracing.span("read push"):
                push, header = self._read_push(requests)
            with tracing.span("push"):
                want, have = header.want_values, header.have_version
                return push_pull(self._backend, push, want, have, remaining_sec(context))
        except Exception as error:
            errors.abort(context, error)

    def _read_push(self, requests: Iterator[pb.PushPullRequest]) -> tuple[Push, pb.PushHeader]:
        try:
            return messages.messages_to_push(requests, self._backend.manifest)
        except InvalidInputError:
            self._backend.count_refused("malformed")
            raise

    def GetStatus(self, request: pb.GetStatusRequest, context: grpc.ServicerContext) -> pb.Status:
        """Answers with the numbers for people."""
        return messages.status_to_message(self._backend.status())


def remaining_sec(context: grpc.ServicerContext) -> float:
    """Returns the time until the caller's deadline, at most a minute."""
    remaining = context.time_remaining()
    return _MAX_WAIT_SEC if remaining is None else min(remaining, _MAX_WAIT_SEC)
