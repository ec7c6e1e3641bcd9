"""Environments with several rewards: the shipped algorithms learn from their weighted sum.

Of the two actions of `support.several_rewards`, action 0 gives more speed, and more of the sum of
all rewards; only speed minus costs is greater for action 1.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.batch import load
from support.cluster import ROOT
from support.several_rewards.slots import REWARDS
from support.uncompiled import copy_uncompiled

import relaax_like
from relaax_like.algorithm.acting import make_actor
from relaax_like.algorithm.batch import Batch
from relaax_like.config.loader import dump_experiment, load_experiment
from relaax_like.launch.evaluation import evaluate_policies
from relaax_like.launch.learners import make_model
from relaax_like.wire.errors import ConfigError

FOLDER = ROOT / "tests" / "support" / "several_rewards"
SETTINGS = {
    "a2c": "rollout_steps: 8, learning_rate: 1e-2, gamma: 0",
    "ppo": "num_steps: 128, rollout_steps: 32, batch_size: 32, learning_rate: 1e-2, gamma: 0",
}
COSTS = "{speed: 1, fuel: -1, wear: -1}"


def write_experiment(folder: Path, algorithm: str, rewards: str, path: Path | None = None) -> Path:
    file = folder / "experiment.yaml"
    which = f"name: {algorithm}" if path is None else f"path: '{path}'"
    file.write_text(
        f"run_dir: {folder / 'run'}\n"
        f"learner: {{placement: {'agent' if algorithm == 'a2c' else 'server'}}}\n"
        f"algorithm: {{{which}, state_size: 1, num_actions: 2, network: {{layers: []}}, "
        f"rewards: {rewards}, max_global_step: 3000, {SETTINGS[algorithm]}}}\n"
        f"environment: {{path: {FOLDER}, slots: 4}}\n"
    )
    return file


@pytest.mark.parametrize(
    ("algorithm", "rewards", "best"),
    [("a2c", COSTS, 1), ("a2c", "{a: 1, b: 1, c: 1}", 0), ("ppo", COSTS, 1)],
)
def test_the_weights_decide_which_action_is_learned(
    tmp_path: Path, algorithm: str, rewards: str, best: int
) -> None:
    path = copy_uncompiled(algorithm, tmp_path)
    file = write_experiment(tmp_path, algorithm, rewards, path)
    relaax_like.train(file)
    played = evaluate_policies(load_experiment(file), 4)[""]
    assert played.returns.mean() == pytest.approx(10 * REWARDS[best].sum())


@pytest.mark.parametrize("algorithm", ["a2c", "ppo"])
def test_the_sum_by_hand(algorithm: str) -> None:
    config = load("config", algorithm).Config(
        state_size=4, num_actions=2, rewards={"a": 2.0, "b": -0.5}
    )
    model = load("model", algorithm).make_model(config, 0)
    assert model.get_reward_specs() == [("a", {"shape": [1]}), ("b", {"shape": [1]})]
    ones = tf.ones((2, 1))
    batch: Any = Batch(
        inputs={},
        next_inputs={},
        actions={},
        rewards={"a": tf.constant([[[1.0]], [[3.0]]]), "b": tf.constant([[[4.0]], [[-2.0]]])},
        returns=None,
        discount=ones,
        continues=ones,
        valid=ones,
        weights=ones,
        log_prob=ones,
    )
    # 2 * 1 - 4 / 2 and 2 * 3 + 2 / 2
    np.testing.assert_allclose(model.compute_returns(batch), [[0], [7]])


def test_their_order_survives_dumping(tmp_path: Path) -> None:
    experiment = load_experiment(write_experiment(tmp_path, "a2c", "{z: 1, a: -1, m: 0.5}"))
    saved = tmp_path / "config.yaml"
    saved.write_text(dump_experiment(experiment))
    again = load_experiment(saved)
    assert make_model(again).get_reward_specs() == make_model(experiment).get_reward_specs()
    assert [name for name, _ in make_model(again).get_reward_specs()] == ["z", "a", "m"]
    make_actor(make_model(again), 0)


def test_another_number_of_rewards_is_refused(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, "a2c", "{speed: 1, fuel: -1}")
    with pytest.raises(
        Exception, match=r"rewards: 3 per slot, but the model has 2 \(speed \[1\], fuel"
    ):
        relaax_like.train(file)


def test_normalised_rewards_are_refused(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, "ppo", COSTS)
    with pytest.raises(ConfigError, match="normalize_rewards: true, but rewards is set"):
        load_experiment(file, ["algorithm.normalize_rewards=true"])
