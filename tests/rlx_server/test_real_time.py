"""Clients that cannot wait: limits of time, numbers of steps, and where the time went."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.batch import make_config, serve_a2c
from support.connections import Listener, feed, make_connection
from support.replayed import make_config as make_dqn_config
from support.replayed import make_replayed
from support.rlx import RawClient, ServerThread, make_hello, make_next, make_start, serve_rlx
from support.served import Served

from relaax_like.client import LateAnswerError, OutOfOrderError, RlxClient
from relaax_like.core.metrics import NullMetrics
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.rlx_server.answer_times import AnswerTimes
from relaax_like.rlx_server.server import RlxServer
from relaax_like.rlx_server.session import PENDING
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.errors import ConfigError, ProtocolError
from relaax_like.wire.framing import pack_frame
from relaax_like.wire.spaces import Box, Discrete

STEPS = 4
CONFIG = make_config(layers=(8,), rollout_steps=STEPS, state_size=2, num_actions=3)
LIMITED = ["max_wait", "step_id", "timings"]
STATE, MOVE = Box(dtype="float32", shape=(2,)), Discrete(n=3)


@pytest.fixture
def backend() -> Iterator[ParameterServer]:
    with serve_a2c(CONFIG) as server:
        yield server


@pytest.fixture
def served(backend: ParameterServer) -> Served:
    return Served(backend, CONFIG)


@pytest.fixture
def port(served: Served) -> Iterator[int]:
    with ServerThread(served.rlx, "127.0.0.1", 0) as running:
        yield running.port
    served.close()


@pytest.fixture
def port_without_sweeps(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Of a server that never sweeps: a sweep each second would hide a late timer."""
    monkeypatch.setattr(RlxServer, "_sweep_once", lambda server: None)
    with ServerThread(served.rlx, "127.0.0.1", 0) as running:
        yield running.port
    served.close()


@pytest.fixture
def port_of_plain_agents(backend: ParameterServer) -> Iterator[int]:
    with serve_rlx(backend) as port:
        yield port


def wait_for(condition: Callable[[], bool], timeout_sec: float = 20.0) -> bool:
    end = time.monotonic() + timeout_sec
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


# Limits.


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"max_wait_ms": 20}, "features does not list max_wait"),
        ({"features": ["max_wait"]}, "0, expected 1 to 60000"),
        ({"features": ["max_wait"], "max_wait_ms": 60_001}, "60001, expected 1 to 60000"),
    ],
)
def test_a_limit_that_cannot_be_is_refused(port: int, fields: dict[str, Any], what: str) -> None:
    with RawClient(port) as client:
        answer = client.ask(make_hello(**fields))
    assert (answer.error.code, answer.error.field) == (rlx_pb2.INVALID_FIELD, "max_wait_ms")
    assert what in answer.error.message


def test_agents_that_can_block_refuse_a_limit_by_name(port_of_plain_agents: int) -> None:
    with RawClient(port_of_plain_agents) as client:
        answer = client.ask(make_hello(features=["max_wait"], max_wait_ms=20))
    assert (answer.error.code, answer.error.field) == (rlx_pb2.INVALID_FIELD, "max_wait_ms")
    assert "agent.py" in answer.error.message


def test_answers_come_although_nobody_learns(
    backend: ParameterServer, served: Served, port_without_sweeps: int
) -> None:
    """Without a limit, the second rollout would wait for the first for 50 seconds. covers N3

    With it, it waits for 0.5 s: a wait that is a hundred times as long would not end in time.
    """
    rollouts = 5
    served.learns.clear()
    with RawClient(port_without_sweeps) as client:
        client.greet(features=["max_wait"], max_wait_ms=1000, slots=2)
        assert client.ask(make_start(2)).WhichOneof("body") == "actions"
        began = time.monotonic()
        for _ in range(rollouts * STEPS):
            assert client.ask(make_next(2)).WhichOneof("body") == "actions"
        assert time.monotonic() - began < 40  # that it waited for nobody
        (session,) = (c.session for c in served.rlx.connections)
        described = session.describe()
        assert described.discarded_steps == (rollouts - 1) * STEPS * 2
        assert (described.answers, described.max_wait_ms) == (rollouts * STEPS + 1, 1000)
        served.release()
    assert wait_for(lambda: not served.rlx.clients)
    # The learner first: on a busy machine it compiles for longer than its end waits for it.
    assert wait_for(lambda: backend.version > 0)
    served.host.close()
    # Steps that were discarded are counted, too.
    assert backend.global_t == rollouts * STEPS * 2


