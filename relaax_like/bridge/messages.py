"""Conversion between pushes, replies, reports and statuses, and their protobuf messages."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from relaax_like.bridge import chunks, frames
from relaax_like.bridge.shared_memory import SharedVectors
from relaax_like.core.buffers import BufferPool
from relaax_like.core.episode_reports import read_reports, write_reports
from relaax_like.core.manifest import MAX_STATISTICS, Manifest
from relaax_like.core.message_fields import to_message, to_record
from relaax_like.core.moments import Moments
from relaax_like.core.records import (
    MAX_SERVED_CLIENTS,
    ClientsReport,
    ClientStatus,
    Durability,
    Outcome,
    Push,
    Reply,
    ServedClient,
    Status,
    Values,
)
from relaax_like.v1 import ndarray_pb2
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.ndarray import message_to_ndarray, ndarray_to_message
from relaax_like.wire.versions import validate_versions

_OUTCOMES: Mapping[Outcome, pb.Outcome] = {
    "nothing": pb.NOTHING,
    "applied": pb.APPLIED,
    "pending": pb.PENDING,
    "dropped": pb.DROPPED,
}
_OUTCOME_NAMES = {number: name for name, number in _OUTCOMES.items()}
_DURABILITIES: Mapping[Durability, pb.Durability] = {
    "snapshot": pb.SNAPSHOT,
    "journal": pb.JOURNAL,
    "publication": pb.PUBLICATION,
}
_DURABILITY_NAMES = {number: name for name, number in _DURABILITIES.items()}
# Parts of the flat vector of values, in ascending order.
Ranges = tuple[slice, ...]
MAX_RANGES = 65_536
# Maximum lengths in a report about clients: its server's name, and each text about a client.
_MAX_NAME_LENGTH, _MAX_TEXT_LENGTH = 200, 500
# Maximum of each number in it; the sum over all servers then fits a message.
_MAX_NUMBER = 1 << 40
# Bytes of memory of one episode, as a message and as a record.
_EPISODE_BYTES = 256


def number_outcome(outcome: Outcome) -> pb.Outcome:
    """Returns the number of an outcome in messages."""
    return _OUTCOMES[outcome]


def name_outcome(number: int) -> Outcome:
    """Returns the name of an outcome; "nothing" for an unknown number."""
    return _OUTCOME_NAMES.get(number, "nothing")  # type: ignore[call-overload]


def push_to_messages(
    push: Push,
    want_values: bool,
    have_version: int,
    shared: bool = False,
    timeout_sec: float = 0.0,
) -> Iterator[frames.Request]:
    """Yields the header and the chunks of one push; the chunks are views of the gradient.

    Args:
      push: to send.
      want_values: whether the reply contains values newer than `have_version`.
      have_version: version of the values that the client has.
      shared: whether the gradient is in shared memory; then there are no chunks.
      timeout_sec: how long the client waits; 0: until the deadline of its call.
    """
    gradient = push.gradient
    header = push_to_header(push)
    header.want_values = want_values
    header.have_version = have_version
    header.timeout_sec = timeout_sec
    header.shared_gradient = shared and gradient is not None
    header.first_chunk, parts = chunks.split_first(None if shared else gradient)
    yield pb.PushPullRequest(header=header)
    yield from parts


def push_to_header(push: Push) -> pb.PushHeader:
    """Converts a push, without the bytes of its gradient."""
    header = to_message(
        pb.PushHeader,
        push,
        gradient_bytes=0 if push.gradient is None else push.gradient.nbytes,
        episodes=None,
        statistics=[
            pb.StatisticDelta(
                name=name,
                count=moments.count,
                mean=ndarray_to_message(moments.mean, ndarray_pb2.NdArray),
                m2=ndarray_to_message(moments.m2, ndarray_pb2.NdArray),
            )
            for name, moments in push.statistics.items()
        ],
    )
    write_reports(header, push.episodes)
    return header


def header_to_push(header: pb.PushHeader, gradient: np.ndarray | None) -> Push:
    """Converts a header and its gradient to a push.

    Args:
      header: the received header.
      gradient: the gradient; None: there is none.

    Raises:
      InvalidInputError: a statistic occurs twice or is malformed, or there are too many.
    """
    return to_record(
        Push,
        header,
        gradient=gradient,
        episodes=read_reports(header),
        statistics=_messages_to_statistics(header.statistics),
    )


def validate_whole(manifest: Manifest) -> None:
    """Checks that the vectors of a model fit one message each.

    Raises:
      InvalidInputError: the values do not fit one message.
    """
    if not chunks.fits_one(manifest.total_bytes):
        raise InvalidInputError(
            f"PushPullWhole: this run's values have {manifest.total_bytes} bytes, but a "
            f"message holds at most {chunks.CHUNK_BYTES}; use PushPull",
            "values",
        )


def messages_to_push(
    first: frames.Request,
    more: Iterator[frames.Request],
    manifest: Manifest,
    shared: SharedVectors | None = None,
) -> tuple[Push, pb.PushHeader]:
    """Reads exactly one push; only allocates the length that follows from the manifest.

    Args:
      first: the first message, which must be the header.
      more: the following messages.
      manifest: of the run.
      shared: the memory that was agreed upon; None: no memory.

    Returns:
      The push, and its header.

    Raises:
      InvalidInputError: there is no header, the gradient has another length or layout, or is in
        shared memory that was not agreed upon, a group is unknown, a statistic occurs twice or is
        malformed, or there are too many episodes or statistics.
    """
    header: pb.PushHeader = frames.get_header(first, "push")
    gradient = None
    push = header_to_push(header, None)
    if header.gradient_bytes:
        num_bytes = _validate_gradient_header(header, manifest)
        gradient = (
            _take_shared(shared, num_bytes)
            if header.shared_gradient
            else chunks.read_vector(more, num_bytes, "gradient", header.first_chunk)
        )
    return (push if gradient is None else replace(push, gradient=gradient)), header


def count_awaited_bytes(first: frames.Request, manifest: Manifest) -> int:
    """Returns the bytes of memory that a push needs while it is received; 0: no chunk follows.

    Args:
      first: the first message of the push; nothing in it is trusted.
      manifest: of the run.
    """
    if isinstance(first, memoryview):
        return 0
    header = first.header
    num_bytes = min(header.gradient_bytes, manifest.gradient_bytes)
    if header.shared_gradient or len(header.first_chunk) >= num_bytes:
        return 0
    reports = len(header.episodes) + len(header.players)
    return num_bytes + header.ByteSize() + _EPISODE_BYTES * reports


def _messages_to_statistics(deltas: Sequence[pb.StatisticDelta]) -> dict[str, Moments]:
    if len(deltas) > MAX_STATISTICS:
        raise InvalidInputError(
            f"push: {len(deltas)} statistics, but at most {MAX_STATISTICS} are allowed in one push",
            "statistics",
        )
    statistics: dict[str, Moments] = {}
    for delta in deltas:
        name = delta.name[:200]  # names in a manifest are not longer, and errors repeat it
        if name in statistics:
            raise InvalidInputError(
                f"statistic {name!r}: twice in one push; merge the two first", name
            )
        statistics[name] = Moments(
            delta.count,
            message_to_ndarray(delta.mean, f"{name}.mean"),
            message_to_ndarray(delta.m2, f"{name}.m2"),
        )
    return statistics


def _validate_gradient_header(header: pb.PushHeader, manifest: Manifest) -> int:
    """Returns the length of the gradient in bytes.

    Raises:
      InvalidInputError: the header announces another length or layout, or unknown groups.
    """
    num_bytes = manifest.select_groups(header.groups).gradient_bytes
    if header.gradient_bytes != num_bytes:
        whose = f" of the groups {', '.join(header.groups)}" if header.groups else ""
        raise InvalidInputError(
            f"gradient: {header.gradient_bytes} bytes announced, but a gradient{whose} has "
            f"{num_bytes} according to the manifest; start client and server with the same "
            "algorithm folder and settings",
            "gradient_bytes",
        )
    if header.fingerprint != manifest.fingerprint:
        raise InvalidInputError(
            f"gradient: fingerprint {header.fingerprint:08x}, but this run has "
            f"{manifest.fingerprint:08x}; start client and server with the same algorithm folder "
            "and settings",
            "fingerprint",
        )
    return num_bytes


def _take_shared(shared: SharedVectors | None, num_bytes: int) -> np.ndarray:
    if shared is None:
        raise InvalidInputError(
            "gradient: in shared memory, but no shared memory was agreed upon in this call; send "
            "it in chunks, or open a PushPull stream with an offer, which the server must accept",
            "shared_gradient",
        )
    # A copy: once checked, it stays finite, whatever the client does to its memory.
    return shared.gradient[:num_bytes].copy()


def reply_to_messages(
    reply: Reply, shared: SharedVectors | None = None, ranges: Ranges = ()
) -> Iterator[frames.Reply]:
    """Yields the header and the chunks of one reply.

    The chunks are views of the values, or, with `ranges`, of a copy.

    Args:
      reply: to send.
      shared: the memory that was agreed upon, to which the values are then copied, without chunks;
        None: no memory.
      ranges: the parts of the values to send, one after another; empty: all.
    """
    values = reply.values
    if values is not None and ranges:
        values = replace(values, flat=np.concatenate([values.flat[part] for part in ranges]))
    in_memory = shared is not None and values is not None
    if shared is not None and values is not None:
        shared.values[...] = values.flat
    first, parts = chunks.split_first(None if values is None or in_memory else values.flat)
    yield pb.PushPullReply(
        header=to_message(
            pb.ReplyHeader,
            reply,
            outcome=_OUTCOMES[reply.outcome],
            durability=_DURABILITIES[reply.durability],
            values_bytes=0 if values is None else len(values.flat),
            values_version=0 if values is None else values.version,
            first_chunk=first,
            shared_values=in_memory,
        )
    )
    yield from parts


def messages_to_reply(
    messages: Iterable[frames.Reply],
    manifest: Manifest,
    pool: BufferPool,
    shared: SharedVectors | None = None,
    ranges: Ranges = (),
) -> Reply:
    """Reads exactly one reply.

    Args:
      messages: header and chunks.
      manifest: of the run.
      pool: pool of buffers of `total_bytes`, for the values.
      shared: the memory that was agreed upon; None: no memory.
      ranges: the parts of the values that were requested; the rest is bytes 0xFF, which are NaN in
        floating-point variables; empty: all.

    Raises:
      InvalidInputError: there is no header, or the values do not have the length that follows from
        the manifest or the ranges.
    """
    iterator = iter(messages)
    header: pb.ReplyHeader = frames.get_header(next(iterator, None), "reply")
    values = None
    if header.values_bytes:
        buffer = pool.take()
        if header.shared_values and shared is not None:
            buffer[...] = shared.values
        elif ranges:
            _fill_ranges(buffer, ranges, header, iterator)
        else:
            chunks.read_vector(iterator, len(buffer), "values", header.first_chunk, buffer)
        values = Values(version=header.values_version, flat=pool.publish(buffer))
    return to_record(
        Reply,
        header,
        outcome=name_outcome(header.outcome),
        durability=_DURABILITY_NAMES.get(header.durability, "snapshot"),
        values=values,
    )


def _fill_ranges(
    buffer: np.ndarray, ranges: Ranges, header: pb.ReplyHeader, more: Iterator[frames.Reply]
) -> None:
    num_bytes = sum(part.stop - part.start for part in ranges)
    received = chunks.read_vector(more, num_bytes, "values", header.first_chunk)
    buffer.fill(0xFF)  # NaN, as float32 and as float64
    start = 0
    for part in ranges:
        end = start + part.stop - part.start
        buffer[part] = received[start:end]
        start = end


def ranges_to_messages(ranges: Ranges) -> list[pb.ByteRange]:
    """Converts the parts of the values that a client needs to messages."""
    return [pb.ByteRange(offset=part.start, length=part.stop - part.start) for part in ranges]


def messages_to_ranges(messages: Sequence[pb.ByteRange], manifest: Manifest) -> Ranges:
    """Reads the parts of the values that a client needs.

    Raises:
      InvalidInputError: there are too many ranges, or one is empty, not in ascending order, or
        beyond the values.
    """
    if len(messages) > MAX_RANGES:
        raise InvalidInputError(f"ranges: {len(messages)}, but at most {MAX_RANGES} are allowed")
    ranges, end = [], 0
    for message in messages:
        start, stop = message.offset, message.offset + message.length
        if not end <= start < stop <= manifest.total_bytes:
            raise InvalidInputError(
                f"ranges: bytes {start} to {stop}, expected at least one byte between {end} and "
                f"{manifest.total_bytes}; send ranges in ascending order, without overlap"
            )
        ranges.append(slice(start, stop))
        end = stop
    return tuple(ranges)


def status_to_message(status: Status) -> pb.Status:
    """Converts a parameter server's status to its message."""
    return to_message(
        pb.Status,
        status,
        durability=_DURABILITIES[status.durability],
        client_list=[to_message(pb.ClientStatus, client) for client in status.client_list],
        served=[to_message(pb.ServedClient, client) for client in status.served],
    )


