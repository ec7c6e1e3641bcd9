"""The `relaax.v1.Publisher` service and its stub: a learner's lease and its publications.

The learner is in a process of its own (learner.placement: standalone).
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import grpc
import numpy as np

from relaax_like.bridge import chunks, errors, frames
from relaax_like.bridge.messages import name_outcome, number_outcome
from relaax_like.bridge.receive_budget import ReceiveBudget
from relaax_like.bridge.serving import open_method
from relaax_like.core.episode_reports import read_reports, write_reports
from relaax_like.core.manifest import Manifest
from relaax_like.core.message_fields import to_message, to_record
from relaax_like.core.records import (
    NO_TABLE,
    Counts,
    Lease,
    Publication,
    PublishTicket,
    Received,
    Reply,
    RunState,
    TableStatus,
    TrainReturn,
)
from relaax_like.v1 import publisher_pb2
from relaax_like.wire.errors import InvalidInputError, ProtocolError

FORMAT = 1
MAX_EPISODES = 65_536
_SERVICE = publisher_pb2.DESCRIPTOR.services_by_name["Publisher"]
_MAX_NAME, _MAX_ADDRESS = 200, 300
_MAX_RECEIVED = 4096
# Memory for publications that are being received.
_RECEIVING_BYTES = 64_000_000
_TIMEOUT_SEC = 5.0
# A publication is sent in chunks; a server that reads none of them for this time is unavailable.
_PUBLISH_SEC = 60.0


class LeasingBackend(Protocol):
    """The parameter server as this service calls it; see `ParameterServer`. Thread-safe."""

    @property
    def manifest(self) -> Manifest:
        """The layout of the values."""

    @property
    def learner_address(self) -> tuple[str, int]:
        """Address where the newest holder takes experience, and its term; ("", 0): no holder."""

    @property
    def slots(self) -> Mapping[str, np.ndarray]:
        """The optimizers' state."""

    def grant_lease(self, holder: str, address: str) -> tuple[int, float, Lease]:
        """Makes a learner the run's only one; see `ParameterServer.grant_lease`."""

    def renew_lease(self, term: int, table: TableStatus = NO_TABLE) -> None:
        """Renews a lease."""

    def require_lease(self, term: int) -> None:
        """Checks that a learner is the newest holder."""

    def publish(self, publication: Publication) -> Reply:
        """Applies a publication."""

    def count(self, counts: Counts) -> Reply:
        """Counts steps and episodes."""

    def get_run_state(self, reply: Reply | None = None) -> RunState:
        """Returns the newest state."""


