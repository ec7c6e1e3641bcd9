"""Experiments that come with the package, found by name."""

from pathlib import Path

import pytest
from support.cluster import ROOT

from relaax_like.config.loader import load_experiment
from relaax_like.shipped import find_experiment_file, list_experiments
from relaax_like.wire.errors import ConfigError

PPO = ROOT / "algorithms" / "ppo" / "ppo.yaml"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_name_is_a_shipped_file() -> None:
    assert find_experiment_file("ppo") == PPO
    assert find_experiment_file("ppo/ppo") == PPO
    assert load_experiment("ppo", ["seed=3"]).file == PPO


def test_each_listed_name_means_its_file() -> None:
    listed = list_experiments()
    assert sorted(listed.values()) == sorted((ROOT / "algorithms").glob("*/*.yaml"))
    for name, file in listed.items():
        assert find_experiment_file(name) == file


def test_a_file_of_that_name_wins(here: Path) -> None:
    (here / "ppo").write_text("algorithm: {name: a2c, num_actions: 2}\n")
    assert find_experiment_file("ppo") == Path("ppo")
    assert load_experiment("ppo").algorithm.name == "a2c"


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("acrobot", "several shipped experiments.*pass a2c/acrobot or ppo/acrobot$"),
        ("ppoo", r"^ppoo: no such file, or no access.*, and no shipped.*did you mean ppo\?.*exam"),
        ("ppo.yaml", r"no such file.*did you mean ppo\?"),
        ("x" * 5000, "no such file"),
        ("\0", "no such file"),
        ("folder/xyzzy.yaml", "and no shipped experiment has that name \\("),
    ],
    ids=lambda text: text[:20],
)
def test_what_names_no_file_is_refused(name: str, want: str) -> None:
    with pytest.raises(ConfigError, match=want) as raised:
        find_experiment_file(name)
    assert len(str(raised.value)) < 400


def test_a_folder_of_a_shipped_name_is_a_clash(here: Path) -> None:
    (here / "ppo").mkdir()
    with pytest.raises(
        ConfigError,
        match=r"both a folder in the working directory and the name.*or ppo/ppo for the",
    ):
        find_experiment_file("ppo")
    assert find_experiment_file("ppo/ppo") == PPO
    (here / "mine").mkdir()
    with pytest.raises(ConfigError, match="mine is a folder; expected a YAML file"):
        load_experiment("mine")
