"""Runs on the disk: found, named, grouped, compared."""

import shutil
from pathlib import Path

import pytest
from support.runs import make_returns, make_run

from relaax_like.config.run_folder import find_config, find_experiment
from relaax_like.runs.folders.runs import find_differences, group_runs, load_runs
from relaax_like.wire.errors import ConfigError

RETURNS = make_returns([(1, 10, 5.0), (2, 20, 6.0)])


def test_runs_that_differ_in_the_seed_are_one_group(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / f"low-seed{seed}", RETURNS, seed) for seed in (1, 12)]
    folders.insert(1, make_run(tmp_path / "high", RETURNS, 1, learning_rate=0.01, extra=[1, 2]))
    groups = group_runs(load_runs(folders))
    assert [group.name for group in groups] == ["low", "high"]
    assert [group.label for group in groups] == ["low (seeds 1, 12)", "high"]
    assert [run.name for run in groups[0].runs] == ["low-seed1", "low-seed12"]
    assert find_differences(groups) == {
        "algorithm.learning_rate": [0.001, 0.01],
        "algorithm.extra": [None, [1, 2]],
    }
    assert find_differences(groups[:1]) == {}


@pytest.mark.parametrize(
    ("names", "want"),
    [
        (["cartpole-0", "cartpole-1"], "cartpole"),
        (["lr_s0", "lr_s1"], "lr"),
        (["0", "1"], "0"),
        (["one", "other"], "one"),
    ],
)
def test_a_group_is_named_by_what_its_runs_have_in_common(
    tmp_path: Path, names: list[str], want: str
) -> None:
    folders = [make_run(tmp_path / name, RETURNS, seed) for seed, name in enumerate(names)]
    (group,) = group_runs(load_runs(folders))
    assert group.name == want


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / parent / "run", RETURNS) for parent in ("a", "b")]
    assert [run.name for run in load_runs(folders)] == [str(folder) for folder in folders]


def test_a_run_is_named_by_its_folder_or_its_configuration(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", RETURNS)
    for path in (folder, folder / "config.yaml"):
        (run,) = load_runs([path])
        assert (run.name, run.seed) == ("run", 0)
        assert (run.environment, run.algorithm) == ("CartPole-v1", "toy")
        assert run.curves["Train/Return"].values.tolist() == [5.0, 6.0]


def test_the_curves_of_a_folder_that_was_moved_are_found(tmp_path: Path) -> None:
    moved = tmp_path / "moved: here, it's"
    shutil.move(make_run(tmp_path / "run", RETURNS), moved)
    (run,) = load_runs([moved])
    assert run.curves["Train/Return"].steps.tolist() == [10, 20]
    assert run.checkpoint_dir == moved / "checkpoints"
    config, overrides = find_experiment(moved)
    assert config == moved / "config.yaml"
    assert f'run_dir="{moved}"' in overrides
    assert f'relaax-parameter-server.checkpoint_dir="{moved}/checkpoints"' in overrides
    assert find_experiment(config) == (config, [])


def test_metrics_elsewhere_are_read_there(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", RETURNS)
    shutil.move(folder / "metrics", tmp_path / "elsewhere")
    config = folder / "config.yaml"
    inside, outside = str(folder / "metrics"), str(tmp_path / "elsewhere")
    config.write_text(config.read_text().replace(inside, outside))
    assert load_runs([folder])[0].curves["Train/Return"].steps.tolist() == [10, 20]
    config.write_text(
        config.read_text().replace(outside, inside)
        + f"relaax-metrics-server: {{metrics_dir: '{outside}'}}\n"
    )
    assert load_runs([folder])[0].curves["Train/Return"].steps.tolist() == [10, 20]


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "experiment.yaml").write_text("seed: 1\n")
    for path, want in (
        (tmp_path / "nowhere", "no such folder"),
        (tmp_path / "nowhere" / "config.yaml", "no such folder"),
        (tmp_path / ("x" * 300), "no such folder, or no access to it"),
        (tmp_path, "has no config.yaml"),
        (tmp_path / "experiment.yaml", "a file; expected the folder of a run"),
    ):
        with pytest.raises(ConfigError, match=want) as caught:
            find_config(path)
        assert str(caught.value).startswith(str(path))


def test_curves_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", RETURNS)
    file = folder / "metrics" / "events.out.tfevents.2"
    file.mkdir()
    with pytest.raises(ConfigError) as caught:
        load_runs([folder])
    assert str(caught.value).startswith(f"{file}: cannot be read: Is a directory; make it readable")
