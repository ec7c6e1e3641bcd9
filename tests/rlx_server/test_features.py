"""Optional parts of the protocol: agreed on in the hello, and never sent otherwise."""

import asyncio
import socket
import threading

import numpy as np
import pytest
from support.connections import Listener, feed, make_connection
from support.rlx import (
    RawClient,
    RecordingAgent,
    array,
    make_hello,
    make_next,
    make_start,
    serve_rlx,
)
from support.threads import wait_until

from relaax_like.client import RlxClient
from relaax_like.client.connection import Connection
from relaax_like.rlx_server.greeting import Greeting
from relaax_like.rlx_server.session import PENDING
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.errors import ServerUnavailableError
from relaax_like.wire.framing import pack_frame
from relaax_like.wire.spaces import Box, Discrete, space_to_message

PING = rlx_pb2.ClientMessage(ping=rlx_pb2.Ping())


@pytest.mark.parametrize(
    ("asked", "on"),
    [
        ((), []),
        (("ping",), ["ping"]),
        (("a_new_one", "ping", "zz"), ["ping"]),
        (("hello_ping",), []),
    ],
)
def test_features_are_on_when_both_name_them(client, asked, on):
    answer = client.ask(make_hello(features=asked))
    assert list(answer.ready.features) == on


@pytest.mark.parametrize(
    "names",
    [("ping", "a"), ("ping", "ping"), ("Ping",), ("",), tuple(f"f{i:02}" for i in range(33))],
    ids=["not sorted", "twice", "upper case", "empty", "too many"],
)
def test_wrong_names_of_features_are_refused(client, names):
    answer = client.ask(make_hello(features=names))
    assert (answer.error.code, answer.error.field) == (rlx_pb2.INVALID_FIELD, "features")


def test_a_ping_has_no_answer_and_counts_as_heard(backend):
    servers = []
    with serve_rlx(backend, prepare=servers.append) as port, RawClient(port) as client:
        client.greet(features=["ping"])
        client.ask(make_start())
        (connection,) = servers[0].connections
        before = connection.last_heard
        client.send(PING)
        assert client.ask(make_next()).WhichOneof("body") == "actions"
        client.send(PING)
        assert client.ask(make_next()).WhichOneof("body") == "actions"
        assert connection.last_heard > before


def test_a_ping_without_the_feature_is_out_of_order(client):
    client.greet()
    assert client.ask(PING).error.code == rlx_pb2.OUT_OF_ORDER


def test_a_ping_before_the_hello_is_out_of_order(client):
    assert client.ask(PING).error.code == rlx_pb2.OUT_OF_ORDER


def test_our_client_pings_when_it_is_told_to(backend):
    servers = []
    with (
        serve_rlx(backend, prepare=servers.append) as port,
        RlxClient(
            f"127.0.0.1:{port}", Box(dtype="float32", shape=(2,)), Discrete(n=3)
        ) as environment,
    ):
        assert environment.features == {"ping"}
        environment.act([0.0, 0.0])
        environment.ping()
        assert environment.reward_and_act(1.0, [0.0, 0.0]) is not None
        environment.close()
        environment.ping()  # nobody to tell


def test_a_connection_that_a_ping_finds_lost_is_reported_by_the_next_step(backend):
    spaces = Box(dtype="float32", shape=(2,)), Discrete(n=3)
    with serve_rlx(backend) as port:
        environment = RlxClient(f"127.0.0.1:{port}", *spaces)
        environment.act([0.0, 0.0])

    def is_found() -> bool:
        environment.ping()
        return environment._connection.closed

    wait_until(is_found, "a ping finds the connection lost")
    with pytest.raises(ServerUnavailableError, match=r"call reconnect\(\) and start new episodes"):
        environment.reward_and_act(1.0, [0.0, 0.0])


class SlowAgent(RecordingAgent):
    begun, go_on = threading.Event(), threading.Event()

    def act(self, state):
        self.begun.set()
        assert self.go_on.wait(20)
        return super().act(state)


def test_any_number_of_pings_may_be_sent_while_an_answer_is_due(backend):
    with serve_rlx(backend, SlowAgent) as port, RawClient(port) as client:
        client.greet(features=["ping"])
        client.send(make_start())
        assert SlowAgent.begun.wait(20)
        for _ in range(3):
            client.socket.sendall(pack_frame(PING.SerializeToString()) * 60)
        SlowAgent.go_on.set()
        assert client.receive().WhichOneof("body") == "actions"
        assert client.ask(make_next()).WhichOneof("body") == "actions"


def test_a_client_has_its_time_anew_after_each_answer():
    async def play():
        connection, _ = make_connection(Listener(PENDING))
        feed(connection, pack_frame(b"step"))
        connection.last_heard -= 60
        connection.send_answer(b"actions")
        connection._server._sweep_once()
        assert connection.open

    asyncio.run(play())


def test_a_ping_alone_counts_as_heard():
    async def play(body):
        connection, _ = make_connection(Listener(features=("ping",)))
        feed(connection, pack_frame(b"step"))
        connection.last_heard -= 60
        long_ago = connection.last_heard
        feed(connection, body)
        return connection.last_heard > long_ago

    ping = pack_frame(PING.SerializeToString())
    assert asyncio.run(play(ping))
    assert not asyncio.run(play(ping[:-1]))


