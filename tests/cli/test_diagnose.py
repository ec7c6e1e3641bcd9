"""`relaax diagnose` on the file of a run that has failed. covers P25"""

import dataclasses
import re

import numpy as np
import pytest
from support.cluster import ROOT
from support.here import refuse_here
from support.hierarchy import FOLDER
from support.rollouts import make_rollout
from support.uncompiled import copy_uncompiled

from relaax_like.cli.diagnose import compute_gradient_norms, find_causes, show_diagnosis
from relaax_like.config.loader import dump_experiment, load_experiment
from relaax_like.experience.collector import Collector
from relaax_like.experience.rollout import Rollout
from relaax_like.launch.learners import make_compiled_updates, make_updates_by_name
from relaax_like.learn.learning_policy import LearningPolicy
from relaax_like.learn.training_error import load_training_error, save_training_error
from relaax_like.learn.updates import NotFiniteError


def make_policy(folder, name, *sets):
    """Writes the run's configuration of an algorithm without XLA; returns what learns."""
    path = copy_uncompiled(name, folder)
    sets = [f"run_dir={folder}", "algorithm.name=null", f"algorithm.path={path}", *sets]
    experiment = load_experiment(ROOT / "algorithms" / name / f"{name}.yaml", sets)
    (folder / "config.yaml").write_text(dump_experiment(experiment))
    return LearningPolicy(
        make_compiled_updates(experiment)[0], experiment.algorithm.plan, 0, run_dir=folder
    )


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """The folder of a run of ppo whose environment has sent one reward that is far too large."""
    folder = tmp_path_factory.mktemp("run")
    policy = make_policy(
        folder, "ppo", "algorithm.kl=0.5", "algorithm.state_size=4", "algorithm.num_actions=2"
    )
    shape, random = (32, 8), np.random.default_rng(0)
    observations = random.standard_normal((33, 8, 4)).astype(np.float32)
    rewards = np.ones((*shape, 1), np.float32)
    rewards[3, 2] = 1e30
    rollout = Rollout(
        inputs={"observation": observations[:-1]},
        next_inputs={"observation": observations[1:]},
        next_alive=np.ones(shape, np.float32),
        rewards=rewards,
        actions={"action": random.integers(2, size=shape)},
        log_prob=np.full(shape, np.log(0.5), np.float32),
        states={},
        versions=np.zeros(32, np.int64),
    )
    collector = Collector(32, 8, capacity=8)
    collector.add(rollout)
    with pytest.raises(NotFiniteError):
        policy.forward(policy.data_preprocess(collector.get_training_data()))
    return folder


def test_it_shows_what_is_not_finite_and_why(run_dir, capsys):
    assert show_diagnosis(run_dir) == 0
    text = capsys.readouterr().out
    assert "after 0 updates and 0 steps" in text
    assert "critic: inf" in text
    assert "batch/rewards/reward reaches 1e+30: set normalize_rewards" in text
    assert re.search(r"value\.out\.W\s*│\s*[0-9.]+e\+2", text)  # gradients, computed again
    assert re.search(r"policy\.out\.b\s*│\s*[0-9]", text)
    assert re.search(r"batch/rewards/reward\s*│ 32 x 8 x 1\s*│\s*1 │", text)


@pytest.mark.parametrize("updates", [0, 3])
def test_a_cost_that_is_not_finite_with_finite_inputs_is_that_of_learn(run_dir, updates):
    arrays = load_training_error(run_dir)
    arrays["batch/rewards/reward"] = np.ones((32, 8, 1), np.float32)
    arrays["updates"] = np.array(updates)
    [line] = find_causes(arrays)
    assert line.startswith("The cost was already not finite (critic), with finite inputs and weig")
    assert "check the algorithm's `learn` for a division by zero, or a logarithm of 0" in line
    assert ("lower the learning rates" in line) == (updates > 0)


def test_with_finite_costs_the_update_itself_overflowed(run_dir):
    arrays = load_training_error(run_dir)
    arrays["batch/rewards/reward"] = np.ones((32, 8, 1), np.float32)
    arrays["cost/critic"] = np.array(1.5)
    arrays["cost/of nothing"] = np.array(np.nan)  # a metric
    [line] = find_causes(arrays)
    assert "the update itself overflowed" in line


def test_of_several_algorithms_it_shows_the_one_that_failed(tmp_path, capsys):
    sets = ("learner.placement=server", "algorithm.rollouts={goal: 4, control: 4}")
    file = tmp_path / "experiment.yaml"
    file.write_text(f"run_dir: {tmp_path}\nalgorithm: {{path: '{FOLDER}'}}\n")
    experiment = load_experiment(file, sets)
    (tmp_path / "config.yaml").write_text(dump_experiment(experiment))
    compiled, _ = make_updates_by_name(experiment)["goal"]
    policy = LearningPolicy(compiled, experiment.algorithm.plan["goal"], 0, run_dir=tmp_path)
    rollout = make_rollout(4, seed=0, steps=4)
    observations = np.ones((5, 4, 2), np.float32)
    rollout = dataclasses.replace(
        rollout,
        inputs={"observation": observations[:-1]},
        next_inputs={"observation": observations[1:]},
        actions={"goal": np.zeros((4, 4), np.int64)},
        rewards=np.full((4, 4, 1), 3e38, np.float32),
    )
    collector = Collector(4, 4, capacity=4)
    collector.add(rollout)
    with pytest.raises(NotFiniteError):
        policy.forward(policy.data_preprocess(collector.get_training_data()))
    assert show_diagnosis(tmp_path) == 0
    text = capsys.readouterr().out
    assert text.startswith("algorithm goal\n")
    assert re.search(r"logits\.W\s*│\s*(inf|nan|[0-9])", text)  # gradients, computed again


