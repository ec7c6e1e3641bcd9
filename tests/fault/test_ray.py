"""A machine of a Ray cluster is lost in the middle of a run. covers P21

Two machines are two network namespaces that a pair of devices connects.
"""

import re
import shutil
import signal
from collections.abc import Iterator

import pytest
from support.cluster import TRACE, Program, wait_until
from support.ray_cluster import HEAD, LONG_SEC, PORT, WORKER, RayCluster, find_ray_listeners

from relaax_like.parameter_server.mirror import find_newest_step

pytestmark = pytest.mark.timeout(600)
TARGET = 60
FLAGS = (f"{HEAD}:{PORT}", "--insecure", "--set", f"learner.target_return={TARGET}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """The head's machine, which has the cores for a whole run."""
    with RayCluster(tmp_path_factory.mktemp("ray")) as cluster:
        cluster.start_head(cpus=5, host=HEAD)
        yield cluster


def lose_the_other_machine(cluster: RayCluster, run: Program, nodes: set[str]) -> list[str]:
    """Kills Ray there in the middle of a run; returns what the run printed from then on."""
    run.wait_for(r"step [1-9]")
    assert not find_ray_listeners()
    assert not cluster.find_outside()
    places = dict(re.findall(r"(\w+) is on ([\d.]+)$", run.output, re.MULTILINE))
    assert set(places) == nodes
    assert places.get("ps", HEAD) == HEAD  # its files are there
    lost = {name for name, host in places.items() if host == WORKER}
    assert lost, places
    before = len(run.lines)
    cluster.find_worker_raylet().send_signal(signal.SIGKILL)
    for name in lost:
        run.wait_for(rf"{name} +\| Ray no longer runs {name} on {WORKER}", before)
        run.wait_for(rf"\b{name} is on {HEAD}$", before)
    assert run.alive
    cluster.gate.touch()
    assert run.wait(LONG_SEC) == 0
    cluster.gate.unlink()
    assert TRACE not in run.output
    assert not find_ray_listeners()
    cluster.assert_no_node_left()
    return run.lines[before:]


def test_training_reaches_its_target_although_a_machine_is_lost(cluster: RayCluster) -> None:
    cluster.start_worker(cpus=5)
    run = cluster.start_run(*FLAGS)
    after = lose_the_other_machine(cluster, run, {"ps", "rlx", "env1", "env2"})
    assert f"reached the target {TARGET}" in "\n".join(after)


@pytest.mark.slow
def test_workers_reach_the_target_although_the_machine_of_one_is_lost(cluster: RayCluster) -> None:
    cluster.start_worker(cpus=5)
    train = cluster.start_run(*FLAGS, "--workers", 2, command="train")
    after = lose_the_other_machine(cluster, train, {"worker1", "worker2"})
    assert f"reached the target {TARGET}" in "\n".join(after)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "flags"), [("run", ()), ("train", ("--workers", 2))])
def test_the_machine_with_the_parameter_server_is_lost_and_the_run_continues_from_its_mirror(
    cluster: RayCluster, command: str, flags: tuple[object, ...]
) -> None:
    """The other machine's folder is lost with it. covers R24"""
    folder, mirror = cluster.folder / f"there-{command}", cluster.folder / f"mirror-{command}"
    places = [
        f"run_dir={folder}",
        f"relaax-parameter-server.mirror_url=file://{mirror}",
        "relaax-parameter-server.checkpoint_time_interval=1",
    ]
    argv = (*FLAGS, *flags, *(part for place in places for part in ("--set", place)))
    cluster.start_worker(cpus=5)
    run = cluster.start_run(*argv, command=command, namespace=cluster.there)
    if command == "run":
        run.wait_for(f"ps is on {WORKER}$")
    wait_until(lambda: mirror.exists() and find_newest_step(f"file://{mirror}"), run, LONG_SEC)
    cluster.find_known_step(f"{HEAD}:{PORT}", folder, 0)
    assert not find_ray_listeners()
    assert not cluster.find_outside()
    cluster.lose_machine()
    run.wait()
    cluster.assert_no_node_left()
    shutil.rmtree(folder)
    copied = find_newest_step(f"file://{mirror}")

    again = cluster.start_run(*argv, command=command)
    assert again.wait(LONG_SEC) == 2
    known = re.search(
        rf"on this machine, {HEAD}, but .* was at step ([\d,]+), version [\d,]+, on {WORKER}\. "
        rf"The copy in mirror_url is at step {copied:,}: a start here would lose at least ([\d,]+)",
        again.output,
    )
    assert known, again
    reached, lost = (int(text.replace(",", "")) for text in known.groups())
    assert lost == max(reached - copied, 0)
    assert not folder.exists()

    cluster.gate.touch()
    accepted = cluster.start_run(*argv, "--accept-loss", command=command)
    assert accepted.wait(LONG_SEC) == 0
    cluster.gate.unlink()
    assert f"global_t is {copied}\n" in accepted.output
    assert f"reached the target {TARGET}" in accepted.output
    assert TRACE not in accepted.output
    assert not find_ray_listeners()
    cluster.assert_no_node_left()
