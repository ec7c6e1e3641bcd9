"""Folders under a logdir: environment, name, time. covers P22"""

import json
import re
from pathlib import Path

import pytest

from relaax_like.config.loader import dump_experiment, export_experiment, load_experiment
from relaax_like.config.run_folder import find_experiment, fix_run_dir, make_run_name
from relaax_like.wire.errors import ConfigError

TIME = r"\d{8}-\d{6}"
ENVIRONMENT = "environment: {program: OpenAI_Gym, env: ALE/Pong-v5}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "experiment.yaml"
    path.write_text(
        f"logdir: {tmp_path / 'logs'}\n"
        "seed: 3\n"
        "algorithm: {name: a2c, num_actions: 6, state_size: 8}\n"
        f"{ENVIRONMENT}"
    )
    return path


def find_run_dir(file: Path, *sets: str, new_run: bool = True) -> str:
    experiment = load_experiment(file, sets, new_run)
    assert experiment.parameter_server.checkpoint_dir == experiment.run_dir / "checkpoints"
    assert experiment.parameter_server.metrics_dir == experiment.run_dir / "metrics"
    return experiment.run_dir.relative_to(file.parent / "logs").as_posix()


def test_a_new_run_gets_a_folder_of_its_own(file: Path) -> None:
    assert re.fullmatch(rf"ALE-Pong-v5/fast/{TIME}", find_run_dir(file, "run_name=fast"))
    assert re.fullmatch(rf"ALE-Pong-v5/[0-9a-f]{{8}}-seed3/{TIME}", find_run_dir(file))
    own = find_run_dir(file, "environment.program=null", f"environment.path={__file__}")
    assert own.startswith("ALE-Pong-v5/")
    names = ("environment.env=null", "environment={program: memory}")
    found = [find_run_dir(file, name).partition("/")[0] for name in names]
    assert found == ["OpenAI_Gym", "memory"]
    file.write_text(file.read_text().replace(ENVIRONMENT, ""))
    assert find_run_dir(file).startswith("no-environment/")


def test_two_runs_of_one_second_do_not_share_a_folder(file: Path) -> None:
    first = file.parent / "logs" / find_run_dir(file)
    first.mkdir(parents=True)
    second = file.parent / "logs" / find_run_dir(file)
    assert second.parent == first.parent
    assert second != first


def test_the_hash_is_of_what_is_learned_from(file: Path) -> None:
    def name(*sets: str) -> str:
        return make_run_name(export_experiment(load_experiment(file, sets, new_run=True)))

    plain, _, seed = name().partition("-")
    assert seed == "seed3"
    addresses = (
        "relaax-parameter-server.bind=localhost:9",
        "learner.bind=localhost:9",
        "learner.advertise=localhost:9",
    )
    for same in ("seed=4", *addresses, "logdir=elsewhere", "wandb={name: a, group: b}"):
        assert name(same).startswith(plain)
    for other in ("algorithm.learning_rate=2e-4", "environment.slots=2", "environment.env=A-v0"):
        assert not name(other).startswith(plain)


def test_who_begins_no_run_takes_the_newest_one_and_says_where_there_is_none(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"logdir: .*-seed3 contains no run; .*need run_dir"):
        load_experiment(file)
    parent = file.parent / "logs" / find_run_dir(file)
    runs = [parent.with_name(name) for name in ("20250102-000000", "20250101-235959", "x")]
    for run in runs:
        run.mkdir(parents=True)
    for run in runs[:2]:
        (run / "config.yaml").touch()
    assert load_experiment(file).run_dir == runs[0]


def test_all_processes_of_a_run_are_told_the_same_folder(file: Path) -> None:
    experiment = load_experiment(file, ["run_name=it's"], new_run=True)
    fixed = fix_run_dir(experiment.run_dir)
    assert load_experiment(file, ["run_name=it's", *fixed]) == experiment
    # What is saved with the run names the folder, and no logdir.
    saved = file.with_name("saved.yaml")
    saved.write_text(dump_experiment(experiment))
    assert "logdir" not in saved.read_text()
    assert load_experiment(saved).run_dir == experiment.run_dir


@pytest.mark.parametrize(
    ("sets", "want"),
    [
        (["run_dir=runs/a"], r"logdir: run_dir is set as well; .*--set run_dir=null"),
        (
            ["logdir=null", "run_name=a"],
            r"run_name: names a folder inside logdir, but logdir is not set",
        ),
        (
            ["run_name=a/b"],
            "run_name: expected one or more characters without /, the first of them not a period, ",
        ),
        (["run_name=.a"], "run_name"),
        (["run_name=''"], "run_name"),
    ],
)
def test_contradictions_are_named(sets: list[str], want: str, file: Path) -> None:
    with pytest.raises(ConfigError, match=want):
        load_experiment(file, sets, new_run=True)


def test_a_name_that_the_system_refuses_is_found_out_when_the_folder_is_made(file: Path) -> None:
    assert "/xxx" in find_run_dir(file, "run_name=" + "x" * 300)


def test_a_run_dir_that_is_a_number_is_a_folder_of_that_name(file: Path) -> None:
    run = file.parent / "7"
    run.mkdir()
    (run / "config.yaml").write_text(
        "run_dir: 7\nrelaax-parameter-server: {checkpoint_dir: 7/elsewhere, metrics_dir: 8}\n"
    )
    config, places = find_experiment(run)
    assert config == run / "config.yaml"
    assert [json.loads(place.partition("=")[2]) for place in places] == [
        *(str(run), str(run / "elsewhere"), "8")
    ]
