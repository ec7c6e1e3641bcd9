"""Points of curves: a budget for each client and for all, and a bad point costs itself alone."""

import pytest
from support.cluster import wait_until
from support.rlx import RawClient, make_next, make_start, serve_rlx

from relaax_like.core.metrics import Metrics
from relaax_like.rlx_server.point_budget import PointBudget
from relaax_like.v1 import metrics_pb2, rlx_pb2


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
    from relaax_like.rlx_server import session

    monkeypatch.setattr(session, "PointBudget", lambda: PointBudget(0.0, 30))
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
    return sum(connection.session.dropped_points for connection in server.connections)


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


def test_a_message_of_points_reaches_the_recorder_in_one_call(client, recorder):
    client.send(make_points(500))
    client.ask(make_start())
    assert recorder.calls == 1
    assert len(recorder.get("curve")) == 500


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
    assert "at most 10000 points" in answer.error.message
