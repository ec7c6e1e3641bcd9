"""The bytes that docs/protocol.md shows are the ones that are sent. covers R25"""

import re

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from support.cluster import ROOT
from support.rlx import RawClient, array, serve_rlx

from relaax_like.rlx_server import admission, client_log, points
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.framing import HEADER
from relaax_like.wire.ndarray import MAX_AXES
from relaax_like.wire.spaces import Box, Discrete, space_to_message

PAGE = (ROOT / "docs/protocol.md").read_text()
LINE = re.compile(r"^    ([0-9a-f]{4})  ((?:[0-9a-f]{2} )+) *(.+)$", re.MULTILINE)


def read_dumps():
    """Returns the dumped messages, each without its frame's length, which is checked."""
    dumps = []
    for offset, numbers, text in LINE.findall(PAGE):
        part = bytes.fromhex(numbers)
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        assert text == shown, f"{text!r} beside {numbers}"
        if int(offset, 16) == 0:
            dumps.append(b"")
        assert len(dumps[-1]) == int(offset, 16)
        dumps[-1] += part
    for dump in dumps:
        assert HEADER.unpack(dump[: HEADER.size]) == (len(dump) - HEADER.size,)
    return [dump[HEADER.size :] for dump in dumps]


HELLO = rlx_pb2.ClientMessage(
    hello=rlx_pb2.Hello(
        protocol_version=1,
        client_name="demo",
        slots=1,
        observation_spaces={"observation": space_to_message(Box(dtype="float32", shape=(2,)))},
        action_spaces={"action": space_to_message(Discrete(n=2))},
        mode=rlx_pb2.TRAIN,
    )
)
STEP = rlx_pb2.ClientMessage(
    step=rlx_pb2.Step(
        observations={"observation": array([[0.25, 2.0]])},
        rewards=array([1.0]),
        terminated=array([0], "bool"),
        truncated=array([0], "bool"),
    )
)
ACTIONS = rlx_pb2.ServerMessage(
    actions=rlx_pb2.Actions(actions={"action": array([1], "int64")}, version=3)
)


ROWS = {line.split("|")[1].strip(): line for line in PAGE.splitlines() if line.startswith("| ")}


LOG_LINES = "log lines per address, and score lines per client"
LIMITS = [
    ("points per second", f"{points.POINTS_PER_SECOND:_} per client"),
    ("points per second", f"{points.POINTS_PER_SECOND_TOGETHER:_} together"),
    ("points in one `StoreScalarsRequest`", f" {points.POINTS_AT_ONCE:_}, "),
    ("a `Hello`", f" {admission.MAX_HELLO_BYTES >> 20} MiB; "),
    ("a `Hello`", f" together {admission.MAX_HELLO_BYTES_TOGETHER >> 20} MiB "),
    ("connections without a hello, including TLS handshakes", f"| {admission.MAX_UNKNOWN} |"),
    ("axes of a shape", f"| {MAX_AXES} |"),
    (LOG_LINES, f"| {client_log.LINES_PER_SECOND} per second, "),
    (LOG_LINES, f" {client_log.MAX_LINE_LENGTH} characters each"),
]


@pytest.mark.parametrize(("limit", "text"), LIMITS)
def test_limits_are_those_that_the_page_says(limit, text):
    assert text.replace("_", " ") in ROWS[limit]


def test_the_page_shows_the_bytes_of_these_messages():
    hello, _, step, actions = read_dumps()
    assert rlx_pb2.ClientMessage.FromString(hello) == HELLO
    assert hello == HELLO.SerializeToString(deterministic=True)
    assert step == STEP.SerializeToString(deterministic=True)
    assert actions == ACTIONS.SerializeToString(deterministic=True)


def test_a_server_answers_the_pages_hello_with_the_pages_ready(backend):
    hello, ready, step, _ = read_dumps()
    with serve_rlx(backend, max_message_bytes=64 << 20) as port, RawClient(port) as client:
        client.socket.sendall(HEADER.pack(len(hello)) + hello)
        assert client.receive() == rlx_pb2.ServerMessage.FromString(ready)
        first = rlx_pb2.ClientMessage.FromString(step)
        for field in ("rewards", "terminated", "truncated"):
            first.step.ClearField(field)
        client.ask(first)
        client.socket.sendall(HEADER.pack(len(step)) + step)
        assert client.receive().WhichOneof("body") == "actions"


@pytest.fixture
def backend():
    from support.bridge import make_backend

    with make_backend() as server:
        yield server


def describe_fields() -> dict[str, str]:
    """Returns how the page lists the fields of each message and value of an rlx connection."""
    rows: dict[str, str] = {}

    def describe(message: Descriptor) -> None:
        if message.name in rows:
            return
        if not message.GetOptions().map_entry:
            fields = [(field.number, field.name, get_type(field)) for field in message.fields]
            rows[message.name] = ", ".join(f"{n} `{name}` {type_}" for n, name, type_ in fields)
        for field in message.fields:
            if field.message_type:
                describe(field.message_type)
            if field.enum_type:
                values = ((value.number, value.name) for value in field.enum_type.values)
                rows[field.enum_type.name] = ", ".join(f"{n} `{name}`" for n, name in values)

    for name in ("ClientMessage", "ServerMessage"):
        describe(rlx_pb2.DESCRIPTOR.message_types_by_name[name])
    return {name: fields or "no fields" for name, fields in rows.items()}


def get_type(field: FieldDescriptor) -> str:
    """Returns a field's type as a .proto file has it."""
    inner = field.message_type
    if inner and inner.GetOptions().map_entry:
        return f"map<{', '.join(map(get_type, inner.fields))}>"
    kinds = {
        number: name for name, number in vars(FieldDescriptor).items() if name.startswith("TYPE_")
    }
    named = inner or field.enum_type
    name = named.name if named else kinds[field.type].removeprefix("TYPE_").lower()
    return f"repeated {name}" if field.is_repeated else name


def test_the_page_lists_all_fields_and_their_numbers() -> None:
    begin = PAGE.index("### Fields and their numbers")
    rows = re.findall(
        r"^\| `(\w+)` \| (.*) \|$", PAGE[begin : PAGE.index("### Byte by byte")], re.M
    )
    assert dict(rows) == describe_fields()
