"""Curves read back from event files. covers R15, P23"""

import contextlib
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.event_files import read_scalars
from support.runs import START, write_events
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from relaax_like.bridge.metrics_client import MetricsClient
from relaax_like.bridge.metrics_servicer import create_metrics_server
from relaax_like.config.address import Address
from relaax_like.metrics.curves import EventFileReader, read_curves
from relaax_like.metrics.recorder import TensorBoardRecorder
from relaax_like.metrics.tensorboard_files import Event, RecordWriter, Summary


def test_what_the_recorder_writes_comes_back(tmp_path: Path) -> None:
    with TensorBoardRecorder(tmp_path) as recorder:
        for step in range(300):
            recorder.scalar("loss", 1 / (step + 1), step)
            recorder.scalar("Train/größe", -step, 10 * step)
        assert recorder.flush()
        curves = read_curves(tmp_path)  # while it is open
    assert list(curves) == ["Train/größe", "loss"]
    for name, points in read_scalars(tmp_path).items():
        curve = curves[name]
        assert list(zip(curve.steps.tolist(), curve.values.tolist(), strict=True)) == points
        assert (curve.steps.dtype, curve.values.dtype) == (np.int64, np.float64)
        assert (np.diff(curve.seconds) >= 0).all()
        assert 0 <= curve.seconds[0] <= curve.seconds[-1] < 60


@pytest.mark.parametrize("through_server", [False, True])
def test_what_was_recorded_of_lost_steps_is_dropped(through_server: bool, tmp_path: Path) -> None:
    """By this reader and by TensorBoard; with a metrics server, all starts are in one file."""
    with contextlib.ExitStack() as ends:
        if through_server:
            server, port = create_metrics_server(
                Address("localhost", 0), ends.enter_context(TensorBoardRecorder(tmp_path))
            )
            server.start()
            ends.callback(lambda: server.stop(None).wait())
        for resumed, steps in ((0, (10, 20, 30, 40)), (20, (25, 35)), (10, (15,))):
            with (
                MetricsClient(f"localhost:{port}", lambda: 0)
                if through_server
                else TensorBoardRecorder(tmp_path)
            ) as recorder:
                recorder.start_at(resumed)
                recorder.scalars([("often", resumed, step) for step in steps])
                if not resumed:
                    recorder.scalars([("rare", 1.0, 10), ("rare", 2.0, 30)])
                assert recorder.flush()
    curves = read_curves(tmp_path)
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    for name, points in {"often": [(10, 0.0), (15, 10.0)], "rare": [(10, 1.0)]}.items():
        ours = zip(curves[name].steps.tolist(), curves[name].values.tolist(), strict=True)
        assert list(ours) == points
        assert [(point.step, point.value) for point in found.Scalars(name)] == points


def test_a_file_that_grows_is_read_on(tmp_path: Path) -> None:
    with TensorBoardRecorder(tmp_path) as recorder:
        reader = EventFileReader(recorder.path)
        assert list(reader.read()) == []
        for steps in (range(3), range(3, 300)):
            for step in steps:
                recorder.scalar("loss", 0.5, step)
            assert recorder.flush()
            events = [event for event in reader.read() if event.summary.value]
            assert [event.step for event in events] == list(steps)
        path, size = recorder.path, recorder.path.stat().st_size
    data = path.read_bytes()
    torn = tmp_path / "torn"
    torn.write_bytes(data[: size - 5])
    reader = EventFileReader(torn)
    assert len(list(reader.read())) == 300  # the header is one, and the torn one waits
    torn.write_bytes(data)
    assert [event.step for event in reader.read()] == [299]


def test_no_folder_and_no_files_are_no_curves(tmp_path: Path) -> None:
    assert read_curves(tmp_path / "absent") == {}
    (tmp_path / "events.out.tfevents.1").touch()
    (tmp_path / "notes.txt").write_text("nothing")
    assert read_curves(tmp_path) == {}


