"""The `relaax.v1.LearnerGroup` service and its client: learners that make each update together."""

import queue
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np

from relaax_like.bridge import chunks, errors, frames
from relaax_like.bridge.messages import name_outcome, number_outcome
from relaax_like.bridge.receive_budget import ReceiveBudget
from relaax_like.bridge.serving import add_service
from relaax_like.core.manifest import Manifest
from relaax_like.core.message_fields import to_message, to_record
from relaax_like.core.records import (
    GROUP_KINDS,
    GROUP_OUTCOMES,
    GroupReply,
    GroupRequest,
    Reply,
    Values,
)
from relaax_like.core.roles import GroupConnection, ParameterServerBackend
from relaax_like.v1 import group_pb2
from relaax_like.wire.errors import InvalidInputError, ProtocolError, ServerUnavailableError

FORMAT = 1
_SERVICE = "relaax.v1.LearnerGroup"
_MAX_NAME, _MAX_TAG, _MAX_GROUPS = 200, 100, 1_000
# As doubles, with the rest of a header, below the 4 MiB of a message that a learner receives.
_MAX_SUMS = 1 << 18
_MAX_UNITS = 1 << 24
# A header has at most these sums, one chunk of a gradient or of values, and names of groups.
_MAX_HEADER_BYTES = 8 * _MAX_SUMS + 2 * chunks.CHUNK_BYTES
# Groups, norms, and twice as many as the other fields of a request.
_MAX_FIELDS = 2 * _MAX_GROUPS + 26
# Memory for gradients that are being received.
_RECEIVING_BYTES = 64_000_000


