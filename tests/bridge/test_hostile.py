"""Whatever comes to the parameter server's port: it lives, and an honest client notices nothing.

One server process serves all tests of this file, and one honest client pushes to it all the while.
After each test the server's values must be, bit by bit, what the pushes lead to that were answered.
"""

import contextlib
import itertools
import os
import random
import signal
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import grpc
import numpy as np
import psutil
import pytest
from support import hostile
from support.cluster import BARE, TRACE, Cluster, wait_until
from support.history import Acknowledged, History, make_store, write_initial_values

from relaax_like.v1 import ndarray_pb2
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.v1 import parameter_server_pb2_grpc as pb_grpc

PARAMETERS = 100
GRADIENT_BYTES = 4 * PARAMETERS
GROWTH_BYTES = 150_000_000
ANY_TEXT = "any text of a stranger"
_numbers = itertools.count(1)


class Site:
    """A server process, its honest client, and what is checked about both.

    Attributes:
      cluster: with the server.
      server: its process.
      history: of the honest client.
      manifest: of the server.
    """

    def __init__(self, folder: Path, parameters: int = PARAMETERS):
        # So many steps that even pushes of 2^40 do not end the training.
        self.cluster = Cluster(folder, BARE, f"algorithm.max_global_step={1 << 60}")
        self.cluster.sets += write_initial_values(folder, parameters)
        with mock.patch.dict(os.environ):
            os.environ.pop("GRPC_VERBOSITY", None)  # which this process has set
            self.server = self.cluster.start_parameter_server()
        self.port = self.cluster.ps_port
        self.server.wait_for(rf"parameter server on .*:{self.port}")
        self.history = History(
            f"localhost:{self.port}", clients=1, parameters=parameters, pause_sec=0.005
        )
        self.history.start()
        self.history.wait(3)
        with hostile.open_channel(self.port) as channel:
            stub = pb_grpc.ParameterServerStub(channel)
            self.manifest = stub.GetManifest(pb.GetManifestRequest())
        self._store = make_store(parameters)

    @property
    def resident_bytes(self) -> int:
        return psutil.Process(self.server.pid).memory_info().rss

    @property
    def refused(self) -> dict[str, int]:
        return dict(self.cluster.wait_status(lambda status: True, "any answer").refused)

    def check(self) -> None:
        """Fails unless server and honest client are as if nothing had happened."""
        self.history.wait(5)
        assert self.server.alive
        assert TRACE not in self.server.output, self.server.output
        values = self.history.pull()
        wait_until(lambda: len(self.history.acknowledged) >= values.version, "the last answer")
        records = sorted(self.history.acknowledged, key=lambda one: one.version)
        for record in records[self._store.version : values.version]:
            self._store.apply(record.gradient, record.env_steps)
            assert (self._store.version, self._store.global_t) == (record.version, record.global_t)
        np.testing.assert_array_equal(values.flat, self._store.values.flat)

    def note(self, reply: pb.ReplyHeader, gradient: np.ndarray, env_steps: int) -> None:
        """Takes a push of ours into the history: it was as good as any."""
        assert reply.outcome == pb.APPLIED
        record = Acknowledged(
            -1, next(_numbers), reply.version, reply.global_t, "applied", env_steps, gradient
        )
        self.history.acknowledged.append(record)

    def close(self) -> None:
        try:
            self.history.stop()
            self.history.check()
            assert self.server.stop() == 128 + signal.SIGTERM
            assert TRACE not in self.server.output, self.server.output
            assert ANY_TEXT not in self.server.output, self.server.output
        except BaseException:
            self.history.abandon()  # only then: it ends the clients of all histories
            raise
        finally:
            self.cluster.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with contextlib.closing(Site(tmp_path_factory.mktemp("site"))) as site:
        yield site


@pytest.fixture(autouse=True)
def unharmed(site: Site) -> Iterator[None]:
    before = site.resident_bytes
    yield
    site.check()
    assert site.resident_bytes < before + GROWTH_BYTES


@pytest.fixture
def channel(site: Site) -> Iterator[grpc.Channel]:
    with hostile.open_channel(site.port) as channel:
        yield channel


# What is no gRPC.