class PublisherServicer:
    """Serves a learner in another process. Thread-safe, like the backend.

    Args:
      backend: the parameter server.
    """

    service = _SERVICE
    readers: ClassVar = {
        "Publish": functools.partial(frames.to_part, kind=publisher_pb2.PublishPart)
    }

    def __init__(self, backend: LeasingBackend):
        self._backend = backend
        slots = sum(array.nbytes for array in backend.slots.values())
        self._bytes = backend.manifest.total_bytes + slots  # of a publication
        self._receiving = ReceiveBudget(max(_RECEIVING_BYTES, 2 * self._bytes))

    def Acquire(
        self, request: publisher_pb2.AcquireRequest, context: grpc.ServicerContext
    ) -> Iterator[Any]:
        """Grants the lease, and sends the state."""
        manifest = self._backend.manifest
        errors.validate_hello(request, FORMAT, manifest, holder=_MAX_NAME, address=_MAX_ADDRESS)
        term, lease_sec, lease = self._backend.grant_lease(request.holder, request.address)
        header = _lease_to_header(term, lease_sec, lease, self._backend.get_run_state())
        yield publisher_pb2.LeasePart(header=header)
        yield from chunks.split(lease.values)
        for slots in lease.slots.values():
            if slots.size:
                yield from chunks.split(slots.reshape(-1).view(np.uint8))

    def Renew(
        self, request: publisher_pb2.RenewRequest, context: grpc.ServicerContext
    ) -> publisher_pb2.RunState:
        """Renews the lease, and returns the state of the run."""
        self._backend.renew_lease(request.term, to_record(TableStatus, request))
        return state_to_message(self._backend.get_run_state())

    def Publish(
        self, requests: Iterator[Any], context: grpc.ServicerContext
    ) -> publisher_pb2.RunState:
        """Applies a publication, or counts."""
        item = self._read(requests, context)
        if isinstance(item, Publication):
            reply = self._backend.publish(item)
        else:
            reply = self._backend.count(item)
        return state_to_message(self._backend.get_run_state(reply))

    def FindLearner(
        self, request: publisher_pb2.FindLearnerRequest, context: grpc.ServicerContext
    ) -> publisher_pb2.LearnerAddress:
        """Returns the address at which the newest holder of the lease takes experience."""
        address, term = self._backend.learner_address
        return publisher_pb2.LearnerAddress(address=address, term=term)

    def _read(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Publication | Counts:
        header: publisher_pb2.PublishHeader = frames.get_header(next(requests, None), "publish")
        if len(header.received) > _MAX_RECEIVED:
            raise InvalidInputError(
                f"publish: {len(header.received)} clients in received, expected at most "
                f"{_MAX_RECEIVED}; run the same version of relaax_like on both ends",
                "received",
            )
        fields: dict[str, Any] = {
            "env_steps": header.env_steps,
            "episodes": read_reports(header, MAX_EPISODES),
            "received": _read_received(header.received),
            "ticket": PublishTicket(header.term, header.sequence),
        }
        if not header.number:
            return Counts(**fields)
        # Before any memory is used: it is the holder's.
        self._backend.require_lease(header.term)
        with self._receiving.admit(self._bytes, context) as reception:
            parts = reception.note(requests)
            values = chunks.read_vector(parts, self._backend.manifest.total_bytes, "values")
            slots = {
                group: chunks.read_vector(parts, like.nbytes, f"slots of {group}")
                .view(np.float32)
                .reshape(like.shape)
                for group, like in self._backend.slots.items()
            }
        for array in (values, *slots.values()):  # so that it is not copied
            array.flags.writeable = False
        return Publication(
            number=header.number,
            values=values,
            slots=slots,
            steps={one.group: one.steps for one in header.optimizers},
            score=header.score if header.HasField("score") else None,
            **fields,
        )


class PublisherStub:
    """Makes the calls of a learner to the parameter server; agents only call `find_learner`.

    Each call has a deadline. All of them raise ServerUnavailableError if there is no answer in
    time or the server is not ready or too busy, NotAllowedError if an agent's token is required,
    ProtocolError if something else listens at the address or the server has failed, and, except
    `find_learner`, LeasedError if the run has no learner in a process of its own. `renew` and
    `publish` also raise LeasedError if the caller has lost the lease.

    Args:
      channel: to the parameter server.
      address: its address, for errors.
    """

    def __init__(self, channel: grpc.Channel, address: str):
        read = functools.partial(frames.to_part, kind=publisher_pb2.LeasePart)
        self._address = address
        self._acquire = open_method(channel, _SERVICE, "Acquire", read)
        self._renew = open_method(channel, _SERVICE, "Renew")
        self._publish = open_method(channel, _SERVICE, "Publish")
        self._find = open_method(channel, _SERVICE, "FindLearner")

    def acquire(
        self, holder: str, address: str, manifest: Manifest
    ) -> tuple[int, float, Lease, RunState]:
        """Requests the lease.

        Args:
          holder: name of the learner's process, unique for each start.
          address: HOST:PORT at which the learner takes experience.
          manifest: of the learner's model.

        Returns:
          The term; for how many seconds the lease is kept without a renewal; the state to continue
          from; and the state of the run.

        Raises:
          ServerUnavailableError: another learner still holds the lease, the lease could not be
            written, or there was no answer in time.
          InvalidInputError: the run has another model or version of relaax_like, `holder` or
            `address` is not valid, or the received state is incomplete.
          ProtocolError: the answer has no header.
          RelaaxError: see the class for other errors.
        """
        request = publisher_pb2.AcquireRequest(
            format=FORMAT, holder=holder, address=address, fingerprint=manifest.fingerprint
        )
        with errors.translate(self._address):
            parts = iter(self._acquire(request, timeout=_PUBLISH_SEC))
            first = next(parts, None)
            if not isinstance(first, publisher_pb2.LeasePart) or not first.HasField("header"):
                raise ProtocolError(
                    f"the parameter server at {self._address} granted a lease without a header; "
                    "run the same version of relaax_like on both ends"
                )
            header = first.header
            values = chunks.read_vector(parts, header.values_bytes, "values")
            slots = {one.group: _read_slots(parts, one) for one in header.optimizers}
        state = message_to_state(header.state)
        lease = Lease(
            number=state.number,
            manifest=manifest,
            values=values,
            slots=slots,
            slot_names={one.group: tuple(one.slot_names) for one in header.optimizers},
            steps={one.group: one.steps for one in header.optimizers},
            version=state.version,
            global_t=state.global_t,
            finished=state.finished,
            received=_read_received(header.received),
        )
        return header.term, header.lease_sec, lease, state

    def renew(
        self,
        term: int,
        table: TableStatus = NO_TABLE,
        timeout_sec: float = _TIMEOUT_SEC,
    ) -> RunState:
        """Renews the lease; returns the newest state of the run.

        Args:
          term: of the lease.
          table: see `ParameterServer.renew_lease`.
          timeout_sec: longest wait.

        Raises:
          RelaaxError: see the class.
        """
        request = to_message(publisher_pb2.RenewRequest, table, term=term)
        with errors.translate(self._address):
            return message_to_state(self._renew(request, timeout=timeout_sec))

    def publish(self, item: Publication | Counts) -> RunState:
        """Sends a publication or counts, which have a ticket; returns the newest state of the run.

        If the returned `sequence` is below the ticket's, the server has lost earlier items, and
        this one had no effect: send it again with the next number. A repeated ticket has no effect,
        either. Once the training has finished (`finished`), only steps are counted.

        Raises:
          InvalidInputError: a number is not finite or out of range, a length is wrong, or there are
            too many episodes or clients; nothing took effect. See the class for other errors.
        """
        with errors.translate(self._address):
            return message_to_state(self._publish(_item_to_parts(item), timeout=_PUBLISH_SEC))

    def find_learner(self, timeout_sec: float = _TIMEOUT_SEC) -> str:
        """Returns the address at which the run's learner takes experience; "": no learner yet."""
        request = publisher_pb2.FindLearnerRequest()
        with errors.translate(self._address):
            return str(self._find(request, timeout=timeout_sec).address)


def state_to_message(state: RunState) -> publisher_pb2.RunState:
    """Converts the newest state of the run."""
    mean, window, episodes = state.train_return or TrainReturn(0.0, 0, 0)
    return to_message(
        publisher_pb2.RunState,
        state,
        outcome=number_outcome(state.outcome),
        mean_return=mean,
        window=window,
        episodes=episodes,
    )


def message_to_state(message: publisher_pb2.RunState) -> RunState:
    """Reads the newest state of the run."""
    train_return = None
    if message.window:
        train_return = TrainReturn(message.mean_return, message.window, message.episodes)
    outcome = name_outcome(message.outcome)
    return to_record(RunState, message, outcome=outcome, train_return=train_return)


def _lease_to_header(
    term: int, lease_sec: float, lease: Lease, state: RunState
) -> publisher_pb2.LeaseHeader:
    return publisher_pb2.LeaseHeader(
        term=term,
        lease_sec=lease_sec,
        state=state_to_message(state),
        values_bytes=lease.values.nbytes,
        optimizers=[
            publisher_pb2.OptimizerState(
                group=group,
                steps=lease.steps[group],
                slot_names=lease.slot_names[group],
                size=slots.shape[1],
            )
            for group, slots in lease.slots.items()
        ],
        received=_received_to_messages(lease.received),
    )


def _item_to_parts(item: Publication | Counts) -> Iterator[Any]:
    assert item.ticket is not None
    header = publisher_pb2.PublishHeader(
        term=item.ticket.term,
        sequence=item.ticket.sequence,
        env_steps=item.env_steps,
        received=_received_to_messages(item.received),
    )
    write_reports(header, item.episodes)
    if isinstance(item, Publication):
        header.number = item.number
        for group, steps in item.steps.items():
            header.optimizers.add(group=group, steps=steps)
        if item.score is not None:
            header.score = item.score
    yield publisher_pb2.PublishPart(header=header)
    if isinstance(item, Publication):
        yield from chunks.split(item.values)
        for slots in item.slots.values():
            if slots.size:
                yield from chunks.split(np.ascontiguousarray(slots).reshape(-1).view(np.uint8))


def _received_to_messages(
    received: Mapping[str, Received],
) -> Sequence[publisher_pb2.ReceivedExperience]:
    return [
        to_message(publisher_pb2.ReceivedExperience, one, client_id=client_id)
        for client_id, one in received.items()
    ]


def _read_slots(parts: Iterator[Any], optimizer: Any) -> np.ndarray:
    """Returns the state of a group's optimizer, `[s, n] float32`, from the next parts."""
    shape = (len(optimizer.slot_names), optimizer.size)
    vector = chunks.read_vector(parts, 4 * shape[0] * shape[1], f"slots of {optimizer.group}")
    return vector.view(np.float32).reshape(shape)


def _read_received(messages: Iterable[Any]) -> dict[str, Received]:
    return {one.client_id: to_record(Received, one) for one in messages}
