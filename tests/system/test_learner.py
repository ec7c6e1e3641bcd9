"""The learner's process beside an rlx server, as a user sees it. covers F11, F20"""

import os
import signal

import psutil
import pytest
from support.broken import copy_broken
from support.cluster import TRACE, Cluster, Program, wait_until
from support.uncompiled import copy_uncompiled, write_initial_values

from relaax_like.experience.trajectory_files import (
    TRAJECTORY_FOLDER,
    find_trajectories,
    read_trajectories,
)


@pytest.fixture
def cluster(tmp_path):
    sets = ("algorithm.state_size=4", "algorithm.num_actions=2", "algorithm.network={layers: [8]}")
    wishes = ("learner.collect_traj=true", "learner.eval_freq=5", "learner.num_eval_eps=1")
    algorithm = copy_uncompiled("a2c", tmp_path)
    initial = write_initial_values(algorithm, *sets)
    with Cluster(tmp_path, algorithm, *sets, *wishes, initial) as cluster:
        yield cluster


def find_learner(rlx_server: Program) -> psutil.Process:
    children = wait_until(lambda: psutil.Process(rlx_server.pid).children(), "the learner")
    (learner,) = children
    return learner


@pytest.mark.slow
def test_it_comes_back_and_ends_with_its_rlx_server(cluster):
    """A killed learner, a killed rlx server, and an end in order, one after the other."""
    parameter_server, first = cluster.start_both_servers()
    client = cluster.start_paced_client()
    cluster.wait_steps(200)

    # A killed learner costs its rollouts and nothing else.
    learner = find_learner(first)
    learner.kill()
    first.wait_for("learner's process ended with status -9")
    first.wait_for(r"the learner is back; \d+ rollout")
    cluster.wait_steps(200)
    again = find_learner(first)
    assert again.pid != learner.pid
    assert client.alive
    assert not [line for line in client.lines if "connect" in line]

    # It never outlives its rlx server.
    os.kill(first.pid, signal.SIGKILL)
    assert again.wait(10) is not None or not again.is_running()

    # A SIGTERM to the whole group ends both in order.
    second = cluster.start_rlx_server()
    client.wait_for("reconnected to")
    cluster.wait_steps(200)
    learner = find_learner(second)
    learner.send_signal(signal.SIGTERM)  # as a runner does that signals all of a group
    os.kill(second.pid, signal.SIGTERM)
    assert second.wait() == 128 + signal.SIGTERM
    wait_until(lambda: not learner.is_running(), "the learner's end", 5)
    assert not [line for line in second.lines if "Traceback" in line or "status" in line]
    assert parameter_server.alive

    # It has written what it learned from; the parameter server has tested its values meanwhile.
    files = find_trajectories(cluster.folder / "run" / TRAJECTORY_FOLDER)
    assert sum(read_trajectories(file).env_steps for file in files) >= 100
    parameter_server.wait_for(r"evaluation at step \d+: mean return \d+\.00 over 1 greedy episodes")


def test_an_algorithm_that_cannot_learn_ends_its_rlx_server(cluster, tmp_path):
    folder = tmp_path / "mine"
    place = copy_broken(folder, "a2c", "algorithm.py", "learn", "batch.returs")
    parameter_server, rlx_server = cluster.start_both_servers(f"algorithm.path={folder}")
    client = cluster.start_paced_client()
    assert rlx_server.wait() == 2
    error = f"error: {place}: AttributeError: 'Batch' object has no attribute 'returs'"
    assert [line for line in rlx_server.lines if "rror:" in line] == [error]
    rlx_server.wait_for("learner's process ended with status 2")
    assert TRACE not in rlx_server.output
    # The others survive: correct it, and start the rlx server again.
    assert parameter_server.alive
    assert client.alive
