"""Whole clusters as users start them: orders, deaths, restarts. covers R1, R12, R17, R19, R24-R27

Each server and client is a process of its own. The algorithm is the NumPy one of tests/support,
where the test is not about an algorithm; its servers start in a second.
"""

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.cluster import BARE, TRACE, Cluster, Program, find_free_port, wait_until
from support.here import refuse_here

from relaax_like.bridge.control import BridgeControl
from relaax_like.cli.servers import APPS
from relaax_like.parameter_server.snapshot_format import State
from relaax_like.parameter_server.snapshots import read_latest


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster


def read_snapshot(cluster: Cluster) -> State:
    state = read_latest(cluster.folder / "run" / "checkpoints")
    assert state is not None, "there is no snapshot"
    return state


def count_scores(client: Program) -> int:
    return sum("Score = " in line for line in list(client.lines))


def wait_scores(client: Program, more: int) -> None:
    wanted = count_scores(client) + more
    wait_until(lambda: count_scores(client) >= wanted, (f"{more} more episodes", client))
    assert client.alive


def assert_no_trace(*programs: Program) -> None:
    for program in programs:
        assert TRACE not in program.output, program


# What shows that a process is up, or that it waits for another one.
SIGNS = {
    "ps": "server on",
    "rlx": "waiting for environ|waiting for the parameter server",
    "client": "waiting for the rlx server|Score",
}


def start_in_order(**starts: Callable[[], Program]) -> list[Program]:
    """Starts processes in an order in which some wait for others; returns them.

    Those with the client last and the parameter server first are how all other tests start.

    Args:
      starts: role -> starts its process, after the one before has shown its sign.
    """
    programs: dict[str, Program] = {}
    for role, start in starts.items():
        programs[role] = start()
        # A client between the two waits in silence: the rlx server does the talking.
        silent = list(programs) == ["rlx", "client"]
        programs["rlx" if silent else role].wait_for(SIGNS["rlx" if silent else role])
    return list(programs.values())


# Deaths.


def test_whoever_is_killed_comes_back_and_costs_little(cluster: Cluster) -> None:
    """One after the other: a client, the rlx server, and a parameter server with a journal."""
    ps, rlx = cluster.start_both_servers()
    doomed, other = cluster.start_paced_client("doomed"), cluster.start_paced_client("other")
    wait_scores(doomed, 1)
    wait_scores(other, 1)

    # A client disturbs nobody, and joins again.
    assert doomed.stop(signal.SIGKILL) == -signal.SIGKILL
    # In the middle of an episode, or, by chance, before the first step of one.
    rlx.wait_for("doomed: left")
    cluster.wait_steps(100)
    wait_scores(other, 2)
    again = cluster.start_paced_client("doomed")
    wait_scores(again, 2)
    wait_scores(other, 2)
    assert "retrying" not in other.output
    assert ps.alive
    assert rlx.alive

    # The rlx server costs its clients an episode each.
    clients = [again, other]
    before = cluster.wait_steps(1)
    rlx.stop(signal.SIGKILL)
    for client in clients:
        client.wait_for("retrying")
    assert ps.alive
    second_rlx = cluster.start_rlx_server()
    for client in clients:
        client.wait_for("reconnected to")
        wait_scores(client, 2)
    after = cluster.wait_steps(100)
    assert after.global_t > before.global_t
    assert after.version > before.version
    assert after.epoch == before.epoch

    # The parameter server has lost nothing that it had acknowledged.
    before = cluster.wait_steps(100)
    assert before.durability == "journal"
    ps.stop(signal.SIGKILL)
    second_ps = cluster.start_parameter_server()
    second_ps.wait_for(r"replayed \d+ pushes of the journal")
    # What was answered before the kill is there, and perhaps what came since.
    assert int(second_ps.wait_for(r"global_t is (\d+)")[1]) >= before.global_t
    status = cluster.wait_steps(100)
    assert status.version > before.version
    assert_no_trace(ps, rlx, second_ps, second_rlx, *clients)