RANDOM = random.Random(3)
NOISE = RANDOM.randbytes(100_000)
EMPTY_STATUS = hostile.pack_request(1, "/relaax.v1.ParameterServer/GetStatus")
BYTES = {
    "nothing": b"",
    "one byte": b"\x16",
    "noise": NOISE,
    "zeros": bytes(1_000_000),
    "HTTP/1": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a giant HTTP/1 header": b"POST / HTTP/1.1\r\nX: " + b"a" * 1_000_000,
    "half a preface": hostile.PREFACE[:10],
    "a preface and noise": hostile.PREFACE + NOISE,
    "settings and noise": hostile.HELLO + NOISE,
    "a frame of 16 MB, announced": hostile.HELLO + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
    "data for a stream that is not open": hostile.HELLO + hostile.pack_message(1, b"abc"),
    "settings for a stream": hostile.HELLO + hostile.pack_frame(hostile.SETTINGS, 0, 5),
    "a farewell with any text": hostile.HELLO
    + hostile.pack_frame(hostile.GOAWAY, 0, 0, struct.pack(">II", 0, 2) + ANY_TEXT.encode()),
    "settings of odd length": hostile.HELLO + hostile.pack_frame(hostile.SETTINGS, 0, 0, b"abc"),
    "a window of 2^32 - 1": hostile.HELLO
    + hostile.pack_frame(hostile.SETTINGS, 0, 0, struct.pack(">HI", 4, 0xFFFFFFFF)),
    "ten thousand pings": hostile.HELLO + 10_000 * hostile.pack_frame(hostile.PING, 0, 0, bytes(8)),
    "a header block without an end": hostile.HELLO
    + hostile.pack_frame(hostile.HEADERS, 0, 1, b"\x00\x01a\x01b")
    + 10_000 * hostile.pack_frame(hostile.CONTINUATION, 0, 1, b"\x00\x01a\x01b"),
    "a header field of 2^60 bytes": hostile.HELLO
    + hostile.pack_frame(hostile.HEADERS, 4, 1, b"\x00\x7f" + b"\xff" * 9),
    "headers that are noise": hostile.HELLO
    + hostile.pack_frame(hostile.HEADERS, 5, 1, NOISE[:5000]),
    "thousands of calls that are reset at once": hostile.HELLO
    + b"".join(
        hostile.pack_request(stream, hostile.PUSH_PULL)
        + hostile.pack_frame(hostile.RST_STREAM, 0, stream, bytes(4))
        for stream in range(1, 6001, 2)
    ),
    "an unknown compression": hostile.HELLO
    + hostile.pack_request(1, hostile.PUSH_PULL_WHOLE, ("grpc-encoding", "rot13"))
    + hostile.pack_message(1, b"abc", compressed=1),
    "gzip that is none": hostile.HELLO
    + hostile.pack_request(1, hostile.PUSH_PULL_WHOLE, ("grpc-encoding", "gzip"))
    + hostile.pack_message(1, NOISE[:1000], compressed=1),
    "a message of 4 GB, announced": hostile.HELLO
    + hostile.pack_request(1, hostile.PUSH_PULL)
    + hostile.pack_frame(hostile.DATA, 0, 1, b"\x00\xff\xff\xff\xff" + bytes(1000)),
    "a message whose end does not come": hostile.HELLO
    + hostile.pack_request(1, hostile.PUSH_PULL_WHOLE)
    + hostile.pack_frame(hostile.DATA, hostile.END_STREAM, 1, b"\x00\x00\x00\x01\x00abc"),
    "a call without a message": hostile.HELLO
    + hostile.pack_request(1, hostile.PUSH_PULL_WHOLE)
    + hostile.pack_frame(hostile.DATA, hostile.END_STREAM, 1),
    "two messages for a call of one": hostile.HELLO
    + hostile.pack_request(1, hostile.PUSH_PULL_WHOLE)
    + hostile.pack_message(1, b"", 0)
    + hostile.pack_message(1, b""),
    **{
        f"a time-out of {text!r}": hostile.HELLO
        + hostile.pack_request(1, hostile.PUSH_PULL, ("grpc-timeout", text))
        + hostile.pack_message(1, pb.PushPullRequest().SerializeToString())
        for text in ("0n", "-5S", "99999999999999999999H", "soon", "")
    },
}


@pytest.mark.parametrize("data", BYTES.values(), ids=BYTES.keys())
def test_bytes_of_any_kind(site: Site, data: bytes) -> None:
    with hostile.connect(site.port) as connection:
        hostile.send_and_drain(connection, data, timeout_sec=0.1)


