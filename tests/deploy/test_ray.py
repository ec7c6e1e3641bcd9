"""Files for clusters of Ray: their schemas, and what their commands do. covers P21

The commands run in network namespaces, the machines of `support.ray_cluster`.
`RELAAX_CHECK_IMAGES=1` also executes the set-up commands of the cluster file, for minutes.
"""

import json
import os
import re
import shlex
import shutil
import signal
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import ray.autoscaler
import yaml
from support.cluster import ROOT, TRACE, Program
from support.ray_cluster import (
    FEWER_ON_HEAD,
    FEWER_PROCESSES,
    HEAD,
    LONG_SEC,
    PORT,
    WORKER,
    RayCluster,
    find_ray_listeners,
)

sys.path.append(str(ROOT / "deploy"))

from check_images import copy_build_context, read_dockerfile

pytestmark = pytest.mark.timeout(1500)
FOLDER = ROOT / "deploy" / "ray"
README = (FOLDER / "README.md").read_text()
SCALING = (ROOT / "docs" / "scaling.md").read_text()
UP: dict[str, Any] = yaml.safe_load((FOLDER / "cluster.yaml").read_text())
MANIFESTS: dict[str, dict[str, Any]] = {
    one["kind"]: one for one in yaml.safe_load_all((FOLDER / "kuberay.yaml").read_text())
}
RAY_CLUSTER = MANIFESTS["RayCluster"]["spec"]
SCHEMA = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
# As machines of the files: those of the test.
ADDRESSES = {"10.0.0.1": HEAD, "relaax-head-svc": HEAD}


def find_command_line(text: str, pattern: str) -> str:
    """Returns the one line of a document's commands that has a pattern, without its comment."""
    (line,) = (x for x in text.splitlines() if x.startswith("    ") and re.search(pattern, x))
    return re.sub(r"\s+#.*", "", line.strip())


# Schemas


def test_the_cluster_file_fits_the_schema_of_ray() -> None:
    jsonschema.validate(UP, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**UP, "head_start_commands": []}, SCHEMA)


def test_ray_up_completes_the_cluster_file() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(UP)
    validate_config(config)
    assert config["max_workers"] == len(UP["provider"]["worker_ips"]) == 9


@pytest.mark.parametrize("kind", ["PersistentVolumeClaim", "NetworkPolicy"])
def test_each_manifest_of_kubernetes_fits_its_schema(kind: str) -> None:
    kubernetes_validate.validate(MANIFESTS[kind], "1.31", strict=True)


