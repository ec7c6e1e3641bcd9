"""A machine of a Ray cluster is lost in the middle of a run. covers P21

Two machines are two network namespaces that a pair of devices connects.
"""

import re
import signal
from pathlib import Path

import pytest
from support.cluster import TRACE
from support.ray_cluster import HEAD, LONG_SEC, PORT, WORKER, RayCluster, find_ray_listeners

TARGET = 100


@pytest.mark.timeout(600)
def test_training_reaches_its_target_although_a_machine_is_lost(tmp_path: Path) -> None:
    with RayCluster(tmp_path) as cluster:
        cluster.connect()
        cluster.start_head(cpus=5, host=HEAD)  # what the whole run needs
        cluster.start_worker(cpus=5)
        target = f"learner.target_return={TARGET}"
        run = cluster.start_run(f"{HEAD}:{PORT}", "--insecure", "--set", target)
        run.wait_for(r"ps +\| .*step [1-9]")
        assert not find_ray_listeners()
        places = dict(re.findall(r"(\w+) is on ([\d.]+)$", run.output, re.MULTILINE))
        assert set(places) == {"ps", "rlx", "env1", "env2"}
        assert places["ps"] == HEAD  # its files are there
        lost = {name for name, host in places.items() if host == WORKER}
        assert lost, places
        before = len(run.lines)
        cluster.find_worker_raylet().send_signal(signal.SIGKILL)
        for name in lost:
            run.wait_for(rf"{name} +\| Ray lost its machine {WORKER}", before)
            run.wait_for(rf"\b{name} is on {HEAD}$", before)
        assert run.wait(LONG_SEC) == 0
        assert f"reached the target {TARGET}" in "\n".join(run.lines[before:])
        assert TRACE not in run.output
        assert not find_ray_listeners()
        cluster.assert_no_node_left()
