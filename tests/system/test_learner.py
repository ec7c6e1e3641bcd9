"""The learner's process beside an rlx server, as a user sees it. covers F11, F20"""

import os
import signal

import psutil
import pytest
from support.broken import copy_broken
from support.cluster import ROOT, TRACE, Cluster, Program, wait_until

A2C = ROOT / "algorithms" / "a2c"


@pytest.fixture
def cluster(tmp_path):
    sizes = ("algorithm.state_size=4", "algorithm.num_actions=2")
    with Cluster(tmp_path, A2C, *sizes, "algorithm.network={layers: [8]}") as cluster:
        yield cluster


def find_learner(rlx_server: Program) -> psutil.Process:
    children = wait_until(lambda: psutil.Process(rlx_server.pid).children(), "the learner")
    (learner,) = children
    return learner


def test_a_killed_learner_costs_its_rollouts_and_nothing_else(cluster):
    _, rlx_server = cluster.start_both_servers()
    client = cluster.start_client()
    cluster.wait_steps(200)
    learner = find_learner(rlx_server)
    learner.kill()
    rlx_server.wait_for("learner's process ended with status -9")
    rlx_server.wait_for(r"the learner is back; \d+ rollout")
    cluster.wait_steps(200)
    assert find_learner(rlx_server).pid != learner.pid
    assert client.alive
    assert not [line for line in client.lines if "connect" in line]


def test_the_learner_never_outlives_its_rlx_server(cluster):
    _, rlx_server = cluster.start_both_servers()
    learner = find_learner(rlx_server)
    os.kill(rlx_server.pid, signal.SIGKILL)
    assert learner.wait(10) is not None or not learner.is_running()


def test_sigterm_to_the_whole_group_ends_both_in_order(cluster):
    parameter_server, rlx_server = cluster.start_both_servers()
    cluster.start_client()
    cluster.wait_steps(200)
    learner = find_learner(rlx_server)
    learner.send_signal(signal.SIGTERM)  # as a runner does that signals all of a group
    os.kill(rlx_server.pid, signal.SIGTERM)
    assert rlx_server.wait() == 128 + signal.SIGTERM
    wait_until(lambda: not learner.is_running(), "the learner's end", 5)
    assert not [line for line in rlx_server.lines if "Traceback" in line or "status" in line]
    assert parameter_server.alive


def test_an_algorithm_that_cannot_learn_ends_its_rlx_server(cluster, tmp_path):
    folder = tmp_path / "mine"
    place = copy_broken(folder, "a2c", "algorithm.py", "learn", "batch.returs")
    parameter_server, rlx_server = cluster.start_both_servers(f"algorithm.path={folder}")
    client = cluster.start_client()
    assert rlx_server.wait() == 2
    error = f"error: {place}: AttributeError: 'Batch' object has no attribute 'returs'"
    assert [line for line in rlx_server.lines if "rror:" in line] == [error]
    rlx_server.wait_for("learner's process ended with status 2")
    assert TRACE not in rlx_server.output
    # The others survive: correct it, and start the rlx server again.
    assert parameter_server.alive
    assert client.alive
