"""Any order of good, odd and damaged calls: the server is always where its answers say it is.

A machine sends calls over gRPC and keeps a model beside: weights, steps and one statistic, moved by
what was answered as taken, and by nothing else. covers R24
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)
from support import fuzz, hostile
from support.bridge import make_backend

from relaax_like.bridge import bridge_pb2
from relaax_like.bridge.control import BridgeControl
from relaax_like.core.manifest import STATISTIC, Variable
from relaax_like.core.moments import Moments
from relaax_like.v1 import ndarray_pb2
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.wire.ndarray import message_to_ndarray, ndarray_to_message

pytestmark = pytest.mark.timeout(fuzz.TIMEOUT_SEC)

SHARE = 0.5
PULL = "/relaax.v1.ParameterServer/Pull"
STATUS = "/relaax.v1.ParameterServer/GetStatus"
REPORT = "/relaax.v1.ParameterServer/ReportClients"
SERVED_NUMBERS = ("slots", "answers", "max_wait_ms", "late", "discarded_steps")
APPLY_GRADIENTS = "/ParameterServer/ApplyGradients"
GROUPS = {"net/actor": slice(0, 6), "net/critic": slice(6, 9)}
VARIABLES = (
    Variable("w", np.zeros((2, 3), np.float32), "net/actor"),
    Variable("b", np.zeros(3, np.float32), "net/critic"),
    Variable("obs.count", np.zeros(()), kind=STATISTIC),
    Variable("obs.mean", np.zeros(2), kind=STATISTIC),
    Variable("obs.m2", np.zeros(2), kind=STATISTIC),
)
CLIENTS = st.sampled_from(["a", "b"])
# Their odd pushes can begin a life after which all that is good is late.
ODD_CLIENTS = st.sampled_from(["a", "ü", "odd"])
PUSHES = [hostile.PUSH_PULL, hostile.PUSH_PULL_WHOLE]
METHODS = st.sampled_from(PUSHES)
SMALL = st.integers(-8, 8)
HUGE = [1 << 40, (1 << 40) + 1, 1 << 62, (1 << 64) - 1]


def change_to(field: str, *values: Any) -> st.SearchStrategy[tuple[str, Any]]:
    return st.tuples(st.just(field), st.sampled_from(values))


# A field of a header, and what it can become. Most of it is refused, some is taken.
CHANGES = st.one_of(
    change_to("client_id", "", "x" * 201, "a\n", "\0", "\U0001f600"),
    change_to("incarnation", 0, *HUGE),
    change_to("sequence", 0, *HUGE),
    change_to("gradient_bytes", 0, 1, 12, 24, 36, 40, *HUGE),
    change_to("gradient_version", 0, *HUGE),
    change_to("gradient_epoch", 1, *HUGE),
    change_to("env_steps", *HUGE),
    change_to("have_version", 0, *HUGE),
    change_to("fingerprint", 0, (1 << 32) - 1),
    change_to(
        "groups",
        ["net/actor"],
        ["net/critic", "net/actor"],
        ["net/actor", "net/actor"],
        ["goal"],
        [""],
    ),
    change_to(
        "first_chunk",
        b"",
        bytes(35),
        bytes(37),
        *(np.full(9, x, np.float32).tobytes() for x in (np.nan, np.inf, 3e38, 1e-45, -0.0)),
    ),
    change_to(
        "episodes",
        [pb.Episode()],
        [pb.Episode(episode_return=np.nan, length=1)],
        [pb.Episode(episode_return=1e308, length=1 << 40)] * 3,
        [pb.Episode(length=HUGE[-1])],
    ),
    change_to(
        "statistics",
        [pb.StatisticDelta(name="obs")],
        [pb.StatisticDelta(name="other", count=1)],
        *(
            [
                pb.StatisticDelta(
                    name="obs",
                    count=count,
                    mean=ndarray_to_message(np.full(2, mean), ndarray_pb2.NdArray),
                    m2=ndarray_to_message(np.full(2, m2), ndarray_pb2.NdArray),
                )
            ]
            for count, mean, m2 in [
                (2.0**40, 1e100, 1e250),
                (2.0**41, 0.0, 0.0),
                (0.0, 0.0, 0.0),
                (-1.0, 0.0, 0.0),
                (np.nan, 0.0, 0.0),
                (1.0, np.nan, 0.0),
                (1.0, 0.0, -1.0),
                (1.0, 0.0, np.inf),
                (5e-324, 1.0, 1.0),
            ]
        ),
    ),
)


class Bridge(RuleBasedStateMachine):
    """Calls to a server in this process, and the model of what they lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.backend = make_backend(VARIABLES)
        self.server, port = BridgeControl().create_server("127.0.0.1:0", self.backend)
        self.server.start()
        self.channel = hostile.open_channel(port)
        self.calls = {
            method: self.channel.stream_stream(method)
            for method in (
                hostile.PUSH_PULL,
                hostile.PUSH_PULL_WHOLE,
                PULL,
                STATUS,
                REPORT,
                APPLY_GRADIENTS,
            )
        }
        self.fingerprint = self.backend.manifest.fingerprint
        # The model.
        self.weights = np.zeros(9, np.float32)
        self.seen = Moments(0.0, np.zeros(2), np.zeros(2))
        self.version = self.global_t = self.refused = 0
        self.numbers: dict[str, int] = {}
        # Client -> its newest push that was noted, and the answer.
        self.newest: dict[str, tuple[pb.PushHeader, pb.ReplyHeader]] = {}

    def teardown(self) -> None:
        self.channel.close()
        assert self.server.stop(grace=None).wait(20)
        self.backend.close()

    # Good calls.

    @rule(
        method=METHODS,
        client=CLIENTS,
        gradient=st.none() | st.lists(SMALL, min_size=9, max_size=9),
        groups=st.sampled_from([(), ("net/critic",), ("net/actor",), ("net/critic", "net/actor")]),
        env_steps=st.integers(0, 5),
        rows=st.none() | st.lists(st.tuples(SMALL, SMALL), min_size=1, max_size=3),
        cut=st.integers(0, 9),
    )
    def push(
        self,
        method: str,
        client: str,
        gradient: list[int] | None,
        groups: tuple[str, ...],
        env_steps: int,
        rows: list[tuple[int, int]] | None,
        cut: int,
    ) -> None:
        header = self.make_header(client, gradient, groups, env_steps, rows)
        messages = [header]
        if method == hostile.PUSH_PULL:
            messages = split(header, cut)
        (reply,) = self.send(method, messages)
        self.take(header, reply)

    @precondition(lambda self: self.newest)
    @rule(data=st.data(), method=METHODS, times=st.integers(1, 3))
    def repeat(self, data: st.DataObject, method: str, times: int) -> None:
        header, answer = self.newest[data.draw(st.sampled_from(sorted(self.newest)))]
        for _ in range(times):
            (reply,) = self.send(method, [header])
            assert (reply.outcome, reply.version, reply.global_t) == (
                answer.outcome,
                answer.version,
                answer.global_t,
            )

    @precondition(lambda self: self.newest)
    @rule(data=st.data(), method=METHODS, earlier=st.integers(1, 3))
    def push_late(self, data: st.DataObject, method: str, earlier: int) -> None:
        newest, _ = self.newest[data.draw(st.sampled_from(sorted(self.newest)))]
        late = pb.PushHeader()
        late.CopyFrom(newest)
        late.sequence = max(1, newest.sequence - earlier)
        if late.sequence == newest.sequence:
            return
        (reply,) = self.send(method, [late])
        assert reply.outcome == pb.DROPPED
        self.refused += 1

    @rule(client=CLIENTS, pause_sec=st.sampled_from([0, 1e-5, 2e-4, 1e-3]), method=METHODS)
    def push_and_cancel(self, client: str, pause_sec: float, method: str) -> None:
        """Cancelled at some moment and repeated until it is answered, it counts once."""
        header = self.make_header(client, [1] * 9, (), 2, None)
        call = self.calls[method](iter([pack(header)]), timeout=20)
        time.sleep(pause_sec)
        call.cancel()
        (reply,) = self.send(method, [header])
        self.take(header, reply)

    @rule(gradient=st.lists(SMALL, min_size=9, max_size=9))
    def apply_gradients(self, gradient: list[int]) -> None:
        flat = np.array(gradient, np.float32)
        arrays = [flat[GROUPS["net/actor"]].reshape(2, 3), flat[GROUPS["net/critic"]]]
        parts = [ndarray_to_message(array, bridge_pb2.NdArray) for array in arrays]
        self.call(APPLY_GRADIENTS, [part.SerializeToString() for part in parts])
        self.weights -= flat
        self.version += 1

    # Odd and damaged ones.

    @rule(
        method=METHODS,
        client=ODD_CLIENTS,
        groups=st.sampled_from([(), ("net/critic",)]),
        changes=st.lists(CHANGES, min_size=1, max_size=3),
    )
    def push_odd(
        self,
        method: str,
        client: str,
        groups: tuple[str, ...],
        changes: list[tuple[str, Any]],
    ) -> None:
        header = self.make_header(client, [1] * 9, groups, 1, [(1, 2)])
        for field, value in changes:
            header.ClearField(field)  # type: ignore[arg-type]
            header.MergeFrom(pb.PushHeader(**{field: value}))
        self.try_to_push(method, [pack(header)])

    @rule(data=st.data(), method=METHODS, client=ODD_CLIENTS, cut=st.integers(0, 9))
    def push_damaged(self, data: st.DataObject, method: str, client: str, cut: int) -> None:
        header = self.make_header(client, [1, 0, 2] * 3, (), 3, [(0, 1)])
        good = [part.SerializeToString() for part in split(header, cut)]
        parts = data.draw(st.lists(fuzz.mutations([pack(header), *good]), min_size=1, max_size=3))
        self.try_to_push(method, parts)

    @rule(
        method=st.sampled_from([PULL, STATUS]),
        data=fuzz.mutations([pb.PullRequest(client_id="a", have_version=1).SerializeToString()]),
    )
    def ask_damaged(self, method: str, data: bytes) -> None:
        self.attempt(method, [data])

    @rule(
        parts=st.lists(
            fuzz.mutations(
                [
                    ndarray_to_message(
                        np.ones(shape, np.float32), bridge_pb2.NdArray
                    ).SerializeToString()
                    for shape in ((2, 3), (3,))
                ]
            ),
            max_size=4,
        )
    )
    def apply_damaged(self, parts: list[bytes]) -> None:
        if not self.attempt(APPLY_GRADIENTS, parts):
            return
        arrays = [message_to_ndarray(bridge_pb2.NdArray.FromString(part)) for part in parts]
        self.weights -= np.concatenate([array.ravel() for array in arrays])
        self.version += 1

    @rule(data=st.data(), numbers=st.lists(st.sampled_from([0, 5, *HUGE]), min_size=7, max_size=7))
    def report_odd(self, data: st.DataObject, numbers: list[int]) -> None:
        """Numbers of any size, also damaged: the status is answered as before."""
        served = pb.ServedClient(name="robot", p50_ms=numbers[0], p99_ms=np.inf * numbers[1])
        for field, number in zip(SERVED_NUMBERS, numbers[2:], strict=True):
            setattr(served, field, number)
        report = pb.ClientsReport(server_id="rlx", clients=[served], num_clients=numbers[0])
        good = [report.SerializeToString(), pb.ClientsReport(server_id="rlx").SerializeToString()]
        self.attempt(REPORT, [data.draw(st.sampled_from(good) | fuzz.mutations(good))])

    # What must hold after each of them.

    @invariant()
    def agrees(self) -> None:
        pull = pb.PullRequest(client_id="reader").SerializeToString()
        header, *chunks = map(pb.PushPullReply.FromString, self.call(PULL, [pull]))
        assert (header.header.version, header.header.global_t) == (self.version, self.global_t)
        flat = np.frombuffer(
            header.header.first_chunk + b"".join(part.chunk for part in chunks), np.uint8
        )
        assert header.header.values_version == self.version
        *weights, count, mean, m2 = self.backend.manifest.unpack(flat)
        np.testing.assert_array_equal(np.concatenate([w.ravel() for w in weights]), self.weights)
        np.testing.assert_allclose(count, self.seen.count, rtol=1e-12)
        np.testing.assert_allclose(mean, self.seen.mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(m2, self.seen.m2, rtol=1e-9, atol=1e-12)
        (status,) = map(pb.Status.FromString, self.call(STATUS, [b""]))
        assert (status.version, status.global_t) == (self.version, self.global_t)
        assert sum(status.refused.values()) >= self.refused

    # How it is done.

    def is_late(self, header: pb.PushHeader) -> bool:
        """Tells whether a later push of the client has been answered."""
        newest, _ = self.newest.get(header.client_id, (header, None))
        return bool(header.sequence) and get_number(header) < get_number(newest)

    def make_header(
        self,
        client: str,
        gradient: list[int] | None,
        groups: tuple[str, ...],
        env_steps: int,
        rows: list[tuple[int, int]] | None,
    ) -> pb.PushHeader:
        """Returns the next push of a client in one message, which would be taken."""
        self.numbers[client] = self.numbers.get(client, 0) + 1
        header = pb.PushHeader(
            client_id=client,
            incarnation=1 << 32,
            sequence=self.numbers[client],
            gradient_version=self.version,
            env_steps=env_steps,
            want_values=True,
        )
        if gradient is not None:
            flat = np.array(gradient, np.float32)
            chosen = [flat[GROUPS[name]] for name in GROUPS if not groups or name in groups]
            header.first_chunk = b"".join(part.tobytes() for part in chosen)
            header.gradient_bytes = len(header.first_chunk)
            header.groups.extend(groups)
            header.fingerprint = self.fingerprint
        if rows is not None:
            moments = Moments.of(np.array(rows, np.float64))
            header.statistics.add(
                name="obs",
                count=moments.count,
                mean=ndarray_to_message(moments.mean, ndarray_pb2.NdArray),
                m2=ndarray_to_message(moments.m2, ndarray_pb2.NdArray),
            )
        return header

    def call(self, method: str, parts: list[bytes]) -> list[bytes]:
        return list(self.calls[method](iter(parts), timeout=20))

    def attempt(self, method: str, parts: list[bytes]) -> list[bytes]:
        """Returns the answers until the call ends; how it is refused is checked."""
        call = self.calls[method](iter(parts), timeout=20)
        answers = []
        with contextlib.suppress(grpc.RpcError):
            for answer in call:
                answers.append(answer)
        assert call.code() in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT), call
        if method in PUSHES and call.code() is not grpc.StatusCode.OK:
            self.refused += 1
        return answers

    def send(
        self, method: str, messages: list[pb.PushHeader | pb.PushPullRequest]
    ) -> list[pb.ReplyHeader]:
        """Sends pushes and returns the headers of the answers."""
        parts = [
            pack(m) if isinstance(m, pb.PushHeader) else m.SerializeToString() for m in messages
        ]
        return list(read_replies(self.call(method, parts)))

    def try_to_push(self, method: str, parts: list[bytes]) -> None:
        """Sends what can be a push or several; the model takes what is answered as taken."""
        replies = read_replies(self.attempt(method, parts))
        for header, reply in zip(read_pushes(parts), replies, strict=False):
            self.take(header, reply)

    def take(self, header: pb.PushHeader, reply: pb.ReplyHeader) -> None:
        """Applies a push that was answered to the model."""
        if header.sequence and header.client_id in self.newest:
            newest, answer = self.newest[header.client_id]
            if get_number(header) == get_number(newest):
                assert reply.version == answer.version
                return
        # Values of another life of the server, of which this is the first, from version 0 on.
        newest_version = self.version if header.gradient_epoch in (0, reply.epoch) else 0
        lost = header.gradient_bytes and header.gradient_version > newest_version
        assert (reply.outcome == pb.DROPPED) == bool(lost or self.is_late(header))
        if reply.outcome == pb.DROPPED:
            self.refused += 1
            return
        assert reply.outcome == (pb.APPLIED if header.gradient_bytes else pb.NOTHING)
        if not (header.gradient_bytes or header.env_steps or header.episodes or header.statistics):
            return
        if header.gradient_bytes:
            gradient = np.frombuffer(header.first_chunk, np.float32)
            assert np.isfinite(gradient).all()
            names = [name for name in GROUPS if not header.groups or name in header.groups]
            at = 0
            for part in map(GROUPS.__getitem__, names):
                end = at + part.stop - part.start
                self.weights[part] -= gradient[at:end]
                at = end
            assert at == len(gradient)
        for delta in header.statistics:
            self.seen = self.seen.merge(
                Moments(delta.count, message_to_ndarray(delta.mean), message_to_ndarray(delta.m2))
            )
        self.version += bool(header.gradient_bytes or header.statistics)
        self.global_t += header.env_steps
        assert (reply.version, reply.global_t) == (self.version, self.global_t)
        if header.sequence:
            self.newest[header.client_id] = header, reply