def test_a_later_start_takes_steps_back_and_the_pause_does_not_count(tmp_path: Path) -> None:
    # Written 20 s; dead for 80 s; continues from step 150. The names do not sort by time.
    write_events(
        tmp_path / "events.out.tfevents.b",
        0,
        {"a": [(10, 100, 1.0), (15, 150, 2.0), (20, 200, 3.0)], "only first": [(5, 50, 7.0)]},
    )
    write_events(
        tmp_path / "events.out.tfevents.a",
        100,
        {"a": [(104, 150, 4.0), (106, 250, 5.0)], "only second": [(104, 0, 8.0)]},
    )
    curves = read_curves(tmp_path)
    assert curves["a"].steps.tolist() == [100, 150, 250]
    assert curves["a"].values.tolist() == [1.0, 4.0, 5.0]
    np.testing.assert_allclose(curves["a"].wall_times - START, [10, 104, 106])
    # 20 s of the first start, then 4 and 6 of the second.
    np.testing.assert_allclose(curves["a"].seconds, [10, 24, 26])
    assert curves["only first"].values.tolist() == [7.0]
    assert curves["only second"].seconds.tolist() == [24.0]


def test_starts_that_overlap_are_counted_once(tmp_path: Path) -> None:
    write_events(tmp_path / "events.out.tfevents.1", 0, {"a": [(1, 1, 0.0), (10, 2, 0.0)]})
    write_events(tmp_path / "events.out.tfevents.2", 5, {"a": [(8, 3, 0.0), (20, 4, 0.0)]})
    assert read_curves(tmp_path)["a"].seconds.tolist() == [1, 10, 8, 20]


def test_points_are_put_in_the_order_of_their_steps(tmp_path: Path) -> None:
    points = [(1, 30, 1.0), (2, 10, 2.0), (3, 30, 3.0), (4, 20, 4.0)]
    write_events(tmp_path / "events.out.tfevents.1", 0, {"a": points})
    curve = read_curves(tmp_path)["a"]
    assert curve.steps.tolist() == [10, 20, 30, 30]
    assert curve.values.tolist() == [2.0, 4.0, 1.0, 3.0]


def test_a_torn_last_record_is_left_out_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "events.out.tfevents.1"
    write_events(path, 0, {"a": [(1, 1, 1.0), (2, 2, 2.0)]})
    whole = path.read_bytes()
    write_events(path, 0, {"a": [(1, 1, 1.0)]})
    first = path.stat().st_size
    with caplog.at_level(logging.WARNING):
        for end in range(first, len(whole)):
            path.write_bytes(whole[:end])
            assert read_curves(tmp_path)["a"].steps.tolist() == [1], end
    assert caplog.text == ""
    path.write_bytes(whole)
    assert read_curves(tmp_path)["a"].steps.tolist() == [1, 2]


@pytest.mark.parametrize("tail", [bytes(64), b"\xff" * 64], ids=["zeros", "ones"])
def test_what_a_power_cut_leaves_behind_the_points_is_named(
    tmp_path: Path, tail: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "events.out.tfevents.1"
    write_events(path, 0, {"a": [(1, 1, 1.0)]})
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + tail)
    assert read_curves(tmp_path)["a"].steps.tolist() == [1]
    assert f"damaged at byte {size}; ignoring the rest" in caplog.text


def test_what_is_no_scalar_is_left_out(tmp_path: Path) -> None:
    values = [
        Summary.Value(tag="histogram", histo={"min": 0, "max": 1}),
        Summary.Value(tag="text", tensor={"string_val": [b"hello"]}),
        Summary.Value(tag="zero", simple_value=0.0),
    ]
    with (tmp_path / "events.out.tfevents.1").open("wb") as file:
        event = Event(wall_time=1.0, step=3, summary=Summary(value=values))
        RecordWriter(file).write(event.SerializeToString())
    assert list(read_curves(tmp_path)) == ["zero"]


def test_reading_loads_neither_tensorflow_nor_grpc_nor_pandas(tmp_path: Path) -> None:
    code = (
        "import sys; from relaax_like.metrics.curves import read_curves; read_curves('.');"
        "print({'tensorflow', 'grpc', 'pandas', 'boto3'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == ("set()", "")
