"""Two rlx servers at one parameter server: clients of both train one policy."""

import signal
from pathlib import Path

import pytest
from support.cluster import TRACE, Cluster, find_free_port
from support.uncompiled import copy_uncompiled

from relaax_like.experience.trajectory_files import (
    TRAJECTORY_FOLDER,
    find_trajectories,
    read_trajectories,
)
from relaax_like.parameter_server.snapshots import read_latest

SETTINGS = (
    "algorithm.num_actions=2",
    "algorithm.network={layers: [32]}",
    "algorithm.num_steps=128",
    "algorithm.rollout_steps=16",  # of eight slots: two clients of four
    "algorithm.batch_size=64",
    "algorithm.epochs=8",
    "algorithm.learning_rate=3e-3",
    "algorithm.critic_learning_rate=3e-3",
    "algorithm.gamma=0.98",
    "algorithm.gae_lambda=0.8",
    "learner.target_return=70",
    "learner.target_episodes=50",
    "learner.collect_traj=true",
)


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["agent", "server"])
def test_clients_of_both_train_one_policy(placement: str, tmp_path: Path) -> None:
    sets = (*SETTINGS, f"learner.placement={placement}")
    with Cluster(tmp_path, copy_uncompiled("ppo", tmp_path), *sets) as cluster:
        ps, one = cluster.start_both_servers()
        port = find_free_port()
        two = cluster.start_rlx_server(f"relaax-rlx-server.bind=localhost:{port}")
        two.wait_for(rf"rlx server on .*:{port}")
        flags = ("--num-envs", 4)
        clients = [
            cluster.start_client("at one", *flags),
            cluster.start_client("at two", *flags, "--rlx-server", f"localhost:{port}"),
        ]
        for server, client in ((one, "at one"), (two, "at two")):
            server.wait_for(rf"session-\d+ is {client}: 4 slot")
        assert ps.wait() == 0
        ps.wait_for(r"finished: mean return .* of the last \d+ episodes reached the target 70")
        for client in clients:
            assert client.wait() == 0
            client.wait_for("reached the target 70")
        for server in (one, two):
            assert server.stop() == 128 + signal.SIGTERM
            assert TRACE not in server.output
        saved = read_latest(cluster.folder / "run" / "checkpoints")
        assert saved is not None
        updates = saved.steps["actor"]
        # Sixteen minibatches of each iteration of 128 steps, wherever it is learned from.
        assert 0 < updates <= 16 * (saved.global_t // 128)
        files = find_trajectories(cluster.folder / "run" / TRAJECTORY_FOLDER)
        rollouts = [read_trajectories(file) for file in files]
        agents = {int(n) for one in rollouts if one.starts is not None for n in one.starts[:, 0]}
        assert len(agents) == 8  # slots of both clients
        cluster.assert_nothing_left()