def test_a_tls_client_on_the_plain_port(site: Site) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with hostile.connect(site.port) as connection, pytest.raises(OSError):  # noqa: PT011
        context.wrap_socket(connection)
    secure = grpc.secure_channel(f"127.0.0.1:{site.port}", grpc.ssl_channel_credentials())
    with secure:
        code, _ = hostile.refuse(secure, hostile.PUSH_PULL, [b""])
    assert code is grpc.StatusCode.UNAVAILABLE


def test_500_idle_connections_and_500_that_have_said_hello(site: Site) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(1000):
            connection = stack.enter_context(hostile.connect(site.port))
            if number % 2:
                connection.sendall(hostile.HELLO)
        site.check()


def test_500_idle_channels(site: Site) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(500):
            channel = stack.enter_context(hostile.open_channel(site.port))
            stub = pb_grpc.ParameterServerStub(channel)
            assert stub.GetManifest(pb.GetManifestRequest(), timeout=30) == site.manifest
        site.check()


# What is gRPC, and no call of ours.

METHODS = [
    "/",
    "//",
    "/relaax.v1.ParameterServer/",
    "/relaax.v1.ParameterServer/Drop",
    "/relaax.v2.ParameterServer/PushPull",
    "/ParameterServer/PushPull",
    "/" + "x" * 5000,
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method[:40])
def test_an_unknown_method(channel: grpc.Channel, method: str) -> None:
    assert hostile.refuse(channel, method, [b"abc"])[0] is grpc.StatusCode.UNIMPLEMENTED


UNARY = [
    "/relaax.v1.ParameterServer/GetManifest",
    "/relaax.v1.ParameterServer/Pull",
    "/relaax.v1.ParameterServer/GetStatus",
    "/relaax.v1.Metrics/StoreScalars",
    "/ParameterServer/IncrementGlobalT",
    "/ParameterServer/GetValues",
    "/ParameterServer/StoreScalarMetric",
    "/ParameterServer/ApplyGradients",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
]


@pytest.mark.parametrize("method", UNARY)
@pytest.mark.parametrize(
    "data", [b"\xff", b"\x0a\x05abc", b"\x0b\x0b\x0b"], ids=["tag", "length", "groups"]
)
def test_bytes_that_are_no_message(channel: grpc.Channel, method: str, data: bytes) -> None:
    code, details = hostile.refuse(channel, method, [data])
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details.startswith(f"{method.rpartition('/')[2]}: the request is not a valid message")


def test_metadata_of_a_megabyte(channel: grpc.Channel) -> None:
    call = channel.unary_unary("/relaax.v1.ParameterServer/GetStatus")
    for metadata in ([("x", "a" * 1_000_000)], [(f"x{n}", "a" * 1000) for n in range(1000)]):
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", metadata=metadata, timeout=20)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("method", [hostile.PUSH_PULL, "/ParameterServer/ApplyGradients"])
@pytest.mark.parametrize("compression", grpc.Compression)
def test_a_message_above_the_limit(
    channel: grpc.Channel, method: str, compression: grpc.Compression
) -> None:
    call = channel.stream_stream(method)(
        iter([b"\x12" + bytes(100_000_000)]), timeout=20, compression=compression
    )
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_no_time_at_all(site: Site, channel: grpc.Channel) -> None:
    push = make_push(site, gradient=np.full(PARAMETERS, np.nan, np.float32))
    for timeout_sec in [0, 1e-9, 1e-6, 1e-4, 1e-3] * 20:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(hostile.PUSH_PULL_WHOLE)(push, timeout=timeout_sec)
        assert caught.value.code() in (
            grpc.StatusCode.DEADLINE_EXCEEDED,
            grpc.StatusCode.INVALID_ARGUMENT,
        )


# Pushes.


def make_header(site: Site, **fields: object) -> pb.PushHeader:
    """Returns the header of a push that would be taken, with a gradient to come, changed."""
    good = {
        "client_id": "hostile",
        "incarnation": next(_numbers),
        "sequence": 1,
        "gradient_bytes": GRADIENT_BYTES,
        "fingerprint": site.manifest.fingerprint,
        "want_values": True,
    }
    return pb.PushHeader(**{**good, **fields})


def make_push(site: Site, gradient: np.ndarray | None = None, **fields: object) -> bytes:
    """Returns a push in one message."""
    if gradient is None:
        gradient = np.ones(PARAMETERS, np.float32)
    header = make_header(site, first_chunk=gradient.tobytes(), **fields)
    return pb.PushPullRequest(header=header).SerializeToString()


def full(number: float) -> np.ndarray:
    return np.full(PARAMETERS, number, np.float32)


