"""Learners beside the agents of two rlx servers make each update together: combine.method sync."""

# covers D4

import os
import re
import signal
from pathlib import Path

import pytest
from support.cluster import TRACE, Cluster, Program, find_free_port, freeze
from support.uncompiled import copy_uncompiled, write_initial_values

from relaax_like.parameter_server.snapshots import read_latest

MAX_WAIT_SEC = 2
PPO = (
    "algorithm.num_actions=2",
    "algorithm.network={layers: [32]}",
    "algorithm.num_steps=64",
    "algorithm.rollout_steps=16",
    "algorithm.batch_size=64",
    "algorithm.epochs=8",
    "algorithm.learning_rate=3e-3",
    "algorithm.critic_learning_rate=3e-3",
    "algorithm.gamma=0.98",
    "algorithm.gae_lambda=0.8",
    "learner.target_return=70",
    "learner.target_episodes=50",
    "relaax-parameter-server.combine.method=sync",
    f"relaax-parameter-server.combine.max_wait_sec={MAX_WAIT_SEC}",
)


def start_two(cluster: Cluster, paced: bool = True) -> tuple[Program, list[Program], list[Program]]:
    """Starts a parameter server, two rlx servers, and a client with four slots at each."""
    ps, one = cluster.start_both_servers()
    port = find_free_port()
    two = cluster.start_rlx_server(f"relaax-rlx-server.bind=localhost:{port}")
    two.wait_for(rf"rlx server on .*:{port}")
    flags = ("--num-envs", 4)
    start_client = cluster.start_paced_client if paced else cluster.start_client
    clients = [
        start_client("at one", *flags),
        start_client("at two", *flags, "--rlx-server", f"localhost:{port}"),
    ]
    return ps, [one, two], clients


@pytest.mark.slow
def test_two_learners_train_one_policy(tmp_path: Path) -> None:
    with Cluster(tmp_path, copy_uncompiled("ppo", tmp_path), *PPO) as cluster:
        ps, servers, clients = start_two(cluster, paced=False)
        cluster.wait_status(lambda status: status.joint_learners == 2, "two learners")
        assert ps.wait() == 0
        ps.wait_for(r"finished: mean return .* of the last \d+ episodes reached the target 70")
        for client in clients:
            assert client.wait() == 0
        for server in servers:
            assert server.stop() == 128 + signal.SIGTERM
            assert TRACE not in server.output
        saved = read_latest(cluster.folder / "run" / "checkpoints")
        assert saved is not None
        # Two minibatches of each iteration of 128 steps, eight times; alone, one of 64 steps.
        assert 0 < saved.steps["actor"] <= 8 * (saved.global_t // 64)
        cluster.assert_nothing_left()


def test_the_other_continues_without_one(tmp_path: Path) -> None:
    """One of the two is stopped, continues, and is killed."""
    algorithm = copy_uncompiled("ppo", tmp_path)
    initial = write_initial_values(algorithm, *PPO, "algorithm.state_size=4")
    with Cluster(tmp_path, algorithm, *PPO, "learner.target_return=null", initial) as cluster:
        ps, servers, _ = start_two(cluster)
        for end in (freeze, lambda pid: os.kill(pid, signal.SIGKILL)):
            cluster.wait_status(lambda status: status.joint_learners == 2, "two learners")
            end(servers[1].pid)
            alone = cluster.wait_status(lambda status: status.joint_learners == 1, "one learner")
            wanted = alone.version + 50
            cluster.wait_status(lambda status, wanted=wanted: status.version > wanted, "updates")
            if end is freeze:
                assert len(re.findall("silent for .* left out", ps.output)) == 1
                servers[1].send(signal.SIGCONT)
        assert TRACE not in servers[0].output


@pytest.mark.slow
def test_both_continue_after_the_parameter_server_was_killed(tmp_path: Path) -> None:
    """covers R24"""
    sets = (*PPO, "learner.target_return=null")
    with Cluster(tmp_path, copy_uncompiled("ppo", tmp_path), *sets) as cluster:
        ps, servers, _ = start_two(cluster)
        before = cluster.wait_status(lambda status: status.joint_learners == 2, "two learners")
        assert ps.stop(signal.SIGKILL) == -signal.SIGKILL
        cluster.start_parameter_server()
        back = cluster.wait_status(lambda status: status.joint_learners == 2, "two learners again")
        assert back.epoch > before.epoch
        assert back.version >= before.version
        cluster.wait_status(lambda status: status.version > back.version + 50, "updates")
        for server in servers:
            assert server.stop() == 128 + signal.SIGTERM
            assert TRACE not in server.output
