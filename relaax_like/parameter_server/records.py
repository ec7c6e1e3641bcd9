"""Records of the journal: a push that took effect, and its result."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError

from relaax_like.bridge.messages import header_to_push, push_to_header
from relaax_like.core.message_fields import to_message, to_record
from relaax_like.core.records import Outcome, Push
from relaax_like.parameter_server.targets import GroupStep
from relaax_like.v1 import journal_pb2
from relaax_like.wire.errors import InvalidInputError, JournalError

_LENGTH = struct.Struct("<I")
# For a push with a gradient: its outcome, and whether held-back gradients were applied with it.
_COMBININGS: Mapping[tuple[Outcome, bool], journal_pb2.Combining] = {
    ("applied", False): journal_pb2.ALONE,
    ("pending", False): journal_pb2.HELD_BACK,
    ("applied", True): journal_pb2.WITH_HELD_BACK,
    ("dropped", False): journal_pb2.NOT_USED,
}
_OUTCOMES = {number: outcome for outcome, number in _COMBININGS.items()}


@dataclass(frozen=True)
class Position:
    """A place in the journal, and the state there.

    Attributes:
      index: index of the next record.
      version: version of the values before it.
      global_t: environment steps before it.
    """

    index: int
    version: int
    global_t: int


@dataclass(frozen=True)
class Record:
    """A push and its result.

    Attributes:
      push: its gradient is float32, or None.
      learning_rates: variable group -> the rate of this step, also for groups that the gradient is
        not for; empty if no gradient was applied.
      version: version of the values afterwards.
      global_t: environment steps afterwards.
      outcome: what happened to the gradient.
      takes_pending: the gradient was applied together with all held-back ones of its groups.
      reason: why the gradient was dropped; "" if it was not.
      optimizers: variable group -> settings in force from this record on; empty: as before.
    """

    push: Push
    learning_rates: Mapping[str, float]
    version: int
    global_t: int
    outcome: Outcome = "nothing"
    takes_pending: bool = False
    reason: str = ""
    optimizers: Mapping[str, GroupStep] = field(default_factory=dict)

    @property
    def version_before(self) -> int:
        """Version of the values to which the push was applied."""
        return self.version - (self.outcome == "applied" or bool(self.push.statistics))

    @property
    def global_t_before(self) -> int:
        """Environment steps before the push."""
        return self.global_t - self.push.env_steps


def pack_record(record: Record) -> Sequence[bytes | memoryview]:
    """Returns the pieces of a record; the gradient is not copied."""
    gradient = record.push.gradient
    message = to_message(
        journal_pb2.JournalRecord,
        record,
        push=push_to_header(record.push),
        combining=_COMBININGS.get((record.outcome, record.takes_pending), journal_pb2.ALONE),
        optimizers={name: one.model_dump_json() for name, one in record.optimizers.items()},
    ).SerializeToString()
    head = _LENGTH.pack(len(message)) + message
    return [head] if gradient is None else [head, gradient.view(np.uint8).data]


def unpack_record(payload: memoryview, place: str | Path = "the journal") -> Record:
    """Reads a record; its gradient is a copy, as the payload might be reused.

    Args:
      payload: of the record.
      place: the file that contains it, for errors.

    Raises:
      JournalError: the payload is not a valid record.
    """
    try:
        (length,) = _LENGTH.unpack(payload[: _LENGTH.size])
        start = _LENGTH.size + length
        message = journal_pb2.JournalRecord.FromString(bytes(payload[_LENGTH.size : start]))
        rest = bytes(payload[start:])
        if len(rest) != message.push.gradient_bytes:
            raise InvalidInputError(
                f"{len(rest)} bytes of gradient, expected {message.push.gradient_bytes}"
            )
        outcome, takes_pending = _OUTCOMES[message.combining]
        gradient: np.ndarray | None = None
        if rest:
            gradient = np.frombuffer(rest, np.float32)
        elif message.learning_rates or outcome == "pending":  # of groups without elements
            gradient = np.zeros(0, np.float32)
        push = header_to_push(message.push, gradient)
        if outcome == "applied" and gradient is None:
            outcome = "nothing"
        optimizers = {
            name: GroupStep.model_validate_json(text) for name, text in message.optimizers.items()
        }
    except (struct.error, DecodeError, ValueError, KeyError) as error:
        raise JournalError(
            f"{place}: a record cannot be read ({type(error).__name__}: {error}); it was written "
            "by another version of relaax_like. Finish the run with that version, or use another "
            "checkpoint_dir"
        ) from None
    return to_record(
        Record,
        message,
        push=push,
        outcome=outcome,
        takes_pending=takes_pending,
        optimizers=optimizers,
    )