def test_a_killed_parameter_server_goes_on_from_its_snapshot(cluster: Cluster) -> None:
    often = (
        "relaax-parameter-server.checkpoint_global_step_interval=100",
        "relaax-parameter-server.durability=snapshot",
    )
    rlx, ps, client = start_in_order(
        rlx=lambda: cluster.start_rlx_server(*often),
        ps=lambda: cluster.start_parameter_server(*often),
        client=lambda: cluster.start_paced_client("one"),
    )
    clients = [client, cluster.start_paced_client("two")]
    for client in clients:
        wait_scores(client, 1)
    before = cluster.wait_status(lambda s: (s.snapshot_global_t or 0) >= 200, "two snapshots")
    ps.stop(signal.SIGKILL)
    saved = read_snapshot(cluster)
    rlx.wait_for("discarding pushes until it is back")
    for client in clients:
        wait_scores(client, 2)  # with the weights at hand
    again = cluster.start_parameter_server(*often)
    assert int(again.wait_for(r"global_t is (\d+)")[1]) == saved.global_t
    rlx.wait_for("the parameter server is back")
    status = cluster.wait_steps(100)
    assert status.global_t >= saved.global_t + 100
    assert status.version >= saved.version
    assert status.epoch == before.epoch + 1
    # By themselves: the same processes, which never lost their connection.
    assert rlx.alive
    for client in clients:
        wait_scores(client, 1)
        assert "retrying" not in client.output
    assert_no_trace(again, rlx, *clients)


def test_sigterm_saves_and_a_restart_resumes_the_very_weights(cluster: Cluster) -> None:
    client, ps, rlx = start_in_order(
        client=cluster.start_paced_client,
        ps=cluster.start_parameter_server,
        rlx=cluster.start_rlx_server,
    )
    # On the same checkpoints there can be no second server.
    elsewhere = f"relaax-parameter-server.bind=localhost:{find_free_port()}"
    second = cluster.start_parameter_server(elsewhere)
    assert second.wait() == 1
    second.wait_for(rf"^error: .*in use by a parameter server, .* \(pid {ps.pid}\)")
    status = cluster.wait_steps(100)
    assert ps.stop() == 128 + signal.SIGTERM
    ps.wait_for("stopped")
    saved = read_snapshot(cluster)
    assert saved.global_t >= status.global_t
    assert saved.version >= status.version
    # Nobody must push between the restart and the look at its weights.
    assert client.stop() == 128 + signal.SIGTERM
    assert rlx.stop() == 128 + signal.SIGTERM
    again = cluster.start_parameter_server()
    assert int(again.wait_for(r"global_t is (\d+)")[1]) == saved.global_t
    again.wait_for("parameter server on")
    with BridgeControl().connect(f"localhost:{cluster.ps_port}") as link:
        with link.parameter_server_stub(timeout_sec=30) as stub:
            (weights,) = stub.get_values()
    np.testing.assert_array_equal(weights, saved.manifest.unpack(saved.values)[0])
    assert not np.array_equal(weights, _initial_weights(cluster))
    assert again.stop(signal.SIGINT) == 128 + signal.SIGINT
    assert_no_trace(ps, second, rlx, client, again)


def _initial_weights(cluster: Cluster) -> np.ndarray:
    (kept,) = (cluster.folder / "run" / "checkpoints").glob("initial-*.npz")
    weights: np.ndarray = np.load(kept, allow_pickle=False)["W"]
    return weights


# The end.


def test_a_finished_run_ends_again_at_once_and_says_so(cluster: Cluster) -> None:
    budget = "algorithm.max_global_step=400"
    client, rlx, first = start_in_order(
        client=cluster.start_client,
        rlx=lambda: cluster.start_rlx_server(budget),
        ps=lambda: cluster.start_parameter_server(budget),
    )
    assert client.wait() == 0
    assert client.lines[-1].startswith("CartPole-v0: ")
    assert first.wait() == 0
    first.wait_for("finished: budget of 400 env steps used up")
    for what in ("snapshots", "curves", "config", "evaluate"):
        first.wait_for(rf"{what} +\S+")
    saved = read_snapshot(cluster)
    assert saved.global_t >= 400
    second = cluster.start_parameter_server(budget)
    assert second.wait() == 0
    second.wait_for(rf"global_t is {saved.global_t}$")
    second.wait_for("has already finished")
    second.wait_for("finished: budget of 400 env steps used up")
    assert read_snapshot(cluster).version == saved.version
    # A larger budget continues where it ended; the rlx server of before is still there.
    third = cluster.start_parameter_server("algorithm.max_global_step=1e6")
    third.wait_for("parameter server on")
    assert "already finished" not in third.output
    assert third.stop() == rlx.stop() == 128 + signal.SIGTERM
    assert_no_trace(client, first, second, third, rlx)
    cluster.assert_nothing_left()
    assert list(cluster.folder.rglob("*.trace")) == []  # without the flag


