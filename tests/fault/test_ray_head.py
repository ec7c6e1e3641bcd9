"""The machine of a Ray cluster's head is lost in the middle of a run. covers P21

Two machines are two network namespaces that a pair of devices connects.
"""

from pathlib import Path

import pytest
from support.cluster import TRACE, find_command
from support.ray_cluster import HEAD, LONG_SEC, PORT, RayCluster

pytestmark = pytest.mark.timeout(600)
TARGET = 60
FLAGS = (f"{HEAD}:{PORT}", "--insecure", "--set", f"learner.target_return={TARGET}")


@pytest.mark.slow
@pytest.mark.parametrize(("command", "flags"), [("run", ()), ("train", ("--workers", 2))])
def test_the_head_of_the_cluster_is_lost_and_the_run_is_resumed_without_ray(
    tmp_path: Path, command: str, flags: tuple[object, ...]
) -> None:
    """The command was typed on the other machine, which keeps the run's folder. covers R24"""
    folder = tmp_path / "kept"
    with RayCluster(tmp_path) as cluster:
        cluster.env["RAY_gcs_rpc_server_reconnect_timeout_s"] = "2"  # by default, a minute
        cluster.start_head(cpus=5, host=HEAD)
        cluster.start_worker(cpus=5)
        argv = (*FLAGS, *flags, "--set", f"run_dir={folder}")
        run = cluster.start_run(*argv, command=command, namespace=cluster.there)
        known = cluster.find_known_step(f"{HEAD}:{PORT}", folder, 0)
        for process in cluster.find_head_processes():
            process.kill()
        assert run.wait(LONG_SEC) == 1
        assert "Failed to connect to GCS" in run.output
        assert TRACE not in run.output
        cluster.assert_no_node_left()

        cluster.gate.touch()
        resume = [find_command("relaax"), "resume", folder]
        resumed = cluster.start_in(cluster.there, "resume", resume)
        assert int(resumed.wait_for(r"global_t is (\d+)$")[1]) >= known
        assert resumed.wait_for(f"reached the target {TARGET}")
        assert TRACE not in resumed.output
