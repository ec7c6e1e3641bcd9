"""Threads of an update: a number, or as many as are quickest. covers P20"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from support.batch import load
from support.cluster import ROOT
from support.uncompiled import copy_uncompiled

from relaax_like.config.loader import dump_experiment, load_experiment
from relaax_like.launch import backprop, backprop_main
from relaax_like.launch.backprop import FILE_NAME, set_backprop_workers
from relaax_like.launch.backprop_main import make_fake_rollout
from relaax_like.nn.threads import get_threads, set_threads
from relaax_like.wire.errors import ConfigError, RelaaxError


@pytest.fixture(autouse=True)
def threads():
    yield
    set_threads(1)


def make_experiment(folder, threads):
    file = folder / "experiment.yaml"
    file.write_text(
        f"run_dir: {folder}\n"
        f"learner: {{backprop_workers: {threads}}}\n"
        f"algorithm: {{path: {copy_uncompiled('ppo', folder)}, state_size: 4, num_actions: 2, "
        "network: {layers: [4]}, num_steps: 64, rollout_steps: 16, epochs: 1}\n"
    )
    experiment = load_experiment(file)
    (folder / "config.yaml").write_text(dump_experiment(experiment))
    return experiment


def test_a_number_is_what_tensorflow_gets(tmp_path):
    set_backprop_workers(make_experiment(tmp_path, 3))
    assert get_threads() == 3
    code = (
        "from relaax_like.nn.threads import set_threads; set_threads(3)\n"
        "from relaax_like.nn.runtime import tf\n"
        "print(tf.config.threading.get_intra_op_parallelism_threads())"
    )
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "3", done.stderr


def test_the_quickest_of_an_earlier_measurement_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    (tmp_path / FILE_NAME).write_text('{"1": 0.4, "2": 0.3, "4": 0.1, "6": 0.2}')
    set_backprop_workers(make_experiment(tmp_path, -1))
    assert get_threads() == 4


def test_what_was_measured_elsewhere_is_measured_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    (tmp_path / FILE_NAME).write_text('{"1": 1e9, "2": 0.1}')
    set_backprop_workers(make_experiment(tmp_path, -1))
    assert get_threads() == 1
    seconds = json.loads((tmp_path / FILE_NAME).read_text())
    assert list(seconds) == ["1"]
    assert 0 < seconds["1"] < 60


@pytest.mark.parametrize("text", ['{"1": 0.', "null", '{"1": null}'])
def test_a_damaged_measurement_is_made_anew(tmp_path, monkeypatch, text):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(backprop, "_measure", lambda run_dir, count: 0.25)
    (tmp_path / FILE_NAME).write_text(text)
    set_backprop_workers(make_experiment(tmp_path, -1))
    assert json.loads((tmp_path / FILE_NAME).read_text()) == {"1": 0.25}


def test_a_measurement_that_fails_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    experiment = make_experiment(tmp_path, -1)
    (tmp_path / "config.yaml").write_text("algorithm: {}")
    with pytest.raises(RelaaxError, match=r"1 thread\(s\) could not be measured: .*algorithm"):
        set_backprop_workers(experiment)
    assert not (tmp_path / FILE_NAME).exists()


def test_any_error_of_a_measurement_is_one_line(tmp_path, monkeypatch):
    def fail(experiment):
        raise OSError(24, "Too many open files")

    make_experiment(tmp_path, 1)
    monkeypatch.setattr(backprop_main, "measure", fail)
    monkeypatch.setattr(backprop_main, "setup_logging", lambda level: None)
    monkeypatch.setattr(sys, "argv", ["backprop_main", str(tmp_path / "config.yaml"), "1"])
    with pytest.raises(ConfigError, match=r"Too many open files$"):
        backprop_main.main()


def test_a_measurement_without_a_process_says_so(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(backprop.subprocess, "run", fail)
    with pytest.raises(RelaaxError, match=r"cannot be started: .* unavailable; set a number"):
        set_backprop_workers(make_experiment(tmp_path, -1))


def test_a_measurement_that_cannot_be_kept_is_used(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(backprop, "_measure", lambda run_dir, count: 1.0 / count)
    experiment = make_experiment(tmp_path, -1)
    (tmp_path / FILE_NAME).mkdir()
    set_backprop_workers(experiment)
    assert get_threads() == 2
    assert f"{FILE_NAME} cannot be written: Is a directory; the next start" in caplog.text


@pytest.mark.parametrize(("name", "plan"), [("dqn", "Replay"), ("bc", "Offline")])
def test_what_has_no_rollouts_is_not_measured(tmp_path, name, plan):
    file = ROOT / "algorithms" / name / f"{name}.yaml"
    experiment = load_experiment(
        file,
        ["learner.backprop_workers=-1", f"run_dir={tmp_path}"]
        + (["learner.offline=/x"] if plan == "Offline" else []),
    )
    with pytest.raises(ConfigError, match=f"-1 measures updates .* is {plan}; set a number"):
        set_backprop_workers(experiment)


def test_no_threads_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"backprop_workers: expected 1 or more, or -1 .*, got 0"):
        make_experiment(tmp_path, 0)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_actions": 3},
        {"action_size": 2, "bounded": True, "action_low": 1, "action_high": 2},
        {"num_actions": 2, "network": {"layers": ({"lstm": 4},)}},
    ],
    ids=["discrete", "bounded", "lstm"],
)
def test_a_fake_rollout_has_actions_that_there_can_be(settings):
    config = load("config", "ppo").Config(
        state_size=4, num_steps=15, rollout_steps=5, batch_size=3, **settings
    )
    rollout = make_fake_rollout(load("model", "ppo").make_model(config, 0), config.plan, config)
    assert rollout.next_alive.shape == rollout.log_prob.shape == (5, 3)
    assert np.isfinite(rollout.log_prob).all()
    if "bounded" in settings:
        assert ((rollout.actions["action"] > 1) & (rollout.actions["action"] < 2)).all()


def test_a_fake_rollout_of_a_policy_that_explores():
    config = load("config", "sarsa").Config(state_size=4, num_actions=3, updates_at_once=5)
    rollout = make_fake_rollout(load("model", "sarsa").make_model(config, 0), config.plan, config)
    assert rollout.next_alive.shape == (2, 5)
    assert set(rollout.actions["action"].ravel().tolist()) <= {0, 1, 2}