def get_number(header: pb.PushHeader) -> tuple[int, int]:
    return header.incarnation, header.sequence


def pack(header: pb.PushHeader) -> bytes:
    return pb.PushPullRequest(header=header).SerializeToString()


def split(header: pb.PushHeader, cut: int) -> list[pb.PushPullRequest]:
    """Returns a push in several messages: so many elements with the header, the rest in chunks."""
    gradient = header.first_chunk
    first = pb.PushHeader()
    first.CopyFrom(header)
    first.first_chunk = gradient[: 4 * cut]
    rest = gradient[4 * cut :]
    return [
        pb.PushPullRequest(header=first),
        *(pb.PushPullRequest(chunk=chunk) for chunk in (rest[:5], rest[5:]) if chunk),
    ]


def read_replies(parts: Any) -> Iterator[pb.ReplyHeader]:
    """Yields the headers of replies; the values are small and lie in them."""
    for part in parts:
        reply = pb.PushPullReply.FromString(part)
        if reply.WhichOneof("part") == "answer":  # or a damaged header, an offer of memory
            assert not reply.answer.accepted
            continue
        assert reply.WhichOneof("part") == "header"
        yield reply.header


def read_pushes(parts: list[bytes]) -> Iterator[pb.PushHeader]:
    """Puts pushes together, as long as there are whole ones; the gradient is the first chunk."""
    waiting: pb.PushHeader | None = None
    for number, part in enumerate(parts):
        try:
            request = pb.PushPullRequest.FromString(part)
        except DecodeError:
            return
        if request.WhichOneof("part") == "offer":
            if number:
                return  # refused: only the first message can be one
            continue
        if waiting is None:
            waiting = request.header
        else:
            waiting.first_chunk += request.chunk
        if len(waiting.first_chunk) >= waiting.gradient_bytes or not waiting.gradient_bytes:
            if not waiting.gradient_bytes:
                waiting.first_chunk = b""
            yield waiting
            waiting = None


def test_any_order_of_calls() -> None:
    fuzz.fuzz_machine(Bridge, SHARE)