def test_an_exploit_client_counts_for_nothing_and_outlives_the_training(cluster: Cluster) -> None:
    budget = "algorithm.max_global_step=400"
    rlx, watcher, ps = start_in_order(
        rlx=lambda: cluster.start_rlx_server(budget),
        client=lambda: cluster.start_paced_client("watcher", "--exploit"),
        ps=lambda: cluster.start_parameter_server(budget),
    )
    wait_scores(watcher, 10)  # some hundred steps
    status = cluster.wait_status(lambda s: True, "any answer")
    assert (status.global_t, status.version, status.episodes) == (0, 0, 0)
    trainer = cluster.start_client("trainer")
    assert trainer.wait() == 0
    assert ps.wait() == 0
    wait_scores(watcher, 2)
    assert "has finished" not in watcher.output
    saved = read_snapshot(cluster)
    assert saved.global_t >= 400
    assert watcher.stop() == 128 + signal.SIGTERM
    assert_no_trace(ps, rlx, watcher, trainer)


# Mistakes at the start, and impatience.


def test_a_used_port_is_named_with_the_process_that_holds_it(cluster: Cluster) -> None:
    metrics_port = find_free_port()
    with cluster.config.open("a") as file:
        file.write(f"relaax-metrics-server: {{bind: 'localhost:{metrics_port}'}}\n")
    ports = {
        "parameter_server": cluster.ps_port,
        "rlx_server": cluster.rlx_port,
        "metrics_server": metrics_port,
    }
    for server, port in ports.items():
        with socket.create_server(("127.0.0.1", port)):
            line = refuse_here("--config", cluster.config, app=APPS[server], status=1)
        assert f"port {port} is in use by pid {os.getpid()}" in line
        assert line.startswith("error: ")
        assert "--bind" in line


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of an algorithm whose code needs minutes to load."""
    folder = tmp_path / "slow_algorithm"
    shutil.copytree(BARE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("model.py", "agent.py"):
        text = (folder / name).read_text()
        (folder / name).write_text(f"{text}\nimport time\nprint('loading')\ntime.sleep(600)\n")
    with Cluster(tmp_path, folder) as cluster:
        yield cluster


def test_an_agent_that_hangs_does_not_keep_its_server_from_ending(tmp_path: Path) -> None:
    folder = tmp_path / "hanging_algorithm"
    shutil.copytree(BARE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = (folder / "agent.py").read_text()
    hang = "import time\n        print('hanging', flush=True)\n        time.sleep(600)\n"
    begin = "        state = np.asarray(state, np.float64)\n"
    assert text.count(begin) == 1
    (folder / "agent.py").write_text(text.replace(begin, f"        {hang}{begin}"))
    with Cluster(tmp_path, folder) as cluster:
        cluster.start_parameter_server()
        rlx = cluster.start_rlx_server()
        cluster.start_client()
        rlx.wait_for("hanging")
        assert rlx.stop() == 128 + signal.SIGTERM
        rlx.wait_for("still busy; ending without waiting for it")
        assert_no_trace(rlx)


def test_a_signal_during_slow_preparations_is_obeyed_before_they_end(slow: Cluster) -> None:
    # Honcho kills five seconds after its SIGTERM; TensorFlow alone takes longer to load.
    ps, rlx = slow.start_parameter_server(), slow.start_rlx_server()
    ps.wait_for("building the initial values")
    rlx.wait_for("loading")
    wait_until(lambda: len(slow.find_left()) == 3, "the process that builds the values")
    assert ps.stop() == 128 + signal.SIGTERM
    assert rlx.stop(signal.SIGINT) == 128 + signal.SIGINT
    assert_no_trace(ps, rlx)
    slow.assert_nothing_left()
