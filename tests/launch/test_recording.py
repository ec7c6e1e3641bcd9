"""`relaax record`: what it writes with each policy, how much, and what it refuses."""

import errno
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cluster import ROOT, TRACE
from support.disks import mount
from support.here import run_relaax
from support.serial import make_uncompiled_ppo, train, write_experiment
from support.uncompiled import copy_uncompiled

from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.experience.rollout import Rollout
from relaax_like.experience.trajectory_files import find_trajectories, read_trajectories
from relaax_like.launch import recording
from relaax_like.launch.recording import record
from relaax_like.launch.recordings import find_recordings
from relaax_like.parameter_server.snapshots import read_latest
from relaax_like.wire.errors import ConfigError, SnapshotError
from relaax_like.wire.spaces import Box, Discrete, MultiBinary, MultiDiscrete

SAC = ROOT / "algorithms" / "sac" / "sac.yaml"


@pytest.fixture
def pendulum() -> Experiment:
    return load_experiment(SAC, ["environment.slots=3", "environment.max_episode_steps=50"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """A run of ppo on CartPole-v1 of 256 steps."""
    folder = tmp_path_factory.mktemp("trained")
    file = write_experiment(folder, **make_uncompiled_ppo(folder))
    assert train(file, "algorithm.max_global_step=256") == 0
    return load_experiment(folder / "run" / "config.yaml")


def read(folder: Path) -> list[Rollout]:
    return [read_trajectories(path) for path in find_trajectories(folder)]


def count(rollouts: list[Rollout]) -> int:
    return sum(rollout.env_steps for rollout in rollouts)


def test_random_actions_are_uniform_in_the_bounds(pendulum: Experiment, tmp_path: Path) -> None:
    recorded = record(pendulum, tmp_path, 3000, "random")
    [rollout] = read(tmp_path)
    actions = rollout.actions["action"][rollout.valid]
    assert np.abs(actions).max() <= 2
    # A sixth of them in each sixth of the bounds: within five standard deviations.
    counts, _ = np.histogram(actions, 6, (-2, 2))
    np.testing.assert_allclose(counts / 3000, 1 / 6, atol=5 * np.sqrt(5 / 36 / 3000))
    np.testing.assert_allclose(rollout.log_prob, -np.log(4), rtol=1e-6)
    # 1 000 steps of each slot: 20 episodes of 50 steps.
    assert (recorded.steps, len(recorded.returns)) == (3000, 60)
    assert (rollout.next_alive[rollout.valid] == -1).sum() == 60


def test_each_row_has_the_next_observation_of_its_own_episode(
    pendulum: Experiment, tmp_path: Path
) -> None:
    """By the equations of Pendulum-v1, from state and action alone."""
    record(pendulum, tmp_path, 900, "random")
    [rollout] = read(tmp_path)
    x, y, speed = np.moveaxis(rollout.inputs["observation"].astype(float), -1, 0)
    action = rollout.actions["action"][..., 0]
    angle = np.arctan2(y, x)
    faster = np.clip(speed + (15 * np.sin(angle) + 3 * action) * 0.05, -8, 8)
    after = angle + faster * 0.05
    expected = np.stack([np.cos(after), np.sin(after), faster], -1)
    np.testing.assert_allclose(rollout.next_inputs["observation"], expected, atol=1e-4)
    reward = -(angle**2 + 0.1 * speed**2 + 0.001 * action**2)
    np.testing.assert_allclose(rollout.rewards[..., 0], reward, atol=1e-4)


@pytest.mark.parametrize("steps", [1, 160, 384, 385, 1000])
def test_exactly_as_many_steps_are_written_as_were_requested(
    steps: int, pendulum: Experiment, tmp_path: Path
) -> None:
    recorded = record(pendulum, tmp_path, steps, "random")
    assert recorded.steps == steps
    assert len(recorded.returns) == 3 * (steps // 150)  # episodes of 50 steps, in three slots
    assert count(read(tmp_path)) == steps


def test_no_file_is_much_smaller_than_the_others(
    pendulum: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one would otherwise have less than a minibatch."""
    monkeypatch.setattr(recording, "_FILE_STEPS", 768)
    record(pendulum, tmp_path, 2200, "random")
    assert [rollout.env_steps for rollout in read(tmp_path)] == [768, 1432]


def test_a_trained_policy_is_sampled_or_plays_its_best_actions(
    trained: Experiment, tmp_path: Path
) -> None:
    state = read_latest(trained.parameter_server.checkpoint_dir)
    assert state is not None
    for policy in ("sampled", "greedy"):
        record(trained, tmp_path / policy, 600, policy)
        [rollout] = read(tmp_path / policy)
        assert set(rollout.versions) == {state.version}
        logits = find_logits(trained, state, rollout.inputs["observation"])
        best = rollout.actions["action"] == logits.argmax(-1)
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        taken = np.take_along_axis(log_probs, rollout.actions["action"][..., None], -1)[..., 0]
        np.testing.assert_allclose(rollout.log_prob, taken, atol=1e-5)
        assert best.all() == (policy == "greedy")


def find_logits(experiment: Experiment, state: Any, observations: np.ndarray) -> np.ndarray:
    """Returns the outputs of the snapshot's policy: a tanh layer, and a linear one."""
    names = [segment.name for segment in state.manifest.segments]
    values = dict(zip(names, state.manifest.unpack(state.values), strict=True))
    layers = [values[name] for name in names if name.startswith("policy.")]
    weights = {array.shape: array for array in layers}
    hidden = np.tanh(observations @ weights[4, 8] + weights[8,])
    return hidden @ weights[8, 2] + weights[2,]


def test_a_version_is_chosen_as_in_eval(trained: Experiment, tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="999"):
        record(trained, tmp_path, 10, version="999")
    with pytest.raises(ConfigError, match="version: 'newest'"):
        record(trained, tmp_path, 10, version="newest")
    assert not find_trajectories(tmp_path)


def test_a_folder_with_recordings_is_refused_or_added_to(
    pendulum: Experiment, tmp_path: Path
) -> None:
    record(pendulum, tmp_path, 300, "random")
    with pytest.raises(ConfigError, match=r"already contains 1 trajectory file.s.; .*--append"):
        record(pendulum, tmp_path, 300, "random")
    record(pendulum, tmp_path, 200, "random", append=True)
    first, second = read(tmp_path)
    assert (first.env_steps, second.env_steps) == (300, 200)
    # Other episodes, and other actions.
    assert (first.inputs["observation"][0] != second.inputs["observation"][0]).any()
    assert (first.actions["action"][0] != second.actions["action"][0]).any()


def test_the_seed_decides(tmp_path: Path) -> None:
    def play(seed: int, name: str) -> Rollout:
        record(load_experiment(SAC, [f"seed={seed}"]), tmp_path / name, 30, "random")
        [rollout] = read(tmp_path / name)
        return rollout

    one, same, other = play(3, "one"), play(3, "same"), play(4, "other")
    for field in ("inputs", "actions"):
        [(_, array)] = getattr(one, field).items()
        np.testing.assert_array_equal(array, next(iter(getattr(same, field).values())))
        assert (array != next(iter(getattr(other, field).values()))).any()


def test_what_was_played_is_kept_when_it_is_interrupted(
    pendulum: Experiment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    submit = recording._Recorder.submit

    def interrupt(self: Any, work: Any) -> None:
        submit(self, work)
        if self.recorded.steps >= 700:
            raise KeyboardInterrupt

    monkeypatch.setattr(recording._Recorder, "submit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        record(pendulum, tmp_path, 100_000, "random")
    assert count(read(tmp_path)) == 768
    [line] = [text for text in caplog.messages if "ended early" in text]
    assert line.startswith("ended early: recorded 768 steps, 15 episodes ended, mean return ")
    assert line.endswith(f" to {tmp_path}")


def test_a_folder_that_cannot_be_written_to_is_an_error(
    pendulum: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="0 of 300 steps were written"):
        record(pendulum, tmp_path / "file" / "folder", 300, "random")


def test_a_full_disk_is_reported_with_one_count(
    pendulum: Experiment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    folder = tmp_path / "disk"
    with mount(folder, "size=600k"):
        with pytest.raises(ConfigError, match=r"([\d,]+) of 30,000 steps were written") as raised:
            record(pendulum, folder, 30_000, "random")
        steps = count(read(folder))
        ended = sum(int((one.next_alive != 1).sum()) for one in read(folder))
    [line] = [text for text in caplog.messages if "ended early" in text]
    assert steps > 0
    assert str(raised.value).startswith(f"{steps:,} of ")
    assert line.startswith(f"ended early: recorded {steps:,} steps, {ended:,} episodes ended")


def test_a_file_is_refused_before_anything_is_played(pendulum: Experiment, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file: a file; name a folder"):
        record(pendulum, tmp_path / "file", 300, "random")


@pytest.mark.parametrize(
    ("name", "policy", "words"),
    [
        ("sac", "best", r"policy: 'best', expected one of sampled, greedy, random"),
        ("policy_gradient_tutorial", "random", "run their own code"),
    ],
)
def test_what_cannot_be_recorded_is_refused(
    name: str, policy: str, words: str, tmp_path: Path
) -> None:
    [file] = (ROOT / "algorithms" / name).glob(f"{name.removesuffix('_tutorial')}.yaml")
    with pytest.raises(ConfigError, match=words):
        record(load_experiment(file), tmp_path, 10, policy)
    assert not find_trajectories(tmp_path)


def test_a_folder_that_cannot_be_read_is_an_error(
    pendulum: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path) -> list[Path]:
        raise PermissionError(errno.EACCES, "Permission denied")

    (tmp_path / "iteration-00000001.npz").write_bytes(b"")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match=r": no such folder, or no access to it; expected"):
        find_recordings([str(tmp_path)])
    monkeypatch.setattr(recording, "find_trajectories", refuse)
    with pytest.raises(ConfigError, match=r": cannot be read: Permission denied; correct"):
        record(pendulum, tmp_path, 10)


def test_actions_without_bounds_are_not_uniform() -> None:
    space = Box(dtype="float32", shape=(2,), low=-1.0)
    with pytest.raises(ConfigError, match=r"policy: random, but .*'arm' has no finite bounds"):
        recording._find_log_size("arm", space)
    assert recording._find_log_size("arm", Discrete(n=3)) == pytest.approx(np.log(3))
    both = MultiDiscrete(shape=(2,), n=(3, 5))
    assert recording._find_log_size("arm", both) == pytest.approx(np.log(15))
    assert recording._find_log_size("arm", MultiBinary(shape=(4,))) == pytest.approx(np.log(16))


def test_bc_learns_from_a_recording_of_two_folders(trained: Experiment, tmp_path: Path) -> None:
    for name, policy in (("one", "greedy"), ("two", "random")):
        record(trained, tmp_path / name, 300, policy)
    bc = ROOT / "algorithms" / "bc" / "bc.yaml"
    sources = f"[{tmp_path / 'one'}, {tmp_path / 'two'}]"
    sets = (
        *("algorithm.name=null", f"algorithm.path={copy_uncompiled('bc', tmp_path)}"),
        *(f"run_dir={tmp_path / 'run'}", f"learner.offline={sources}", "learner.eval_freq=0"),
        *("algorithm.network={layers: [8]}", "algorithm.max_global_step=600"),
    )
    assert train(bc, *sets) == 0
    state = read_latest(tmp_path / "run" / "checkpoints")
    assert state is not None
    assert (state.global_t, state.version) == (600, 2)
    missing = r"none: no such folder, or no access to it; expected .* `relaax record`"
    with pytest.raises(ConfigError, match=missing):
        train(bc, *sets[:2], f"learner.offline=[{tmp_path / 'one'}, {tmp_path / 'none'}]")


def test_the_command_says_what_it_wrote_and_refuses_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("record", "sac", "--steps", 500, "--output", "out")
    done = run_relaax(*command, "--policy", "random", "--seed", 5)
    assert done.status == 0, done
    again = run_relaax(*command, "--policy", "random")
    assert again.status == 2, again
    untrained = run_relaax(*command, "--append")
    assert untrained.status != 0, untrained
    assert re.search(
        r"^recorded 500 steps, 2 episodes ended, mean return -\d+\.\d+ to out$",
        done.lines[-1],
    )
    assert again.lines[-1].startswith("error: out: already contains 1 trajectory file(s)")
    assert "train the run first" in untrained.lines[-1]
    assert TRACE not in done.output + again.output + untrained.output
    [rollout] = read(tmp_path / "out")
    assert rollout.env_steps == 500
    record(load_experiment("sac", ["seed=5"]), tmp_path / "own", 500, "random")
    [own] = read(tmp_path / "own")
    np.testing.assert_array_equal(rollout.actions["action"], own.actions["action"])
    np.testing.assert_array_equal(rollout.inputs["observation"], own.inputs["observation"])
