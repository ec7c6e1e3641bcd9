"""The service of a learner in a process of its own, against senders that are not ours.

covers R2
"""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from support.learning import make_plain_server

from relaax_like.bridge.control import BridgeControl
from relaax_like.bridge.publishing import PublisherStub
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.parameter_server.learner_lease import NAME, LearnerLease
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.v1 import publisher_pb2 as pb
from relaax_like.wire.errors import ProtocolError

SERVICE = "/relaax.v1.Publisher"


class Sender:
    """Calls with bytes of its own.

    Attributes:
      server: that it calls.
    """

    def __init__(self, server: ParameterServer, port: int):
        self.server = server
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def publish(self, *messages: bytes) -> tuple[grpc.StatusCode, str]:
        """Sends a publication; returns code and text of its refusal."""
        call = self._channel.stream_unary(f"{SERVICE}/Publish", bytes, bytes)
        return refuse(lambda: call(iter(messages), timeout=20))

    def stream(self, messages: Iterator[bytes]) -> Any:
        """Starts a publication; returns its future."""
        call = self._channel.stream_unary(f"{SERVICE}/Publish", bytes, bytes)
        return call.future(messages, timeout=20)

    def call(self, method: str, data: bytes) -> tuple[grpc.StatusCode, str]:
        """Sends one message; returns code and text of its refusal."""
        kind = self._channel.unary_stream if method == "Acquire" else self._channel.unary_unary
        call: Any = kind(f"{SERVICE}/{method}", bytes, bytes)
        if method == "Acquire":
            return refuse(lambda: list(call(data, timeout=20)))
        return refuse(lambda: call(data, timeout=20))

    def close(self) -> None:
        self._channel.close()


def refuse(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code(), error.value.details()


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[Sender]:
    # The holder has term 1; without a file, its term would be the time.
    data = {"format": 1, "term": 1, "holder": "one", "address": "localhost:1"}
    (tmp_path / NAME).write_text(json.dumps(data))
    server = make_plain_server(learner_lease=LearnerLease(tmp_path))
    grpc_server, port = BridgeControl().create_server("127.0.0.1:0", server, publisher=server)
    grpc_server.start()
    sender = Sender(server, port)
    server.grant_lease("one", "localhost:1")
    yield sender
    sender.close()
    grpc_server.stop(grace=None).wait()
    server.close()


def make_header(**fields: Any) -> bytes:
    header = pb.PublishHeader(**{"term": 1, "sequence": 1, "number": 1, **fields})
    return pb.PublishPart(header=header).SerializeToString()


CHUNK = pb.PublishPart(chunk=b"x" * 10).SerializeToString()
EPISODES = [{"episode_return": 1.0, "length": 1}] * 65_537


@pytest.mark.parametrize(
    ("messages", "want"),
    [
        ((), "without a header"),
        ((b"\xff\xff\xff",), "without a header"),
        ((CHUNK,), "without a header"),
        ((make_header(),), "received 0 bytes, expected"),
        ((make_header(), CHUNK), "received 10 bytes, expected"),
        ((make_header(), make_header()), "not a chunk, expected"),
        ((make_header(), pb.PublishPart(chunk=b"x" * 5000).SerializeToString()), "5000 bytes or"),
        ((make_header(number=0, episodes=EPISODES),), "65537 episodes"),
        ((b"\x0a" * 4_000_000,), "without a header"),
    ],
)
def test_malformed_publications_are_refused_and_change_nothing(
    sender: Sender, messages: tuple[bytes, ...], want: str
) -> None:
    code, text = sender.publish(*messages)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert want in text
    assert (sender.server.version, sender.server.global_t) == (0, 0)


def test_a_foreign_term_is_refused(sender: Sender) -> None:
    for term in (0, 2, 1 << 63):
        code, text = sender.publish(make_header(term=term, number=0, env_steps=5))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert f"term {term} of the lease has ended" in text
    assert sender.server.global_t == 0


def test_half_a_publication_of_a_foreign_term_is_refused_at_once(sender: Sender) -> None:
    end = threading.Event()

    def send() -> Iterator[bytes]:
        yield make_header(term=2)
        yield CHUNK
        end.wait(20)

    call = sender.stream(send())
    try:
        with pytest.raises(grpc.RpcError) as error:
            call.result(timeout=10)
        assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    finally:
        end.set()


@pytest.mark.parametrize(
    ("method", "message", "want"),
    [
        ("Acquire", pb.AcquireRequest(format=9), "speaks format 9"),
        (
            "Acquire",
            pb.AcquireRequest(format=1, holder="x", address="y", fingerprint=7),
            "another model",
        ),
        ("Renew", pb.RenewRequest(term=9), "term 9 of the lease has ended"),
    ],
)
def test_other_calls_are_refused_by_name(
    sender: Sender, method: str, message: Any, want: str
) -> None:
    assert want in sender.call(method, message.SerializeToString())[1]


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb"])
def test_names_that_nobody_could_read_are_refused(sender: Sender, name: str) -> None:
    request = pb.AcquireRequest(
        format=1, holder=name, address="localhost:1", fingerprint=sender.server.manifest.fingerprint
    )
    code, text = sender.call("Acquire", request.SerializeToString())
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith("holder: ")
    assert sender.server.learner_address == ("localhost:1", 1)


class ForeignChannel:
    """A channel to a server that grants leases without a header."""

    def unary_unary(self, *_: Any, **__: Any) -> Any:
        return None

    stream_unary = unary_unary

    def unary_stream(self, *_: Any, **__: Any) -> Any:
        return lambda request, timeout: iter([pb.LeasePart()])


def test_a_lease_without_a_header_is_not_taken() -> None:
    channel: Any = ForeignChannel()
    manifest = make_manifest([Variable("w", np.zeros(3, np.float32))])
    with pytest.raises(ProtocolError, match="granted a lease without a header"):
        PublisherStub(channel, "localhost:1").acquire("one", "localhost:2", manifest)
