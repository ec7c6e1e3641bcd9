"""Runs that learn in their parameter server, as users start them: they learn, and survive deaths.

covers R12, R24, R26, J8, P9
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import TRACE, Cluster, Program, wait_until
from support.uncompiled import copy_uncompiled, write_initial_values

from relaax_like.parameter_server.snapshots import read_latest

ITERATION = 128  # environment steps
SETTINGS = (
    "learner.placement=server",
    "algorithm.num_actions=2",
    "algorithm.network={layers: [32]}",
    f"algorithm.num_steps={ITERATION}",
    "algorithm.rollout_steps=16",  # of eight slots: two clients of four
    "algorithm.batch_size=64",
    "algorithm.epochs=8",
    "algorithm.learning_rate=3e-3",
    "algorithm.critic_learning_rate=3e-3",
    "algorithm.gamma=0.98",
    "algorithm.gae_lambda=0.8",
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    # That it learns with XLA is shown by `relaax train` and by the runs of the algorithm.
    with Cluster(tmp_path, copy_uncompiled("ppo", tmp_path), *SETTINGS) as cluster:
        yield cluster


def start_client(cluster: Cluster, name: str) -> Program:
    return cluster.start_client(name, "--num-envs", 4)


def start_paced_client(cluster: Cluster, name: str) -> Program:
    return cluster.start_paced_client(name, "--num-envs", 4)


def count_scores(client: Program) -> int:
    return sum("Score = " in line for line in list(client.lines))


def wait_scores(client: Program, more: int) -> None:
    wanted = count_scores(client) + more
    wait_until(lambda: count_scores(client) >= wanted, (f"{more} more episodes", client))
    assert client.alive


def assert_no_trace(*programs: Program) -> None:
    for program in programs:
        assert TRACE not in program.output, program


def test_two_clients_learn_cartpole_together_and_a_third_joins_them(cluster: Cluster) -> None:
    target = ("learner.target_return=150", "learner.target_episodes=50")
    ps, rlx = cluster.start_both_servers(*target)
    clients = [start_client(cluster, name) for name in ("one", "two")]
    cluster.wait_steps(5 * ITERATION)
    clients.append(start_client(cluster, "three"))
    wait_scores(clients[2], 1)
    assert ps.wait() == 0
    ps.wait_for(r"finished: mean return 1[5-9]\d.* of the last 60 episodes reached the target 150")
    for client in clients:
        assert client.wait() == 0
        client.wait_for("reached the target 150")
    assert rlx.stop() == 128 + signal.SIGTERM
    assert_no_trace(ps, rlx, *clients)
    saved = read_latest(cluster.folder / "run" / "checkpoints")
    assert saved is not None
    # With the steps that were under way at the end.
    assert saved.global_t >= ITERATION * saved.version
    assert not [line for line in rlx.lines if "lost" in line or "refused" in line]
    cluster.assert_nothing_left()


def find_taken_up(ps: Program) -> tuple[int, int]:
    """Returns number and step of the publish that a server has taken up."""
    match = ps.wait_for(r"restored publication (\d+), step (\d+)")
    return int(match[1]), int(match[2])


@pytest.mark.slow
def test_a_killed_parameter_server_takes_up_its_newest_publish_and_agents_act_on(
    cluster: Cluster,
) -> None:
    failpoint = {"RELAAX_FAILPOINT": "ps.after_publish=kill@3"}
    first = cluster.start_parameter_server(**failpoint)
    rlx = cluster.start_rlx_server()
    rlx.wait_for("rlx server on")
    clients = [start_paced_client(cluster, name) for name in ("one", "two")]
    assert first.wait() == -signal.SIGKILL
    rlx.wait_for("agents wait with their rollouts until it is back")
    second = cluster.start_parameter_server()
    # Written down before it was visible to anybody: not one publish more or less.
    number, step = find_taken_up(second)
    assert number == 3
    assert step >= 3 * ITERATION
    assert int(second.wait_for(r"global_t is (\d+)")[1]) == step
    rlx.wait_for("the parameter server is back")
    # Killed wherever it is: what any client was answered is there.
    told = cluster.wait_status(lambda status: status.version >= 5, "two more publications")
    assert told.global_t >= step + 2 * ITERATION
    second.stop(signal.SIGKILL)
    third = cluster.start_parameter_server()
    number, step = find_taken_up(third)
    assert number >= told.version
    assert step >= told.global_t
    cluster.wait_steps(1)
    # A client that dies in the middle of an iteration is not waited for.
    assert clients[0].stop(signal.SIGKILL) == -signal.SIGKILL
    cluster.wait_steps(3 * ITERATION)
    wait_scores(clients[1], 1)
    # In order: everything is saved, and nothing needs to be taken up.
    assert third.stop() == 128 + signal.SIGTERM
    saved = read_latest(cluster.folder / "run" / "checkpoints")
    assert saved is not None
    assert saved.global_t >= step + 3 * ITERATION
    fourth = cluster.start_parameter_server()
    assert int(fourth.wait_for(r"global_t is (\d+)")[1]) == saved.global_t
    # While TensorFlow is being loaded, or compiles.
    fourth.wait_for("parameter server on")
    assert fourth.stop() == 128 + signal.SIGTERM
    assert "restored publication" not in fourth.output
    assert "retrying" not in clients[1].output
    assert_no_trace(second, third, fourth, rlx, *clients)
    assert rlx.stop() == 128 + signal.SIGTERM
    assert clients[1].stop() == 128 + signal.SIGTERM
    cluster.assert_nothing_left()


def test_a_learner_that_fails_ends_its_server_with_a_line(cluster: Cluster) -> None:
    # Steps so large that the second one is not finite.
    initial = write_initial_values(cluster.folder / "ppo", *SETTINGS, "algorithm.state_size=4")
    ps, rlx = cluster.start_both_servers(
        "algorithm.learning_rate=1e30", "algorithm.critic_learning_rate=1e30", initial
    )
    client = start_paced_client(cluster, "one")
    assert ps.wait() == 1
    ps.wait_for("learning has failed: .* (not finite|NaN or infinity|expected finite)")
    ps.wait_for("^[0-9:]* stopped$")
    assert_no_trace(ps, rlx, client)
    rlx.wait_for("agents wait with their rollouts until it is back")


@pytest.mark.slow
def test_a_killed_server_with_a_replay_table_goes_on_with_the_steps_that_it_had(
    tmp_path: Path,
) -> None:
    settings = (
        *("algorithm.state_size=4", "algorithm.num_actions=2", "algorithm.network={layers: [8]}"),
        *("algorithm.batch_size=8", "algorithm.capacity=1000", "algorithm.warm_up_steps=64"),
        *("algorithm.updates_per_step=0.25", "algorithm.updates_at_once=4"),
    )
    with Cluster(tmp_path, copy_uncompiled("dqn", tmp_path), *settings) as cluster:
        failpoint = {"RELAAX_FAILPOINT": "ps.after_publish=kill@3"}
        first = cluster.start_parameter_server(**failpoint)
        rlx = cluster.start_rlx_server()
        client = start_paced_client(cluster, "one")
        assert first.wait() == -signal.SIGKILL
        second = cluster.start_parameter_server()
        number, step = find_taken_up(second)
        assert number == 3
        assert int(second.wait_for(r"global_t is (\d+)")[1]) == step
        filled = second.wait_for(r"replay table: (\d+) rows from \S+; (\d+) steps are newer")
        assert int(filled[1]) >= step
        second.wait_for("learning, from a replay table")
        cluster.wait_status(lambda status: status.version >= 6, "three more publications")
        wait_scores(client, 1)
        assert second.stop() == 128 + signal.SIGTERM
        assert_no_trace(first, second, rlx, client)
