"""`relaax eval` of a run's own environment: which snapshot, and what it says while nothing ends."""

import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.saved_runs import write_run

from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.launch import evaluation
from relaax_like.launch.evaluation import Video, evaluate_policies
from relaax_like.launch.saved_policy import open_server, read_snapshot
from relaax_like.wire.errors import ConfigError, InvalidInputError, SnapshotError


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """Snapshots of versions 2 and 3, of which 2 has the higher score."""
    folder = write_run(
        tmp_path_factory.mktemp("evaluated") / "run",
        "name: ppo, state_size: 4, num_actions: 2, network: {layers: [8]}",
        "environment: {program: OpenAI_Gym, env: CartPole-v1, slots: 2}",
        versions=(2, 3),
    )
    return load_experiment(folder / "config.yaml")


# covers J15
@pytest.mark.parametrize(("version", "found"), [("latest", 3), ("best", 2), ("2", 2), ("3", 3)])
def test_the_snapshot_of_a_version_is_played(
    experiment: Experiment, version: str, found: int
) -> None:
    played = evaluate_policies(experiment, 2, version)[""]
    assert (played.version, played.global_t, len(played.returns)) == (found, 100 * found, 2)


def test_a_version_that_is_not_there_is_refused(experiment: Experiment) -> None:
    with pytest.raises(SnapshotError, match=r"no snapshot of version 9; the versions are 2, 3"):
        evaluate_policies(experiment, 2, "9")[""]
    with pytest.raises(ConfigError, match="'newest', expected latest, best, or the number"):
        evaluate_policies(experiment, 2, "newest")[""]
    with pytest.raises(ConfigError, match="expected latest, best, or the number"):
        evaluate_policies(experiment, 2, "9" * 5000)[""]


def test_a_snapshot_with_nan_is_named(experiment: Experiment) -> None:
    state = read_snapshot(experiment)
    values = state.values.copy()
    values[:4] = 255  # NaN in float32
    with pytest.raises(InvalidInputError, match=r"in the snapshot of version 3 in .*; move this"):
        open_server(experiment, replace(state, values=values))


def test_each_slot_that_ends_no_episode_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    patience = evaluation.Patience(4)
    named = []
    for _ in range(200):
        now += 1.0
        patience.check()
        patience.begin(0)
        if now < 1100.0:
            patience.begin(2)
        named += re.findall(r"slot (.*) has ended.*set environment\.max_episode_steps", caplog.text)
        caplog.clear()
    assert named == ["1, 3", "2"]
    evaluation.Patience(1, "arm").check()
    assert caplog.text == ""


def test_a_video_is_prepared_before_an_environment_is_made(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(experiment: Experiment) -> None:
        calls.append("environment")
        raise ConfigError("asked")

    calls: list[str] = []
    monkeypatch.setattr(evaluation, "draw_without_screen", lambda: calls.append("screen"))
    monkeypatch.setattr(evaluation, "ask_environment", ask)
    with pytest.raises(ConfigError, match="expected a name that ends in"):
        evaluate_policies(experiment, 2, video=Video(path=tmp_path / "video.txt"))[""]
    assert calls == []
    with pytest.raises(ConfigError, match="asked"):
        evaluate_policies(experiment, 2, video=Video(path=tmp_path / "video.mp4"))[""]
    assert calls == ["screen", "environment"]


def test_the_environment_of_a_video_is_drawn(experiment: Experiment, tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    assert str(path) in evaluate_policies(experiment, 2, video=Video(path=path))[""].video
    assert path.stat().st_size > 0