def statistics(number: int, **fields: object) -> list[pb.StatisticDelta]:
    return [pb.StatisticDelta(name=f"s{n}", **fields) for n in range(number)]


SCALAR = ndarray_pb2.NdArray(dtype="float64", data=bytes(8))
NOTHING = ndarray_pb2.NdArray(dtype="float64", shape=[0, *[(1 << 31) - 1] * 3])
LONG_SHAPE = ndarray_pb2.NdArray(dtype="float64", shape=[1] * 2_000_000)
EPISODE = pb.Episode(episode_return=1.0, length=1)
# Changes to a good push -> words of the refusal, and the reason under which it is counted.
PUSHES: dict[str, tuple[dict, str, str]] = {
    "no client": ({"client_id": ""}, "client_id", "bad client id"),
    "a name of 201": ({"client_id": "a" * 201}, "client_id", "bad client id"),
    "a name of a megabyte": ({"client_id": "a" * 1_000_000}, "client_id", "bad client id"),
    "a name with a line's end": ({"client_id": "a\nb"}, "client_id", "bad client id"),
    "a name with a zero": ({"client_id": "a\0"}, "client_id", "bad client id"),
    "another layout": ({"fingerprint": 7}, "fingerprint 00000007", "malformed"),
    "a longer gradient": ({"gradient_bytes": 404}, "404 bytes announced", "malformed"),
    "an endless gradient": ({"gradient_bytes": (1 << 64) - 1}, "bytes announced", "malformed"),
    "an unknown group": ({"groups": ["x" * 1000]}, "unknown variable group", "malformed"),
    "a group without a name": ({"groups": [""]}, "unknown variable group", "malformed"),
    "a group twice": ({"groups": ["default"] * 2}, "duplicate name", "malformed"),
    "groups and no gradient": (
        {"groups": ["default"], "gradient_bytes": 0, "env_steps": 1},
        "leave groups empty",
        "unknown group",
    ),
    "NaN": ({"gradient": full(np.nan)}, "contains nan", "not finite"),
    "infinity": ({"gradient": full(-np.inf)}, "contains -inf", "not finite"),
    "a huge norm": ({"gradient": full(3e38)}, "clip it", "too large"),
    "2^40 + 1 steps": ({"env_steps": (1 << 40) + 1}, "env_steps", "bad count"),
    "2^63 steps": ({"env_steps": 1 << 63}, "env_steps", "bad count"),
    "2^64 - 1 steps": ({"env_steps": (1 << 64) - 1}, "env_steps", "bad count"),
    "version 2^64 - 1": ({"gradient_version": (1 << 64) - 1}, "gradient_version", "bad count"),
    "1 001 episodes": ({"episodes": [EPISODE] * 1_001}, "1001 episodes", "malformed"),
    "an episode of NaN": (
        {"episodes": [pb.Episode(episode_return=np.nan, length=1)]},
        "finite",
        "bad episode",
    ),
    "an infinite episode": (
        {"episodes": [EPISODE, pb.Episode(episode_return=np.inf, length=1)]},
        "episodes[1]",
        "bad episode",
    ),
    "an empty episode": ({"episodes": [pb.Episode()]}, "episodes[0].length", "bad episode"),
    "an endless episode": (
        {"episodes": [pb.Episode(length=(1 << 64) - 1)]},
        "episodes[0].length",
        "bad episode",
    ),
    "64 unknown statistics": (
        {"statistics": statistics(64, count=1, mean=SCALAR, m2=SCALAR)},
        "unknown statistic",
        "bad statistic",
    ),
    "65 statistics": ({"statistics": statistics(65)}, "at most 64", "malformed"),
    "a statistic twice": (
        {"statistics": 2 * statistics(1, count=1, mean=SCALAR, m2=SCALAR)},
        "twice in one push",
        "malformed",
    ),
    "a statistic of no dtype": ({"statistics": statistics(1)}, "unknown dtype", "malformed"),
    "no numbers, in a shape that NumPy cannot count": (
        {"statistics": statistics(1, mean=NOTHING)},
        "is too large",
        "malformed",
    ),
    "two million axes": (
        {"statistics": statistics(1, mean=LONG_SHAPE)},
        "2000000 axes, expected at most 32",
        "malformed",
    ),
    "a statistic's long name": (
        {"statistics": [pb.StatisticDelta(name="n" * 1_000_000, mean=SCALAR, m2=SCALAR)]},
        "unknown statistic",
        "bad statistic",
    ),
}


