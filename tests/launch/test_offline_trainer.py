"""`relaax train` with `learner.offline`: it learns, is tested, stops and resumes, and refuses."""

# covers J11

import dataclasses
import json
import logging
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from support.cluster import ROOT, TRACE, Cluster, Program, find_command
from support.here import run_relaax
from support.recordings import record
from support.serial import make_uncompiled_ppo, train, write_experiment
from support.uncompiled import copy_uncompiled

from relaax_like.config.loader import load_experiment
from relaax_like.launch.parameter_server import run_parameter_server
from relaax_like.launch.run import validate_served
from relaax_like.launch.training import make_trainer
from relaax_like.metrics.curves import read_curves
from relaax_like.parameter_server.snapshot_format import State
from relaax_like.parameter_server.snapshots import read_best, read_latest
from relaax_like.wire.errors import ConfigError

BC = ROOT / "algorithms" / "bc" / "bc.yaml"
# Of a file: 64 steps of 8 slots.
STEPS = 512


@pytest.fixture(scope="module")
def trajectories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    record(load_experiment(BC), folder, files=6)
    return folder


@pytest.fixture(scope="module")
def uncompiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Overrides with which BC runs without XLA."""
    folder = copy_uncompiled("bc", tmp_path_factory.mktemp("uncompiled"))
    return "algorithm.name=null", f"algorithm.path={folder}"


def start(cluster: Cluster, command: str, *arguments: object) -> Program:
    return cluster.start(command, [find_command("relaax"), command, *arguments])


def read_state(folder: Path) -> State:
    state = read_latest(folder / "checkpoints")
    assert state is not None
    return state


def assert_same(one: Path, other: Path) -> None:
    first, second = read_state(one), read_state(other)
    assert (first.global_t, first.version) == (second.global_t, second.version)
    np.testing.assert_array_equal(first.values, second.values)
    for group, slots in first.slots.items():
        np.testing.assert_array_equal(slots, second.slots[group])


@pytest.mark.slow
def test_a_run_is_tested_stopped_resumed_and_evaluated(
    tmp_path: Path, trajectories: Path, uncompiled: tuple[str, str]
) -> None:
    (tmp_path / "recorded").symlink_to(trajectories)
    budget = 100 * STEPS
    flags = ("--eval-freq", 20, "--num-eval-eps", 4, "--save-freq", 30)
    flags += tuple(part for text in uncompiled for part in ("--set", text))
    with Cluster(tmp_path) as cluster:
        # Relative to where the command is started, and then absolute.
        first = start(
            cluster, "train", BC, "--offline", "recorded", "--run-dir", "run", *flags, "--force",
            *("--max-global-step", 10**9),
        )  # fmt: skip
        first.wait_for(r"evaluation at step 20,480")
        assert first.stop(signal.SIGINT) == 128 + signal.SIGINT
        stopped = read_state(tmp_path / "run")
        assert stopped.global_t >= 40 * STEPS
        assert stopped.global_t % STEPS == 0
        end = stopped.global_t + budget
        second = start(cluster, "resume", "run", "--max-global-step", end)
        assert second.wait() == 0, second
        second.wait_for(rf"global_t is {stopped.global_t}$")
        player = start(cluster, "eval", "run", "--episodes", 8, "--json")
        assert player.wait() == 0, player
    assert TRACE not in first.output + second.output + player.output
    found = json.loads(player.output)
    assert (found["step"], found["episodes"]) == (end, 8)
    # Untrained, it is below 100 for sure.
    assert found["mean"] > 100
    curves = read_curves(tmp_path / "run" / "metrics")
    assert {"Optimizer/cloning", "Optimizer/entropy", "Test/Return"} <= set(curves)
    assert curves["Optimizer/cloning"].values[-1] < curves["Optimizer/cloning"].values[0]
    # There are no training episodes: the best policy is that of the best test.
    assert "Train/Return" not in curves
    best = read_best(tmp_path / "run" / "checkpoints")
    assert best is not None
    assert best.score == pytest.approx(max(curves["Test/Return"].values), rel=1e-6)
    assert (tmp_path / "run" / "ckpt" / "iteration_30.npz").is_file()


@pytest.mark.parametrize("layers", [pytest.param("[8]", marks=pytest.mark.slow), "[{lstm: 4}]"])
def test_a_stopped_run_goes_on_as_if_it_never_had(
    layers: str, tmp_path: Path, trajectories: Path, uncompiled: tuple[str, str]
) -> None:
    sets = (
        *(uncompiled if "lstm" in layers else ()),
        f"learner.offline={trajectories}",
        *(f"algorithm.network={{layers: {layers}}}", "algorithm.batch_size=4"),
        *("algorithm.normalize_observations=true", "learner.eval_freq=0"),
        "relaax-parameter-server.progress_interval_sec=1000",
    )
    straight, stopped = (f"run_dir={tmp_path / name}" for name in ("a", "b"))
    assert train(BC, straight, *sets, f"algorithm.max_global_step={15 * STEPS}") == 0
    # Six files: in the middle of the second time that they are gone through.
    for files in (8, 15):
        assert train(BC, stopped, *sets, f"algorithm.max_global_step={files * STEPS}") == 0
    assert_same(tmp_path / "a", tmp_path / "b")
    assert read_state(tmp_path / "a").version == 15


def test_what_ppo_has_done_is_cloned_and_ppo_starts_from_the_clone(
    tmp_path: Path, uncompiled: tuple[str, str]
) -> None:
    """The three runs that docs/training.md names, with small ones."""
    network = "algorithm.network={layers: [8]}"
    quiet = "relaax-parameter-server.progress_interval_sec=1000"
    ppo = make_uncompiled_ppo(tmp_path)
    experts = write_experiment(tmp_path / "expert", **ppo)
    assert train(experts, "learner.collect_traj=true", "algorithm.max_global_step=512") == 0
    recorded = tmp_path / "expert" / "run" / "trajectories"
    budget = "algorithm.max_global_step=2560"
    sets = (*uncompiled, network, quiet, "learner.eval_freq=0", budget)
    clone = tmp_path / "clone"
    assert train(BC, f"run_dir={clone}", f"learner.offline={recorded}", *sets) == 0
    cloned = read_state(clone)
    assert (cloned.global_t, cloned.version) == (2560, 20)
    still = (
        "algorithm.learning_rate=0",
        "algorithm.critic_learning_rate=0",
        "algorithm.max_global_step=128",
    )
    second = write_experiment(tmp_path / "second", **ppo)
    assert train(second, f"learner.previous={clone}", *still) == 0
    np.testing.assert_array_equal(read_state(tmp_path / "second" / "run").values, cloned.values)


def test_files_with_fewer_steps_than_an_update_are_refused(
    tmp_path: Path, trajectories: Path
) -> None:
    sets = (f"run_dir={tmp_path / 'run'}", f"learner.offline={trajectories}")
    with pytest.raises(ConfigError, match=r"has 512 step\(s\), but an update needs 1000"):
        train(BC, *sets, "algorithm.batch_size=1000", "learner.eval_freq=0")


@pytest.mark.parametrize("exists", [False, True])
def test_without_files_nothing_is_begun_and_the_older_run_stays(
    exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if exists:
        (tmp_path / "nothing").mkdir()
    older = tmp_path / "run" / "checkpoints" / "cp-1-1"
    older.mkdir(parents=True)
    done = run_relaax("train", BC, "--offline", "nothing", "--run-dir", "run", "--force")
    assert done.status == 2, done
    what = "contains no trajectories" if exists else "no such folder"
    (line,) = done.lines
    assert line.startswith(f"error: learner.offline: {tmp_path / 'nothing'}: {what}")
    assert older.is_dir()


def test_damaged_files_are_told_before_anything_is_begun(
    tmp_path: Path, trajectories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trajectories, tmp_path / "recorded")
    damaged = sorted((tmp_path / "recorded").iterdir())[1:3]
    for file in damaged:
        file.write_bytes(file.read_bytes()[:5000])
    older = tmp_path / "run" / "checkpoints" / "cp-1-1"
    older.mkdir(parents=True)
    done = run_relaax("train", BC, "--offline", "recorded", "--run-dir", "run", "--force")
    assert done.status == 2, done
    assert re.search(r"checking 6 recordings, 0\.1 MB$", done.lines[0])
    assert done.lines[1].startswith("error: learner.offline: damaged recordings, or recordings")
    assert [line.split()[0] for line in done.lines[2:]] == [str(file) for file in damaged]
    assert older.is_dir()


def test_recordings_are_read_before_anything_is_begun(
    tmp_path: Path, trajectories: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def make(*sets: str) -> None:
        make_trainer(load_experiment(BC, (f"learner.offline={trajectories}", *sets)))

    caplog.set_level(logging.INFO)
    make("algorithm.max_global_step=1000")
    (line,) = (text for text in caplog.messages if "passes" in text)
    found = re.fullmatch(r"([\d,]+) recorded steps: the budget is (\S+) passes over them", line)
    assert found, line
    assert float(found[2]) == pytest.approx(1000 / int(found[1].replace(",", "")), rel=0.01)
    with pytest.raises(ConfigError, match=r"learner.offline: .* expected float32 of \[64, 8, 6\]"):
        make("algorithm.state_size=6", "environment.env=Acrobot-v1")
    with pytest.raises(ConfigError, match=r"learner.offline: .* actions action: int64"):
        make("algorithm.num_actions=null", "algorithm.action_size=1")
    acrobot = "environment.env=Acrobot-v1"
    words = r"environment\.env: Acrobot-v1 does not match .*\(observation_spaces: .*\[6\].* fit the"
    with pytest.raises(ConfigError, match=words):
        make(acrobot)
    experiment = load_experiment(BC, [f"learner.offline={trajectories}"])
    with pytest.raises(ConfigError, match=r"evaluation needs an `env.* set learner.eval_freq: 0$"):
        make_trainer(dataclasses.replace(experiment, environment=None))
    experiment = load_experiment(
        BC, [f"learner.offline={trajectories}", "learner.target_eval_return=100"]
    )
    words = r"set learner\.eval_freq: 0 and learner\.target_eval_return: null$"
    with pytest.raises(ConfigError, match=words):
        make_trainer(dataclasses.replace(experiment, environment=None))
    # Where nothing is tested, no environment is made.
    make("environment.env=NoSuchEnvironment-v0", "learner.eval_freq=0")
    make()


def test_runs_over_the_network_refuse(tmp_path: Path, trajectories: Path) -> None:
    words = (
        f"but only relaax train learns from files: run `relaax train {BC} --offline {trajectories}`"
    )
    sets = (f"run_dir={tmp_path / 'served'}", f"learner.offline={trajectories}")
    with pytest.raises(ConfigError, match=re.escape(words)):
        run_parameter_server(load_experiment(BC, sets))
    done = run_relaax("run", BC, "--offline", trajectories, "--run-dir", tmp_path / "run")
    assert done.status == 2, done
    (line,) = done.lines
    # To leave the folder out, this algorithm would refuse.
    assert line.endswith(words)
    assert not (tmp_path / "run").exists()


def test_an_algorithm_that_plays_as_well_may_leave_the_files_out(
    tmp_path: Path, trajectories: Path
) -> None:
    shutil.copytree(BC.parent, tmp_path / "both", ignore=shutil.ignore_patterns("__pycache__"))
    config = tmp_path / "both" / "config.py"
    text = config.read_text()
    changed = text.replace(
        "return Offline(", "return OnPolicy(rollout_steps=4, rollouts=4, offline=True,"
    )
    assert changed != text
    config.write_text(changed)
    sets = ("algorithm.name=null", f"algorithm.path={tmp_path / 'both'}")
    with pytest.raises(
        ConfigError, match=r"or learn from live environments with `--set learner.offline=null`"
    ):
        validate_served(load_experiment(BC, (*sets, f"learner.offline={trajectories}")))
    validate_served(load_experiment(BC, (*sets, "learner.offline=null")))


def test_without_an_environment_the_files_are_told_first(
    tmp_path: Path, trajectories: Path
) -> None:
    """An environment would not help."""
    file = tmp_path / "bc.yaml"
    text = BC.read_text()
    file.write_text(text[: text.index("environment:")])
    done = run_relaax("run", file, "--offline", trajectories)
    assert done.status == 2, done
    (line,) = done.lines
    assert "only relaax train learns from files" in line
