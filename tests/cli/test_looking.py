"""`relaax plot`, `compare` and `eval` on real short runs. covers R15, R24, P23"""

import contextlib
import json
import re
import shutil
from collections.abc import Iterator

import imageio.v3
import numpy as np
import pytest
from support.cluster import Cluster
from support.here import run_here

SHORT = ("--set", "environment.max_episode_steps=40")
NAMES = ("slow-0", "slow-1", "fast")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two seeds with one learning rate and a run with another, of two thousand steps each."""
    with Cluster(tmp_path_factory.mktemp("runs")) as cluster:
        for name in NAMES:
            sets = [
                f"run_dir={name}",
                f"seed={int(name == 'slow-1')}",
                f"algorithm.learning_rate={0.1 if name == 'fast' else 0.01}",
                "algorithm.max_global_step=2000",
                "learner.target_episodes=20",
            ]
            overrides = [part for text in sets for part in ("--set", text)]
            call(cluster, "train", cluster.config, *overrides)
        yield cluster


def call(cluster: Cluster, *arguments: object, status: int = 0) -> list[str]:
    """Runs `relaax` in the folder of the runs; returns the lines that it prints."""
    with contextlib.chdir(cluster.folder):
        found, output = run_here(*arguments)
    assert found == status, output
    return output.splitlines()


def test_plot_draws_seeds_as_one_group(cluster: Cluster) -> None:
    lines = call(cluster, "plot", *NAMES, "--curve", "episode reward", "--smooth", 5)
    assert lines[-1] == "curves.png: episode reward; slow (seeds 0, 1), fast"
    picture = imageio.v3.imread(cluster.folder / "curves.png")[..., :3]
    assert picture.shape == (660, 1080, 3)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 20
    call(cluster, "plot", "fast/config.yaml", "--x", "time", "--out", "one.svg")
    assert (cluster.folder / "one.svg").stat().st_size > 1000


def test_plot_lists_the_curves(cluster: Cluster) -> None:
    lines = call(cluster, "plot", *NAMES, "--list")
    for name in ("Train/Return", "Optimizer/learning_rate/default", "episode reward"):
        assert name in "\n".join(lines)
    assert len([line for line in lines if "Train/Return " in line]) == 2  # and Episodes
    assert re.search(r"0\.01 \(\d+ points?\) .* 0\.01 \(.* 0\.1 \(", "\n".join(lines))


def test_compare_prints_a_column_per_group_and_what_differs(cluster: Cluster) -> None:
    lines = call(cluster, "compare", *NAMES, "--target", 10)
    (line,) = [line for line in lines if "algorithm.learning_rate" in line]
    assert re.search(r"0\.01 .* 0\.1 ", line)
    for row in ("CartPole-v0", "bare_algorithm", "0, 1", "steps to 10", "seconds to 10"):
        assert row in "\n".join(lines)
    assert "mean [minimum, maximum]" in "\n".join(lines)
    assert "run_dir" not in "\n".join(lines)


def test_compare_in_json(cluster: Cluster) -> None:
    lines = call(cluster, "compare", *NAMES, "--json", "--target", 1e6)
    (line,) = lines
    found = json.loads(line)
    assert found["target"] == 1e6
    assert found["differences"] == {"algorithm.learning_rate": [0.01, 0.1]}
    slow, fast = found["groups"]
    assert (slow["name"], slow["environment"]) == ("slow", "CartPole-v0")
    assert [run["seed"] for run in slow["runs"]] == [0, 1]
    for run in (*slow["runs"], *fast["runs"]):
        assert 2000 <= run["steps"] < 2500
        assert run["episodes"] == 20
        assert 5 < run["mean_return"] <= 200
        assert run["target_steps"] is None


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        (("plot", "fast", "--curve", "nope"), "no curve 'nope'; it has 'Optimizer/"),
        (("plot", "experiment.yaml"), "experiment.yaml: a file; expected the folder of a run"),
        (("plot", "fast", "--out", "curves.txt"), "curves.txt"),
        (("compare", "fast", "nowhere"), "nowhere: no such folder"),
        (("eval", "."), "has no config.yaml"),
        (("eval", "fast", "--video", "out.avi"), r"expected a name that ends in .mp4 or .gif"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_mistakes_are_one_line(cluster: Cluster, arguments: tuple[str, ...], want: str) -> None:
    (line,) = call(cluster, *arguments, status=2)
    assert line.startswith("error: ")
    assert want in line


def test_eval_films_a_moved_run_and_prints_json(cluster: Cluster) -> None:
    # covers P28
    shutil.copytree(cluster.folder / "fast", cluster.folder / "elsewhere" / "it's here")
    shutil.move(cluster.folder / "fast" / "checkpoints", cluster.folder / "hidden")
    try:
        lines = call(
            cluster,
            *("eval", "elsewhere/it's here", "--episodes", 3, "--json"),
            *("--video", "out.mp4", "--video-episodes", 2, *SHORT),
        )
    finally:
        shutil.move(cluster.folder / "hidden", cluster.folder / "fast" / "checkpoints")
    (line,) = lines
    found = json.loads(line)
    low, high = found.pop("interval")
    assert low <= found["mean"] <= high
    assert found["min"] <= found["mean"] <= found["max"]
    # CartPole's reward is 1 per step.
    assert found["mean_length"] == pytest.approx(found["mean"])
    assert found["episodes"] == 3
    assert 2000 <= found["step"] < 2500
    frames = imageio.v3.imread(cluster.folder / "out.mp4")
    assert frames.shape[1:] == (400, 600, 3)
    assert len(frames) > 10


def test_eval_tells_what_it_has_filmed(cluster: Cluster) -> None:
    lines = call(cluster, "eval", "fast", "--episodes", 1, "--video", "out.gif", *SHORT)
    assert lines[0].startswith("mean return ")
    match = re.fullmatch(r"out\.gif: returns (\d+); (\d+) frames at 50 per second", lines[1])
    assert match is not None, lines
    assert match[1] == match[2]
    assert (cluster.folder / "out.gif").stat().st_size > 1000