@pytest.mark.parametrize("on_overload", ["slip", "drop"])
def test_answers_come_although_a_replay_table_has_no_room(on_overload: str) -> None:
    """Without a limit, the second step would wait for the first for 50 seconds."""
    steps, slots = 12, 2
    config = make_dqn_config(warm_up_steps=8, updates_per_step=0.25, on_overload=on_overload)
    with serve_a2c(config, "dqn") as backend:
        served = Served(backend, config, "dqn", requests=make_replayed(config))
        served.learns.clear()
        with ServerThread(served.rlx, "127.0.0.1", 0) as running, RawClient(running.port) as client:
            client.greet(features=["max_wait"], max_wait_ms=20, slots=slots)
            assert client.ask(make_start(slots)).WhichOneof("body") == "actions"
            began = time.monotonic()
            for _ in range(steps):
                assert client.ask(make_next(slots)).WhichOneof("body") == "actions"
            assert time.monotonic() - began < 40  # that it waited for nobody
            (session,) = (c.session for c in served.rlx.connections)
            discarded = 0 if on_overload == "slip" else (steps - 1) * slots
            assert session.describe().discarded_steps == discarded
            served.release()
        if on_overload == "slip":  # what is overdue is made up
            assert wait_for(lambda: backend.version == (steps * slots - 8) * 0.25)
        served.close()
        # Steps that no table has are counted, too.
        assert backend.global_t == steps * slots


