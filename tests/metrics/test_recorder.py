"""Event files. Covers R15."""

import errno
import logging
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.event_files import read_scalars
from support.threads import wait_until

from relaax_like.metrics.buffered import BufferedMetrics, Point
from relaax_like.metrics.recorder import TensorBoardRecorder
from relaax_like.wire.errors import ConfigError, InvalidInputError


def test_points_come_back_in_order(tmp_path: Path) -> None:
    with TensorBoardRecorder(tmp_path / "new" / "folder") as recorder:
        recorder.scalar("episode reward", 17.0, 100)
        recorder.scalar("server latency", np.float32(0.5), np.int64(101))  # type: ignore[arg-type]
        recorder.scalar("episode reward", -1, 200.4)
        recorder.scalar("größe", 1e300, 0)
    assert recorder.dropped == 0
    curves = read_scalars(tmp_path / "new" / "folder")
    assert curves["episode reward"] == [(100, 17.0), (200, -1.0)]
    assert curves["server latency"] == [(101, 0.5)]
    # Limited to what TensorBoard's 32 bits hold; infinity would break the curve's axis.
    assert curves["größe"][0][1] == pytest.approx(3.4028234e38)


def test_missing_x_is_the_newest_global_t(tmp_path: Path) -> None:
    steps = iter([5, 9])
    with TensorBoardRecorder(tmp_path, global_t=lambda: next(steps)) as recorder:
        recorder.scalar("a", 1.0)
        recorder.scalar("a", 2.0)
    assert read_scalars(tmp_path) == {"a": [(5, 1.0), (9, 2.0)]}


def test_missing_x_without_global_t_is_the_largest_so_far(tmp_path: Path) -> None:
    with TensorBoardRecorder(tmp_path) as recorder:
        recorder.scalar("a", 1.0)
        recorder.scalar("a", 2.0, 30)
        recorder.scalar("a", 3.0, 20)
        recorder.scalar("b", 4.0)
    assert read_scalars(tmp_path) == {"a": [(0, 1.0), (30, 2.0), (20, 3.0)], "b": [(30, 4.0)]}


def test_flushed_points_are_readable_while_recording_goes_on(tmp_path: Path) -> None:
    with TensorBoardRecorder(tmp_path) as recorder:
        recorder.scalar("a", 1.0, 1)
        assert recorder.flush()
        assert read_scalars(tmp_path) == {"a": [(1, 1.0)]}
        recorder.scalar("a", 2.0, 2)
        assert recorder.flush()
        assert read_scalars(tmp_path) == {"a": [(1, 1.0), (2, 2.0)]}


@pytest.mark.parametrize(
    ("name", "y", "x", "want"),
    [
        ("", 1.0, None, "name '' of length 0, expected 1 to 200"),
        ("x" * 201, 1.0, None, "expected 1 to 200"),
        ("a\nb", 1.0, None, "printable"),
        (3, 1.0, None, "name 3, expected"),
        ("loss", float("nan"), None, "'loss': y is nan, expected a finite number"),
        ("loss", float("-inf"), None, "'loss': y is -inf"),
        ("loss", 1.0, float("nan"), "'loss': x is nan"),
        ("loss", 1.0, float("inf"), "'loss': x is inf"),
        ("loss", 1.0, 1e17, "'loss': x is 1e.17, expected a number from"),
    ],
)
def test_bad_point_is_refused_and_the_next_one_recorded(
    tmp_path: Path, name: Any, y: float, x: float | None, want: str
) -> None:
    with TensorBoardRecorder(tmp_path) as recorder:
        with pytest.raises(InvalidInputError, match=want):
            recorder.scalar(name, y, x)
        recorder.scalar("x" * 200, 1.0, 1)
    assert read_scalars(tmp_path) == {"x" * 200: [(1, 1.0)]}


def test_full_queue_drops_and_counts_without_blocking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on = threading.Event(), threading.Event()
    real = os.pwrite

    def stalled(*arguments: Any) -> int:
        entered.set()
        assert go_on.wait(60)
        return real(*arguments)

    monkeypatch.setattr(os, "pwrite", stalled)
    with TensorBoardRecorder(tmp_path, max_queue=3) as recorder:
        recorder.scalar("a", 0.0, 0)
        recorder.scalar("a", 1.0, 1)
        assert entered.wait(60)  # A disk that hangs; points in its hands still count as queued.
        for index in range(2, 10):
            recorder.scalar("a", 0.0, index)
        assert recorder.dropped == 7
        go_on.set()
    assert [x for x, _ in read_scalars(tmp_path)["a"]] == [0, 1, 2]


