"""Keys of the section learner that contradict the algorithm or each other. covers J11, J15"""

from pathlib import Path

import pytest
from support.cluster import ROOT

from relaax_like.config.loader import load_experiment
from relaax_like.wire.errors import ConfigError


def load(name: str, *sets: str) -> object:
    return load_experiment(ROOT / "algorithms" / name / f"{name}.yaml", sets)


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_algorithms_that_learn_from_their_own_actions_refuse_files(name: str) -> None:
    words = (
        r"learner\.offline: '/x', but this algorithm "
        rf"\(.*/{name}/config\.py:\d+: plan is OnPolicy\) only learns from its own "
        r"policy's experience; remove the key, or use an algorithm"
    )
    with pytest.raises(ConfigError, match=words):
        load(name, "learner.offline=/x", "learner.target_return=null")


@pytest.mark.parametrize(
    ("flag", "want"),
    [
        (
            "workers=2",
            "workers: 2, but a run that learns from files .* does not play; set it to 0",
        ),
        (
            "target_return=10",
            "target_return: 10.0, but a run that learns from files .* does not play; set it "
            "to null",
        ),
        (
            "collect_traj=true",
            "collect_traj: true, but a run that learns from files .* does not play; set it "
            "to false",
        ),
    ],
)
def test_what_needs_episodes_is_refused_where_none_are_played(flag: str, want: str) -> None:
    with pytest.raises(ConfigError, match=want):
        load("bc", f"learner.{flag}")


def test_a_folder_of_trajectories_is_relative_to_where_the_command_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = load_experiment(
        ROOT / "algorithms" / "bc" / "bc.yaml", ["learner.offline=runs/x/trajectories"]
    )
    assert experiment.learner.offline == tmp_path / "runs" / "x" / "trajectories"
