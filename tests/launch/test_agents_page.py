"""The experiments of docs/agents.md, in a short form. covers PE20"""

import re
from pathlib import Path

import pytest
from support.cluster import ROOT
from support.serial import train

from relaax_like.config.loader import load_experiment
from relaax_like.launch.evaluation import evaluate_policies

PAGE = (ROOT / "docs" / "agents.md").read_text()
FILES = dict(re.findall(r"```yaml\n# (\w+)\.yaml\n(.*?)```", PAGE, re.DOTALL))
POLICIES = {"spread": [""], "tag": ["hunters", "prey"], "connect_four": [""]}
SHORT = [
    "algorithm.num_steps=64",
    "algorithm.rollout_steps=16",
    "algorithm.batch_size=8",
    "algorithm.epochs=1",
    "algorithm.max_global_step=96",
    "algorithm.network={layers: [8]}",
    "environment.slots=2",
]


@pytest.mark.parametrize("name", POLICIES)
def test_an_experiment_of_the_page_trains_and_plays(name: str, tmp_path: Path) -> None:
    assert FILES.keys() == POLICIES.keys()
    file = tmp_path / f"{name}.yaml"
    file.write_text(FILES[name])
    run = tmp_path / "run"
    sets = [*SHORT, f"run_dir={run}"]
    if name == "tag":
        sets.append("policies.hunters.algorithm.max_global_step=192")
    assert train(file, *sets) == 0
    results = evaluate_policies(load_experiment(run / "config.yaml", several=True), 2)
    assert list(results) == POLICIES[name]
    assert all((one.lengths > 0).all() for one in results.values())
