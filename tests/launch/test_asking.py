"""Files that do not say what observations and actions are made of: the environment is asked."""

from pathlib import Path

import pytest
from support.cluster import ROOT
from support.serial import train
from support.uncompiled import copy_uncompiled

import relaax_like
from relaax_like.config.loader import load_experiment
from relaax_like.launch.evaluation import evaluate_policies
from relaax_like.wire.errors import ConfigError

INTEGERS = ROOT / "tests" / "support" / "integers"


def write_file(folder: Path, environment: str, *lines: str) -> Path:
    file = folder / "generic.yaml"
    ppo = copy_uncompiled("ppo", folder)
    file.write_text(
        f"run_dir: {folder / 'run'}\n"
        "relaax-parameter-server: {progress_interval_sec: 1000}\n"
        "learner: {placement: server, target_return: 3.6, target_episodes: 50}\n"
        f"algorithm: {{path: '{ppo}', network: {{layers: [16]}}, num_steps: 128, "
        "rollout_steps: 16, batch_size: 64, epochs: 8, max_global_step: 20000, "
        f"learning_rate: 0.01, critic_learning_rate: 0.01, gamma: 0.5{''.join(lines)}}}\n"
        f"environment: {{path: '{INTEGERS}', env: {environment}, slots: 4}}\n"
    )
    return file


# covers J17
@pytest.mark.parametrize("environment", ["one", "several"])
def test_integers_are_learned_from_a_file_without_sizes(environment: str, tmp_path: Path) -> None:
    file = write_file(tmp_path, environment)

    assert train(file) == 0

    saved = load_experiment(tmp_path / "run" / "config.yaml")
    assert not saved.algorithm.lacks_spaces
    for experiment in (load_experiment(file), saved):  # the original file asks again
        found = evaluate_policies(experiment, episodes=20)[""]
        assert found.returns.mean() > 3.9
        assert found.global_t < 20_000, "the target was not reached"


def test_the_policy_is_used_as_the_environment_counts(tmp_path: Path) -> None:
    file = write_file(tmp_path, "one", ", num_actions: 5")
    train(file, "algorithm.max_global_step=128", "learner.target_return=null")

    with relaax_like.load(tmp_path / "run") as policy:
        assert policy.act(14) in range(5)  # its observations count from 10
        assert policy.act([10, 11, 12]).shape == (3,)


def test_sizes_that_the_environment_contradicts_are_refused(tmp_path: Path) -> None:
    file = write_file(tmp_path, "one", ", num_states: 6")

    with pytest.raises(ConfigError, match="Discrete of 5 values"):
        train(file)


# covers P14
def test_an_environment_says_how_it_looks_in_a_mirror(tmp_path: Path) -> None:
    file = write_file(tmp_path, "support.mirrored_envs:MirroredCartPole-v0", ", mirror: 1.0")
    program = file.read_text().replace(f"path: '{INTEGERS}'", "program: OpenAI_Gym")
    file.write_text(program)

    train(file, "algorithm.max_global_step=128", "learner.target_return=null")

    saved = load_experiment(tmp_path / "run" / "config.yaml").algorithm
    assert saved.mirror_observation == (-0.1, -1, -2, -3)  # type: ignore[attr-defined]
    assert saved.mirror_action == (1, 0.1)  # type: ignore[attr-defined]


def test_without_an_environment_the_servers_say_what_is_missing(tmp_path: Path) -> None:
    file = write_file(tmp_path, "one")
    text = file.read_text()
    file.write_text(text[: text.index("environment:")])

    with pytest.raises(ConfigError, match="no environment to get them from; set state_size"):
        train(file)