def test_nothing_is_sent_before_ready():
    async def play():
        session = Listener(PENDING, ("ping",))
        session.greeted = False
        connection, transport = make_connection(session)
        feed(connection, pack_frame(b"hello"))
        session.greeted = True  # in its thread; the answer is on its way
        connection.last_heard -= 6
        connection._server._sweep_once()
        assert transport.written == b""

    asyncio.run(play())


@pytest.mark.parametrize("features", [("ping",), ()], ids=["on", "off"])
def test_who_waits_for_a_learner_hears_that_the_server_is_alive(features):
    async def play():
        connection, transport = make_connection(Listener(PENDING, features))
        feed(connection, pack_frame(b"step"))
        sweep = connection._server._sweep_once
        sweep()
        assert transport.written == b""  # it has just been heard
        connection.last_heard -= 6
        sweep()
        sweep()
        ping = pack_frame(rlx_pb2.ServerMessage(ping=rlx_pb2.Ping()).SerializeToString())
        assert transport.written == (ping if features else b"")

    asyncio.run(play())


def test_our_client_waits_on_when_the_server_pings():
    ping = pack_frame(rlx_pb2.ServerMessage(ping=rlx_pb2.Ping()).SerializeToString())
    ready = rlx_pb2.ServerMessage(ready=rlx_pb2.Ready(session="here"))
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            accepted, _ = listening.accept()
            with accepted:
                accepted.sendall(ping + ping + pack_frame(ready.SerializeToString()))

        server = threading.Thread(target=serve)
        server.start()
        with Connection(f"127.0.0.1:{listening.getsockname()[1]}") as connection:
            assert connection.receive() == ready
        server.join()


@pytest.mark.parametrize(
    ("is_preparing", "silent_sec", "pinged"),
    [(True, 6, True), (True, 1, False), (True, 601, False), (False, 6, False)],
)
def test_a_client_that_expects_it_is_pinged_while_its_agents_are_made(
    is_preparing, silent_sec, pinged
):
    async def play():
        listener = Listener(PENDING)
        listener.greeted, listener.blocking, listener.is_preparing = False, True, is_preparing
        connection, transport = make_connection(listener)
        connection.busy = True  # with the hello
        connection.last_heard -= silent_sec
        connection.ping()
        return bytes(transport.written)

    ping = pack_frame(rlx_pb2.ServerMessage(ping=rlx_pb2.Ping()).SerializeToString())
    assert asyncio.run(play()) == (ping if pinged else b"")


def test_versions_are_taken_with_the_feature_and_nothing_depends_on_them(backend):
    servers = []
    versions = {f"package-{number}": "1.0+local" for number in range(32)}
    with serve_rlx(backend, prepare=servers.append) as port, RawClient(port) as client:
        assert list(client.ask(make_hello(features=["versions"], versions=versions)).ready.features)
        assert client.ask(make_start()).WhichOneof("body") == "actions"
        (served,), _ = servers[0].describe_clients()
        assert served.versions == versions


@pytest.mark.parametrize(
    "versions",
    [{"mujoco": "3 3"}, {f"package-{number}": "1" for number in range(33)}],
    ids=["a blank", "too many"],
)
def test_wrong_versions_are_refused(client, versions):
    answer = client.ask(make_hello(features=["versions"], versions=versions))
    assert (answer.error.code, answer.error.field) == (rlx_pb2.INVALID_FIELD, "versions")


def test_a_run_of_one_policy_takes_names_of_agents_and_counts_games(backend):
    """covers PE20"""
    servers = []
    features = ["agents", "slot_versions"]
    hello = make_hello(slots=2, features=features, agents=["left", "right"], games=[7, 7])
    with serve_rlx(backend, prepare=servers.append) as port, RawClient(port) as client:
        ready = client.ask(hello).ready
        assert (list(ready.features), list(ready.policies)) == (features, [])
        assert list(client.ask(make_start(2)).actions.versions) == [0, 0]
        for ends, games in (([1, 0], 0), ([1, 0], 0), ([0, 1], 1), ([1, 1], 2)):
            answer = client.ask(make_next(2, terminated=array(np.array(ends), "bool")))
            assert answer.WhichOneof("body") == "actions"
            (served,), _ = servers[0].describe_clients()
            assert served.games == games


@pytest.mark.parametrize("field", ["masks", "final_masks"])
@pytest.mark.parametrize("features", [[], ["masks"]], ids=["not asked for", "asked for"])
def test_a_mask_is_refused_while_its_feature_is_off(client, field, features):
    """Plain agents cannot use masks. covers PE20"""
    client.greet(features=features)
    client.ask(make_start())
    answer = client.ask(make_next(**{field: {"action": array(np.ones((1, 3)), "bool")}}))
    assert (answer.error.code, answer.error.field) == (rlx_pb2.OUT_OF_ORDER, field)
    assert "run their own code" in answer.error.message


def test_an_action_of_too_many_choices_has_no_mask():
    """covers PE20"""
    action = {"action": space_to_message(Discrete(n=1 << 30))}
    greeting = Greeting(make_hello(features=["masks"], action_spaces=action).hello, 8)
    assert not greeting.masks
    assert "masks" not in greeting.features
    assert "65536" in greeting.unsupported["masks"]
