"""The service of learners that make each update together, over the network.

covers D4, R2
"""

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
from support.learning import make_plain_server

from relaax_like.bridge.control import BridgeControl, Link
from relaax_like.bridge.joining import GroupStream
from relaax_like.config.combine import CombineConfig
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.core.records import GroupRequest
from relaax_like.core.roles import ParameterServerClient
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.v1 import group_pb2 as pb
from relaax_like.wire.errors import InvalidInputError, LeasedError, ServerUnavailableError

JOIN = "/relaax.v1.LearnerGroup/Join"


class Served:
    """A parameter server, its link, and its address."""

    def __init__(self, server: ParameterServer, link: Link, address: str):
        self.server = server
        self.link = link
        self.address = address

    def connect(self, name: str) -> ParameterServerClient:
        return self.link.parameter_server_stub(client_id=name)

    def send(self, *messages: bytes) -> tuple[grpc.StatusCode, str]:
        """Sends messages of its own; returns code and text of the refusal."""
        with grpc.insecure_channel(self.address) as channel:
            call = channel.stream_stream(JOIN, bytes, bytes)(iter(messages), timeout=20)
            with pytest.raises(grpc.RpcError) as error:
                list(call)
        return error.value.code(), error.value.details()


# Gradient and values are in the messages, or follow them in chunks.
SMALL = (Variable("w", np.zeros(3, np.float32)),)
LARGE = (Variable("w", np.zeros(200_000, np.float32)),)


@contextlib.contextmanager
def serve(method: str, variables: Sequence[Variable] = SMALL) -> Iterator[Served]:
    combine = CombineConfig.model_validate({"method": method})
    with make_plain_server(variables, combine=combine) as server:
        grpc_server, port = BridgeControl().create_server("127.0.0.1:0", server)
        grpc_server.start()
        address = f"127.0.0.1:{port}"
        with BridgeControl().connect(address) as link:
            yield Served(server, link, address)
        grpc_server.stop(grace=None).wait()


@pytest.fixture
def served() -> Iterator[Served]:
    with serve("sync") as one:
        yield one


@pytest.mark.parametrize("variables", [SMALL, LARGE], ids=["small", "large"])
def test_two_learners_make_one_step(variables: Sequence[Variable]) -> None:
    with (
        serve("sync", variables) as served,
        served.connect("one") as one,
        served.connect("two") as two,
        ThreadPoolExecutor(2) as threads,
    ):
        clients = [one, two]
        connections = [client.join_group() for client in clients]

        def learn(index: int) -> Any:
            connection = connections[index]
            entered = connection.exchange(GroupRequest(kind="enter", units=10 + index))
            place = {"iteration": entered.iteration, "generation": entered.generation}
            total = connection.exchange(
                GroupRequest(kind="sum", tag="a", sums=np.array([0.1 + index]), **place)
            )
            size = served.server.manifest.gradient_bytes // 4
            step = connection.exchange(
                GroupRequest(
                    kind="step",
                    tag="b",
                    gradient=np.full(size, 1.0 + index, np.float32),
                    clip={"": 0.5},
                    **place,
                )
            )
            return entered, total, step

        for (entered, total, step), client in zip(
            threads.map(learn, range(2)), clients, strict=True
        ):
            assert (entered.learners, entered.units) == (2, 21)
            assert entered.units_before == [0, 10][entered.rank]
            assert total.sums.tolist() == [1.2000000000000002]
            size = served.server.manifest.gradient_bytes // 4
            assert step.norms == {"": pytest.approx(3.0 * size**0.5)}
            assert (step.reply.version, step.reply.outcome) == (1, "applied")
            newest = served.server.pull().values
            assert step.reply.values is not None
            assert newest is not None
            assert step.reply.values.flat.tolist() == newest.flat.tolist()
            assert client.version == 1  # the client has them, too
        for connection in connections:
            connection.close()


def test_the_longest_sums_are_answered_and_longer_ones_are_refused(served: Served) -> None:
    with served.connect("one") as one:
        connection = one.join_group()
        entered = connection.exchange(GroupRequest(kind="enter", units=1))
        place = {"iteration": entered.iteration, "generation": entered.generation}
        sums = np.full(1 << 18, 0.5)
        total = connection.exchange(GroupRequest(kind="sum", tag="a", sums=sums, **place))
        assert total.sums.tolist() == sums.tolist()
        longer = GroupRequest(kind="sum", tag="b", sums=np.zeros(len(sums) + 1), **place)
        with pytest.raises(InvalidInputError, match="sums: 262145 numbers, expected at most 2621"):
            connection.exchange(longer)
        connection.close()