@pytest.mark.parametrize("method", [hostile.PUSH_PULL, hostile.PUSH_PULL_WHOLE])
@pytest.mark.parametrize(("fields", "words", "reason"), PUSHES.values(), ids=PUSHES.keys())
def test_a_wrong_push_is_refused_and_counted(
    site: Site, channel: grpc.Channel, method: str, fields: dict, words: str, reason: str
) -> None:
    before = site.refused.get(reason, 0)
    code, details = hostile.refuse(channel, method, [make_push(site, **fields)])
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert words in details
    assert len(details) < 1000
    assert site.refused[reason] == before + 1


HEADER = b"\x0a\x03\x0a\x01a"
STREAMS = {
    "an empty message": [b""],
    "noise": [NOISE[:1000]],
    "a chunk and no header": [b"\x12\x02ab"],
    "a name that is no text": [b"\x0a\x03\x0a\x01\xff"],
    "a group that is no text": [b"\x0a\x03\x6a\x01\xff"],
    "a statistic that is no text": [b"\x0a\x05\x62\x03\x0a\x01\xff"],
    "ten thousand unknown groups, one in another": [b"\x7b" * 10_000],
    "an episode of two bytes, a million times": [b"\x0a\x80\x89\x7a" + 1_000_000 * b"\x3a\x00"],
    "the same four million times": [b"\x0a\x80\xa4\xe8\x03" + 4_000_000 * b"\x3a\x00"],
}


