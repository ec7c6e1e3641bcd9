"""Actions of several leaves through real processes: client, rlx server, learner."""

# covers J17

from pathlib import Path

import pytest
from support.action_envs import ACTIONS
from support.cluster import GYM_MAIN, ROOT, TRACE, Cluster, Program
from support.uncompiled import copy_uncompiled

SETTINGS = (
    "learner.placement=server",
    "learner.target_return=8",
    "learner.target_episodes=50",
    "algorithm.state_size=5",
    f"algorithm.actions={ACTIONS}",
    "algorithm.network={layers: [32]}",
    "algorithm.num_steps=512",
    "algorithm.rollout_steps=64",  # of one client's eight slots
    "algorithm.batch_size=128",
    "algorithm.epochs=6",
    "algorithm.learning_rate=3e-3",
    "algorithm.critic_learning_rate=3e-3",
    "algorithm.gamma=0",
    "algorithm.gae_lambda=0",
)


def start_client(cluster: Cluster, name: str, env: str) -> Program:
    argv = ["python", GYM_MAIN, "--rlx-server", f"localhost:{cluster.rlx_port}", "--name", name]
    argv += ["--env", f"support.action_envs:{env}", "--num-envs", 8, "--quiet"]
    return cluster.start(name, argv, PYTHONPATH=str(ROOT / "tests"))


@pytest.mark.slow
def test_actions_of_four_leaves_are_learned_over_the_network(tmp_path: Path) -> None:
    """Chance is below 6, and leaves that never fit would cost 2.5 each."""
    with Cluster(tmp_path, copy_uncompiled("ppo", tmp_path), *SETTINGS) as cluster:
        ps, rlx = cluster.start_both_servers()
        misfit = start_client(cluster, "misfit", "OneLever-v0")
        assert misfit.wait() == 2
        misfit.wait_for(
            r"algorithm\.actions names 'arm/aim', 'arm/grip/0', 'arm/grip/1', but the environment "
            r"only has Discrete 'move' of int64"
        )
        client = start_client(cluster, "levers", "Levers-v0")
        assert ps.wait() == 0
        ps.wait_for(r"finished: mean return (8|8\.\d+|9\.\d+) of the last \d+ episodes reached")
        assert client.wait() == 0
        rlx.stop()
        for program in (ps, rlx, client, misfit):
            assert TRACE not in program.output, program
        cluster.assert_nothing_left()