def test_gradients_of_all_phases_are_computed(tmp_path, capsys):
    sets = ["algorithm.state_size=4", "algorithm.action_size=1", "algorithm.updates_at_once=1"]
    sets += ["algorithm.action_low=-1", "algorithm.action_high=1", "algorithm.batch_size=32"]
    policy = make_policy(tmp_path, "td3", *sets)
    rows, random = 32, np.random.default_rng(0)
    rewards = np.ones((rows, 1), np.float32)
    rewards[3] = np.inf
    arguments = {
        "inputs": {"observation": random.standard_normal((rows, 4), np.float32)},
        "next_inputs": {"observation": random.standard_normal((rows, 4), np.float32)},
        "next_alive": {"alive": np.ones(rows, np.float32)},
        "rewards": {"reward": rewards},
        "actions": {
            "action": random.uniform(-1, 1, (rows, 1)).astype(np.float32),
            "log_prob": np.zeros(rows, np.float32),
        },
        "states": {},
        "extras": {
            "discount": np.full(rows, 0.98, np.float32),
            "weights": np.ones(rows, np.float32),
        },
    }
    with pytest.raises(NotFiniteError):
        policy.forward(arguments)
    assert show_diagnosis(tmp_path) == 0
    text = capsys.readouterr().out
    assert "gradients: not computed" not in text
    arrays = load_training_error(tmp_path)
    arrays["batch/rewards/reward"] = np.ones((rows, 1), np.float32)
    norms, costs = compute_gradient_norms(arrays)
    # The actor is updated with every second update of the critics.
    learning = {name.split(".")[0] for name, norm in norms.items() if norm > 0}
    assert learning >= {"policy", "critic1", "critic2"}
    assert costs.keys() >= {"actor", "critic"}


def test_gradients_are_those_of_the_weights_in_the_file(run_dir):
    arrays = load_training_error(run_dir)
    arrays["batch/rewards/reward"] = np.ones((32, 8, 1), np.float32)
    norms, costs = compute_gradient_norms(arrays)
    # d mean(c_v (V - G)^2) / db = 2 c_v mean(V - G), G - V being the advantages.
    assert costs["critic"] > 0
    assert norms["value.out.b"] > 0
    # With rewards of 0 and values of 0 there is nothing to learn.
    arrays["batch/rewards/reward"] = np.zeros((32, 8, 1), np.float32)
    arrays["value/value.out.W"] = np.zeros_like(arrays["value/value.out.W"])
    norms, costs = compute_gradient_norms(arrays)
    assert costs["critic"] == 0
    assert norms["value.out.b"] == 0


def test_the_command_names_a_folder_that_has_no_such_file(tmp_path):
    assert "training_error.npz: no such file" in refuse_here("diagnose", tmp_path)


@pytest.mark.parametrize(
    ("index", "place"),
    [((2, 1, 3), "step 2, column 1, component 3"), ((2, 1), "row 2, component 1")],
)
def test_places_have_the_axes_of_the_batch(tmp_path, capsys, index, place):
    shape = (5,) * (len(index) - 1)
    observations = np.zeros((*shape, 4), np.float32)
    observations[index] = np.nan
    arrays = {
        "batch/inputs/observation": observations,
        "batch/next_alive/alive": np.ones(shape, np.float32),
        "updates": np.array(3),
        "global_t": np.array(4096),
    }
    save_training_error(tmp_path, arrays)
    show_diagnosis(tmp_path)
    assert f"batch/inputs/observation at {place}:" in capsys.readouterr().out


def test_without_settings_all_but_the_gradients_is_shown(tmp_path, capsys):
    arrays = {
        "batch/inputs/observation": np.array([[[1.0, np.nan]]], np.float32),
        "updates": np.array(3),
        "global_t": np.array(4096),
    }
    save_training_error(tmp_path, arrays)
    assert show_diagnosis(tmp_path) == 0
    text = capsys.readouterr().out
    assert "after 3 updates and 4,096 steps" in text
    assert "batch/inputs/observation at step 0, column 0, component 1" in text
    assert "gradients: not computed" in text
    assert "The environment sent it" in text


GOOD = np.ones((2, 2), np.float32)
BAD = np.full((2, 2), np.nan, np.float32)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"batch/rewards/reward": BAD}, "division by zero"),
        ({"batch/actions/log_prob": BAD, "value/w": GOOD}, "acting policy had diverged"),
        ({"batch/inputs/x": GOOD, "value/w": BAD}, "earlier update made the weights non-finite"),
        ({"batch/inputs/x": GOOD, "slots/default": BAD}, "too large for the optimizer"),
        ({"batch/states/memory": BAD, "value/w": GOOD}, "from weights that had diverged"),
        ({"batch/inputs/x": GOOD * 1e4}, "reaches 10000: set update_norm"),
        ({"value/log_std": GOOD * -9}, "log_std is down to -9"),
        ({"value/policy.0.W": GOOD * 1e4}, "policy.0.W reaches 10000"),
        ({"value/observation.m2": GOOD * 1e9, "batch/inputs/x": GOOD}, "the update itself"),
    ],
)
def test_what_usually_causes_it(arrays, words):
    assert words in find_causes(arrays)[0]
