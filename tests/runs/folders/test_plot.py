"""Pictures of curves."""

import errno
from collections.abc import Callable
from pathlib import Path

import imageio.v3
import numpy as np
import pytest
from support.runs import make_returns, make_run

from relaax_like.runs.folders.modes import XAxis
from relaax_like.runs.folders.plot import (
    _make_figure,
    choose_curve,
    compute_band,
    compute_running_mean,
    plot_runs,
    validate_output,
)
from relaax_like.runs.folders.runs import Run, RunGroup, group_runs, load_runs
from relaax_like.runs.folders.trace import find_trace_folder
from relaax_like.runs.folders.video import validate_video
from relaax_like.wire.errors import ConfigError


def test_the_running_mean_by_hand() -> None:
    values = np.array([1.0, 3.0, 5.0, 0.0])
    assert compute_running_mean(values, 1).tolist() == [1, 3, 5, 0]
    assert compute_running_mean(values, 2).tolist() == [1, 2, 4, 2.5]
    assert compute_running_mean(values, 9).tolist() == [1, 2, 3, 2.25]


def test_the_band_lies_where_all_lines_are() -> None:
    one = np.array([0.0, 10.0]), np.array([0.0, 10.0])
    two = np.array([2.0, 4.0, 8.0]), np.array([6.0, 6.0, 2.0])
    grid, mean, low, high = compute_band([one, two])
    assert (grid[0], grid[-1]) == (2.0, 8.0)
    for x, want_low, want_high in ((2.0, 2.0, 6.0), (5.0, 5.0, 5.0), (8.0, 2.0, 8.0)):
        assert np.interp(x, grid, low) == pytest.approx(want_low, abs=0.02)
        assert np.interp(x, grid, high) == pytest.approx(want_high, abs=0.02)
        assert np.interp(x, grid, mean) == pytest.approx((want_low + want_high) / 2, abs=0.02)


def test_lines_without_a_part_in_common_have_no_band() -> None:
    ones = np.ones(2)
    grid, mean, low, high = compute_band([(np.arange(2.0), ones), (np.arange(5.0, 7.0), ones)])
    assert (len(grid), len(mean), len(low), len(high)) == (0, 0, 0, 0)


@pytest.fixture
def groups(tmp_path: Path) -> list[RunGroup]:
    """Two seeds, 0 and 10 everywhere, and one run at 20."""
    folders = [
        make_run(tmp_path / f"two-{seed}", make_returns([(1, 0, y), (9, 100, y)]), seed)
        for seed, y in ((0, 0.0), (1, 10.0))
    ]
    returns = make_returns([(1, 0, 20.0), (5, 100, 20.0)])
    folders.append(make_run(tmp_path / "alone", returns, learning_rate=1.0))
    return group_runs(load_runs(folders))


@pytest.mark.parametrize("x", XAxis)
def test_the_picture_shows_a_band_and_lines(
    groups: list[RunGroup], tmp_path: Path, x: XAxis
) -> None:
    plot_runs(groups, "Train/Return", tmp_path / "out.png", x)
    picture = imageio.v3.imread(tmp_path / "out.png")[..., :3]
    assert picture.shape == (660, 1080, 3)
    # Matplotlib's first two colours: the mean's line, the line of the run alone.
    blue, orange = (31, 119, 180), (255, 127, 14)
    rows = [
        np.flatnonzero((picture == colour).all(axis=2).any(axis=1)) for colour in (blue, orange)
    ]
    assert rows[0].size
    assert rows[1].size
    # A fifth of the blue on white: the band, half of the y axis, from 0 to 10 of 20.
    band = np.abs(picture.astype(int) - (210, 228, 240)).max(axis=2) <= 2
    height = band.any(axis=1).sum()
    assert 0.3 < height / 660 < 0.5
    # The mean lies in the middle of the band, and the run alone above it.
    middle = np.median(np.flatnonzero(band.any(axis=1)))
    assert abs(np.median(rows[0][rows[0] > 100]) - middle) < 5
    assert rows[1].max() < middle - height / 2


def read_texts(groups: list[RunGroup], curve: str, smooth: int = 1) -> list[str]:
    """Draws, and returns title, names of the axes, and the small print."""
    figure = _make_figure(groups, curve, XAxis.STEPS, smooth)
    (axes,) = figure.axes
    return [figure.get_suptitle(), axes.get_xlabel(), axes.get_ylabel(), axes.get_title()]


def test_title_and_axes_say_what_is_drawn(groups: list[RunGroup], tmp_path: Path) -> None:
    assert read_texts(groups, "Train/Return") == [
        "CartPole-v1, toy, Train/Return",
        "environment steps",
        "mean return of the most recent episodes",
        "line: mean over seeds; band: minimum to maximum",
    ]
    costs = {"Optimizer/actor": [(1.0, 0, 5.0)]}
    one, other = (make_run(tmp_path / name, costs, name=name) for name in ("x", "y"))
    assert read_texts(group_runs(load_runs([one])), "Optimizer/actor", smooth=3) == [
        "CartPole-v1, x, Optimizer/actor",
        "environment steps",
        "Optimizer/actor\n(mean of 3 points)",
        "",
    ]
    both = group_runs(load_runs([one, other]))
    assert read_texts(both, "Optimizer/actor")[0] == "CartPole-v1, Optimizer/actor"


def test_other_formats_and_wrong_ones(groups: list[RunGroup], tmp_path: Path) -> None:
    plot_runs(groups, "Train/Return", tmp_path / "out.svg", smooth=2)
    text = (tmp_path / "out.svg").read_text()
    assert "<svg" in text
    with pytest.raises(ConfigError, match=r"out.txt: expected a name that ends in .png"):
        plot_runs(groups, "Train/Return", tmp_path / "out.txt")
    with pytest.raises(ConfigError, match="there is no folder"):
        plot_runs(groups, "Train/Return", tmp_path / "nowhere" / "out.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ConfigError, match=r"folder\.png: cannot be written: Is a directory"):
        plot_runs(groups, "Train/Return", tmp_path / "folder.png")


def test_the_curve_that_all_runs_have_is_chosen(tmp_path: Path) -> None:
    rewards = {"episode reward": [(1.0, 1, 5.0)]}
    old = make_run(tmp_path / "old", rewards)
    new = make_run(tmp_path / "new", {**rewards, **make_returns([(1, 1, 5.0)])})
    empty = make_run(tmp_path / "empty", {})

    def choose(*folders: Path, name: str | None = None) -> str:
        runs: list[Run] = load_runs(folders)
        return choose_curve(runs, name)

    assert choose(new) == "Train/Return"
    assert choose(new, old) == "episode reward"
    assert choose(new, name="Train/Episodes") == "Train/Episodes"
    with pytest.raises(
        ConfigError, match=r"run old has no curve 'Train/Episodes'; it has 'episode reward'"
    ):
        choose(new, old, name="Train/Episodes")
    with pytest.raises(ConfigError, match=r"run empty has no curve .* no curves"):
        choose(new, empty)


def test_a_folder_without_access_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", refuse)
    nowhere = tmp_path / "nowhere"
    checks: list[Callable[[], object]] = [
        lambda: validate_output(nowhere / "a.png"),
        lambda: validate_video(nowhere / "a.mp4"),
        lambda: find_trace_folder(nowhere),
    ]
    for check in checks:
        with pytest.raises(ConfigError, match="or no access to it"):
            check()
