"""`relaax run`: the command of an environment's process. covers F15, R17"""

import json
import sys
from pathlib import Path

import pytest
from support.cluster import BARE

from relaax_like.cli.options import to_overrides
from relaax_like.config.address import Address
from relaax_like.config.loader import load_experiment
from relaax_like.launch.run import (
    _make_start,
    choose_ports,
    keep_addresses,
    make_address_overrides,
    make_client_argv,
    make_topology,
)
from relaax_like.runs.folders.run_folder import ADDRESSES
from relaax_like.wire.errors import ConfigError


def make_flags(folder: Path, environment: str) -> list[str]:
    """Returns all that follows the program."""
    file = folder / "experiment.yaml"
    file.write_text(f"algorithm: {{path: '{BARE}'}}\nenvironment: {{{environment}}}\n")
    experiment = load_experiment(file)
    assert experiment.environment is not None
    python, program, *flags = make_client_argv(experiment, experiment.environment)
    assert python == sys.executable
    assert Path(program) == experiment.environment_program
    return flags


@pytest.mark.parametrize(
    ("environment", "want"),
    [
        ("program: OpenAI_Gym, env: CartPole-v0", "--env CartPole-v0"),
        (
            "program: OpenAI_Gym, env: A-v0, action_repeat: 1, slots: 1, random_steps: 0",
            "--env A-v0",
        ),
        (
            "program: OpenAI_Gym, env: A-v0, actrep: 4, slots: 8, rnd: 2, limit: 50",
            "--env A-v0 --num-envs 8 --action-repeat 4 --random-steps 2 --max-episode-steps 50",
        ),
        (
            "program: OpenAI_Gym, env: A-v0, seed_resets: true, versions: off",
            "--env A-v0 --seed-resets --no-versions",
        ),
        (
            "program: memory, slots: 16, args: {delay: 4, cues: 3}",
            "--num-envs 16 --env-arg delay=4 --env-arg cues=3",
        ),
    ],
)
def test_the_program_is_told_what_is_not_the_default(
    tmp_path: Path, environment: str, want: str
) -> None:
    flags = make_flags(tmp_path, environment)
    assert flags == ["--rlx-server", "localhost:7001", *want.split()]


def test_a_folder_without_a_program_is_for_training_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "game").mkdir()
    (tmp_path / "game" / "slots.py").touch()
    file = tmp_path / "experiment.yaml"
    file.write_text(f"algorithm: {{path: '{BARE}'}}\nenvironment: {{path: game}}\n")
    experiment = load_experiment(file)
    assert experiment.environment_program == tmp_path / "game" / "slots.py"
    with pytest.raises(
        ConfigError, match=r"slots\.py is not a program that relaax run can start.*: relaax train "
    ):
        make_topology(experiment, ())


def test_a_run_from_files_has_no_topology_and_needs_no_environment(tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    settings = "name: bc, state_size: 4, num_actions: 2, network: {layers: [8]}"
    file.write_text(f"algorithm: {{{settings}}}\n")
    experiment = load_experiment(file, [f"learner.offline={tmp_path}"])
    with pytest.raises(ConfigError, match=r"only relaax train learns from files: run"):
        make_topology(experiment, ())


def test_servers_with_port_0_get_free_ports_that_the_others_know(tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(
        f"algorithm: {{path: '{BARE}'}}\n"
        "environment: {program: OpenAI_Gym, env: CartPole-v1}\n"
        "relaax-parameter-server: {bind: 'localhost:0'}\n"
        "relaax-rlx-server: {bind: '127.0.0.1:0'}\n"
    )
    experiment = load_experiment(file)
    ports = choose_ports(experiment)
    placed = load_experiment(file, ports)
    ps, rlx = placed.parameter_server.bind, placed.rlx_server.bind
    assert len({ps.port, rlx.port, 0}) == 3
    assert placed.rlx_server.parameter_server == ps
    topology = keep_addresses(experiment, make_topology(placed, ports))
    assert topology.nodes[-1].argv[2:4] == ["--rlx-server", str(rlx)]
    # The run's config.yaml keeps those of the file: resumed, it finds free ports again.
    kept = json.loads(topology.nodes[0].env[ADDRESSES])
    assert kept["relaax-rlx-server"]["bind"] == "127.0.0.1:0"
    assert choose_ports(placed) == []
    elsewhere = load_experiment(file, ["relaax-rlx-server.bind=192.0.2.1:0"])
    with pytest.raises(ConfigError, match=r"relaax-rlx-server\.bind: no port of 192\.0\.2\.1"):
        choose_ports(elsewhere)


def test_a_program_that_cannot_be_read_is_started_as_it_is(tmp_path: Path) -> None:
    program = tmp_path / "main"
    program.mkdir()  # as without permission, it cannot be opened
    assert _make_start(program) == [str(program)]


def test_addresses_of_ipv6_arrive_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(f"algorithm: {{path: '{BARE}'}}\n")
    addresses = {"ps": Address("::1", 7100), "rlx": Address("::", 7101)}
    placed = load_experiment(file, make_address_overrides(addresses))
    assert placed.parameter_server.bind == placed.rlx_server.parameter_server == addresses["ps"]
    assert placed.rlx_server.bind == addresses["rlx"]
    flags = {"bind": "[::1]:7200", "metrics_dir": tmp_path / "a: b", "prometheus_bind": None}
    given = load_experiment(file, to_overrides("relaax-parameter-server", flags, []))
    assert given.parameter_server.bind == Address("::1", 7200)
    assert given.parameter_server.metrics_dir == tmp_path / "a: b"