def test_pod_templates_fit_the_schema_and_name_the_volume_and_the_image() -> None:
    head = RAY_CLUSTER["headGroupSpec"]["template"]
    (workers,) = RAY_CLUSTER["workerGroupSpecs"]
    for template in (head, workers["template"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **template}
        kubernetes_validate.validate(pod, "1.31", strict=True)
        (container,) = template["spec"]["containers"]
        assert f"docker build -f deploy/ray/Dockerfile -t {container['image']} ." in README
    (volume,) = head["spec"]["volumes"]
    claim = MANIFESTS["PersistentVolumeClaim"]["metadata"]["name"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim
    (mount,) = head["spec"]["containers"][0]["volumeMounts"]
    assert mount["name"] == volume["name"]
    dockerfile = read_dockerfile(FOLDER / "Dockerfile")
    (workdir,) = dockerfile.get("WORKDIR")
    assert mount["mountPath"] == f"{workdir}/runs"  # where `run_dir` of ppo.yaml is
    labels = {"ray.io/cluster": MANIFESTS["RayCluster"]["metadata"]["name"]}
    policy = MANIFESTS["NetworkPolicy"]["spec"]
    assert policy["podSelector"] == policy["ingress"][0]["from"][0]["podSelector"]
    assert policy["podSelector"]["matchLabels"] == labels
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (install,) = (line for line in dockerfile.get("RUN") if line.startswith("pip install"))
    assert install.partition(".[")[2].partition("]")[0] in project["optional-dependencies"]


# Commands


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RayCluster]:
    """Machines on which nothing of Ray runs, nor says anything about its token."""
    with RayCluster(tmp_path) as cluster:
        del cluster.env["RAY_AUTH_MODE"]
        token = Path(cluster.env.pop("RAY_AUTH_TOKEN_PATH"))
        (tmp_path / ".ray").mkdir()
        token.rename(tmp_path / ".ray" / "auth_token")
        cluster.connect()
        yield cluster


def localize(line: str) -> str:
    """Puts this test's machines, and fewer environments, into a command."""
    for name, address in ADDRESSES.items():
        line = re.sub(rf"{re.escape(name)}(?!\d)", address, line)
    return line.replace("environment.clients=32", "environment.clients=2")


def start_ray(cluster: RayCluster, machine: Program, line: str, **env: str) -> None:
    """Runs a command that starts Ray, with a number of cores that suffices."""
    command = localize(line).replace("--autoscaling-config=~/ray_bootstrap_config.yaml", "")
    flags = ["--num-cpus=4", *FEWER_PROCESSES]
    if machine is cluster.here:
        flags += FEWER_ON_HEAD
    argv = ["bash", "-c", " ".join([command, *flags])]
    program = cluster.start_in(machine, "ray start", argv, **env)
    assert program.wait(LONG_SEC) == 0, program


def run_until_a_step(cluster: RayCluster, line: str, folder: Path, **env: str) -> None:
    """Runs `relaax run` on the head's machine until it has learned something on two machines."""
    run = cluster.start_in(
        cluster.here, "run", ["bash", "-c", f"cd {folder} && exec {localize(line)}"], **env
    )
    run.wait_for(r"ps +\| .*step [1-9].* version [1-9]")
    places = dict(re.findall(r"(\w+) is on ([\d.]+)$", run.output, re.MULTILINE))
    assert set(places) == {"ps", "rlx", "env1", "env2"}
    assert set(places.values()) == {HEAD, WORKER}
    assert not find_ray_listeners()
    assert not cluster.find_outside()
    assert run.stop(signal.SIGINT) == 128 + signal.SIGINT
    assert TRACE not in run.output
    cluster.assert_no_node_left()


def provide_home(cluster: RayCluster) -> None:
    """Makes what the set-up commands make: from this installation, or by executing them."""
    home = cluster.folder
    if os.environ.get("RELAAX_CHECK_IMAGES") != "1":
        (home / "relaax").mkdir()
        (home / "relaax" / "bin").symlink_to(Path(sys.executable).parent)
        (home / "relaax_like").symlink_to(ROOT)
        return
    copy_build_context(home / "relaax_like")
    cluster.env["PYTHONPATH"] = ""
    for line in UP["setup_commands"]:
        # Not in a namespace, from which no package index can be reached.
        program = cluster.start("set-up", ["bash", "-c", line], HOME=str(home), PYTHONPATH="")
        assert program.wait(1200) == 0, program


def test_the_commands_of_the_cluster_file_and_its_readme_train(cluster: RayCluster) -> None:
    home = cluster.folder
    provide_home(cluster)
    for commands in (UP["head_start_ray_commands"], UP["worker_start_ray_commands"]):
        assert commands[0] == "~/relaax/bin/ray stop"  # not run: it would stop all Ray here
        assert len(commands) == 2
    start_ray(cluster, cluster.here, UP["head_start_ray_commands"][1])
    start_ray(cluster, cluster.there, UP["worker_start_ray_commands"][1], RAY_HEAD_IP=HEAD)
    argv = shlex.split(find_command_line(README, "ray exec"))
    assert argv[:-1] == ["ray", "exec", "--tmux", "deploy/ray/cluster.yaml"]
    run_until_a_step(cluster, argv[-1], home)
    assert (home / "runs" / "ppo" / "config.yaml").exists()


@pytest.mark.slow  # Ray as it is started above, by other commands
def test_the_command_for_kuberay_trains(cluster: RayCluster) -> None:
    """The operator composes the commands that start Ray, and gives each pod the token."""
    work = cluster.folder / "work"  # as the image's folder
    work.mkdir()
    shutil.copytree(ROOT / "algorithms" / "ppo", work / "algorithms" / "ppo")
    token = (cluster.folder / ".ray" / "auth_token").read_text()
    env = {"RAY_AUTH_MODE": RAY_CLUSTER["authOptions"]["mode"], "RAY_AUTH_TOKEN": token}
    groups = [RAY_CLUSTER["headGroupSpec"], *RAY_CLUSTER["workerGroupSpecs"]]
    assert [group["rayStartParams"] for group in groups] == [{}, {}]
    head = f"ray start --head --port={PORT} --node-ip-address={HEAD}"
    start_ray(cluster, cluster.here, head, **env)
    start_ray(cluster, cluster.there, f"ray start --address={HEAD}:{PORT}", **env)
    line = find_command_line(README, "kubectl exec").partition(" -- ")[2]
    run_until_a_step(cluster, line, work, **env)
    assert (work / "runs" / "cartpole-ppo" / "config.yaml").exists()


def test_the_lines_for_ten_machines_are_those_of_the_cluster_file() -> None:
    for key, pattern in (("head", "ray start --head"), ("worker", "ray start --address")):
        line = find_command_line(SCALING, pattern)
        in_file = UP[f"{key}_start_ray_commands"][1].replace("$RAY_HEAD_IP", "10.0.0.1")
        assert in_file.startswith(f"RAY_AUTH_MODE=token ~/relaax/bin/{line}")
    run = find_command_line(SCALING, r"relaax run .* --ray 10\.0\.0\.1").replace(
        "relaax run ppo", "~/relaax/bin/relaax run ~/relaax_like/algorithms/ppo/ppo.yaml"
    )
    assert shlex.split(find_command_line(README, "ray exec"))[-1].startswith(run)


@pytest.mark.slow  # the commands of the cluster file, which train above
def test_the_three_lines_for_ten_machines_train(cluster: RayCluster) -> None:
    env = {"RAY_AUTH_MODE": "token"}
    start_ray(cluster, cluster.here, find_command_line(SCALING, "ray start --head"), **env)
    start_ray(cluster, cluster.there, find_command_line(SCALING, "ray start --address"), **env)
    run_until_a_step(
        cluster, find_command_line(SCALING, r"relaax run .* --ray 10\.0\.0\.1"), cluster.folder
    )