def report_to_message(report: ClientsReport) -> pb.ClientsReport:
    """Converts an rlx server's report to its message."""
    clients = [to_message(pb.ServedClient, client) for client in report.clients]
    return to_message(pb.ClientsReport, report, clients=clients)


def message_to_report(message: pb.ClientsReport) -> ClientsReport:
    """Converts a received report.

    Raises:
      InvalidInputError: there are too many clients, a text is too long or not printable, versions
        are not valid, the server's name is empty, or a number is too large, negative or not finite.
    """
    if not message.server_id:
        raise InvalidInputError("report: server_id is empty, expected a name", "server_id")
    _validate_fields(message, "")
    if len(message.clients) > MAX_SERVED_CLIENTS:
        raise InvalidInputError(
            f"report: {len(message.clients)} clients, expected at most {MAX_SERVED_CLIENTS}; send "
            "the number of all in num_clients",
            "clients",
        )
    for index, client in enumerate(message.clients):
        _validate_fields(client, f"clients[{index}].")
        validate_versions(client.versions, f"clients[{index}].versions")
    clients = tuple(to_record(ServedClient, client) for client in message.clients)
    return to_record(ClientsReport, message, clients=clients)


def _validate_fields(message: pb.ClientsReport | pb.ServedClient, place: str) -> None:
    """Checks the texts and numbers of one message of a report; those that are not set are valid."""
    for field, value in message.ListFields():
        name = f"{place}{field.name}"
        if isinstance(value, str):
            limit = _MAX_NAME_LENGTH if field.name == "server_id" else _MAX_TEXT_LENGTH
            if len(value) > limit or not value.isprintable():
                raise InvalidInputError(
                    f"report: {name}: {value[:40]!r} of length {len(value)}, expected at most "
                    f"{limit} printable characters",
                    name,
                )
        elif isinstance(value, int | float) and not 0 <= value <= _MAX_NUMBER:
            raise InvalidInputError(f"report: {name} is {value}, expected 0 to {_MAX_NUMBER}", name)


def message_to_status(message: pb.Status) -> Status:
    """Converts a received status."""
    return to_record(
        Status,
        message,
        durability=_DURABILITY_NAMES.get(message.durability, "snapshot"),
        client_list=tuple(to_record(ClientStatus, client) for client in message.client_list),
        served=tuple(to_record(ServedClient, client) for client in message.served),
    )
