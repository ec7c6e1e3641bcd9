"""What a parameter server starts from: the newest snapshot, or else the initial values."""

import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.cluster import BARE
from support.disks import mount

from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.loader import load_experiment
from relaax_like.core.manifest import Variable
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.records import Episode, Push
from relaax_like.launch import start_values
from relaax_like.launch.parameter_server import make_parameter_server
from relaax_like.parameter_server.initial_values import save_variables
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.wire.errors import ConfigError, SnapshotError

Open = Callable[..., ParameterServer]


@pytest.fixture
def open_run(tmp_path: Path) -> Open:
    """Opens the run in this folder, as a start of the process does."""
    config = tmp_path / "experiment.yaml"
    config.write_text(
        f"run_dir: {tmp_path / 'run'}\n"
        "relaax-parameter-server: {bind: 'localhost:0'}\n"
        f"algorithm: {{path: '{BARE}'}}\n"
        "environment: {program: OpenAI_Gym, env: CartPole-v0}\n"
    )

    def open_run(*sets: str) -> ParameterServer:
        experiment = load_experiment(config, sets)
        return make_parameter_server(experiment, sets, NullMetrics())

    return open_run


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how often initial values are built, by the real process."""
    calls: list[int] = []
    run = start_values.compute_initial_values

    def count(*arguments: object) -> list[Variable]:
        calls.append(1)
        return run(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(start_values, "compute_initial_values", count)
    return calls


def find_kept(tmp_path: Path) -> Path:
    (kept,) = (tmp_path / "run" / "checkpoints").glob("initial-*.npz")
    return kept


def push(server: ParameterServer) -> np.ndarray:
    with InProcessClient(server) as client:
        return client.push_pull([np.ones((1, 4), np.float32)])[0].copy()


@pytest.mark.parametrize("damage", ["damaged", "unreadable"])
def test_initial_values_are_not_read_where_there_is_a_snapshot(
    tmp_path: Path, open_run: Open, built: list[int], damage: str
) -> None:
    with open_run() as server:
        push(server)
    with open_run() as server:
        want = push(server)
        server.close(save=False)  # the journal has it
    kept = find_kept(tmp_path)
    if damage == "damaged":
        kept.write_bytes(kept.read_bytes()[:100])
    else:
        kept.unlink()
        kept.mkdir()
    with open_run() as server:
        assert server.version == 2
        np.testing.assert_array_equal(server.get_values()[0], want)
        assert not np.array_equal(push(server), want)
    assert built == [1]
    assert damage != "damaged" or kept.stat().st_size == 100


def test_a_large_model_is_one_line_at_each_start(
    tmp_path: Path,
    open_run: Open,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with open_run() as server:
        push(server)
    assert "weights" not in caplog.text
    monkeypatch.setattr(start_values, "LARGE", 3)  # the model has 4
    for sets in ((), (f"run_dir={tmp_path / 'other'}",)):
        caplog.clear()
        open_run(*sets).close()
        (line,) = (message for message in caplog.messages if "million weights" in message)
        # Values, and two arrays of Adam.
        assert "4e-06 million weights: up to 4.8e-08 GB" in line


def test_an_error_that_could_not_be_written_is_still_explained(
    open_run: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(argv: list[str], timeout_sec: float) -> list[Variable]:
        (told,) = (Path(one.removeprefix("--error=")) for one in argv if "--error=" in one)
        told.touch()  # the disk was full
        raise ConfigError("initial values: it failed with status 1")

    monkeypatch.setattr(start_values, "compute_initial_values", fail)
    with pytest.raises(ConfigError, match="it failed with status 1"):
        open_run()


@pytest.mark.parametrize(
    ("inodes", "path"),
    [(2, "initial-values-[^/]*"), (3, "initial-values-.*/stderr"), (4, "initial-values-.*/values")],
)
def test_a_full_disk_for_temporary_files_is_explained(
    tmp_path: Path, open_run: Open, monkeypatch: pytest.MonkeyPatch, inodes: int, path: str
) -> None:
    disk = tmp_path / "disk"
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    with (
        mount(disk, f"nr_inodes={inodes}"),
        pytest.raises(ConfigError, match=f"{disk}/relaax-{path}.*free disk space, ") as raised,
    ):
        open_run()
    assert "No space left on device" in str(raised.value)
    assert "Traceback" not in str(raised.value)


def test_another_model_than_the_snapshot_s_is_still_refused(tmp_path: Path, open_run: Open) -> None:
    with open_run() as server:
        push(server)
    with open_run("algorithm.learning_rate=0.1") as server:  # other settings, the same model
        assert server.version == 1
    (other,) = set((tmp_path / "run" / "checkpoints").glob("initial-*.npz")) - {
        find_first(tmp_path)
    }
    save_variables(other, [Variable("W", np.zeros((2, 4), np.float32))])
    with pytest.raises(SnapshotError, match=r"belongs to a different model: W is .*\[1, 4\]"):
        # The newest snapshot is of the settings before.
        open_run("algorithm.learning_rate=0.1")


def find_first(tmp_path: Path) -> Path:
    kept = (tmp_path / "run" / "checkpoints").glob("initial-*.npz")
    return min(kept, key=lambda path: path.stat().st_mtime_ns)


def test_damaged_initial_values_of_a_fresh_run_are_built_again(
    tmp_path: Path, open_run: Open, built: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    server = open_run()
    want = server.get_values()[0].copy()
    server.close(save=False)
    for snapshot in (tmp_path / "run" / "checkpoints").glob("cp-*"):
        snapshot.rename(tmp_path / snapshot.name)
    (tmp_path / "run" / "begun").unlink()
    kept = find_kept(tmp_path)
    whole = kept.read_bytes()
    kept.write_bytes(b"")  # as a power cut leaves what was not synced
    with caplog.at_level(logging.WARNING), open_run() as server:
        np.testing.assert_array_equal(server.get_values()[0], want)
    assert f"{kept}: not a file of initial values" in caplog.text
    assert "building them again" in caplog.text
    assert kept.read_bytes() == whole
    assert built == [1, 1]


def test_damaged_initial_values_with_records_and_without_snapshots_are_named(
    tmp_path: Path, open_run: Open, built: list[int]
) -> None:
    with open_run() as server:
        push(server)
        server.close(save=False)
    for snapshot in (tmp_path / "run" / "checkpoints").glob("cp-*"):
        snapshot.rename(tmp_path / snapshot.name)
    kept = find_kept(tmp_path)
    kept.write_bytes(b"noise")
    with pytest.raises(
        ConfigError, match=rf"{kept.name}: damaged or unreadable, .* restore this file"
    ):
        open_run()
    assert kept.read_bytes() == b"noise"
    assert built == [1]


def test_initial_values_are_synced_before_they_have_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        events.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        fsync(descriptor)

    def note_replace(source: Path, target: Path) -> None:
        events.append(f"rename to {Path(target).name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    (tmp_path / "folder").mkdir()
    save_variables(tmp_path / "folder" / "v.npz", [Variable("W", np.zeros(1, np.float32))])
    assert events == ["sync .tmp-v.npz", "rename to v.npz", "sync folder"]


def test_mean_returns_are_of_the_newest_target_episodes_also_without_a_target(
    open_run: Open,
) -> None:
    with open_run("learner.target_episodes=2") as server:
        episodes = tuple(Episode(episode_return, 5) for episode_return in (9.0, 3.0, 5.0))
        server.push(Push(client_id="one", env_steps=15, episodes=episodes))
        assert server.train_return == (4.0, 2, 3)
