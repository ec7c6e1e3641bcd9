"""The images and the small cluster made of them, checked without Docker. covers R21

`RELAAX_REQUIRE_DOCKER_COMPOSE=1` turns a missing docker-compose from a skip into a failure.
`make images` builds the images and trains with them.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.cluster import ROOT, find_command

from relaax_like.config.loader import load_experiment

sys.path.append(str(ROOT / "deploy"))
sys.path.append(str(ROOT / "environments"))

from check_images import copy_build_context, read_dockerfile
from OpenAI_Gym.gym_client import make_parser

COMPOSE = ROOT / "docker-compose.yml"
SCRIPT = ROOT / "deploy" / "gym-client.sh"
SERVICES: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
DOCKERFILES = sorted((ROOT / "deploy").glob("*.Dockerfile"))


def get_command(service: str) -> list[str]:
    command = SERVICES[service]["command"]
    return shlex.split(command) if isinstance(command, str) else command


def get_flag(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


# docker-compose.yml


def test_docker_compose_accepts_the_file() -> None:
    program = shutil.which("docker-compose")
    if program is None:
        reason = "docker-compose is not installed"
        assert os.environ.get("RELAAX_REQUIRE_DOCKER_COMPOSE") != "1", reason
        pytest.skip(reason)
    done = subprocess.run(
        [program, "-f", COMPOSE, "config"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    resolved = yaml.safe_load(done.stdout)
    assert set(resolved["services"]) == set(SERVICES)
    for service in resolved["services"].values():
        context = Path(service["build"]["context"])
        assert (context / service["build"]["dockerfile"]).is_file()


def test_only_the_rlx_server_s_port_is_published_and_on_this_machine_only() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"rlx-server": ["127.0.0.1:7001:7001"]}
    for service in SERVICES.values():
        assert "network_mode" not in service
        assert "privileged" not in service


@pytest.mark.parametrize("service", ["parameter-server", "rlx-server"])
def test_each_server_s_command_is_one_that_it_accepts(service: str) -> None:
    program, *arguments = get_command(service)
    # Flags are parsed before --help is obeyed: an unknown one ends with status 2.
    done = subprocess.run(
        [find_command(program), *arguments, "--help"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    wrong = [find_command(program), *arguments, "--bogus", "1", "--help"]
    assert subprocess.run(wrong, capture_output=True, timeout=60).returncode == 2
    load_experiment(ROOT / get_flag(arguments, "--config"))


def test_the_services_find_each_other_and_share_what_is_written() -> None:
    ps, rlx, tb = map(get_command, ("parameter-server", "rlx-server", "tensorboard"))
    # Other containers reach only what is bound to all addresses of its own container.
    assert get_flag(ps, "--bind") == "0.0.0.0:7000"
    assert get_flag(rlx, "--bind") == "0.0.0.0:7001"
    assert get_flag(rlx, "--parameter-server") == "parameter-server:7000"
    assert get_command("environment")[0] == "rlx-server:7001"
    assert get_flag(ps, "--config") == get_flag(rlx, "--config")
    experiment = load_experiment(ROOT / get_flag(ps, "--config"))
    assert get_flag(tb, "--logdir") == str(experiment.parameter_server.metrics_dir)
    (workdir,) = read_dockerfile(ROOT / SERVICES["tensorboard"]["build"]["dockerfile"]).get(
        "WORKDIR"
    )
    for service in ("parameter-server", "tensorboard"):
        (volume,) = SERVICES[service]["volumes"]
        assert volume == f"runs:{workdir}/{experiment.run_dir.parts[0]}"
    for service in SERVICES.values():
        assert set(service.get("depends_on", ())) <= set(SERVICES)


# deploy/gym-client.sh


def run_script(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs the script with programs that print how they were called."""
    for name in ("python3", "Xvfb", "x11vnc"):
        stub = folder / name
        ready = "echo 42 >&3" if name == "Xvfb" else ""  # its word for -displayfd 3
        stub.write_text(f'#!/bin/sh\necho "{name} DISPLAY=${{DISPLAY:-none}} $*"\n{ready}\n')
        stub.chmod(0o755)
    path = f"{folder}:/usr/bin:/bin"
    return subprocess.run(
        [SCRIPT, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PATH": path, **env},
        timeout=60,
    )


@pytest.mark.parametrize(
    "arguments",
    [(), ("localhost:7001",), ("a:1", "CartPole-v1", "dispaly"), ("a:1", "b", "display", "x")],
    ids=["nothing", "no environment", "mistyped display", "too much"],
)
def test_wrong_arguments_of_the_script_are_told(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = run_script(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: ")
    assert "RLX_SERVER ENVIRONMENT [display]" in done.stderr


def parse_client_line(line: str, display: str) -> Any:
    words = shlex.split(line)
    assert words[:2] == ["python3", f"DISPLAY={display}"]
    assert (ROOT / "deploy" / words[2]).resolve() == ROOT / "environments" / "OpenAI_Gym" / "main"
    return make_parser().parse_args(words[3:])


def test_the_script_starts_a_client_that_accepts_its_flags(tmp_path: Path) -> None:
    done = run_script(tmp_path, *get_command("environment"))
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    parsed = parse_client_line(line, "none")
    assert (parsed.rlx_server, parsed.env) == ("rlx-server:7001", "CartPole-v1")
    assert not parsed.display


def test_with_display_it_is_drawn_on_a_screen_that_vnc_shows(tmp_path: Path) -> None:
    arguments = ("server:7001", "CartPole-v1", "display")
    done = run_script(tmp_path, *arguments, DISPLAY_NUMBER=":42")
    assert (done.returncode, done.stderr) == (0, "")
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert lines["Xvfb"].startswith("Xvfb DISPLAY=:42 :42 -screen 0 ")
    assert "-nolisten tcp -displayfd 3" in lines["Xvfb"]
    assert "-display WAIT:42 " in lines["x11vnc"]
    assert "-rfbport 5900 -listen localhost" in lines["x11vnc"]  # it asks for no password
    parsed = parse_client_line(lines["python3"], ":42")
    assert parsed.display


# The Dockerfiles


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_dockerfile_names_what_exists(path: Path) -> None:
    dockerfile = read_dockerfile(path)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (install,) = [line for line in dockerfile.get("RUN") if line.startswith("pip install")]
    wanted = install.partition("[")[2].partition("]")[0]
    assert wanted in extras
    assert dockerfile.get("FROM")[0].startswith("python:3.11")
    argv = dockerfile.start_command()
    if "/" in argv[0]:
        assert (ROOT / argv[0]).stat().st_mode & 0o111, f"{argv[0]} is not executable"
    else:
        find_command(argv[0])
        load_experiment(ROOT / get_flag(argv, "--config"))
    assert {service["build"]["dockerfile"] for service in SERVICES.values()} >= {
        str(path.relative_to(ROOT))
    }


def test_the_vnc_port_of_the_script_is_the_exposed_one() -> None:
    assert read_dockerfile(ROOT / "deploy" / "gym.Dockerfile").get("EXPOSE") == ["5900"]


def test_arguments_replace_cmd_but_not_the_entrypoint(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text('# FROM a\nFROM b\nrun one \\\n  two\nENTRYPOINT ["x"]\nCMD ["y", "z"]\n')
    dockerfile = read_dockerfile(file)
    assert dockerfile.get("FROM") == ["b"]
    assert [text.split() for text in dockerfile.get("RUN")] == [["one", "two"]]
    assert dockerfile.start_command() == ["x", "y", "z"]
    assert dockerfile.start_command("w") == ["x", "w"]


def test_runs_caches_and_history_stay_out_of_the_images(tmp_path: Path) -> None:
    copy_build_context(tmp_path / "copy")
    names = {path.name for path in (tmp_path / "copy").iterdir()}
    assert {"setup.py", "pyproject.toml", "relaax_like", "algorithms", "environments"} <= names
    assert not names & {".git", ".venv", "runs", "build", ".mypy_cache", ".hypothesis"}
    assert not list((tmp_path / "copy").rglob("__pycache__"))
