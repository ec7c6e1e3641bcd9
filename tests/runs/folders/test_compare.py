"""How runs went, in numbers worked out by hand."""

from pathlib import Path
from typing import Any

import pytest
from support.runs import Points, make_returns, make_run
from support.snapshots import make_state

from relaax_like.core.records import Episode
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.parameter_server.statistics import Statistics
from relaax_like.runs.folders.compare import RunResults, find_mean_returns, summarize_run
from relaax_like.runs.folders.runs import load_runs

# Second, step, mean return. The window is ten episodes: the third point is the first over a whole
# one. Its mean is the best; that of the second was luck.
POINTS: Points = [(2, 100, 1.0), (4, 200, 99.0), (6, 300, 8.0), (8, 400, 6.0), (10, 500, 7.0)]


def summarize(folder: Path, target: float | None = None) -> RunResults:
    (run,) = load_runs([folder])
    return summarize_run(run, target)


def test_the_numbers_of_a_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", make_returns(POINTS, episodes_per_point=4), seed=3)
    assert summarize(folder, 7.5) == RunResults(
        run="run",
        seed=3,
        steps=500,
        mean_return=7.0,
        episodes=10,
        best=8.0,
        target_steps=300,
        target_sec=6.0,
        steps_per_sec=50.0,
    )
    unreached = summarize(folder, 8.5)
    assert (unreached.target_steps, unreached.target_sec) == (None, None)
    assert summarize(folder).target_steps is None


def test_curves_of_single_episodes_will_do(tmp_path: Path) -> None:
    # Ten episodes of 1, then one of 21 and one of 31: means 1, 3, 6 over the newest ten.
    rewards = [1.0] * 10 + [21.0, 31.0]
    points = [(float(n), 10 * n, reward) for n, reward in enumerate(rewards, start=1)]
    folder = make_run(tmp_path / "run", {"episode reward": points})
    (run,) = load_runs([folder])
    assert find_mean_returns(run, 10).values.tolist() == [1.0, 3.0, 6.0]
    found = summarize(folder, 3.0)
    assert (found.steps, found.mean_return, found.episodes, found.best) == (120, 6.0, 10, 6.0)
    assert (found.target_steps, found.target_sec) == (110, 11.0)
    assert found.steps_per_sec == 10.0


def save_snapshot(folder: Path, global_t: int, returns: list[float]) -> None:
    state = make_state(global_t)
    counted = Statistics(10)
    counted.add(0, [Episode(one, 1) for one in returns])
    state.statistics.update(counted.to_dict())  # type: ignore[attr-defined]
    with Snapshots(folder / "checkpoints") as snapshots:
        snapshots.save(state)


@pytest.mark.parametrize(
    ("global_t", "want"),
    [(499, (500, 7.0, 10)), (500, (500, 2.0, 3)), (501, (501, 2.0, 3))],
    ids=["older than the curves", "as new", "newer"],
)
def test_the_newest_of_snapshot_and_curves_counts(
    tmp_path: Path, global_t: int, want: tuple[Any, ...]
) -> None:
    folder = make_run(tmp_path / "run", make_returns(POINTS))
    save_snapshot(folder, global_t, [1.0, 2.0, 3.0])
    found = summarize(folder)
    assert (found.steps, found.mean_return, found.episodes) == want


def test_only_the_last_episodes_of_a_snapshot_count(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", {})
    save_snapshot(folder, 70, [100.0] * 5 + [4.0] * 10)
    found = summarize(folder, 1.0)
    assert (found.steps, found.mean_return, found.episodes) == (70, 4.0, 10)
    assert (found.best, found.target_steps, found.steps_per_sec) == (None, None, None)


def test_a_run_that_has_only_begun_and_one_with_a_damaged_snapshot(tmp_path: Path) -> None:
    begun = make_run(tmp_path / "begun", {})
    nothing = RunResults(
        run="begun",
        seed=0,
        steps=0,
        mean_return=None,
        episodes=None,
        best=None,
        target_steps=None,
        target_sec=None,
        steps_per_sec=None,
    )
    assert summarize(begun, 1.0) == nothing
    save_snapshot(begun, 0, [])
    assert summarize(begun, 1.0) == nothing
    for path in begun.glob("checkpoints/cp-*/values.npy"):
        path.write_bytes(b"")
    assert summarize(begun, 1.0) == nothing
