"""The messages of the rlx protocol, as protobuf; see `Codec`."""

import functools
from collections.abc import Callable, Mapping

import numpy as np
from google.protobuf.message import DecodeError

from relaax_like.rlx_server.admission import MAX_HELLO_BYTES
from relaax_like.rlx_server.codec import TIMING_FIELDS, Body, ReadMessage
from relaax_like.rlx_server.greeting import (
    EXECUTED,
    MASKS,
    MAX_FEATURES,
    PRESENT,
    Greeting,
)
from relaax_like.rlx_server.points import MAX_POINTS
from relaax_like.rlx_server.step_reader import StepReader
from relaax_like.rlx_server.transition import Arrays, ReceivedStep, read_step
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.errors import InvalidInputError, ProtocolError
from relaax_like.wire.fields import BYTES, has_more_fields, walk_fields, weigh
from relaax_like.wire.message_template import Layout
from relaax_like.wire.spaces import MAX_LEAVES, pack_arrays
from relaax_like.wire.versions import MAX_VERSIONS

_FIELDS = rlx_pb2.ClientMessage.DESCRIPTOR.fields_by_name
_FIELDS_BY_NUMBER = rlx_pb2.ClientMessage.DESCRIPTOR.fields_by_number
_HELLO, _STEP, _SCALARS = (_FIELDS[name].number for name in ("hello", "step", "scalars"))
_TOKEN = rlx_pb2.Hello.DESCRIPTOR.fields_by_name["token"].number
# Numbers of an answer that differ from one to the next.
_NUMBERS = frozenset(
    {("actions", "step_id"), *(("actions", "timings", name) for name in TIMING_FIELDS)}
)
# A message has one body, and perhaps fields that a newer client adds.
_MAX_PARTS = 4
# Fields of a hello or a step other than its leaves.
_OTHER_FIELDS = MAX_FEATURES + MAX_VERSIONS + 16
# Names of agents and kinds of a hello.
_MAX_NAMES = 2 << 12
_NAMES = {rlx_pb2.Hello.DESCRIPTOR.fields_by_name[name].number for name in ("agents", "kinds")}
# Size of MAX_POINTS points with the longest names.
_MAX_SCALARS_BYTES = MAX_POINTS * 225
# The first byte of each point and of its name, so its count is an upper bound of the points.
_POINT_BYTE = b"\x0a"
# A longer hello or step is checked at all depths: besides array data, each of its fields can have
# _FIELD_WEIGHT bytes (a leaf with bounds and a long name has 1.2 KB), and all numbers n together
# _MORE_WEIGHT bytes more.
_LONG_MESSAGE_BYTES = 1 << 18
_FIELD_WEIGHT = 3 << 9
_MORE_WEIGHT = 1 << 19
_NAME_WEIGHT = 1 << 9
_MIN_MESSAGE_BYTES = 4 << 20
_PING = rlx_pb2.ClientMessage(ping=rlx_pb2.Ping()).SerializeToString()
# The field of a step that needs a feature -> that feature.
_OPTIONAL = {
    "present": PRESENT,
    "executed": EXECUTED,
    "overridden": EXECUTED,
    "masks": MASKS,
    "final_masks": MASKS,
}


