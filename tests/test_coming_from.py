"""docs/coming_from.md: its programs work, and the keys that it names are there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.cluster import ROOT, Cluster
from support.uncompiled import copy_uncompiled

from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.algorithm_folder import find_algorithm, load_config_class
from relaax_like.config.models import EnvironmentConfig, LearnerConfig, ParameterServerConfig

EXAMPLES = ROOT / "docs" / "examples" / "coming_from"
PAGE = (ROOT / "docs" / "coming_from.md").read_text("utf-8")
SECTIONS = {
    "learner": [LearnerConfig],
    "environment": [EnvironmentConfig],
    "relaax-parameter-server": [ParameterServerConfig],
    "algorithm": [
        AlgorithmConfig,
        *(load_config_class(find_algorithm(name)) for name in ("a2c", "dqn", "ppo", "td3")),
    ],
}


def test_the_keys_that_it_names_are_ours() -> None:
    named = re.findall(rf"`({'|'.join(SECTIONS)})\.(\w+)[`:.]", PAGE)
    assert len(named) > 40
    unknown = [
        (section, key)
        for section, key in named
        if not any(key in model.model_fields for model in SECTIONS[section]) and key != "name"
    ]
    assert unknown == []


def test_a_policy_is_trained_and_used_as_with_stable_baselines3(tmp_path: Path) -> None:
    program = [sys.executable, EXAMPLES / "stable_baselines3.py", "--steps", "2000"]
    done = subprocess.run(
        [*program, "--run-dir", tmp_path / "run"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"budget of 2000 env steps used up; mean return \d+", done.stdout)
    assert re.search(r"a greedy episode: \d+", done.stdout)


@pytest.mark.parametrize(
    ("name", "sets"),
    [
        ("rllib", ["algorithm.state_size=4"]),
        ("ml_agents", ["algorithm.state_size=3", "learner.target_return=15"]),
    ],
)
def test_a_simulator_connects_by_itself(name: str, sets: list[str], tmp_path: Path) -> None:
    more = ["algorithm.num_actions=2", "algorithm.network={layers: [16]}"]
    more += ["algorithm.learning_rate=1e-2", "algorithm.max_global_step=20000"]
    budget = "algorithm.max_global_step=600" if name == "rllib" else "algorithm.gamma=0.5"
    folder = copy_uncompiled("a2c", tmp_path)
    with Cluster(tmp_path, folder, *more, *sets, budget) as cluster:
        ps, _ = cluster.start_both_servers()
        address = f"localhost:{cluster.rlx_port}"
        program = [sys.executable, EXAMPLES / f"{name}.py", "--rlx-server", address]
        client = cluster.start("client", program)
        assert client.wait() == 0
        client.wait_for("finished: (budget of 600|mean return)")
        assert ps.wait() == 0
