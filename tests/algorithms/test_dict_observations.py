"""Observations of two leaves that are both needed: learned, cloned, played, sampled.

An action is right by chance half of the time, and so it is for any network that sees one leaf only:
see support/dict_envs.py. An episode has ten actions.
"""

# covers J17, R18

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cluster import ROOT
from support.serial import train
from support.uncompiled import copy_uncompiled

from relaax_like.addons.sampling.algo_sampler import AlgoSampler
from relaax_like.algorithm.acting import make_actor
from relaax_like.config.loader import load_experiment
from relaax_like.core.moments import Moments
from relaax_like.launch.evaluation import evaluate_policies
from relaax_like.launch.learners import load_model_module, make_model
from relaax_like.launch.local import open_slots
from relaax_like.parameter_server.snapshots import read_latest

_SIGNS = "observations: {left: {size: 2, layers: [16]}, arm/right: {size: 2}}"
_BRIGHT = (
    "observations: {camera: {image: [8, 8, 1], layers: [{conv: {filters: 4, kernel: 3, "
    "stride: 2}}, 16]}, sign: {size: 1}}"
)
_PPO = (
    "name: ppo, num_actions: 2, num_steps: 512, rollout_steps: 64, batch_size: 128, epochs: 6, "
    "learning_rate: 3e-3, critic_learning_rate: 3e-3, gamma: 0.5, max_global_step: 200000"
)
_LEARN = "placement: server, target_return: 9.5, target_episodes: 50"


def write(folder: Path, env: str, algorithm: str, learner: str = _LEARN) -> Path:
    """Writes an experiment in one process, of eight slots; XLA is not its subject."""
    folder.mkdir(exist_ok=True)
    name = algorithm.removeprefix("name: ").partition(",")[0]
    path = copy_uncompiled(name, folder)
    algorithm = algorithm.replace(f"name: {name}", f"path: '{path}'", 1)
    file = folder / "experiment.yaml"
    file.write_text(
        f"run_dir: {folder / 'run'}\n"
        "relaax-parameter-server: {progress_interval_sec: 1000}\n"
        f"learner: {{{learner}}}\n"
        f"algorithm: {{{algorithm}}}\n"
        f"environment: {{program: OpenAI_Gym, env: 'support.dict_envs:{env}', slots: 8}}\n"
    )
    return file


