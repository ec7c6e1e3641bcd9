"""`relaax run --ray` on one machine, which is a network namespace. covers P21"""

import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import TRACE, find_command
from support.ray_cluster import LONG_SEC, PORT, RayCluster, find_ray_listeners

from relaax_like.config.loader import load_experiment
from relaax_like.launch.run import export_addresses
from relaax_like.parameter_server.mirror import find_newest_step

pytestmark = pytest.mark.timeout(600)
ADDRESS = f"127.0.0.1:{PORT}"
PARAMETER_SERVER = {"relaax_like.cli.servers", "parameter_server"}
SHORTAGE = """
import sys
from pathlib import Path
from relaax_like.runs.processes.ray_joining import join
from relaax_like.runs.processes.ray_launcher import RayLauncher
from relaax_like.runs.processes.topology import Node, Topology
from relaax_like.wire.errors import RelaaxError
nodes = [Node(name="ps", role="parameter server", argv=["true"]),
         Node(name="learner", role="learner", argv=["true"], cpus=90)]
try:
    with RayLauncher(join(sys.argv[1], 0, True), Topology(nodes=nodes), Path(), None, 1.0, 0.5):
        pass
except RelaaxError as error:
    print(error)
"""

HUNG = """
import os, signal, sys
from pathlib import Path
from relaax_like.runs.processes import ray_launcher
from relaax_like.runs.processes.ray_joining import join
from relaax_like.runs.processes.topology import Node, Topology
ray_launcher._READ_SEC, ray_launcher._CALL_SEC = 0.2, 3.0
program = "import os, time; print(os.getppid(), os.getpid(), flush=True); time.sleep(600)"
node = Node(name="env1", role="environment", argv=[sys.executable, "-c", program])
config = Path("hung.yaml")
config.touch()
def start(act):
    def read(lines):
        for line in map(bytes.decode, lines):
            if line[0].isdigit():
                act(*map(int, line.split()))
            else:
                print(line)
    process = launcher.start(node, read, lambda line: None)
    assert process.wait(60)
    print("status", process.poll())
ray, topology = join(sys.argv[1], 0, True), Topology(nodes=[node])
with ray_launcher.RayLauncher(ray, topology, config, lambda addresses: [], 1.0) as launcher:
    start(lambda actor, pid: os.kill(actor, signal.SIGSTOP))
    start(lambda actor, pid: os.kill(pid, signal.SIGTERM))
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
        # It has the addresses of the file, not those on the cluster.
        config, file = tmp_path / "run" / "config.yaml", tmp_path / "experiment.yaml"
        assert export_addresses(load_experiment(config)) == export_addresses(load_experiment(file))


def test_a_cluster_without_a_token_is_refused(open_cluster: RayCluster) -> None:
    run = open_cluster.start_run(ADDRESS)
    assert run.wait(LONG_SEC) == 2
    assert "the cluster asks for no token, so anyone who can reach it can run code" in run.output
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
        "no place within 0.5 s for 91 CPU (ps 1, learner 90): the cluster has 5 CPU on 1 machine,"
    )
    assert want in program.output


def test_an_actor_that_hangs_is_named_killed_and_replaced(open_cluster: RayCluster) -> None:
    argv = [sys.executable, "-c", HUNG, ADDRESS]
    program = open_cluster.start_in(open_cluster.here, "hung", argv)
    assert program.wait(LONG_SEC) == 0, program
    lost = "Ray no longer runs env1 on 127.0.0.1: no answer within 3 s; if this repeats, check that"
    assert f"{lost} machine\nstatus -9\nstatus -15" in program.output


def test_samplers_on_ray_play_what_those_in_this_process_play(
    open_cluster: RayCluster, tmp_path: Path
) -> None:
    # covers P2, P27
    argv = [sys.executable, "-m", "support.sampling_roads", tmp_path, "inline", f"ray:{ADDRESS}"]
    program = open_cluster.start_in(open_cluster.here, "roads", argv)
    assert program.wait(LONG_SEC) == 0, program
    inline, ray = re.findall(r"^(?:inline|ray:\S+) (\w{64})$", program.output, re.MULTILINE)
    assert inline == ray
    assert "sampler 1: Ray no longer runs it: " in program.output
    open_cluster.assert_no_node_left()


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
    (server,) = (p for p in open_cluster.find_left() if set(p.cmdline()) >= PARAMETER_SERVER)
    server.kill()
    run.wait_for("ps died .killed by SIGKILL.; restart 1 of 10", before)
    assert run.wait_for(r"ps +\| .*parameter server on (.*)", before)[1] == address
    run.wait_for(r"ps +\| .*step [1-9]", before)
    assert run.stop(signal.SIGINT) == 128 + signal.SIGINT
    open_cluster.assert_no_node_left()


@pytest.mark.slow
@pytest.mark.parametrize(("command", "flags"), [("run", ()), ("train", ("--workers", "1"))])
def test_a_run_that_the_cluster_knows_is_not_started_on_an_empty_folder(
    open_cluster: RayCluster, command: str, flags: tuple[str, ...]
) -> None:
    """covers R24"""
    folder = open_cluster.folder / f"lost-{command}"
    mirror = open_cluster.folder / f"mirror-{command}"
    options = [*flags, "--insecure", "--set", f"run_dir={folder}"]
    mirrored = [*options, "--set", f"relaax-parameter-server.mirror_url=file://{mirror}"]

    run = open_cluster.start_run(ADDRESS, *mirrored, command=command)
    open_cluster.find_known_step(ADDRESS, folder, 0)
    assert run.stop(signal.SIGINT) == 128 + signal.SIGINT
    copied = find_newest_step(f"file://{mirror}")
    assert copied is not None
    argv = [find_command("relaax"), "resume", folder, "--ray", ADDRESS]
    no_mirror = ["--set", "relaax-parameter-server.mirror_url=null"]
    resumed = open_cluster.start_in(open_cluster.here, "resume", [*argv, *no_mirror])
    open_cluster.find_known_step(ADDRESS, folder, copied)
    resumed.send(signal.SIGKILL)
    resumed.wait()
    open_cluster.assert_no_node_left()
    known = open_cluster.find_known_step(ADDRESS, folder, copied)
    shutil.rmtree(folder)

    again = open_cluster.start_run(ADDRESS, *mirrored, command=command)
    assert again.wait(LONG_SEC) == 2
    assert f"{folder / 'checkpoints'} has no snapshot on this machine, 127.0.0.1" in again.output
    assert re.search(f"it was at step {known:,}, version [\\d,]+, on 127.0.0.1", again.output)
    assert f"is at step {copied:,}: a start here would lose at least {known - copied:,} steps" in (
        again.output
    )
    assert "--accept-loss" in again.output
    assert not folder.exists()
    without = open_cluster.start_run(ADDRESS, *options, command=command)
    assert without.wait(LONG_SEC) == 2
    assert f"There is no copy (mirror_url): a start here would lose at least {known:,} steps" in (
        without.output
    )

    accepted = open_cluster.start_run(ADDRESS, *mirrored, "--accept-loss", command=command)
    accepted.wait_for("downloaded the newest snapshot from the mirror")
    accepted.wait_for(f"global_t is {copied}$")
    assert accepted.stop(signal.SIGINT) == 128 + signal.SIGINT
    assert TRACE not in accepted.output


def test_the_parameter_server_is_not_started_again_in_an_emptied_folder(
    open_cluster: RayCluster,
) -> None:
    """covers R24"""
    folder = open_cluster.folder / "emptied"
    run = open_cluster.start_run(ADDRESS, "--insecure", "--set", f"run_dir={folder}")
    open_cluster.find_known_step(ADDRESS, folder, 0)
    (server,) = (p for p in open_cluster.find_left() if set(p.cmdline()) >= PARAMETER_SERVER)
    server.suspend()
    shutil.rmtree(folder / "checkpoints")
    server.kill()
    assert run.wait(LONG_SEC) == 2
    assert re.search(r"ps +\| .*checkpoint_dir: .* has no snapshot on this machine", run.output)
    assert "There is no copy (mirror_url)" in run.output
    open_cluster.assert_no_node_left()
    assert not (folder / "checkpoints").exists()
    assert TRACE not in run.output