class ProtobufCodec:
    """See `Codec`."""

    max_hello_bytes = MAX_HELLO_BYTES
    ping = rlx_pb2.ServerMessage(ping=rlx_pb2.Ping()).SerializeToString()

    def __init__(self) -> None:
        self._greeting: Greeting | None = None
        self._reader: StepReader | None = None
        # Of the newest answer.
        self._written: tuple[int, frozenset[str]] = (-1, frozenset())
        self._layout: Layout | None = None

    def greet(self, greeting: Greeting) -> int:
        """See `Codec`."""
        self._greeting = greeting
        self._reader = StepReader(
            greeting.observation_spaces, greeting.action_spaces, greeting.slots, greeting.masks
        )
        return max(2 * greeting.count_step_bytes(), _MIN_MESSAGE_BYTES)

    def read(self, body: Body, running: bool, check: Callable[[str], None]) -> ReadMessage:
        """See `Codec`."""
        if self._reader is not None and running:
            transition = self._reader.read(body)
            if transition is not None:
                return ReadMessage("step", transition)
        self._validate_outline(body)
        if self._greeting is None and (token := _find_token(body)) is not None:
            check(token)  # before the hello is parsed, which costs more
        message = _parse(body)
        kind = message.WhichOneof("body")
        if kind is None:
            raise ProtocolError(
                "received an empty message, or one of an unknown kind, expected hello, step, "
                "scalars or ping; update the client or the server",
                "MALFORMED",
            )
        if kind == "step":
            known = self._greeting is not None
            return ReadMessage(
                kind, self._read_step(message.step, body, running) if known else None
            )
        return ReadMessage(kind, None if kind == "ping" else getattr(message, kind))

    def is_ping(self, body: Body) -> bool:
        """See `Codec`."""
        return body == _PING

    def write_ready(self, ready: rlx_pb2.Ready) -> bytes:
        """See `Codec`."""
        return rlx_pb2.ServerMessage(ready=ready).SerializeToString()

    def write_actions(
        self, actions: Arrays, version: int, step_id: int, timings: Mapping[str, int]
    ) -> bytes:
        """See `Codec`."""
        if version != self._written[0] or actions.keys() != self._written[1]:
            # All answers to a session have the same dtypes and shapes.
            signature = tuple((name, array.dtype, array.shape) for name, array in actions.items())
            self._written = version, frozenset(actions)
            self._layout = _make_layout(version, signature, bool(step_id), bool(timings))
        assert self._layout is not None
        spans = self._layout.spans
        if len(spans) == len(actions):
            return self._layout.fill([actions[span.path[-1]].tobytes() for span in spans])
        numbers = {"step_id": step_id.to_bytes(8, "little")}
        for name, number in timings.items():
            numbers[name] = number.to_bytes(4, "little")
        return self._layout.fill(
            [
                numbers[span.path[-1]]
                if span.path in _NUMBERS
                else actions[span.path[-1]].tobytes()
                for span in spans
            ]
        )

    def write_answer(self, answer: rlx_pb2.Actions) -> bytes:
        """See `Codec`."""
        return rlx_pb2.ServerMessage(actions=answer).SerializeToString()

    def write_error(self, error: rlx_pb2.Error) -> bytes:
        """See `Codec`."""
        return rlx_pb2.ServerMessage(error=error).SerializeToString()

    def _read_step(self, step: rlx_pb2.Step, body: Body, running: bool) -> ReceivedStep:
        greeting = self._greeting
        assert greeting is not None
        assert self._reader is not None
        for field, feature in _OPTIONAL.items():
            sent = getattr(step, field)
            # A map is there if it has entries, an array if it was sent.
            if sent if field not in ("present", "overridden") else step.HasField(field):
                greeting.require(feature, field)
        transition = read_step(
            step,
            greeting.observation_spaces,
            greeting.action_spaces,
            greeting.slots,
            running,
            greeting.masks,
        )
        if transition.rewards is not None:
            self._reader.remember(body, transition)
        return transition

    def _validate_outline(self, body: Body) -> None:
        """Scans the fields; refuses what would cost more to parse than any valid message."""
        try:
            for count, part in enumerate(walk_fields(body, 0, len(body)), 1):
                number, kind, start, stop = part
                if count > _MAX_PARTS:
                    raise InvalidInputError(
                        f"the message has more than {_MAX_PARTS} parts, expected one body; send "
                        "several messages"
                    )
                if kind != BYTES:
                    continue
                if number in (_HELLO, _STEP):
                    self._validate_leaves(body, number, start, stop)
                elif number == _SCALARS:
                    _validate_points(body, start, stop)
        except InvalidInputError:
            raise
        except ValueError:  # the parser accepts groups, and would continue after them
            raise _describe_malformed(body) from None

    def _validate_leaves(self, body: Body, number: int, start: int, stop: int) -> None:
        greeting = self._greeting
        leaves = MAX_LEAVES if greeting is None else len(greeting.inputs)
        limit = 2 * leaves + _OTHER_FIELDS
        if greeting is not None and EXECUTED in greeting.features:
            limit += len(greeting.action_spaces)
        names = fields = 0
        counted = _NAMES if number == _HELLO else ()
        for part in walk_fields(body, start, stop):
            if part[0] in counted:
                names += 1
                if names > _MAX_NAMES:
                    raise InvalidInputError(
                        f"agents: the message has more than {_MAX_NAMES} names of agents and "
                        "kinds; connect several clients"
                    )
            else:
                fields += 1
                if fields > limit:
                    raise InvalidInputError(
                        f"the message has more than {limit} fields, expected at most {leaves} "
                        f"{'leaf' if leaves == 1 else 'leaves'} in each of its parts"
                    )
        if stop - start > _LONG_MESSAGE_BYTES:
            descriptor = _FIELDS_BY_NUMBER[number].message_type
            most = fields * _FIELD_WEIGHT + names * _NAME_WEIGHT + _MORE_WEIGHT
            if weigh(body, descriptor, start, stop, most) > most:
                raise InvalidInputError(
                    f"the message of {len(body)} bytes has too much overhead besides array "
                    f"data; expected at most about {most} bytes of names, shapes and the like"
                )


