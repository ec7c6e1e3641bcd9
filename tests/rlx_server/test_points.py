"""Points of curves: a budget for each client and for all, and a bad point costs itself alone."""

import asyncio
import functools
import logging

import pytest
from support.cluster import wait_until
from support.connections import Listener, feed, make_connection
from support.rlx import RawClient, make_next, make_start, serve_rlx

from relaax_like.core.metrics import Metrics
from relaax_like.rlx_server import answer_times, points
from relaax_like.rlx_server.client_log import ClientLog
from relaax_like.rlx_server.points import POINTS_PER_TURN, PointBudget
from relaax_like.v1 import metrics_pb2, rlx_pb2
from relaax_like.wire.framing import pack_frame

logger = logging.getLogger(__name__)


class Recorder(Metrics):
    def __init__(self):
        self.points = []
        self.calls = 0

    def scalar(self, name, y, x=None):
        self.points.append((name, y, x))

    def scalars(self, points):
        self.calls += 1
        super().scalars(points)

    def get(self, name):
        return [y for one, y, _ in self.points if one == name]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def make_points(number, name="curve"):
    scalars = [metrics_pb2.Scalar(name=name, y=y) for y in range(number)]
    request = metrics_pb2.StoreScalarsRequest(scalars=scalars)
    return rlx_pb2.ClientMessage(scalars=request)


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def client(backend, recorder):
    with serve_rlx(backend, metrics=recorder, max_message_bytes=4 << 20) as port:
        with RawClient(port) as client:
            client.greet()
            yield client


def test_a_budget_is_spent_and_grows_again():
    clock = Clock()
    budget = PointBudget(10, 25, clock)
    assert [budget.take(20), budget.take(20), budget.take(1)] == [20, 5, 0]
    clock.now = 0.5
    assert budget.take(20) == 5
    clock.now = 100.0
    assert budget.take(100) == 25


def test_what_is_above_the_budget_is_dropped_and_counted(backend, recorder, monkeypatch):
    few = functools.partial(PointBudget, 0.0, 30)
    monkeypatch.setattr(
        points, "PointBudget", lambda *given: PointBudget(*given) if given else few()
    )
    with serve_rlx(backend, metrics=recorder) as port, RawClient(port) as client:
        client.greet()
        for _ in range(3):
            client.send(make_points(20))
        assert client.ask(make_start()).WhichOneof("body") == "actions"
    assert recorder.get("curve") == [*map(float, range(20)), *map(float, range(10))]
    assert sum(recorder.get("dropped points")) == 30


def test_an_exploit_client_has_a_budget_too_though_its_points_are_ignored(backend, recorder):
    servers = []
    with serve_rlx(backend, metrics=recorder, prepare=servers.append) as port:
        with RawClient(port) as client:
            client.greet(mode=rlx_pb2.EXPLOIT)
            client.send(make_points(10_000))
            client.send(make_points(10_000))
            wait_until(lambda: dropped(servers[0]) > 0, "the client is to rest")
    assert recorder.get("curve") == []


def dropped(server):
    return sum(connection.session.points.dropped for connection in server.connections)


def test_all_clients_together_have_a_budget(backend, recorder):
    def prepare(server):
        server.points = PointBudget(0.0, 50)

    with serve_rlx(backend, metrics=recorder, prepare=prepare) as port:
        for _ in range(3):
            with RawClient(port) as client:
                client.greet()
                client.send(make_points(30))
                client.ask(make_start())
    assert len(recorder.get("curve")) == 50


def test_points_reach_the_recorder_in_bulk_and_in_order(client, recorder):
    client.send(make_points(2 * POINTS_PER_TURN + 1))
    client.ask(make_start())
    assert recorder.calls == 3
    assert recorder.get("curve") == [*map(float, range(2 * POINTS_PER_TURN + 1))]


def test_a_recorder_that_raises_loses_the_points_and_ends_no_session(client, recorder, caplog):
    def fail(points):
        raise OSError("the disk is full")

    recorder.scalars = fail
    client.send(make_points(3))
    assert client.ask(make_start()).WhichOneof("body") == "actions"
    del recorder.scalars
    client.send(make_points(2))
    assert client.ask(make_next()).WhichOneof("body") == "actions"
    assert recorder.get("curve") == [0.0, 1.0]
    assert "its curve points could not be recorded" in caplog.text
    assert "OSError: the disk is full" in caplog.text


def test_a_recorder_that_raises_during_a_step_ends_no_session(
    backend, recorder, caplog, monkeypatch
):
    def fail(name, y, x=None):
        raise OSError("the disk is full")

    monkeypatch.setattr(answer_times, "_INTERVAL_SEC", 0.0)  # a point of each answer
    recorder.scalar = fail
    with serve_rlx(backend, metrics=recorder) as port, RawClient(port) as client:
        client.greet()
        for message in (make_start(), make_next(), make_next()):
            assert client.ask(message).WhichOneof("body") == "actions"
    assert "a curve point of its session could not be recorded" in caplog.text
    assert "OSError: the disk is full" in caplog.text


def test_between_two_parts_of_a_message_others_have_their_turn():
    async def play():
        recorder, seen = Recorder(), []
        session = Listener()
        session.points = points.ClientPoints(recorder)
        session.receive = lambda body, received_at: session.points.take(
            make_points(3 * POINTS_PER_TURN).scalars.scalars, "one", ClientLog(logger)
        )
        connection, _ = make_connection(session)
        feed(connection, pack_frame(b"points"))
        for _ in range(4):
            seen.append(recorder.calls)
            await asyncio.sleep(0)
        assert seen == [1, 2, 3, 3]

    asyncio.run(play())


def test_points_of_a_client_that_leaves_at_once_are_stored(backend, recorder):
    with serve_rlx(backend, metrics=recorder) as port, RawClient(port) as client:
        client.greet()
        client.send(make_points(10_000))
        client.socket.close()
        wait_until(lambda: len(recorder.get("curve")) == 10_000, "all points are stored")


def test_a_bad_point_is_dropped_and_reported_and_ends_nothing(client, recorder, caplog):
    request = make_points(3)
    request.scalars.scalars[1].name = ""
    request.scalars.scalars[2].y = float("nan")
    request.scalars.scalars.add(name="x", y=1.0, x=float("inf"))
    client.send(request)
    assert client.ask(make_start()).WhichOneof("body") == "actions"
    assert client.ask(make_next()).WhichOneof("body") == "actions"
    assert recorder.get("curve") == [0.0]
    assert recorder.get("x") == []
    assert "dropped 3 of 4 curve points: scalars: name ''" in caplog.text


def test_a_message_of_too_many_bytes_of_points_is_refused(client):
    answer = client.ask(make_points(12_000, "n" * 200))
    assert (answer.error.code, answer.error.field) == (rlx_pb2.INVALID_FIELD, "scalars")
    assert "expected at most 2250000; send fewer points" in answer.error.message
