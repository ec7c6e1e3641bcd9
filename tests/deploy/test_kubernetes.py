"""The Kubernetes manifests: their schema, and what their commands do."""

import shlex
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from support.certificates import AGENT, ENVIRONMENT, Authority, write_private, write_tokens
from support.cluster import (
    ROOT,
    TRACE,
    Processes,
    Program,
    find_command,
    find_free_port,
    wait_until,
)

from relaax_like.bridge.control import BridgeControl
from relaax_like.wire.errors import ServerUnavailableError
from relaax_like.wire.security import ClientSecurity

FOLDER = ROOT / "deploy" / "kubernetes"
CLUSTER: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / "cluster.yaml").read_text()))
WORKLOADS = {
    one["metadata"]["name"]: one for one in CLUSTER if one["kind"] in ("Deployment", "StatefulSet")
}
SERVICES = {one["metadata"]["name"]: one for one in CLUSTER if one["kind"] == "Service"}


def get_container(name: str) -> dict[str, Any]:
    (container,) = WORKLOADS[name]["spec"]["template"]["spec"]["containers"]
    return dict(container)


@pytest.mark.parametrize(
    "document", CLUSTER, ids=lambda one: f"{one['kind']} {one['metadata']['name']}"
)
def test_each_manifest_fits_the_schema(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, "1.31", strict=True)


def test_a_mistake_would_be_found() -> None:
    wrong = {**CLUSTER[1], "spec": {**CLUSTER[1]["spec"], "replica": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.31", strict=True)


def test_services_select_pods_and_mounts_name_volumes() -> None:
    for name, service in SERVICES.items():
        template = WORKLOADS[name]["spec"]["template"]
        assert service["spec"]["selector"] == template["metadata"]["labels"]
        (port,) = (one["port"] for one in service["spec"]["ports"])
        assert get_container(name)["ports"] == [{"containerPort": port}]
    for name, workload in WORKLOADS.items():
        spec = workload["spec"]
        volumes = {one["name"] for one in spec["template"]["spec"]["volumes"]}
        volumes |= {one["metadata"]["name"] for one in spec.get("volumeClaimTemplates", ())}
        assert {one["name"] for one in get_container(name)["volumeMounts"]} == volumes


@pytest.mark.slow
def test_the_commands_of_the_manifests_train(tmp_path: Path) -> None:
    """With other ports of this machine instead of the services' names."""
    secrets = tmp_path / "secrets"
    authority = Authority(secrets)
    for name, path in (("ca", authority.ca), ("cert", authority.cert), ("key", authority.key)):
        path.rename(secrets / f"{name}.pem")
    write_tokens(secrets / "tokens")
    write_private(secrets / "agent-token", AGENT)
    write_private(secrets / "environment-token", ENVIRONMENT)
    ports = {str(s["spec"]["ports"][0]["port"]): str(find_free_port()) for s in SERVICES.values()}

    def localize(argument: str) -> str:
        for name in SERVICES:
            argument = argument.replace(f"={name}:", "=localhost:")
        for old, new in ports.items():
            argument = argument.replace(f":{old}", f":{new}")
        argument = argument.replace("0.0.0.0", "localhost")
        argument = argument.replace("/relaax/secrets", str(secrets))
        return argument.replace("/relaax/runs", str(tmp_path / "runs"))

    with Processes(tmp_path) as processes:

        def start(name: str) -> Program:
            program, *arguments = map(localize, get_container(name)["command"])
            path = ROOT / program if "/" in program else find_command(program)
            arguments = [a.replace("algorithms/", f"{ROOT}/algorithms/") for a in arguments]
            return processes.start(name, [path, *arguments])

        programs = {name: start(name) for name in WORKLOADS}
        security = ClientSecurity(token_file=secrets / "agent-token", tls_ca=secrets / "ca.pem")

        def learns() -> bool:
            with BridgeControl().connect(f"localhost:{ports['7000']}", security) as link:
                try:
                    return link.status(timeout_sec=2.0).version >= 1
                except ServerUnavailableError:
                    return False

        wait_until(learns, "a first version", timeout_sec=120)
        assert all(program.alive for program in programs.values())
        for program in programs.values():
            assert TRACE not in program.output, program


def test_the_readme_names_files_that_exist_and_keys_of_the_secret() -> None:
    text = (FOLDER / "README.md").read_text()
    secret = next(
        line for line in text.replace("\\\n", " ").splitlines() if "create secret" in line
    )
    files = [
        Path(part.partition("=")[2]).name for part in shlex.split(secret) if "--from-file" in part
    ]
    used = {
        part.rpartition("/")[2]
        for name in WORKLOADS
        for argument in get_container(name)["command"]
        if "/relaax/secrets/" in (part := argument)
    }
    assert used == set(files)