def test_a_learner_whose_connection_ends_is_gone(served: Served) -> None:
    with served.connect("one") as one, served.connect("two") as two:
        first, second = one.join_group(), two.join_group()
        with ThreadPoolExecutor(2) as threads:
            enter = GroupRequest(kind="enter", units=1)
            entered = [threads.submit(c.exchange, enter).result for c in (first, second)]
            place = {"iteration": 1, "generation": entered[0](20).generation}
            assert entered[1](20).learners == 2
            waiting = threads.submit(first.exchange, GroupRequest(kind="sum", **place))
            second.close()
            assert waiting.result(20).outcome == "again"
            with pytest.raises(ServerUnavailableError):
                second.exchange(enter)
        first.close()


def test_without_sync_a_learner_is_refused() -> None:
    with serve("fifo") as served, served.connect("one") as one:
        with pytest.raises(LeasedError, match="set it to sync"):
            one.join_group()


def test_a_closed_connection_is_an_unavailable_server(served: Served) -> None:
    link = BridgeControl().connect(served.address)
    client = link.parameter_server_stub(client_id="one")
    link.close()
    with pytest.raises(ServerUnavailableError, match="has closed its connection"):
        client.join_group()


class EndedCall:
    """A call that has ended without an answer."""

    def __next__(self) -> Any:
        raise StopIteration

    def cancel(self) -> None:
        pass


class EndedChannel:
    """A channel whose calls end at once.

    Attributes:
      requests: of the newest call, which gRPC's thread would take.
    """

    def __init__(self) -> None:
        self.requests: Iterator[Any] = iter(())

    def stream_stream(self, *_: Any, **__: Any) -> Any:
        def call(requests: Iterator[Any]) -> Any:
            self.requests = requests
            return EndedCall()

        return call


def test_the_thread_that_sends_ends_if_a_learner_is_refused() -> None:
    channel: Any = EndedChannel()
    with pytest.raises(ServerUnavailableError, match="has ended the learner's connection"):
        GroupStream(channel, "localhost:1", make_manifest(SMALL), "one")
    assert len(list(channel.requests)) == 1  # it does not wait for more


def make_header(**fields: Any) -> bytes:
    return pb.GroupPart(header=pb.GroupRequest(**fields)).SerializeToString()


CHUNK = pb.GroupPart(chunk=b"x" * 10).SerializeToString()


@pytest.mark.parametrize(
    ("first", "messages", "want"),
    [
        (None, (b"\xff\xff\xff",), "without a header"),
        (None, (CHUNK,), "without a header"),
        (None, (make_header(format=2),), "format 2 of this protocol"),
        (None, (make_header(format=1),), "learner: ''"),
        (None, (make_header(format=1, learner="x" * 201),), "expected 1 to 200"),
        (None, (make_header(format=1, learner="x", fingerprint=1),), "another model"),
        ({}, (CHUNK,), "without a header"),
        ({}, (make_header(),), "kind: 0, expected 1 to 5"),
        ({}, (make_header(kind=2, tag="x" * 101),), "tag: 101 characters, expected at most 100"),
        ({}, (make_header(kind=1, units=1 << 50),), "units: "),
        ({}, (make_header(kind=3, gradient_bytes=4),), "gradient_bytes: 4, expected"),
        ({}, (make_header(kind=2, gradient_bytes=4),), "gradient_bytes: 4, expected 0"),
        ({}, (make_header(kind=3, groups=["none"]),), "none"),
        ({"size": True}, (), "gradient: received 0 bytes, expected"),
    ],
)
def test_malformed_messages_are_refused_and_change_nothing(
    served: Served, first: dict[str, Any] | None, messages: tuple[bytes, ...], want: str
) -> None:
    manifest = served.server.manifest
    if first is not None:
        hello = make_header(format=1, learner="x", fingerprint=manifest.fingerprint)
        size = make_header(kind=3, gradient_bytes=manifest.gradient_bytes)
        messages = (hello, *([size] if "size" in first else []), *messages)
    code, text = served.send(*messages)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert want in text
    assert served.server.version == 0
    # Nobody waits for it.
    with served.connect("other") as other:
        connection = other.join_group()
        assert connection.exchange(GroupRequest(kind="enter", units=1)).learners == 1
        connection.close()


def test_a_request_of_very_many_fields_is_not_parsed(served: Served) -> None:
    hello = make_header(format=1, learner="x", fingerprint=served.server.manifest.fingerprint)
    code, text = served.send(hello, make_header(groups=[""] * 1_000_000))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "without a header" in text  # it was not read: otherwise 1 000 000 groups are too many


def test_a_large_gradient_that_ends_early_is_refused() -> None:
    with serve("sync", LARGE) as served:
        manifest = served.server.manifest
        hello = make_header(format=1, learner="x", fingerprint=manifest.fingerprint)
        size = make_header(kind=3, gradient_bytes=manifest.gradient_bytes)
        code, text = served.send(hello, size, CHUNK, make_header())
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "another message that is not a chunk, expected" in text
        assert served.server.version == 0