def test_one_prediction_longer_than_a_limit_is_told_once(
    served: Served, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with RawClient(port) as client:
        client.greet(features=["max_wait"], max_wait_ms=1)
        client.ask(make_start())
        for _ in range(2):
            served.predicts.clear()
            client.send(make_next())
            time.sleep(0.05)
            served.predicts.set()
            client.receive()
        (session,) = (c.session for c in served.rlx.connections)
        assert session.times.late >= 2
    lines = [r.getMessage() for r in caplog.records if "max_wait_ms" in r.getMessage()]
    assert len(lines) == 1
    assert "1 client(s) took" in lines[0]


# Numbers of steps, and times.


def test_answers_repeat_the_number_of_the_step_and_say_where_the_time_went(port: int) -> None:
    with RawClient(port) as client:
        client.greet(features=["step_id", "timings"])
        number = 1 << 40
        ends = {"terminated": make_next().step.terminated}
        ends["terminated"] = type(ends["terminated"])(dtype="bool", shape=[1], data=b"\x01")
        first = client.ask(rlx_pb2.ClientMessage(step=_numbered(make_start(), number)))
        assert first.actions.step_id == number
        # In the middle of an episode, at its end, and again: parsed, by their layout, parsed.
        for fields in ({}, {}, {}, ends, {}, {}):
            number += 3
            answer = client.ask(
                rlx_pb2.ClientMessage(step=_numbered(make_next(**fields), number))
            ).actions
            assert answer.step_id == number
            timings = answer.timings
            assert all(timings.HasField(f.name) for f in timings.DESCRIPTOR.fields)
            assert timings.queue_us + timings.prediction_us <= timings.total_us + 2


def _numbered(message: rlx_pb2.ClientMessage, number: int) -> rlx_pb2.Step:
    message.step.step_id = number
    return message.step


@pytest.mark.parametrize("second", [0, 6, 7])
def test_a_number_that_does_not_grow_is_refused(port: int, second: int) -> None:
    with RawClient(port) as client:
        client.greet(features=["step_id"])
        client.ask(rlx_pb2.ClientMessage(step=_numbered(make_start(), 7)))
        answer = client.ask(rlx_pb2.ClientMessage(step=_numbered(make_next(), second)))
    assert (answer.error.code, answer.error.field) == (rlx_pb2.INVALID_FIELD, "step_id")


def test_a_number_without_the_feature_is_out_of_order(port: int) -> None:
    with RawClient(port) as client:
        client.greet()
        answer = client.ask(rlx_pb2.ClientMessage(step=_numbered(make_start(), 1)))
    assert (answer.error.code, answer.error.field) == (rlx_pb2.OUT_OF_ORDER, "step_id")


def test_without_features_answers_have_the_bytes_of_before(port: int) -> None:
    with RawClient(port) as client:
        client.greet()
        for message in (make_start(), make_next(), make_next(), make_next()):
            actions = client.ask(message).actions
            assert not actions.step_id
            assert not actions.HasField("timings")


# Our client.


def make_client(port: int, **options: Any) -> RlxClient:
    return RlxClient(f"127.0.0.1:{port}", STATE, MOVE, **options)


def test_our_client_is_told_the_times_of_its_steps(port: int) -> None:
    with make_client(port, slots=2, max_wait_ms=1000) as client:
        assert client.features == {"executed", "ping", "present", *LIMITED}
        zeros, rewards = np.zeros((2, 2)), np.zeros(2)
        results = [client.step(zeros)] + [client.step(zeros, rewards) for _ in range(3)]
        for result in results:
            timings = result.timings
            assert timings is not None
            assert timings.queue_us + timings.prediction_us <= timings.total_us + 2
    with make_client(port) as client:
        assert client.features == {"executed", "ping", "present"}
        assert client.step(np.zeros((1, 2))).timings is None


def test_an_answer_that_comes_too_late_is_dropped(served: Served, port: int) -> None:
    with make_client(port, slots=2, max_wait_ms=1000, answer_timeout_sec=1.0) as client:
        zeros, rewards = np.zeros((2, 2)), np.zeros(2)
        client.step(zeros)
        served.predicts.clear()
        with pytest.raises(LateAnswerError, match="no answer to step 2 within"):
            client.step(zeros, rewards, terminated=[True, False])
        with pytest.raises(OutOfOrderError, match="pass what was carried out"):
            client.step(zeros, rewards)
        with pytest.raises(LateAnswerError):
            client.step(zeros, rewards, executed=np.array([2, 2]))
        served.predicts.set()
        assert wait_for(lambda: not any(c.busy for c in served.rlx.connections))
        result = client.step(zeros, rewards, executed=np.array([2, 2]))
        assert result.actions is not None
        # An episode that ended with a dropped answer comes with the next one.
        assert [(end.slot, end.length) for end in result.episodes] == [(0, 1)]
        assert client.late_answers == 2
        assert client.step(zeros, rewards).actions is not None


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"max_wait_ms": 0}, "max_wait_ms: 0"),
        ({"answer_timeout_sec": 1.0}, r"answer_timeout_sec: 1\.0, but max_wait_ms is not set"),
        ({"max_wait_ms": 5, "answer_timeout_sec": 0.0}, "expected more than 0"),
    ],
)
def test_our_client_refuses_limits_that_cannot_be(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        make_client(1, **options)


def test_our_client_says_that_the_agents_can_block(port_of_plain_agents: int) -> None:
    with pytest.raises(ProtocolError, match="max_wait_ms"):
        make_client(port_of_plain_agents, max_wait_ms=20)


# Counting.


def test_percentiles_and_late_answers_are_those_of_the_times() -> None:
    times = AnswerTimes(NullMetrics(), limit_sec=0.020, now=0.0)
    assert times.find_percentiles(0.5) is None
    for number in range(1, 101):  # 1 to 100 ms
        times.add(number / 1e3, now=1.0)
    found = times.find_percentiles(0.5, 0.99, 1.0)
    assert found is not None
    for seconds, true in zip(found, (0.050, 0.099, 0.100), strict=True):
        assert true <= seconds <= 1.10 * true
    assert (times.answers, times.late) == (100, 80)
    assert AnswerTimes(NullMetrics(), None, 0.0).limit_sec is None


def test_percentiles_forget_what_is_older_than_two_windows() -> None:
    times = AnswerTimes(NullMetrics(), None, now=0.0)
    times.add(10.0, now=1.0)
    for now in (11.0, 22.0, 33.0):  # each ends a window
        times.add(0.001, now)
    (longest,) = times.find_percentiles(1.0) or [0.0]
    assert longest < 0.002
    for seconds in (0.0, 1e-7, 1e9):
        times.add(seconds, 34.0)  # beyond the bins
    assert times.answers == 7


# Who is silent.


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (PENDING, "the server has not answered for 12 s; it waits for the learner; last message"),
        (b"actions", "the client has been silent for 12 s; its last message: step"),
    ],
)
def test_after_ten_seconds_the_silent_side_is_named(
    answer: Any, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        connection, _ = make_connection(Listener(answer))
        connection._server.connections.add(connection)
        feed(connection, pack_frame(b"step"))
        connection._server._sweep_once()
        assert not caplog.records
        connection._server._idle_timeout_sec = 60.0
        connection.last_heard -= 12.0
        for _ in range(2):
            connection._server._sweep_once()

    asyncio.run(play())
    (line,) = [r.getMessage() for r in caplog.records]
    assert what in line
