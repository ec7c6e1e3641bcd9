"""Masks of legal actions through a run: training, loading, recording, exporting. covers PE20"""

from pathlib import Path

import gymnasium as gym
import numpy as np
import onnxruntime
import pytest
from support.compare import compare
from support.serial import STOPPED, make_uncompiled_ppo, read_run, train, write_experiment
from support.uncompiled import copy_uncompiled

import relaax_like
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.experience.trajectory_files import find_trajectories, read_trajectories
from relaax_like.launch.export import export_policy
from relaax_like.launch.recording import record
from relaax_like.wire.errors import ConfigError, InvalidInputError

MASK = "mask:action"


def write(folder: Path, **environment: object) -> Path:
    """Writes an experiment of ppo on Taxi-v4, whose spaces come from there."""
    algorithm = make_uncompiled_ppo(folder)["algorithm"]
    algorithm = algorithm.replace("state_size: 4, num_actions: 2, ", "")
    keys = {"program": "OpenAI_Gym", "env": "Taxi-v4", "slots": 4, **environment}
    file = folder / "experiment.yaml"
    file.write_text(
        f"run_dir: {folder / 'run'}\n"
        "relaax-parameter-server: {progress_interval_sec: 1000}\n"
        "learner: {placement: server}\n"
        f"algorithm: {algorithm}\n"
        f"environment: {{{', '.join(f'{key}: {value}' for key, value in keys.items())}}}\n"
    )
    return file


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    folder = tmp_path_factory.mktemp("masks")
    assert train(write(folder), "algorithm.max_global_step=512") == 0
    return load_experiment(folder / "run" / "config.yaml")


def test_a_run_keeps_its_masks(trained: Experiment) -> None:
    assert trained.algorithm.masks == {"action": (6,)}
    assert list(trained.algorithm.observation_spaces) == ["observation"]
    assert train(trained.file, "algorithm.max_global_step=640") == 0  # resumed


@pytest.mark.parametrize("policy", ["sampled", "greedy", "random"])
def test_only_legal_actions_are_played(trained: Experiment, policy: str, tmp_path: Path) -> None:
    record(trained, tmp_path, 2_000, policy)
    for rollout in map(read_trajectories, find_trajectories(tmp_path)):
        masks = rollout.inputs[MASK][rollout.valid]
        actions = rollout.actions["action"][rollout.valid]
        assert masks.dtype == np.bool_
        assert masks[np.arange(len(actions)), actions].all()
        if policy == "random":
            wanted = -np.log(masks.sum(-1))
            np.testing.assert_allclose(rollout.log_prob[rollout.valid], wanted, rtol=1e-5)


def test_masks_are_not_joined_to_a_history(tmp_path: Path) -> None:
    sets = ["algorithm.observation_history=3", "algorithm.max_global_step=256"]
    assert train(write(tmp_path), *sets) == 0
    policy = relaax_like.load(tmp_path / "run")
    for choice in (4, 1, 2):
        mask = np.arange(6) == choice
        assert policy.act(np.int64(7), mask=mask) == choice


def test_a_loaded_policy_takes_a_mask(trained: Experiment) -> None:
    policy = relaax_like.load(trained.run_dir)
    masks = np.eye(6, dtype=np.bool_)
    np.testing.assert_array_equal(policy.act(np.zeros(6, np.int64), mask=masks), np.arange(6))
    for observation, mask in ((0, np.ones(5)), (0, np.zeros(6)), (0, {"other": np.ones(6)})):
        with pytest.raises(InvalidInputError) as caught:
            relaax_like.load(trained.run_dir).act(observation, mask=mask)
        assert caught.value.field == "mask"


def test_a_run_without_masks_refuses_an_environment_that_has_some(tmp_path: Path) -> None:
    assert train(write(tmp_path, masks="'off'"), "algorithm.max_global_step=128") == 0
    again = load_experiment(tmp_path / "run" / "config.yaml", ["environment.masks=auto"])
    assert again.algorithm.masks == {}
    with pytest.raises(ConfigError, match=r"environment.masks: off"):
        record(again, tmp_path / "recorded", 100, "sampled")


@pytest.mark.slow
def test_an_exported_policy_has_the_mask_as_an_input(trained: Experiment, tmp_path: Path) -> None:
    export_policy(trained, "latest", tmp_path / "out")
    session = onnxruntime.InferenceSession(tmp_path / "out" / "policy.onnx")
    policy = relaax_like.load(trained.run_dir)
    env = gym.make("Taxi-v4")
    state, info = env.reset(seed=0)
    for _ in range(100):
        mask = info["action_mask"]
        feeds = {"observation": np.array([state]), "mask_action": mask[None].astype(np.bool_)}
        [action] = session.run(["action"], feeds)[0]
        assert mask[action]
        assert action == policy.act(state, mask=mask)
        state, _, terminated, _, info = env.step(action)
        if terminated:
            state, info = env.reset()
    env.close()


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_a_resumed_run_is_bit_identical_to_one_without_an_interruption(
    name: str, tmp_path: Path
) -> None:
    """Stopped in a rollout, and in a table's warm-up; masks wait with the observations."""
    settings = {
        "ppo": make_uncompiled_ppo(tmp_path)["algorithm"],
        "dqn": f"{{path: '{copy_uncompiled('dqn', tmp_path)}', state_size: 4, num_actions: 2, "
        "network: {layers: [8]}, batch_size: 8, capacity: 300, warm_up_steps: 32, n_step: 3, "
        "updates_per_step: 0.25, updates_at_once: 4, target_every: 10}",
    }
    algorithm = settings[name].replace("state_size: 4, num_actions: 2, ", "")
    straight, stopped = (
        write_experiment(tmp_path / one, placement="server", algorithm=algorithm) for one in "ab"
    )
    sets = ("environment.env=Taxi-v4", "algorithm.max_global_step=512")
    assert train(straight, *sets) == 0
    assert train(stopped, *sets, stop_at=9) == STOPPED
    assert train(stopped, *sets, stop_at=111) == STOPPED
    assert train(stopped, *sets) == 0
    one, other = (read_run(tmp_path / one / "run") for one in "ab")
    assert compare(one, other, "run") == ""
    agent = one["serial"]["state"]["agents"]
    assert "mask:action" in str(agent)
