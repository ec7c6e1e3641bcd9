"""What an installed package shows of itself: examples, keys, version."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from support.cluster import ROOT, find_command

import relaax_like
from relaax_like.cli.examples import copy_examples, list_examples
from relaax_like.cli.keys import show_keys
from relaax_like.config.loader import load_experiment
from relaax_like.wire.errors import ConfigError

RELAAX = find_command("relaax")


def call(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [RELAAX, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "110"},
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_examples_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert list_examples() == 0
    text = capsys.readouterr().out
    assert re.search(r"^    ppo +CartPole-v1 with ppo", text, re.MULTILINE)
    assert "a2c/acrobot" in text
    for line in (
        "algorithms: a2c, bc, cql, ddpg, dqn,",
        "environments: OpenAI_Gym, bandit,",
    ):
        assert line in text


def test_clients_and_slots_in_the_descriptions_are_those_of_the_files() -> None:
    number_of = {"one": 1, "two": 2, "four": 4, "eight": 8, "sixteen": 16}
    described = 0
    for file in sorted((ROOT / "algorithms").glob("*/*.yaml")):
        found = re.match(r"#.*: (\w+) clients? (?:that steps?|of) (\w+) ", file.read_text())
        if found:
            described += 1
            environment = load_experiment(file).environment
            assert environment is not None
            numbers = [number_of[word] for word in found.groups()]
            assert numbers == [environment.clients, environment.slots], file
    assert described >= 4


def test_examples_are_copied_and_nothing_is_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert copy_examples(tmp_path / "new" / "place") == 0
    copied = tmp_path / "new" / "place"
    for file in ("algorithms/ppo/ppo.yaml", "algorithms/ppo/config.py", "environments/README.md"):
        assert (copied / file).is_file()
    assert os.access(copied / "environments" / "OpenAI_Gym" / "main", os.X_OK)
    assert not list(copied.rglob("__pycache__"))
    assert load_experiment(copied / "algorithms" / "ppo" / "ppo.yaml").algorithm.name == "ppo"

    mine = copied / "algorithms" / "ppo" / "ppo.yaml"
    mine.write_text("mine\n")
    (copied / "environments").rename(copied / "moved")
    with pytest.raises(ConfigError, match="algorithms already exists, and nothing is overwr"):
        copy_examples(copied)
    assert mine.read_text() == "mine\n"
    assert not (copied / "environments").exists()  # all or nothing
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "algorithms").symlink_to("nowhere")
    with pytest.raises(ConfigError, match="algorithms already exists, and nothing is overwr"):
        copy_examples(tmp_path / "other")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="copying failed: Not a directory"):
        copy_examples(tmp_path / "file")
    with pytest.raises(ConfigError, match="copying failed: File name too long"):
        copy_examples(tmp_path / ("x" * 300))


def test_keys_are_listed_by_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_keys(Path("ppo")) == 0
    text = capsys.readouterr().out
    assert re.search(r"algorithm\.epochs .*integer >= 1 .* 10 .* data of each iteration\.", text)
    assert re.search(r"learner\.eval_freq .* 0 ", text)
    assert re.search(r"relaax-rlx-server\.max_clients .* 256 ", text)


@pytest.mark.parametrize("command", ["train", "resume"])
def test_keys_are_in_the_help_of_what_takes_them(command: str, tmp_path: Path) -> None:
    text = call(command, "--help", cwd=tmp_path)
    for flag in ("--seed", "--eval-freq", "--slots", "--wandb-project"):
        assert re.search(rf"{flag} +\S", text), flag
    words = " ".join(text.replace("│", " ").split())
    assert "Iterations (placement agent: versions) between two evaluations" in words


def test_the_version_is_printed(tmp_path: Path) -> None:
    assert call("--version", cwd=tmp_path) == f"{relaax_like.__version__}\n"
