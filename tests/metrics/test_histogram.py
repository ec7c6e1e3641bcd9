"""Histograms: as TensorBoard reads them back, and as points where a recorder keeps only those."""

# covers D20

from pathlib import Path

import numpy as np
import pytest
from support.event_files import read_events, read_scalars
from tensorboard import data_compat
from tensorboard.util import tensor_util

from relaax_like.core.metrics import Metrics
from relaax_like.metrics.recorder import TensorBoardRecorder
from relaax_like.wire.errors import InvalidInputError


def read_histogram(directory: Path, name: str) -> list[tuple[int, np.ndarray]]:
    """Returns (x, [bins, 3] of left, right, count) of each histogram, as TensorBoard sees it."""
    found = []
    for path in directory.iterdir():
        for event in read_events(path):
            for value in event.summary.value:
                taken = data_compat.migrate_value(value)
                if taken.tag == name and taken.metadata.plugin_data.plugin_name == "histograms":
                    found.append((event.step, tensor_util.make_ndarray(taken.tensor)))
    return found


def test_tensorboard_reads_the_counts_of_each_bin(tmp_path: Path) -> None:
    values = np.array([0.0, 0.05, 0.95, 2.0, 3.0, 3.0], np.float32).reshape(2, 3)
    with TensorBoardRecorder(tmp_path) as recorder:
        recorder.scalar("loss", 1.0, 7)
        recorder.histogram("errors", values, 8)
    ((x, bins),) = read_histogram(tmp_path, "errors")
    assert x == 8
    assert bins.shape == (30, 3)  # of width 0.1
    counts = {round(float(left), 6): int(count) for left, _, count in bins if count}
    assert counts == {0.0: 2, 0.9: 1, 2.0: 1, 2.9: 2}
    assert (bins[0, 0], bins[-1, 1]) == (0.0, 3.0)
    # Curves are as they were.
    assert read_scalars(tmp_path) == {"loss": [(7, 1.0)]}


def test_its_position_is_the_newest_global_t_unless_it_is_said(tmp_path: Path) -> None:
    with TensorBoardRecorder(tmp_path, global_t=lambda: 12) as recorder:
        recorder.histogram("errors", np.arange(5))
    assert [x for x, _ in read_histogram(tmp_path, "errors")] == [12]


@pytest.mark.parametrize(
    "values",
    [
        [3.0, 3.0, 3.0],
        [0.0, 0.0],
        [1e17, 1e17 + 16],
        [0.0, 5e-324],
        [-1.7e308, 1.7e308],
        [1.0, float("nan"), 2.0, float("inf")],
    ],
)
def test_values_all_alike_huge_or_not_finite_are_counted(
    tmp_path: Path, values: list[float]
) -> None:
    with TensorBoardRecorder(tmp_path) as recorder:
        recorder.histogram("errors", np.array(values))
    ((_, bins),) = read_histogram(tmp_path, "errors")
    assert bins[:, 2].sum() == np.isfinite(values).sum()
    assert np.isfinite(bins).all()


def test_without_a_finite_value_there_is_no_histogram(tmp_path: Path) -> None:
    with TensorBoardRecorder(tmp_path) as recorder:
        recorder.histogram("errors", np.array([np.nan, np.inf]))
        recorder.histogram("errors", np.zeros((0, 3)))
    assert recorder.path.read_bytes() == b""


def test_a_bad_name_is_refused(tmp_path: Path) -> None:
    with TensorBoardRecorder(tmp_path) as recorder:
        with pytest.raises(InvalidInputError, match="expected 1 to 200"):
            recorder.histogram("", np.zeros(3))


def test_a_recorder_of_points_gets_smallest_mean_and_largest() -> None:
    points = {}

    class Points(Metrics):
        def scalar(self, name: str, y: float, x: float | None = None) -> None:
            points[name] = (y, x)

    large = np.array([1.6e308, 1.7e308, 1.7e308])  # no float holds their sum
    Points().histogram("large", large, 5)
    assert points.pop("large/min") == (1.6e308, 5)
    assert points.pop("large/mean") == (pytest.approx(1.6667e308, rel=1e-4), 5)
    assert points.pop("large/max") == (1.7e308, 5)
    Points().histogram("errors", np.array([1.0, -2.0, np.nan, 4.0]), 5)
    Points().histogram("none", np.array([np.nan]), 5)
    assert points == {"errors/min": (-2.0, 5), "errors/mean": (1.0, 5), "errors/max": (4.0, 5)}
