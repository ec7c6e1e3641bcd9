"""Runs of several policies: in one process, over the network, resumed, evaluated. covers PE20"""

import inspect
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.cluster import ROOT, find_command
from support.serial import train
from support.uncompiled import copy_uncompiled

from relaax_like.config.loader import load_experiment
from relaax_like.core.prediction import ONLY_NAME
from relaax_like.launch.evaluation import evaluate_policies
from relaax_like.launch.learners import require_plans
from relaax_like.launch.rlx_server import run_rlx_server
from relaax_like.parameter_server.snapshots import read_latest
from relaax_like.wire.errors import ConfigError

DUEL = ROOT / "tests" / "support" / "duel"


def write(folder: Path, **more: str) -> Path:
    """Writes an experiment of ppo on duels, whose spaces come from there."""
    path = copy_uncompiled("ppo", folder)
    keys = {
        "algorithm": f"{{path: '{path}', network: {{layers: [8]}}, num_steps: 64, "
        "rollout_steps: 8, batch_size: 32, epochs: 2, max_global_step: 640}",
        "policies": "{cats: {agents: ['cat_*']}, mice: {agents: [mouse]}}",
        "environment": f"{{path: '{DUEL / 'main'}', slots: 2}}",
        "relaax-parameter-server": "{progress_interval_sec: 1000}",
        "relaax-rlx-server": "{bind: 'localhost:0'}",
        **more,
    }
    text = "".join(f"{key}: {value}\n" for key, value in keys.items())
    file = folder / "experiment.yaml"
    file.write_text(f"run_dir: {folder / 'run'}\n{text}")
    return file


def read(run: Path, policy: str):
    state = read_latest(run / "policies" / policy / "checkpoints")
    assert state is not None
    return state


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policies")
    assert train(write(folder), "policies.mice.algorithm.max_global_step=320") == 0
    return folder / "run"


def test_policies_learn_and_end_by_themselves(trained: Path) -> None:
    cats, mice = read(trained, "cats"), read(trained, "mice")
    # A game has two cats; the mice finish in half as many steps, that is together with them.
    assert (cats.global_t, mice.global_t) == (640, 320)
    assert (cats.version, mice.version) == (10, 5)
    spaces = json.loads((trained / "policies" / "mice" / "spaces.json").read_text())
    assert "cat" not in json.dumps(spaces)
    results = json.loads((trained / "policies" / "cats" / "results.json").read_text())
    assert (results["global_t"], results["episodes"]) == (640, 160)


def test_no_line_of_a_file_is_looked_for_while_policies_start(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # They start in several threads, and Python 3.11's parser fails at times if two of them use it.
    experiment = load_experiment(trained / "policies" / "cats" / "config.yaml")
    monkeypatch.setattr(inspect, "getsourcelines", lambda owner: pytest.fail(f"looks at {owner}"))
    assert list(require_plans(experiment)) == [ONLY_NAME]


def test_a_run_is_resumed_and_only_some_policies_learn(trained: Path) -> None:
    before = read(trained, "mice")
    sets = ["algorithm.max_global_step=1280", "policies_to_train=[cats]"]
    assert train(trained / "config.yaml", *sets) == 0
    after = read(trained, "mice")
    assert read(trained, "cats").global_t == 1280
    assert (after.global_t, after.version) == (before.global_t, before.version)
    assert after.values.tobytes() == before.values.tobytes()


def test_an_evaluation_names_the_policies(trained: Path) -> None:
    results = evaluate_policies(load_experiment(trained / "config.yaml", several=True), 5)
    assert list(results) == ["cats", "mice"]
    assert [len(one.returns) for one in results.values()] == [10, 5]  # of five games
    assert all((one.lengths == 4).all() for one in results.values())


@pytest.mark.parametrize(
    ("policies", "key"),
    [
        ("{cats: {agents: ['cat_*']}}", "agents[2]"),
        ("{cats: {agents: ['*']}}", "kinds"),
        ("{cats: {agents: ['cat_*']}, mice: {agents: [mouse]}, dogs: {agents: [d]}}", "dogs"),
    ],
    ids=["an agent has no policy", "two kinds for one policy", "a policy has no agent"],
)
def test_policies_that_do_not_fit_the_agents_are_refused(tmp_path, policies, key) -> None:
    with pytest.raises(ConfigError) as error:
        train(write(tmp_path, policies=policies))
    assert key in str(error.value)


def test_plain_agents_have_no_policies(tmp_path: Path) -> None:
    file = write(tmp_path, algorithm="{name: policy_gradient, state_size: 2, num_actions: 2}")
    with pytest.raises(ConfigError) as error:
        run_rlx_server(load_experiment(file, several=True))
    assert "policies.cats.algorithm" in str(error.value)


@pytest.mark.parametrize("placement", ["server", pytest.param("agent", marks=pytest.mark.slow)])
def test_policies_learn_over_the_network(tmp_path: Path, placement: str) -> None:
    file = write(tmp_path, learner=f"{{placement: {placement}}}")
    sets = ["--set", "policies.mice.algorithm.max_global_step=960"]  # later than the cats
    done = subprocess.run(
        [find_command("relaax"), "run", str(file), *sets],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for policy, budget in (("cats", 640), ("mice", 960)):
        state = read(tmp_path / "run", policy)
        assert budget <= state.global_t <= budget + 128
        assert state.version > 0
        assert np.isfinite(state.manifest.unpack(state.values)[0]).all()
    assert load_experiment(tmp_path / "run" / "config.yaml", several=True).policies.keys() == {
        "cats",
        "mice",
    }
