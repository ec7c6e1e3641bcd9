"""A bad network between agents and the parameter server: each push takes effect once.

covers R26
"""

import functools
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support import chaos
from support.cluster import BARE, TRACE, Cluster, Program, wait_until
from support.history import History, write_initial_values
from support.proxy import Direction, Proxy

from relaax_like.bridge import control
from relaax_like.bridge import stub as stub_module
from relaax_like.bridge.channel import CHANNEL_OPTIONS, make_channel

LONG = int(os.environ.get("RELAAX_FAULT_SEEDS", "1")) >= 20
# Longer than a call's deadline: what was sent before is repeated, and comes all the same.
CUT_SEC = 30.0 if LONG else 6.0
# In chunks: four to and fro.
LARGE = 400_000
DIRECTIONS: tuple[Direction, ...] = ("up", "down")


@pytest.fixture
def server(cluster: Cluster) -> Program:
    return start_server(cluster)


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[Proxy]:
    with Proxy(cluster.ps_port) as proxy:
        yield proxy


def start_server(cluster: Cluster) -> Program:
    server = cluster.start_parameter_server()
    server.wait_for("parameter server on")
    return server


def finish(history: History, cluster: Cluster) -> None:
    """Ends the clients and checks, without the bad network."""
    history.stop()
    history.check(f"localhost:{cluster.ps_port}")


@pytest.mark.usefixtures("server")
def test_a_link_that_is_cut_for_a_while(cluster: Cluster, proxy: Proxy) -> None:
    history = History(proxy.address, pause_sec=0.01, share=False)
    history.start()
    try:
        faults = [(proxy.cut, 2.0), (proxy.stall, CUT_SEC)]
        for fault, seconds in [*faults, (proxy.cut, CUT_SEC)] if LONG else faults:
            history.wait(20)
            fault()
            before = len(history.acknowledged)
            time.sleep(seconds)
            assert len(history.acknowledged) <= before + 3  # replies that were there already
            proxy.mend()
        history.wait(20)
        finish(history, cluster)
    finally:
        history.abandon()


# Through shared memory, which no reset reaches, beside streams that are reset.
@pytest.mark.parametrize("parameters", [LARGE, 100] if LONG else [LARGE])
def test_connections_that_are_reset_again_and_again(
    cluster: Cluster, proxy: Proxy, parameters: int
) -> None:
    write_initial_values(cluster.folder, parameters)
    process = psutil.Process(start_server(cluster).pid)
    history = History(proxy.address, clients=4, parameters=parameters, pause_sec=0.02)
    history.start()
    try:
        history.wait(20)
        before = process.num_fds()
        for _ in range(200 if LONG else 20):
            proxy.reset()
            history.wait(4)
        finish(history, cluster)
        # Clients have left with their connections and memory; segments of the journal come and go.
        wait_until(lambda: process.num_fds() <= before, "the end of descriptors", 10)
    finally:
        history.abandon()


def test_a_reset_in_the_middle_of_many_chunks(cluster: Cluster, proxy: Proxy) -> None:
    write_initial_values(cluster.folder, LARGE)
    start_server(cluster)
    draw = random.Random(3)
    history = History(proxy.address, clients=1, parameters=LARGE, pause_sec=0.05, share=False)
    history.start()
    try:
        for direction in DIRECTIONS * (50 if LONG else 5):
            history.wait(1)
            proxy.reset_after(direction, int(4 * LARGE * draw.uniform(0.1, 0.9)))
            wait_until(lambda way=direction: not proxy.is_armed(way), "the reset")
        history.wait(1)
        finish(history, cluster)
    finally:
        history.abandon()


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("directions", "often"),
    [
        (("down",), True),
        (("up", "down"), False),
        *([(("down",), False), (("up",), True), (("up",), False)] if LONG else []),
    ],
)
def test_half_open_connections_are_given_up(
    cluster: Cluster,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    directions: tuple[Direction, ...],
    often: bool,
) -> None:
    if not LONG:  # the real ones take a minute
        quick = {"grpc.keepalive_time_ms": 1000, "grpc.http2.ping_timeout_ms": 1000}
        options = [one for one in CHANNEL_OPTIONS if one[0] not in quick]
        make = functools.partial(make_channel, options=[*options, *quick.items()])
        monkeypatch.setattr(control, "make_channel", make)
        monkeypatch.setattr(stub_module, "CALL_TIMEOUT_SEC", 0.5)
    history = History(proxy.address, pause_sec=0.01, often=often, share=False)
    history.start()
    try:
        history.wait(20)
        before = proxy.get_swallowed_bytes(directions[0])
        proxy.half_open(*directions)
        history.wait(20, timeout_sec=200.0)
        assert proxy.get_swallowed_bytes(directions[0]) > before
        finish(history, cluster)
    finally:
        history.abandon()


def test_a_thin_link_is_slow_and_no_more(cluster: Cluster, proxy: Proxy) -> None:
    """1 Mbit/s and 400 kB each way: a round takes longer than a server can be silent."""
    parameters = 100_000
    write_initial_values(cluster.folder, parameters)
    start_server(cluster)
    pushes = 5 if LONG else 1
    history = History(
        proxy.address,
        clients=1,
        parameters=parameters,
        pushes=1 + pushes,
        pause_sec=0.4,
        share=False,
    )
    history.start()
    try:
        history.wait(1)
        proxy.bytes_per_sec = 125_000.0
        history.join(90.0)
        # All came this way, and nothing was sent twice.
        rounds = proxy.get_forwarded_bytes("up") / (4 * parameters)
        assert 1 + pushes < rounds < 1 + pushes + 0.5
        finish(history, cluster)
    finally:
        history.abandon()


@pytest.mark.usefixtures("server")
def test_a_far_server_is_found_again(cluster: Cluster, proxy: Proxy) -> None:
    history = History(proxy.address, share=False)
    history.start()
    try:
        history.wait(6)
        for delay_sec in (0.05, 0.2):
            proxy.delay_sec = delay_sec
            history.wait(3)
            proxy.cut()
            proxy.mend()
            history.wait(3)
        finish(history, cluster)
    finally:
        history.abandon()


def test_agents_with_lost_and_repeated_calls_count_each_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is discarded, as repeating helps: so the steps are those of the episodes, exactly."""
    chances = "request_lost=0.2,reply_lost=0.2,in_flight=0.2,seed=1"
    with Cluster(tmp_path, BARE) as cluster:
        cluster.start_parameter_server()
        with monkeypatch.context() as environment:
            chaos.set_environment(environment, chances)
            rlx_server = cluster.start_rlx_server()
        rlx_server.wait_for("rlx server on")
        clients = [cluster.start_client(f"client-{n}", "--episodes", 10) for n in range(2)]
        assert [client.wait() for client in clients] == [0, 0], clients
        steps = sum(int(client.wait_for(r"10 episodes, (\d+) steps")[1]) for client in clients)
        status = cluster.wait_status(lambda status: status.episodes == 20, "all episodes")
        assert (status.global_t, status.version) == (steps, 20)
        for program in cluster.started:
            assert TRACE not in program.output
            assert "discard" not in program.output
    cluster.assert_nothing_left()
