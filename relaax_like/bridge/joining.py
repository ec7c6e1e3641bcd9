"""The `relaax.v1.LearnerGroup` service and its client: learners that make each update together."""

import functools
from collections.abc import Iterator
from typing import Any, ClassVar

import grpc
import numpy as np

from relaax_like.bridge import chunks, errors, frames
from relaax_like.bridge.messages import name_outcome, number_outcome
from relaax_like.bridge.receive_budget import ReceiveBudget
from relaax_like.bridge.serving import GrpcCall
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
_SERVICE = group_pb2.DESCRIPTOR.services_by_name["LearnerGroup"]
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

    service = _SERVICE
    readers: ClassVar = {
        "Join": functools.partial(
            frames.to_part,
            kind=group_pb2.GroupPart,
            max_header_bytes=_MAX_HEADER_BYTES,
            max_fields=_MAX_FIELDS,
        )
    }

    def __init__(self, backend: ParameterServerBackend):
        self._backend = backend
        num_bytes = backend.manifest.gradient_bytes
        self._receiving = ReceiveBudget(max(_RECEIVING_BYTES, 4 * num_bytes))

    def Join(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        """Answers one learner's requests until its stream ends."""
        connection: GroupConnection | None = None
        try:
            first: group_pb2.GroupRequest = frames.get_header(next(requests, None), "join")
            errors.validate_hello(first, FORMAT, self._backend.manifest, learner=_MAX_NAME)
            connection = self._backend.join_group(first.learner)
            if not context.add_callback(connection.close):  # it has already ended
                return
            yield group_pb2.GroupAnswerPart(
                header=group_pb2.GroupAnswer(outcome="GROUP_OUTCOME_DONE")
            )
            for part in requests:
                request = self._read(frames.get_header(part, "join"), requests, context)
                reply = connection.exchange(request)
                yield group_pb2.GroupAnswerPart(header=_reply_to_message(reply))
                yield from chunks.split_first(_get_flat(reply))[1]
        finally:
            if connection is not None:
                connection.close()

    def _read(
        self, header: group_pb2.GroupRequest, requests: Iterator[Any], context: grpc.ServicerContext
    ) -> GroupRequest:
        if not 1 <= header.kind <= len(GROUP_KINDS):
            raise InvalidInputError(
                f"kind: {header.kind}, expected 1 to {len(GROUP_KINDS)}; run the same version of "
                "relaax_like on both ends"
            )
        for field, number, most, what in (
            ("sums", len(header.sums), _MAX_SUMS, "numbers"),
            ("tag", len(header.tag), _MAX_TAG, "characters"),
            ("groups", len(header.groups), _MAX_GROUPS, "groups"),
            ("clip", len(header.clip), _MAX_GROUPS, "groups"),
            ("units", header.units, _MAX_UNITS, "rows or slots"),
        ):
            if number > most:
                raise InvalidInputError(f"{field}: {number} {what}, expected at most {most}")
        kind, gradient = GROUP_KINDS[header.kind - 1], None
        layout = self._backend.manifest.select_groups(tuple(header.groups))
        expected = layout.gradient_bytes if kind == "step" else 0
        if header.gradient_bytes != expected:
            raise InvalidInputError(
                f"gradient_bytes: {header.gradient_bytes}, expected {expected} in a request of "
                f"kind {kind}{' for these groups' if header.groups else ''}; run the same version "
                "of relaax_like on both ends"
            )
        if expected and chunks.fits_one(expected):
            gradient = chunks.read_vector(iter(()), expected, "gradient", header.gradient)
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
        read = functools.partial(
            frames.to_part, kind=group_pb2.GroupAnswerPart, max_header_bytes=_MAX_HEADER_BYTES
        )
        self._call = GrpcCall(channel, _SERVICE, "Join", read, address)
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
        flat = None if gradient is None else gradient.view(np.uint8)
        header.gradient, parts = chunks.split_first(flat)
        self._put(header)
        for chunk in parts:
            self._call.put(chunk)
        return self._take_answer()

    def _take_answer(self) -> GroupReply:
        part = next(self._call, None)
        if not isinstance(part, group_pb2.GroupAnswerPart):
            raise ServerUnavailableError(
                f"the parameter server at {self._address} has ended the learner's connection; "
                "join again"
            )
        return _message_to_reply(part.header, self._call, self._manifest)

    def close(self) -> None:
        """Leaves the group. Idempotent."""
        self._call.cancel()

    def _put(self, header: group_pb2.GroupRequest) -> None:
        self._call.put(group_pb2.GroupPart(header=header))


def _reply_to_message(reply: GroupReply) -> group_pb2.GroupAnswer:
    newest, flat = reply.reply, _get_flat(reply)
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
        values_bytes=0 if flat is None else flat.nbytes,
        values=chunks.split_first(flat)[0],
    )


def _get_flat(reply: GroupReply) -> np.ndarray | None:
    values = reply.reply.values
    return None if values is None else values.flat


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
            parts = iter(())  # they came with the header
        flat = chunks.read_vector(parts, manifest.total_bytes, "values", header.values)
        values = Values(version=header.version, flat=flat)
    return to_record(
        GroupReply,
        header,
        outcome=GROUP_OUTCOMES[header.outcome - 1],
        sums=np.array(header.sums),
        reply=to_record(Reply, header, outcome=name_outcome(header.applied), values=values),
    )
