"""What a hostile client sends costs the others nothing: what is done, not how long it takes."""

import asyncio
import contextlib
import logging
import socket
import struct
import threading

import pytest
from support.attacks import ATTACKS, flood, make_box, send_half_a_hello
from support.connections import Listener, Transport, feed, make_connection
from support.rlx import (
    RawClient,
    RecordingAgent,
    array,
    make_hello,
    make_next,
    make_start,
    make_step,
    serve_rlx,
)

from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.rlx_server.admission import Admission
from relaax_like.rlx_server.client_log import LogBudget
from relaax_like.rlx_server.connection import ServerConnection
from relaax_like.rlx_server.protobuf_codec import ProtobufCodec
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.framing import HEADER, pack_frame


class UnreachedConfig(AlgorithmConfig):
    """The algorithm must not see such spaces."""

    def validate_spaces(self, observation_spaces, action_spaces):
        raise AssertionError("the algorithm saw the spaces")


HELLOS = {
    "axes": ({"observation_spaces": {"x": make_box(*[2] * 300_000)}}, "at most 32"),
    "axes of an action": ({"action_spaces": {"x": make_box(*[1] * 33)}}, "at most 32"),
    "a large product": (
        {"observation_spaces": {"x": make_box(*[2**31 - 1] * 32)}},
        "use a smaller array",
    ),
    "many n": (
        {
            "action_spaces": {
                "x": rlx_pb2.Space(
                    kind=rlx_pb2.MULTI_DISCRETE, dtype="int64", shape=[2], n=[3] * 300_000
                )
            }
        },
        "300000 numbers n",
    ),
    "many leaves": (
        {"observation_spaces": {str(leaf): make_box(1) for leaf in range(3000)}},
        "expected at most 1000 leaves",
    ),
}


@pytest.mark.parametrize(("fields", "words"), HELLOS.values(), ids=HELLOS.keys())
def test_a_hello_of_many_numbers_is_refused_before_the_algorithm_sees_it(backend, fields, words):
    with serve_rlx(backend, config=UnreachedConfig(), max_message_bytes=64 << 20) as port:
        with RawClient(port) as client:
            answer = client.ask(make_hello(**fields))
    assert answer.error.code == rlx_pb2.INVALID_FIELD
    assert words in answer.error.message
    assert len(answer.error.message) <= 1000


def test_a_step_of_many_leaves_is_refused_before_it_is_parsed(backend, monkeypatch):
    from relaax_like.rlx_server import protobuf_codec

    with serve_rlx(backend, max_message_bytes=64 << 20) as port, RawClient(port) as client:
        client.greet()
        client.ask(make_start())
        monkeypatch.setattr(protobuf_codec, "_parse", None)
        answer = client.ask(
            make_step(observations={str(leaf): array([1.0]) for leaf in range(10_000)})
        )
    assert answer.error.code == rlx_pb2.INVALID_FIELD
    assert "fields" in answer.error.message


def put(number, data):
    """Returns a field of bytes."""
    length, encoded = len(data), b""
    while length > 0x7F:
        encoded += bytes([length & 0x7F | 0x80])
        length >>= 7
    return bytes([number << 3 | 2]) + encoded + bytes([length]) + data


HELLO = make_hello().hello.SerializeToString()
LEAVES = b"".join(put(4, put(1, b"%d" % leaf)) for leaf in range(3000))
MANY_LOWS = put(4, put(1, b"x") + put(2, put(4, b"") * 2_000_000))
MANY_N = put(4, put(1, b"x") + put(2, put(6, b"\x02" * 4_000_000)))
POINT = rlx_pb2.ClientMessage.DESCRIPTOR.fields_by_name["scalars"].number
BODIES = {
    "many parts": (b"\x78\x00" * (1 << 20), "parts"),
    "a group first": (b"\x7b\x7c" + put(1, HELLO + LEAVES), "not an rlx protocol message"),
    "a group within": (put(1, b"\x7b\x7c" + HELLO + LEAVES), "not an rlx protocol message"),
    "leaves in many parts": (put(1, LEAVES[:16_000]) * 9, "parts"),
    "a heavy leaf": (put(1, HELLO + MANY_LOWS), "overhead besides array data"),
    "a leaf of many numbers": (put(1, HELLO + MANY_N), "overhead besides array data"),
    "many points": (put(POINT, put(1, b"") * 1_100_000), "more than 20000 points"),
}


