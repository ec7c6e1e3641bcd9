"""Curves that Weights & Biases gets, too: what it has written for a run that is sent later."""

# covers P23, P24, J9, J16

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.cluster import wait_until
from support.event_files import read_scalars
from support.here import run_here
from support.threads import WAIT_SEC
from support.uncompiled import copy_uncompiled
from support.wandb_files import read_history, read_records

from relaax_like.metrics import wandb_recorder
from relaax_like.metrics.wandb_recorder import WandbRecorder, WandbRun
from relaax_like.wire.errors import ConfigError

EXPERIMENT = """
run_dir: runs/first
algorithm: {path: %s, state_size: 4, num_actions: 2, network: {layers: [8]}, num_steps: 128,
            rollout_steps: 16, batch_size: 32, epochs: 2, max_global_step: 1000}
environment: {program: OpenAI_Gym, env: CartPole-v1, slots: 4}
"""


@pytest.fixture
def logged_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Has nobody be logged in; returns the home folder, which is empty."""
    for name in [name for name in os.environ if name.startswith(("WANDB", "NETRC"))]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("MPLCONFIGDIR", "KERAS_HOME"):  # what others would write there
        monkeypatch.setenv(name, str(tmp_path / "others"))
    return home


def make_run(folder: Path, name: str = "first") -> WandbRun:
    return WandbRun(folder=folder, project="cartpole", group=None, name=name, config={"seed": 1})


def test_a_training_is_an_offline_run_with_all_of_its_curves(
    logged_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    monkeypatch.chdir(cwd)
    (cwd / "experiment.yaml").write_text(EXPERIMENT % copy_uncompiled("ppo", tmp_path))
    flags = ["--wandb-project", "cartpole", "--wandb-group", "small ones"]
    status, output = run_here("train", "experiment.yaml", *flags)
    assert status == 0, output
    run_dir = cwd / "runs" / "first"
    assert f"to upload the run later: wandb sync {run_dir}/wandb/offline-run-" in output
    records = read_records(run_dir / "wandb")
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (run.project, run.run_group, run.display_name) == (
        "cartpole",
        "small ones",
        "runs/first",
    )
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["algorithm"]["num_steps"] == 128
    # All curves are drawn over the environment steps.
    axes = {record.metric.glob_name: record.metric.step_metric for record in records}
    assert axes["*"] == "env_steps"
    rows = read_history(records)
    for name, points in read_scalars(run_dir / "metrics").items():
        found = [(row["env_steps"], row[name]) for row in rows if name in row]
        assert [x for x, _ in found] == [x for x, _ in points], name
        np.testing.assert_allclose([y for _, y in found], [y for _, y in points], rtol=1e-6)
        if name == "Train/Lag":  # in one process nobody acts with old values
            assert {y for _, y in points} == {0.0}
    assert {"Train/Return", "Train/Episode Length", "Train/Lag"} <= rows[-1].keys()
    assert {"Optimizer/actor", "Optimizer/critic", "Time/Optimize Time"} <= rows[-1].keys()
    assert list(logged_out.rglob("*wandb*")) == []
    assert sorted(path.name for path in cwd.iterdir()) == ["experiment.yaml", "runs"]


def test_histograms_come_too(logged_out: Path, tmp_path: Path) -> None:
    with WandbRecorder(tmp_path / "metrics", make_run(tmp_path)) as recorder:
        recorder.histogram("errors", np.array([1.0, 1.0, 2.0, 4.0]), 10)
        recorder.scalar("loss", 0.5, 10)
        recorder.scalar("loss", 0.25, 20)
        recorder.scalar("older", 7.0, 10)
    rows = read_history(read_records(tmp_path / "wandb"))
    assert [row["env_steps"] for row in rows] == [10, 20, 10]
    assert [row.get("loss") for row in rows] == [0.5, 0.25, None]
    assert (rows[2]["older"], rows[0]["errors._type"]) == (7.0, "histogram")
    counts, edges = rows[0]["errors.values"], rows[0]["errors.bins"]
    assert (sum(counts), counts[0], counts[10], counts[-1]) == (4, 2, 1, 1)
    assert (edges[0], edges[-1], len(edges)) == (1.0, 4.0, len(counts) + 1)


def test_a_later_start_in_one_file_is_another_run(logged_out: Path, tmp_path: Path) -> None:
    with WandbRecorder(tmp_path / "metrics", make_run(tmp_path)) as recorder:
        recorder.start_at(0)
        recorder.scalar("loss", 0.5, 10)
        recorder.start_at(5)
        recorder.scalar("loss", 0.25, 7)
    runs = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert len(runs) == 2


def test_a_killed_training_leaves_what_it_has_written(logged_out: Path, tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path;"
        "from relaax_like.metrics.wandb_recorder import *; folder = Path(sys.argv[1]);"
        "run = WandbRun(folder=folder, project='p', group=None, name='n', config={});"
        "recorder = WandbRecorder(folder / 'metrics', run); recorder.scalar('loss', 0.5, 10);"
        "recorder.flush(); print(recorder._child.pid, flush=True); time.sleep(1000)"
    )
    training = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert training.stdout is not None
    with training, training.stdout as lines:
        child = int(lines.readline())
        training.send_signal(signal.SIGKILL)
    wait_until(lambda: not _is_running(child), "the end of the child", WAIT_SEC)
    (row,) = read_history(read_records(tmp_path / "wandb"))
    assert (row["loss"], row["env_steps"]) == (0.5, 10)


@pytest.mark.parametrize(
    ("act", "want"),
    [
        ("sys.exit('no')", "its process ended with status 1"),
        ("print('the server is full'); sys.exit(1)", "the server is full"),
        ("import os; os.kill(os.getpid(), 9)", "its process ended with status -9"),
    ],
)
def test_a_wandb_that_fails_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, act: str, want: str
) -> None:
    program = [sys.executable, "-c", f"import sys; sys.stdin.readline(); {act}"]
    recorder = WandbRecorder(tmp_path, make_run(tmp_path), program=program)
    with caplog.at_level(logging.WARNING):
        for step in range(5):
            recorder.scalar("loss", 1.0, step)
        assert recorder._child is not None
        recorder._child.wait(WAIT_SEC)
        recorder.scalar("loss", 1.0, 5)
        recorder.close()
        recorder.close()
        _wait_for_warning(caplog)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"wandb receives no more curves ({want}); training continues")
    assert len(read_scalars(tmp_path)["loss"]) == 6


def test_a_wandb_that_hangs_holds_nobody_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb_recorder, "_END_SEC", 0.2)
    program = [sys.executable, "-c", "import time; time.sleep(1000)"]
    recorder = WandbRecorder(tmp_path, make_run(tmp_path), program=program)
    assert recorder._child is not None
    try:
        for step in range(1000):
            recorder.scalar("loss", 1.0, step)
        with caplog.at_level(logging.WARNING):
            recorder.close()
        assert f"wandb is still uploading; process {recorder._child.pid} ends when" in caplog.text
        assert len(read_scalars(tmp_path)["loss"]) == 1000
    finally:
        recorder._child.kill()
        recorder._child.wait()


def test_a_program_that_is_missing_is_a_warning_and_a_package_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WandbRecorder(tmp_path, make_run(tmp_path), program=[str(tmp_path / "none")]) as recorder:
        recorder.scalar("loss", 1.0, 1)
    assert "wandb receives no more curves (it cannot be started: No such file" in caplog.text
    assert read_scalars(tmp_path) == {"loss": [(1, 1.0)]}
    monkeypatch.setattr(wandb_recorder, "_PACKAGE", "wandb-that-is-not-installed")
    with pytest.raises(ConfigError, match=r"wandb: .* pip install 'relaax_like\[wandb\]'"):
        WandbRecorder(tmp_path / "other", make_run(tmp_path))
    assert not (tmp_path / "other").exists()


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def _wait_for_warning(caplog: pytest.LogCaptureFixture) -> None:
    wait_until(lambda: caplog.records, "a warning", WAIT_SEC)
