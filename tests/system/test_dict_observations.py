"""Observations of several leaves through real processes: client, rlx server, learner."""

# covers J17, R18

from pathlib import Path

from support.cluster import GYM_MAIN, ROOT, TRACE, Cluster, Program
from support.uncompiled import copy_uncompiled, write_initial_values

SETTINGS = (
    "learner.placement=server",
    "learner.target_return=9",
    "learner.target_episodes=50",
    "algorithm.num_actions=2",
    # A small network can end where it is right in three of four cases, a return of 7.5.
    "algorithm.observations={left: {size: 2, layers: [32]}, arm/right: {size: 2}}",
    "algorithm.network={layers: [64, 64]}",
    "algorithm.update_norm=true",
    "algorithm.num_steps=512",
    "algorithm.rollout_steps=64",  # of one client's eight slots
    "algorithm.batch_size=128",
    "algorithm.epochs=6",
    "algorithm.entropy_coefficient=0.1",
    "algorithm.learning_rate=3e-3",
    "algorithm.critic_learning_rate=3e-3",
    "algorithm.gamma=0.5",
)


def start_client(cluster: Cluster, name: str, env: str) -> Program:
    argv = ["python", GYM_MAIN, "--rlx-server", f"localhost:{cluster.rlx_port}", "--name", name]
    argv += ["--env", f"support.dict_envs:{env}", "--num-envs", 8, "--quiet"]
    return cluster.start(name, argv, PYTHONPATH=str(ROOT / "tests"))


def test_what_depends_on_two_leaves_is_learned_over_the_network(tmp_path: Path) -> None:
    """Chance, and an agent that sees only one leaf, has a return of 5; see support/dict_envs.py."""
    algorithm = copy_uncompiled("ppo", tmp_path)
    initial = write_initial_values(algorithm, *SETTINGS)
    with Cluster(tmp_path, algorithm, *SETTINGS, initial) as cluster:
        ps, rlx = cluster.start_both_servers()
        misfit = start_client(cluster, "misfit", "Bright-v0")
        assert misfit.wait() == 2
        misfit.wait_for(
            r"algorithm\.observations names 'arm/right', 'left', but the environment only has Box "
            r"'camera' of uint8, Box 'sign' of float32"
        )
        client = start_client(cluster, "signs", "Signs-v0")
        assert ps.wait() == 0
        ps.wait_for(r"finished: mean return (9|9\.\d+|10) of the last \d+ episodes reached")
        assert client.wait() == 0
        rlx.stop()
        for program in (ps, rlx, client, misfit):
            assert TRACE not in program.output, program
        cluster.assert_nothing_left()