@pytest.mark.parametrize(("body", "words"), BODIES.values(), ids=BODIES.keys())
def test_a_message_that_is_dear_to_parse_is_refused_before_that(backend, monkeypatch, body, words):
    from relaax_like.rlx_server import protobuf_codec

    monkeypatch.setattr(protobuf_codec, "_parse", None)
    with serve_rlx(backend, max_message_bytes=64 << 20) as port, RawClient(port) as client:
        client.socket.sendall(pack_frame(body))
        answer = client.receive()
    assert answer.error.code in (rlx_pb2.INVALID_FIELD, rlx_pb2.MALFORMED)
    assert words in answer.error.message


def test_names_of_agents_and_kinds_of_as_many_slots_as_a_client_can_have_are_read():
    message = rlx_pb2.ClientMessage()
    for number in range(4096):
        message.hello.agents.append(f"agent_{number}")
        message.hello.kinds.append("k" * 100)
    read = ProtobufCodec().read(message.SerializeToString(), False, lambda token: None)
    assert read.content == message.hello
    message.hello.agents.append("one_more")
    with pytest.raises(InvalidInputError) as refused:
        ProtobufCodec().read(message.SerializeToString(), False, lambda token: None)
    assert refused.value.field == "agents"


@pytest.mark.parametrize("leaves", [1, 2])
def test_multi_discrete_leaves_have_a_bounded_number_of_components(client, leaves):
    components = 70_000 // leaves
    space = rlx_pb2.Space(kind=rlx_pb2.MULTI_DISCRETE, dtype="int8", shape=[components])
    space.n.extend([2] * components)
    answer = client.ask(make_hello(action_spaces={str(leaf): space for leaf in range(leaves)}))
    assert answer.error.code == rlx_pb2.INVALID_FIELD
    assert "at most 65536" in answer.error.message


def test_each_turn_of_the_loop_handles_one_message_of_a_connection():
    async def play():
        session = Listener()
        connection, transport = make_connection(session)
        feed(connection, b"".join(pack_frame(bytes([i])) for i in range(4)) + b"\x00\x00")
        seen = [len(session.bodies)]
        assert not transport.reading
        for _ in range(4):
            await asyncio.sleep(0)
            seen.append(len(session.bodies))
        assert seen == [1, 2, 3, 4, 4]
        assert transport.reading
        feed(connection, b"\x00\x01z")  # the rest of the one that had begun
        assert session.bodies == [b"\x00", b"\x01", b"\x02", b"\x03", b"z"]

    asyncio.run(play())


class LaterCalls:
    """A loop that notes what it is to call later."""

    def __init__(self):
        self.calls = []

    def call_later(self, seconds, function, *arguments):
        self.calls.append((seconds, function, arguments))


def test_a_client_whose_points_are_dropped_rests_before_its_next_message():
    async def play():
        session = Listener()
        session.points.dropped = 1
        connection, _ = make_connection(session)
        loop = connection._server.loop = LaterCalls()
        feed(connection, pack_frame(b"a") + pack_frame(b"b"))
        feed(connection, pack_frame(b"c"))
        assert session.bodies == [b"a"]
        ((seconds, function, arguments),) = loop.calls
        assert seconds > 0
        function(*arguments)
        assert session.bodies == [b"a", b"b"]

    asyncio.run(play())