def test_full_disk_costs_points_and_one_line_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = False
    real = os.pwrite

    def write(fd: int, data: bytes, offset: int) -> int:
        if not full:
            return real(fd, data, offset)
        if len(data) > 10:  # First a part fits, as on a real disk.
            return real(fd, data[:10], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    def write_until_full(fd: int, data: bytes, offset: int) -> int:
        if full and offset > end:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", write_until_full)
    with caplog.at_level(logging.INFO), TensorBoardRecorder(tmp_path) as recorder:
        recorder.scalar("a", 1.0, 1)
        assert recorder.flush()
        end, full = recorder.path.stat().st_size, True
        for x in (2, 3):
            recorder.scalar("a", 1.0, x)
            assert recorder.flush()
        assert recorder.path.stat().st_size == end
        assert recorder.dropped == 2
        full = False
        recorder.scalar("a", 1.0, 4)
        assert recorder.flush()
    assert [x for x, _ in read_scalars(tmp_path)["a"]] == [1, 4]
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert "No space left" in errors[0].getMessage()
    assert "recording metrics again; dropped so far: 2" in caplog.text


def test_file_size_limit_of_the_system_is_survived(tmp_path: Path) -> None:
    # A real EFBIG from the kernel, in a process of its own as the limit cannot be taken back.
    code = (
        "import resource, sys\n"
        "from relaax_like.metrics.recorder import TensorBoardRecorder\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "with TensorBoardRecorder(sys.argv[1]) as recorder:\n"
        "    for x in range(200):\n"
        "        recorder.scalar('a', 1.0, x)\n"
        "        assert recorder.flush()\n"
        "print(recorder.dropped)\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] in (resource.RLIM_INFINITY, -1)
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    recorded = len(read_scalars(tmp_path)["a"])
    assert 0 < recorded < 200
    assert recorded + int(result.stdout) == 200


def test_points_of_many_threads_are_all_recorded(tmp_path: Path) -> None:
    with TensorBoardRecorder(tmp_path) as recorder:

        def record(name: str) -> None:
            for x in range(300):
                recorder.scalar(name, x, x)

        threads = [threading.Thread(target=record, args=(f"curve {i}",)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    curves = read_scalars(tmp_path)
    assert curves == {f"curve {i}": [(x, float(x)) for x in range(300)] for i in range(4)}


def test_a_full_queue_that_cannot_be_emptied_is_not_tried_all_the_time() -> None:
    class Stuck(BufferedMetrics):
        def __init__(self) -> None:
            super().__init__("stuck", max_queue=4)
            self.calls = 0
            self._start()

        def _consume(self, points: list[Point], closing: bool) -> int:
            self.calls += 1
            return 0

    with Stuck() as recorder:
        for _ in range(3):
            recorder.scalar("a", 1.0)
        began = time.monotonic()
        wait_until(lambda: recorder.calls >= 3, "it tries again")
        assert recorder.calls <= 3 + time.monotonic() - began  # one a second
    assert recorder.dropped == 3


def test_closing_twice_and_recording_afterwards_is_safe(tmp_path: Path) -> None:
    recorder = TensorBoardRecorder(tmp_path)
    recorder.scalar("a", 1.0, 1)
    recorder.close()
    recorder.close()
    recorder.scalar("a", 2.0, 2)
    assert recorder.flush()
    assert recorder.dropped == 1
    assert read_scalars(tmp_path) == {"a": [(1, 1.0)]}


def test_two_recorders_of_one_folder_write_two_files(tmp_path: Path) -> None:
    with TensorBoardRecorder(tmp_path) as one, TensorBoardRecorder(tmp_path) as two:
        one.scalar("a", 1.0, 1)
        two.scalar("a", 2.0, 2)
    assert one.path != two.path
    assert sorted(read_scalars(tmp_path)["a"]) == [(1, 1.0), (2, 2.0)]


def test_directory_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"metrics directory .*file cannot be written"):
        TensorBoardRecorder(tmp_path / "file")


def test_queue_of_size_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_queue is 0"):
        TensorBoardRecorder(tmp_path, max_queue=0)


def test_damaged_file_is_noticed(tmp_path: Path) -> None:
    with TensorBoardRecorder(tmp_path) as recorder:
        recorder.scalar("a", 1.0, 1)
    data = bytearray(recorder.path.read_bytes())
    data[-10] ^= 1
    recorder.path.write_bytes(data)
    with pytest.raises(InvalidInputError, match="damaged at byte"):
        read_scalars(tmp_path)


def test_tensorboard_itself_reads_the_file(tmp_path: Path) -> None:
    # covers P29
    with TensorBoardRecorder(tmp_path) as recorder:
        for x in range(5):
            recorder.scalar("episode reward", 2.0 * x, 10 * x)
    # `notf` keeps TensorBoard from importing TensorFlow, which takes seconds.
    code = (
        "import sys, types; sys.modules['tensorboard.compat.notf'] = types.ModuleType('notf')\n"
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "events = EventAccumulator(sys.argv[1]); events.Reload()\n"
        "print([(e.step, e.value) for e in events.Scalars('episode reward')])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert result.stdout.strip() == str([(10 * x, 2.0 * x) for x in range(5)]), result.stderr


def test_nothing_imports_tensorflow(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from relaax_like.bridge import metrics_client, metrics_servicer\n"
        "from relaax_like.metrics import recorder\n"
        "with recorder.TensorBoardRecorder(sys.argv[1]) as metrics:\n"
        "    metrics.scalar('a', 1.0, 1)\n"
        "print('tensorflow' in sys.modules)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert result.stdout.strip() == "False", result.stderr
    assert read_scalars(tmp_path) == {"a": [(1, 1.0)]}


def test_the_recorder_does_not_load_boto3_and_leaves_it_to_others():
    code = (
        "import sys, relaax_like.metrics.recorder; assert 'boto3' not in sys.modules;"
        "import boto3; assert boto3.client"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
