"""Actions of four leaves, Dict and Tuple: learned, cloned, played, sampled; see action_envs.py."""

# covers J17

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.action_envs import ACTIONS, Levers
from support.cluster import ROOT
from support.compare import compare
from support.serial import STOPPED, read_run, train
from support.uncompiled import copy_uncompiled

from relaax_like.addons.sampling.algo_sampler import AlgoSampler
from relaax_like.algorithm.acting import NumpyActor, make_actor
from relaax_like.config.loader import load_experiment
from relaax_like.experience.trajectory_files import find_trajectories, read_trajectories
from relaax_like.launch.evaluation import evaluate_policies
from relaax_like.launch.learners import load_model_module, make_model
from relaax_like.launch.local import open_slots
from relaax_like.parameter_server.snapshots import read_latest
from relaax_like.wire.errors import ConfigError

_NETWORK = f"state_size: 5, actions: {ACTIONS}, network: {{layers: [32]}}"
_PPO = (
    "num_steps: 512, rollout_steps: 64, batch_size: 128, epochs: 6, learning_rate: 3e-3, "
    "critic_learning_rate: 3e-3, gamma: 0, gae_lambda: 0, max_global_step: 15000"
)
STOPPING = ROOT / "tests" / "support" / "stopping"
_LEAVES = ["arm/aim", "arm/grip/0", "arm/grip/1", "move"]


def write(folder: Path, algorithm: str, learner: str, env: str = "Levers-v0") -> Path:
    """Writes an experiment in one process, of eight slots."""
    folder.mkdir(exist_ok=True)
    file = folder / "experiment.yaml"
    file.write_text(
        f"run_dir: {folder / 'run'}\n"
        "relaax-parameter-server: {progress_interval_sec: 1000}\n"
        f"learner: {{{learner}}}\n"
        f"algorithm: {{{algorithm}}}\n"
        f"environment: {{program: OpenAI_Gym, env: 'support.action_envs:{env}', slots: 8}}\n"
    )
    return file


@pytest.fixture(scope="module")
def levers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ppo that has learned Levers-v0, and has kept what it learned from."""
    folder = tmp_path_factory.mktemp("levers")
    ppo = copy_uncompiled("ppo", folder)
    file = write(folder, f"path: '{ppo}', {_PPO}, {_NETWORK}", "collect_traj: true")
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


def rate(actor: Any) -> dict[str, float]:
    """Returns how well the greedy action of each leaf fits, 0 to 1."""
    seen = np.random.default_rng(0).uniform(-1, 1, (1000, 5)).astype(np.float32)
    chosen = actor.act({"observation": seen}, {}, exploit=True).actions
    assert list(chosen) == _LEAVES
    rates = [
        Levers.rate(
            seen[row],
            {
                "move": 3 + chosen["move"][row],
                "arm": {
                    "aim": chosen["arm/aim"][row].clip(-1, 1),
                    "grip": (chosen["arm/grip/0"][row], chosen["arm/grip/1"][row]),
                },
            },
        )
        for row in range(len(seen))
    ]
    return {name: float(np.mean([one[name] for one in rates])) for name in rates[0]}


def test_ppo_learns_all_leaves(levers: Path) -> None:
    """By chance, three of them fit half of the time or less."""
    assert evaluate_policies(load_experiment(levers), 40)[""].returns.mean() > 9
    actor = load_actor(levers)
    assert isinstance(actor, NumpyActor)
    rates = rate(actor)
    assert min(rates.values()) > 0.85, rates


def test_recordings_have_all_leaves_and_one_probability(levers: Path) -> None:
    files = find_trajectories(levers.parent / "run" / "trajectories")
    rollout = read_trajectories(files[0])
    assert {name: (a.shape[2:], a.dtype.name) for name, a in sorted(rollout.actions.items())} == {
        "arm/aim": ((1,), "float32"),
        "arm/grip/0": ((2,), "int64"),
        "arm/grip/1": ((2,), "int64"),
        "move": ((), "int64"),
    }
    assert rollout.log_prob.shape == rollout.next_alive.shape


def test_bc_clones_all_leaves(levers: Path, tmp_path: Path) -> None:
    trajectories = levers.parent / "run" / "trajectories"
    bc = copy_uncompiled("bc", tmp_path)
    file = write(
        tmp_path,
        f"path: '{bc}', {_NETWORK}, learning_rate: 3e-3, max_global_step: 60000",
        f"offline: '{trajectories}', eval_freq: 0",
    )
    assert train(file) == 0
    # What was recorded fitted less often: it was explored, and at first it was chance.
    rates = rate(load_actor(file))
    assert min(rates.values()) > 0.75, rates


def test_evaluation_needs_no_tensorflow(levers: Path) -> None:
    code = (
        "import sys\n"
        "from relaax_like.config.loader import load_experiment\n"
        "from relaax_like.launch.evaluation import evaluate_policies\n"
        f"played = evaluate_policies(load_experiment({str(levers)!r}), 16)['']\n"
        "print(played.returns.mean() > 8.5, 'tensorflow' in sys.modules)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60
    )
    assert done.stdout == "True False\n", done.stderr


def test_a2c_trains_with_a_stacked_memory(tmp_path: Path) -> None:
    a2c = copy_uncompiled("a2c", tmp_path)
    network = f"state_size: 5, actions: {ACTIONS}, network: {{layers: [{{lstm: 4}}, {{gru: 3}}]}}"
    file = write(tmp_path, f"path: '{a2c}', {network}, max_global_step: 1000", "placement: agent")
    assert train(file) == 0
    state = read_latest(tmp_path / "run" / "checkpoints")
    assert state is not None
    assert state.global_t >= 1000
    assert state.version >= 1000 // 128
    names = [segment.name for segment in state.manifest.segments]
    assert {"log_std.arm/aim", "policy.gru.1.W"} < set(names)


def test_a_run_is_resumed_in_the_middle_of_episodes(tmp_path: Path) -> None:
    """Bit for bit; the environments are brought to where they were by their actions."""
    ppo = copy_uncompiled("ppo", tmp_path)
    algorithm = (
        f"path: '{ppo}', {_NETWORK}, num_steps: 96, rollout_steps: 16, batch_size: 32, epochs: 2, "
        "max_global_step: 384"
    )
    straight, stopped = (write(tmp_path / name, algorithm, "placement: server") for name in "ab")
    for file in (straight, stopped):
        text = file.read_text().replace("program: OpenAI_Gym", f"path: '{STOPPING}'")
        file.write_text(text.replace("slots: 8", "slots: 3"))
    assert train(straight) == 0
    assert train(stopped, stop_at=40) == STOPPED
    assert train(stopped) == 0
    one, other = read_run(tmp_path / "a" / "run"), read_run(tmp_path / "b" / "run")
    assert compare(one, other, "run") == ""
    assert one["global_t"] >= 384


def test_a_sampler_records_all_leaves(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path, f"name: ppo, {_PPO}, {_NETWORK}", ""))
    with open_slots(experiment, "sample") as slots:
        sampler = AlgoSampler(make_model(experiment), slots, discount=0.5, gae_lambda=1.0, seed=1)
        buffer, _ = sampler.sample_traj(10)
    actions = buffer.rows().actions
    assert isinstance(actions, dict)
    assert sorted(actions) == _LEAVES
    assert actions["arm/grip/1"].shape == (80, 2)


def test_an_environment_with_other_leaves_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, f"name: a2c, {_NETWORK}", "", "OneLever-v0")
    with pytest.raises(ConfigError, match=r"algorithm\.actions names 'arm/aim', 'arm/grip/0"):
        train(file)
