"""Receives pushes of clients on the server's machine through shared memory."""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import grpc

from relaax_like.bridge import frames
from relaax_like.bridge.mailbox import Mailbox
from relaax_like.bridge.shared_memory import SharedVectors, UnusableError
from relaax_like.core.manifest import Manifest
from relaax_like.v1 import parameter_server_pb2 as pb

PUSH_PULL = "/relaax.v1.ParameterServer/PushPull"

# Messages that `PushPull` reads: if an offer was made, its result comes first.
Part: TypeAlias = frames.Request | SharedVectors | UnusableError


class SharedMemoryLane(grpc.ServerInterceptor):
    """Attaches to memory that a client offers as the first message of a `PushPull` stream.

    Messages from its mailboxes pass the interceptors after this one as if they came from the
    stream. The method itself receives the result of the offer as its first part, answers it, and
    does not see in which way other messages are transferred.

    Args:
      manifest: of the run.
    """

    def __init__(self, manifest: Manifest):
        self._manifest = manifest

    def intercept_service(
        self, continuation: Callable[..., Any], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Returns the handler of a call; that of `PushPull` can use mailboxes."""
        handler = continuation(handler_call_details)
        if handler is None or handler_call_details.method != PUSH_PULL:
            return handler

        def serve(
            requests: Iterator[frames.Request], context: grpc.ServicerContext
        ) -> Iterator[frames.Reply]:
            call = _Call(self._manifest, context)
            return call.write(handler.stream_stream(call.read(requests), context))

        return grpc.stream_stream_rpc_method_handler(
            serve, handler.request_deserializer, handler.response_serializer
        )


class _Call:
    """One `PushPull` stream, and the mailboxes of its client, if any."""

    def __init__(self, manifest: Manifest, context: grpc.ServicerContext):
        self._manifest = manifest
        self._context = context
        self._replies: Mailbox | None = None  # None: through the stream

    def read(self, requests: Iterator[frames.Request]) -> Iterator[Part]:
        """Yields the client's messages from the stream or the mailbox."""
        for first in requests:
            if not (isinstance(first, pb.PushPullRequest) and first.HasField("offer")):
                yield first
                break
            try:
                vectors = SharedVectors.attach(
                    first.offer, self._manifest.gradient_bytes, self._manifest.total_bytes
                )
            except UnusableError as error:
                yield error
                break
            yield vectors
            if vectors.offer.mailboxes:
                yield from self._read_mailbox(vectors, requests)
                return
            del vectors  # it must not outlive its last user
            break
        yield from requests

    def write(self, replies: Iterator[frames.Reply]) -> Iterator[frames.Reply]:
        """Sends replies by mailbox; yields those for the stream."""
        for reply in replies:
            if self._replies is None:
                yield reply
                continue
            letter = frames.to_bytes(reply)
            if not self._replies.fits(letter):
                yield reply
                letter = b""
            self._replies.put(letter)

    def _read_mailbox(
        self, vectors: SharedVectors, requests: Iterator[frames.Request]
    ) -> Iterator[frames.Request]:
        if not self._context.add_callback(vectors.requests.close):
            return  # it has already ended
        self._replies = vectors.replies
        while (letter := vectors.requests.take()) is not None:
            if letter:
                yield frames.to_push_pull_request(letter)
                continue
            request = next(requests, None)  # the actual one is sent through the stream
            if request is None:
                return
            yield request