@functools.lru_cache(maxsize=256)
def _make_layout(
    version: int,
    signature: tuple[tuple[str, np.dtype, tuple[int, ...]], ...],
    has_number: bool,
    has_timings: bool,
) -> Layout:
    """Returns the layout of answers with actions of these names, dtypes and shapes."""
    reply = rlx_pb2.ServerMessage()
    reply.actions.version = version
    if has_number:
        reply.actions.step_id = 1
    if has_timings:
        for name in TIMING_FIELDS:
            setattr(reply.actions.timings, name, 0)
    pack_arrays({name: np.zeros(s, dtype) for name, dtype, s in signature}, reply.actions.actions)
    descriptor = rlx_pb2.ServerMessage.DESCRIPTOR
    return Layout(reply.SerializeToString(), descriptor, numbers=_NUMBERS)


def _validate_points(body: Body, start: int, stop: int) -> None:
    if stop - start > _MAX_SCALARS_BYTES:
        came = (
            f"{stop - start} bytes, expected at most {_MAX_SCALARS_BYTES}; send fewer points per "
            "message, or shorter names"
        )
    # Counts bytes first: for valid messages that is nearly always enough.
    elif bytes(body[start:stop]).count(_POINT_BYTE) > 4 * MAX_POINTS and has_more_fields(
        body, start, stop, 2 * MAX_POINTS
    ):
        came = f"more than {2 * MAX_POINTS} points; send at most {MAX_POINTS} points per message"
    else:
        return
    raise InvalidInputError(f"scalars: {came}")


def _find_token(body: Body) -> str | None:
    """Returns the token of a serialised hello, "" if it has none; None: it is not a hello."""
    token = None
    for number, kind, start, stop in walk_fields(body, 0, len(body)):
        if number == _HELLO and kind == BYTES:
            token = token or ""
            for inner, inner_kind, begin, end in walk_fields(body, start, stop):
                if inner == _TOKEN and inner_kind == BYTES:
                    token = bytes(body[begin:end]).decode(errors="replace")  # the last one counts
    return token


def _parse(body: Body) -> rlx_pb2.ClientMessage:
    try:
        # Accepts any buffer, although its stub does not say so; avoids a copy.
        return rlx_pb2.ClientMessage.FromString(body)  # type: ignore[arg-type]
    except DecodeError:
        raise _describe_malformed(body) from None


def _describe_malformed(body: Body) -> ProtocolError:
    return ProtocolError(
        f"received {len(body)} bytes that are not an rlx protocol message; check that the peer is "
        "an rlx client, and update the client or the server",
        "MALFORMED",
    )