def test_of_an_unknown_client_each_turn_of_the_loop_reads_once():
    async def check():
        session = Listener()
        session.greeted, session.max_message_bytes = False, 0
        connection, transport = make_connection(session)
        reads = 0
        feed(connection, HEADER.pack(1 << 20))
        while transport.reading and reads < 2:
            view = connection.get_buffer(-1)
            connection.buffer_updated(len(view))
            reads += 1
        assert reads == 1
        await wait_until_reading(transport)

    asyncio.run(check())


def test_a_closing_connection_reads_with_pauses_and_not_for_ever():
    async def check():
        connection, transport = make_connection(Listener())
        feed(connection, HEADER.pack(1 << 30))
        assert transport.written  # an error
        received = 0
        while not transport.aborted:
            await wait_until_reading(transport)
            view = connection.get_buffer(-1)
            connection.buffer_updated(len(view))
            received += len(view)
            assert not transport.reading or transport.aborted
        assert received <= 5 << 20

    asyncio.run(check())


async def wait_until_reading(transport):
    async with asyncio.timeout(20):
        while not transport.reading:
            await asyncio.sleep(0.001)


def test_a_hello_of_more_than_4_mib_is_refused_when_it_is_announced(backend):
    with serve_rlx(backend, max_message_bytes=64 << 20) as port, RawClient(port) as client:
        client.socket.sendall(HEADER.pack((4 << 20) + 1))
        answer = client.receive()
    assert answer.error.code == rlx_pb2.MALFORMED


def test_unfinished_hellos_have_a_budget_and_a_right_one_comes_through(backend):
    limit = 4 << 20
    admission = Admission(8, 0, hello_bytes=limit)
    with serve_rlx(backend, admission=admission, max_message_bytes=64 << 20) as port:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(RawClient(port)) for _ in range(8)]
            for client in clients:
                send_half_a_hello(client, 1 << 20)
                assert sum(admission._unknown.values()) <= limit
            assert wait_for(lambda: admission.unknown <= 4)  # each holds a MiB at least
            with RawClient(port, "127.0.0.2") as honest:
                honest.greet(observation_spaces={"observation": make_bounded(50_000)})
                assert sum(admission._unknown.values()) <= limit


def make_bounded(size):
    """Makes a Box whose bounds make a hello of 8 * size bytes."""
    space = make_box(size)
    for bound, value in ((space.low, 0.0), (space.high, 1.0)):
        bound.CopyFrom(array([value] * size))
    return space


def test_connections_without_a_hello_keep_no_client_out(backend):
    admission = Admission(2, 0, max_unknown=4)
    with serve_rlx(backend, admission=admission) as port, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(RawClient(port)) for _ in range(4)]
        assert wait_for(lambda: admission.unknown == 4)
        with RawClient(port, "127.0.0.2") as honest:
            honest.greet()
        assert silent[0].receive().error.code == rlx_pb2.OVERLOADED
        assert silent[0].is_closed_by_server()
        with RawClient(port, "127.0.0.2") as honest:
            honest.greet()


class WordyAgent(RecordingAgent):
    def act(self, state):
        raise ValueError("x" * 2_000_000)


def test_errors_and_log_lines_have_a_bounded_length(backend, caplog):
    with serve_rlx(backend, WordyAgent) as port, RawClient(port) as client:
        client.greet()
        answer = client.ask(make_start())
    assert answer.error.code == rlx_pb2.AGENT_FAILED
    assert len(answer.error.message) == 1000
    lengths = [len(record.getMessage()) for record in caplog.records]
    assert max(lengths) < 10_000
    assert "its agent failed" in caplog.text


def test_an_address_causes_so_many_log_lines_and_the_others_are_counted(backend, caplog):
    now = [0.0]

    def prepare(server):
        server.log_budget = LogBudget(10, lambda: now[0])

    caplog.set_level(logging.WARNING)
    with serve_rlx(backend, prepare=prepare) as port:
        for _ in range(25):
            with RawClient(port) as client:
                assert client.ask(rlx_pb2.ClientMessage()).error.code == rlx_pb2.MALFORMED
        now[0] = 2.0
        assert wait_for(lambda: "127.0.0.1: 15 more lines" in caplog.text)
    assert caplog.text.count("an empty message") == 10