@pytest.mark.parametrize("method", [hostile.PUSH_PULL, hostile.PUSH_PULL_WHOLE])
@pytest.mark.parametrize("messages", STREAMS.values(), ids=STREAMS.keys())
def test_bytes_that_are_no_push(
    site: Site, channel: grpc.Channel, method: str, messages: list[bytes]
) -> None:
    before = site.refused.get("malformed", 0)
    assert hostile.refuse(channel, method, messages)[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert site.refused["malformed"] == before + 1


def test_a_gradient_that_is_cut_off_or_goes_on(site: Site, channel: grpc.Channel) -> None:
    def chunk(length: int) -> bytes:
        return pb.PushPullRequest(chunk=bytes(length)).SerializeToString()

    header = pb.PushPullRequest(header=make_header(site)).SerializeToString()
    for messages, words in [
        ([header], "received 0 bytes, expected 400"),
        ([header, chunk(399)], "received 399 bytes, expected 400"),
        ([header, chunk(200), chunk(201)], "received 401 bytes or more, expected 400"),
        ([header, chunk(1_000_000)], "received 1000000 bytes or more, expected 400"),
        ([header, chunk(200), header], "a second header"),
        ([header, b"", chunk(400)], "a second header"),
        ([header, *([chunk(0)] * 1000), chunk(399)], "received 399 bytes, expected 400"),
    ]:
        code, details = hostile.refuse(channel, hostile.PUSH_PULL, messages)
        assert (code, words in details) == (grpc.StatusCode.INVALID_ARGUMENT, True), details


# What must be taken, odd as it is.


def push_pull(channel: grpc.Channel, push: bytes) -> pb.ReplyHeader:
    """Sends a push in one message."""
    reply = channel.unary_unary(hostile.PUSH_PULL_WHOLE)(push, timeout=30)
    return pb.PushPullReply.FromString(reply).header


TAKEN: dict[str, dict] = {
    "denormals": {"gradient": full(1e-45)},
    "zeros": {"gradient": full(-0.0)},
    "large numbers": {"gradient": full(1e15)},
    "2^40 steps": {"env_steps": 1 << 40},
    "the last sequence of the last life": {
        "client_id": "last",
        "sequence": (1 << 64) - 1,
        "incarnation": (1 << 64) - 1,
    },
    "1 000 episodes": {"episodes": [EPISODE] * 1_000},
    "returns at the border": {"episodes": [pb.Episode(episode_return=1e308, length=1 << 40)] * 100},
    "a name of 200 letters that need 4 bytes": {"client_id": "\U0001f600" * 200},
    "a version far ahead that the client holds": {"have_version": (1 << 64) - 1},
}


@pytest.mark.parametrize("fields", TAKEN.values(), ids=TAKEN.keys())
def test_an_odd_push_is_taken_once_however_often_it_comes(
    site: Site, channel: grpc.Channel, fields: dict
) -> None:
    push = make_push(site, **fields)
    replies = [push_pull(channel, push) for _ in range(5)]
    assert len({(reply.version, reply.global_t) for reply in replies}) == 1
    site.note(replies[0], fields.get("gradient", full(1.0)), fields.get("env_steps", 0))


def test_a_version_that_does_not_exist_yet_is_dropped(site: Site, channel: grpc.Channel) -> None:
    before = site.refused.get("lost version", 0)
    for epoch in (0, 1, (1 << 64) - 1):
        push = make_push(site, gradient_version=1 << 40, gradient_epoch=epoch)
        assert push_pull(channel, push).outcome == pb.DROPPED
    assert site.refused["lost version"] == before + 3


def test_a_late_push_is_dropped(site: Site, channel: grpc.Channel) -> None:
    newest = make_push(site, client_id="late", incarnation=5, sequence=9)
    site.note(push_pull(channel, newest), full(1.0), 0)
    for incarnation, sequence in [(5, 8), (4, 10), (0, 1)]:
        push = make_push(site, client_id="late", incarnation=incarnation, sequence=sequence)
        assert push_pull(channel, push).outcome == pb.DROPPED
    assert site.refused["late"] >= 3


def test_calls_that_are_cancelled_at_any_moment(site: Site, channel: grpc.Channel) -> None:
    """Each push is cancelled a few times, then repeated until it is answered: it counts once."""
    draw = random.Random(11)
    for _ in range(40):
        push = make_push(site, env_steps=3)
        for _ in range(5):
            if draw.random() < 0.5:
                call = channel.unary_unary(hostile.PUSH_PULL_WHOLE).future(push, timeout=30)
            else:
                call = channel.stream_stream(hostile.PUSH_PULL)(iter([push]), timeout=30)
            time.sleep(draw.choice([0, 1e-5, 1e-4, 1e-3, 2e-3]))
            call.cancel()
        site.note(push_pull(channel, push), full(1.0), 3)


# Memory and threads that clients hold.


def hold_half_pushes(
    channels: list[grpc.Channel], number: int, messages: list[bytes], hold: threading.Event
) -> list[grpc.Call]:
    """Opens streams that send these messages and then nothing until `hold` is set."""

    def send() -> Iterator[bytes]:
        yield from messages
        hold.wait(120)

    return [
        channels[n % len(channels)].stream_stream(hostile.PUSH_PULL)(send(), timeout=120)
        for n in range(number)
    ]


def test_300_half_pushes_that_never_end(site: Site) -> None:
    messages = [
        pb.PushPullRequest(header=make_header(site, episodes=[EPISODE] * 1000)),
        pb.PushPullRequest(chunk=bytes(GRADIENT_BYTES // 2)),
    ]
    hold = threading.Event()
    with contextlib.ExitStack() as stack:
        channels = [stack.enter_context(hostile.open_channel(site.port)) for _ in range(10)]
        calls = hold_half_pushes(channels, 300, [m.SerializeToString() for m in messages], hold)
        time.sleep(0.5)
        site.check()
        assert all(call.is_active() for call in calls)
        hold.set()
        for call in calls:
            with pytest.raises(grpc.RpcError, match="received 200 bytes, expected 400"):
                list(call)


@pytest.mark.slow
def test_half_pushes_of_a_large_model_make_room(tmp_path: Path) -> None:
    """Of 4 MB each: beyond 256 MiB together, the silent ones end, and honest clients continue."""
    site = Site(tmp_path, parameters=1_000_000)
    try:
        before = site.resident_bytes
        messages = [
            pb.PushPullRequest(header=make_header(site, gradient_bytes=4_000_000)),
            *[pb.PushPullRequest(chunk=bytes(500_000))] * 4,
        ]
        hold = threading.Event()
        with contextlib.ExitStack() as stack:
            channels = [stack.enter_context(hostile.open_channel(site.port)) for _ in range(10)]
            data = [message.SerializeToString() for message in messages]
            calls = hold_half_pushes(channels, 100, data, hold)
            wait_until(lambda: "slow" in site.refused, "room is made")
            assert site.resident_bytes < before + 600_000_000
            site.check()
            hold.set()
            ended = [_get_code(call) for call in calls]
        assert set(ended) == {grpc.StatusCode.CANCELLED, grpc.StatusCode.INVALID_ARGUMENT}
    finally:
        site.close()


def _get_code(call: grpc.Call) -> grpc.StatusCode:
    with contextlib.suppress(grpc.RpcError):
        list(call)
    return call.code()
