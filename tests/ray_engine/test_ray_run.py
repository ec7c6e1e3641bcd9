"""`relaax run --ray` on one machine, which is a network namespace. covers P21"""

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import TRACE
from support.ray_cluster import LONG_SEC, PORT, RayCluster, find_ray_listeners

pytestmark = pytest.mark.timeout(600)
ADDRESS = f"127.0.0.1:{PORT}"
PARAMETER_SERVER = "relaax_like.cli.parameter_server"
SHORTAGE = """
import sys
from pathlib import Path
from relaax_like.ray_engine.joining import join
from relaax_like.ray_engine.ray_launcher import RayLauncher
from relaax_like.supervision.topology import Node, Topology
from relaax_like.wire.errors import RelaaxError
nodes = [Node(name="ps", role="parameter server", argv=["true"]),
         Node(name="learner", role="learner", argv=["true"], cpus=90)]
try:
    with RayLauncher(join(sys.argv[1], 0, True), Topology(nodes=nodes), Path(), None, 1.0, 0.5):
        pass
except RelaaxError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def open_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """A cluster that asks for no token, with five cores."""
    with RayCluster(tmp_path_factory.mktemp("ray"), token=False) as cluster:
        cluster.start_head(cpus=5)
        yield cluster


def test_a_run_on_this_machine_s_own_ray_reaches_its_target(tmp_path: Path) -> None:
    with RayCluster(tmp_path) as cluster:
        cluster.gate.touch()
        run = cluster.start_run("local", "--set", "learner.target_return=40")
        listens = run.wait_for("Ray listens at (.*); it asks for the token")[1]
        assert set(re.findall(r"([\d.]+):\d+", listens)) == {"127.0.0.1"}
        assert "gcs_server" in listens
        assert "raylet" in listens
        assert not find_ray_listeners()
        run.wait_for(r"ps +\| .*step [1-9]")
        assert run.wait(LONG_SEC) == 0
        assert "reached the target 40" in run.output
        assert TRACE not in run.output
        cluster.assert_no_node_left()
        assert (tmp_path / "run" / "config.yaml").exists()


def test_a_cluster_without_a_token_is_refused(open_cluster: RayCluster) -> None:
    run = open_cluster.start_run(ADDRESS)
    assert run.wait(LONG_SEC) == 2
    assert "the cluster asks for no token, so everybody who reaches it can run code" in run.output
    assert "--insecure" in run.output


def test_training_without_workers_has_nothing_to_place(open_cluster: RayCluster) -> None:
    train = open_cluster.start_run(ADDRESS, "--insecure", command="train")
    assert train.wait(LONG_SEC) == 2
    assert "this training has none; add --workers N" in train.output


def test_a_shortage_names_what_was_asked_for_and_what_is_there(open_cluster: RayCluster) -> None:
    argv = [sys.executable, "-c", SHORTAGE, ADDRESS]
    program = open_cluster.start_in(open_cluster.here, "shortage", argv)
    assert program.wait(LONG_SEC) == 0
    want = (
        "no place within 0.5 s for 91 CPU (ps 1, learner 90): the cluster has 5 CPU on 1 machine(s)"
    )
    assert want in program.output


def test_ctrl_c_ends_everything_with_the_status_of_relaax_run(open_cluster: RayCluster) -> None:
    run = open_cluster.start_run(ADDRESS, "--insecure")
    run.wait_for(r"ps +\| .*step [1-9]")
    assert run.stop(signal.SIGINT) == 128 + signal.SIGINT
    open_cluster.assert_no_node_left()
    assert re.search(r"ps +\| .* snapshots +run/checkpoints", run.output)
    assert TRACE not in run.output


def test_a_node_that_is_killed_starts_again_at_its_address(open_cluster: RayCluster) -> None:
    run = open_cluster.start_run(ADDRESS, "--insecure", "--force")
    address = run.wait_for(r"ps +\| .*parameter server on (.*)")[1]
    run.wait_for(r"ps +\| .*step [1-9]")
    before = len(run.lines)
    (server,) = (p for p in open_cluster.find_left() if PARAMETER_SERVER in p.cmdline())
    server.kill()
    run.wait_for("ps died .killed by SIGKILL.; restart 1 of 10", before)
    assert run.wait_for(r"ps +\| .*parameter server on (.*)", before)[1] == address
    run.wait_for(r"ps +\| .*step [1-9]", before)
    assert run.stop(signal.SIGINT) == 128 + signal.SIGINT
    open_cluster.assert_no_node_left()