@pytest.fixture(scope="module")
def signs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ppo that has learned Signs-v0, and has kept what it learned from."""
    folder = tmp_path_factory.mktemp("signs")
    algorithm = f"{_PPO}, {_SIGNS}, network: {{layers: [32]}}, update_norm: true"
    file = write(folder, "Signs-v0", algorithm, f"{_LEARN}, collect_traj: true")
    assert train(file) == 0
    return file


def load_actor(file: Path) -> Any:
    """Returns the newest policy of a run."""
    experiment = load_experiment(file)
    state = read_latest(experiment.run_dir / "checkpoints")
    module = load_model_module(experiment)
    assert state is not None
    assert module is not None
    actor = make_actor(module.make_model(experiment.algorithm, 0), 0)
    actor.set_values(state.manifest.unpack(state.values), 1)
    return actor


def test_ppo_learns_an_action_that_depends_on_both_vectors(signs: Path) -> None:
    assert evaluate_policies(load_experiment(signs), 80)[""].returns.mean() > 9.2
    left, right = np.random.default_rng(0).uniform(-1, 1, (2, 4000, 2)).astype(np.float32)
    wanted = (left[:, 0] > 0) != (right[:, 0] > 0)
    actor = load_actor(signs)
    inputs = {"left": left, "arm/right": right}
    assert (actor.act(inputs, {}, exploit=True).actions["action"] == wanted).mean() > 0.92
    # Whichever of the two is another's, the rest is chance.
    for leaf, array in inputs.items():
        blind = actor.act({**inputs, leaf: array[::-1]}, {}, exploit=True).actions["action"]
        assert 0.45 < (blind == wanted).mean() < 0.55, leaf


def test_the_statistics_of_both_vectors_are_those_of_what_was_seen(signs: Path) -> None:
    """Uniform in -1 .. 1: mean 0, variance 1/3. The last iteration is seen at its end."""
    state = read_latest(signs.parent / "run" / "checkpoints")
    assert state is not None
    values = dict(
        zip(
            (segment.name for segment in state.manifest.segments),
            state.manifest.unpack(state.values),
            strict=True,
        )
    )
    for leaf in ("left", "arm/right"):
        assert values[f"{leaf}.count"] == state.global_t
        np.testing.assert_allclose(values[f"{leaf}.mean"], [0, 0], atol=0.05)
        variance = values[f"{leaf}.m2"] / values[f"{leaf}.count"]
        np.testing.assert_allclose(variance, [1 / 3, 1 / 3], atol=0.03)


def test_bc_clones_what_both_vectors_led_to(signs: Path, tmp_path: Path) -> None:
    trajectories = signs.parent / "run" / "trajectories"
    algorithm = (
        f"name: bc, num_actions: 2, {_SIGNS}, network: {{layers: [32]}}, learning_rate: 3e-3, "
        "normalize_observations: true, max_global_step: 60000"
    )
    file = write(tmp_path, "Signs-v0", algorithm, f"offline: '{trajectories}', eval_freq: 0")
    assert train(file) == 0
    # What was recorded was right less often: it was explored, and at first it was chance.
    assert evaluate_policies(load_experiment(file), 80)[""].returns.mean() > 8.5


def test_evaluation_needs_no_tensorflow(signs: Path) -> None:
    code = (
        "import sys\n"
        "from relaax_like.config.loader import load_experiment\n"
        "from relaax_like.launch.evaluation import evaluate_policies\n"
        f"played = evaluate_policies(load_experiment({str(signs)!r}), 16)['']\n"
        "print(played.returns.mean() > 9, 'tensorflow' in sys.modules)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60
    )
    assert done.stdout == "True False\n", done.stderr


def test_ppo_learns_an_action_that_depends_on_an_image_and_a_vector(tmp_path: Path) -> None:
    algorithm = f"{_PPO}, {_BRIGHT}, shared_network: true, network: {{layers: [32]}}"
    file = write(tmp_path, "Bright-v0", algorithm)
    assert train(file) == 0
    assert evaluate_policies(load_experiment(file), 80)[""].returns.mean() > 9.2


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("Signs-v0", f"{_SIGNS}, normalize_observations: true"),
        # ppo learns from an image above.
        pytest.param("Bright-v0", f"{_BRIGHT}, shared_network: true", marks=pytest.mark.slow),
    ],
    ids=["vectors", "an image"],
)
def test_a2c_trains_with_a_memory_and_a_history_behind_the_join(
    tmp_path: Path, env: str, settings: str
) -> None:
    algorithm = (
        f"name: a2c, num_actions: 2, {settings}, observation_history: 2, "
        "network: {layers: [8, {gru: 4}]}, max_global_step: 1500"
    )
    file = write(tmp_path, env, algorithm, "placement: agent")
    assert train(file) == 0
    state = read_latest(tmp_path / "run" / "checkpoints")
    assert state is not None
    # One gradient of 16 steps of 8 slots each.
    assert state.global_t >= 1500
    assert state.version >= 1500 // 128
    names = [segment.name for segment in state.manifest.segments]
    if env == "Signs-v0":
        counts = [
            value
            for name, value in zip(names, state.manifest.unpack(state.values), strict=True)
            if name.endswith(".count")
        ]
        assert len(counts) == 2
        assert counts[0] == counts[1] >= 1500 - 128


def test_a_sampler_reads_both_leaves(tmp_path: Path) -> None:
    algorithm = f"{_PPO}, {_SIGNS}, observation_history: 2, update_norm: true"
    experiment = load_experiment(write(tmp_path, "Signs-v0", algorithm))
    with open_slots(experiment, "sample") as slots:
        sampler = AlgoSampler(
            make_model(experiment),
            slots,
            discount=0.5,
            gae_lambda=1.0,
            seed=1,
            observation_history=2,
        )
        buffer, _ = sampler.sample_traj(10, update_normalization_param=True)
    states = buffer.rows().states
    assert isinstance(states, dict)
    assert {name: array.shape for name, array in states.items()} == {
        "left": (80, 4),
        "arm/right": (80, 4),
    }
    for leaf, rows in states.items():
        want = Moments.of(rows)
        np.testing.assert_allclose(sampler.get_statistic(leaf).mean, want.mean, atol=1e-6)