class GroupServicer:
    """Serves the learners of a group. Thread-safe, like the backend.

    Args:
      backend: the parameter server.
    """

    def __init__(self, backend: ParameterServerBackend):
        self._backend = backend
        num_bytes = backend.manifest.gradient_bytes
        self._receiving = ReceiveBudget(max(_RECEIVING_BYTES, 4 * num_bytes))

    def Join(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        """Answers one learner's requests until its stream ends."""
        connection: GroupConnection | None = None
        try:
            first = _read_header(requests)
            assert first is not None
            _validate_first(first, self._backend.manifest)
            connection = self._backend.join_group(first.learner)
            if not context.add_callback(connection.close):  # it has already ended
                return
            yield group_pb2.GroupAnswerPart(
                header=group_pb2.GroupAnswer(outcome="GROUP_OUTCOME_DONE")
            )
            while (header := _read_header(requests, may_end=True)) is not None:
                request = self._read(header, requests, context)
                reply = connection.exchange(request)
                yield group_pb2.GroupAnswerPart(header=_reply_to_message(reply))
                values = reply.reply.values
                if values is not None and not chunks.fits_one(values.flat.nbytes):
                    yield from chunks.split(values.flat)
        finally:
            if connection is not None:
                connection.close()

    def _read(
        self, header: group_pb2.GroupRequest, requests: Iterator[Any], context: grpc.ServicerContext
    ) -> GroupRequest:
        if not 1 <= header.kind <= len(GROUP_KINDS):
            raise InvalidInputError(
                f"kind: {header.kind}, expected 1 to {len(GROUP_KINDS)}; run the same version of "
                "relaax_like on both ends",
                "kind",
            )
        for field, number, most, what in (
            ("sums", len(header.sums), _MAX_SUMS, "numbers"),
            ("tag", len(header.tag), _MAX_TAG, "characters"),
            ("groups", len(header.groups), _MAX_GROUPS, "groups"),
            ("clip", len(header.clip), _MAX_GROUPS, "groups"),
            ("units", header.units, _MAX_UNITS, "rows or slots"),
        ):
            if number > most:
                raise InvalidInputError(f"{field}: {number} {what}, expected at most {most}", field)
        kind, gradient = GROUP_KINDS[header.kind - 1], None
        layout = self._backend.manifest.select_groups(tuple(header.groups))
        expected = layout.gradient_bytes if kind == "step" else 0
        if header.gradient_bytes != expected:
            raise InvalidInputError(
                f"gradient_bytes: {header.gradient_bytes}, expected {expected} in a request of "
                f"kind {kind}{' for these groups' if header.groups else ''}; run the same version "
                "of relaax_like on both ends",
                "gradient_bytes",
            )
        if expected and chunks.fits_one(expected):
            gradient = _read_whole(header.gradient, expected, "gradient")
        elif expected:
            with self._receiving.admit(expected, context) as reception:
                gradient = chunks.read_vector(reception.note(requests), expected, "gradient")
        return to_record(
            GroupRequest,
            header,
            kind=kind,
            sums=np.array(header.sums),
            gradient=None if gradient is None else gradient.view(np.float32),
        )


def add_to_server(servicer: GroupServicer, server: grpc.Server) -> None:
    """Adds the service; chunks are neither packed nor parsed by protobuf."""

    def read(data: bytes) -> Any:
        return frames.to_part(data, group_pb2.GroupPart, _MAX_HEADER_BYTES, _MAX_FIELDS)

    add_service(server, _SERVICE, (grpc.stream_stream_rpc_method_handler, servicer.Join, read))


class GroupStream(GroupConnection):
    """One learner's connection to the group at a parameter server.

    One thread calls `exchange`; any thread can call `close`, which ends an `exchange` in progress.

    Args:
      channel: to the parameter server.
      address: its address, for errors.
      manifest: of the run.
      learner: unique name.

    Raises:
      InvalidInputError: the name is not valid, or the learner has another model than the run, or
        another version of relaax_like.
      LeasedError: learners of this run update independently.
      NotAllowedError: an agent's token is required.
      ServerUnavailableError: the server is not available, there are too many learners, or the
        channel has been closed.
      ProtocolError: the answer is not valid, or something else listens at the address.
    """

    def __init__(self, channel: grpc.Channel, address: str, manifest: Manifest, learner: str):
        self._address = address
        self._manifest = manifest
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        join = channel.stream_stream(
            f"/{_SERVICE}/Join",
            request_serializer=frames.to_bytes,
            response_deserializer=lambda data: frames.to_part(
                data, group_pb2.GroupAnswerPart, _MAX_HEADER_BYTES
            ),
        )
        with errors.translate(address):
            self._call: Any = join(iter(self._outbox.get, None))
        self._put(
            group_pb2.GroupRequest(format=FORMAT, learner=learner, fingerprint=manifest.fingerprint)
        )
        try:
            self._take_answer()
        except BaseException:
            self.close()  # ends gRPC's thread that sends, which waits for the next message
            raise

    def exchange(self, request: GroupRequest) -> GroupReply:
        """Makes a request, and waits for its answer; see `GroupConnection`.

        An error of the server also ends the connection, so that this learner has left the group.

        Raises:
          InvalidInputError: see `GroupConnection`; or the values in the answer are incomplete.
          ProtocolError: the answer is not valid, or the server has failed.
          NotAllowedError: the token is no longer accepted; see `GroupConnection` for other errors.
        """
        gradient = request.gradient
        header = to_message(
            group_pb2.GroupRequest,
            request,
            kind=GROUP_KINDS.index(request.kind) + 1,
            gradient=None,
            gradient_bytes=0 if gradient is None else gradient.nbytes,
        )
        is_whole = gradient is not None and chunks.fits_one(gradient.nbytes)
        if gradient is not None and is_whole:
            header.gradient = gradient.tobytes()
        self._put(header)
        if gradient is not None and not is_whole:
            for chunk in chunks.split(gradient.view(np.uint8)):
                self._outbox.put(chunk)
        return self._take_answer()

    def _take_answer(self) -> GroupReply:
        try:
            part = next(self._call, None)
            if not isinstance(part, group_pb2.GroupAnswerPart):
                raise ServerUnavailableError(
                    f"the parameter server at {self._address} has ended the learner's connection; "
                    "join again"
                )
            return _message_to_reply(part.header, self._call, self._manifest)
        except grpc.RpcError as error:
            raise errors.to_exception(error, self._address) from None

    def close(self) -> None:
        """Leaves the group. Idempotent."""
        self._outbox.put(None)
        self._call.cancel()

    def _put(self, header: group_pb2.GroupRequest) -> None:
        self._outbox.put(group_pb2.GroupPart(header=header))


def _read_header(requests: Iterator[Any], may_end: bool = False) -> group_pb2.GroupRequest | None:
    part = next(requests, None)
    if part is None and may_end:
        return None
    if not isinstance(part, group_pb2.GroupPart) or not part.HasField("header"):
        raise InvalidInputError(
            "join: received no message, or one without a header; send a header first, and then "
            "only the chunks of its gradient",
            "header",
        )
    return part.header


def _validate_first(first: group_pb2.GroupRequest, manifest: Manifest) -> None:
    errors.validate_format(first.format, FORMAT, "learner", "parameter server")
    if not 1 <= len(first.learner) <= _MAX_NAME or not first.learner.isprintable():
        raise InvalidInputError(
            f"learner: {first.learner[:60]!r} of length {len(first.learner)}, expected 1 to "
            f"{_MAX_NAME} printable characters",
            "learner",
        )
    if first.fingerprint != manifest.fingerprint:
        raise InvalidInputError(
            f"fingerprint: {first.fingerprint:08x}, expected {manifest.fingerprint:08x}; the "
            "learner has another model than this run, so start both with the same algorithm folder "
            "and settings",
            "fingerprint",
        )


def _reply_to_message(reply: GroupReply) -> group_pb2.GroupAnswer:
    newest = reply.reply
    num_bytes = 0 if newest.values is None else newest.values.flat.nbytes
    return to_message(
        group_pb2.GroupAnswer,
        reply,
        outcome=GROUP_OUTCOMES.index(reply.outcome) + 1,
        applied=number_outcome(newest.outcome),
        reason=newest.reason,
        version=newest.version,
        global_t=newest.global_t,
        epoch=newest.epoch,
        finished=newest.finished,
        values_bytes=num_bytes,
        values=newest.values.flat.tobytes()
        if newest.values is not None and chunks.fits_one(num_bytes)
        else b"",
    )


def _message_to_reply(
    header: group_pb2.GroupAnswer, parts: Iterator[Any], manifest: Manifest
) -> GroupReply:
    if not 1 <= header.outcome <= len(GROUP_OUTCOMES):
        raise ProtocolError(
            f"join: the answer has outcome {header.outcome}, expected 1 to {len(GROUP_OUTCOMES)}; "
            "run the same version of relaax_like on both ends"
        )
    values = None
    if header.values_bytes:
        if header.values_bytes != manifest.total_bytes:
            raise ProtocolError(
                f"join: the answer has values of {header.values_bytes} bytes, expected "
                f"{manifest.total_bytes}; run the same version of relaax_like on both ends"
            )
        if chunks.fits_one(header.values_bytes):
            flat = _read_whole(header.values, header.values_bytes, "values")
        else:
            flat = chunks.read_vector(parts, manifest.total_bytes, "values")
        values = Values(version=header.version, flat=flat)
    return to_record(
        GroupReply,
        header,
        outcome=GROUP_OUTCOMES[header.outcome - 1],
        sums=np.array(header.sums),
        reply=to_record(Reply, header, outcome=name_outcome(header.applied), values=values),
    )


def _read_whole(data: bytes, num_bytes: int, field: str) -> np.ndarray:
    """Returns a vector that was sent within a message, `[num_bytes] uint8`.

    Raises:
      InvalidInputError: `data` has another length.
    """
    if len(data) != num_bytes:
        raise InvalidInputError(
            f"{field}: {len(data)} bytes, expected {num_bytes}; run the same version of "
            "relaax_like on both ends",
            field,
        )
    return np.frombuffer(data, np.uint8)