def test_a_failed_session_delays_the_next_one_of_that_name_and_address_alone():
    async def play():
        connection, _ = make_connection(Listener())
        server = connection._server
        server.note_failure("name", "10.0.0.1")
        assert server.get_greeting_delay("name", "10.0.0.1") > 0
        assert server.get_greeting_delay("name", "10.0.0.2") == 0
        assert server.get_greeting_delay("other", "10.0.0.1") == 0

    asyncio.run(play())


def test_new_connections_of_an_address_with_very_many_failures_are_read_later():
    async def play():
        connection, _ = make_connection(Listener())
        server = connection._server
        loop = server.loop = LaterCalls()
        for _ in range(51):
            assert server.get_reading_delay("10.0.0.1") == 0
            server.note_failure(None, "10.0.0.1")
        assert server.get_reading_delay("10.0.0.1") > 0
        assert server.get_reading_delay("10.0.0.2") == 0
        server.get_reading_delay = lambda address: 0.5
        session, transport = Listener(), Transport()
        later = ServerConnection(server, session)
        later.connection_made(transport)
        feed(later, pack_frame(b"a"))
        assert not transport.reading
        assert session.bodies == []
        ((seconds, function, _),) = loop.calls
        assert seconds == 0.5
        function()
        assert session.bodies == [b"a"]
        assert transport.reading

    asyncio.run(play())


def test_failures_are_forgotten_by_and_by(backend):
    servers = []
    with serve_rlx(backend, prepare=servers.append, hello_timeout_sec=4.0) as port:
        for _ in range(55):
            with RawClient(port) as client:
                client.socket.sendall(pack_frame(b""))
                client.receive()
        assert wait_for(lambda: servers[0].get_reading_delay("127.0.0.1") == 0)
        with RawClient(port) as client:
            client.greet()


@pytest.mark.parametrize("attack", ATTACKS)
def test_during_an_attack_the_server_answers_and_stops(backend, attack):
    stop = threading.Event()
    admission = Admission(64, 0, max_unknown=32)
    with serve_rlx(backend, admission=admission, max_message_bytes=64 << 20) as port:
        attackers = [threading.Thread(target=flood, args=(port, stop, attack)) for _ in range(2)]
        for attacker in attackers:
            attacker.start()
        try:
            with RawClient(port, "127.0.0.2") as honest:
                honest.greet(client_name="honest")
                assert honest.ask(make_start()).WhichOneof("body") == "actions"
                for _ in range(5):
                    assert honest.ask(make_next()).WhichOneof("body") == "actions"
        except BaseException:
            stop.set()
            raise
    # The server has been stopped while the attackers still send.
    stop.set()
    for attacker in attackers:
        attacker.join(20)
        assert not attacker.is_alive()


def test_the_kernel_watches_over_each_connection(backend):
    servers = []
    with serve_rlx(backend, prepare=servers.append) as port, RawClient(port) as client:
        client.greet()
        (connection,) = servers[0].connections
        connected = connection._transport.get_extra_info("socket")
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30


def test_a_sessions_message_limit_follows_from_its_spaces(backend):
    with serve_rlx(backend, max_message_bytes=64 << 20) as port:
        for size, want in ((2, 4 << 20), (1 << 20, 16 << 20), (1 << 23, 64 << 20)):
            with RawClient(port) as client:
                answer = client.ask(make_hello(observation_spaces={"observation": make_box(size)}))
                limit = answer.ready.max_message_bytes
                assert want <= limit < 1.01 * want, (size, limit)
                client.socket.sendall(struct.pack(">I", limit + 1))
                assert client.receive().error.code == rlx_pb2.MALFORMED


def wait_for(condition, timeout_sec=20.0):
    for _ in range(int(timeout_sec / 0.02)):
        if condition():
            return True
        threading.Event().wait(0.02)
    return False
