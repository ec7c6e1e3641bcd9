"""Writes curves to TensorBoard's event files, without TensorFlow."""

import logging
import os
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from relaax_like.core.metrics import select_finite
from relaax_like.metrics.buffered import (
    DEFAULT_MAX_QUEUE,
    START,
    BufferedMetrics,
    Histogram,
    Point,
    validate_point,
)
from relaax_like.metrics.crc32c import compute_crc32c, mask_crcs
from relaax_like.metrics.tensorboard_files import Event, HistogramProto, SessionLog
from relaax_like.wire.errors import ConfigError

_log = logging.getLogger(__name__)
_HISTOGRAM_BINS = 30
_MAX_FLOAT32 = 3.4028234e38


class TensorBoardRecorder(BufferedMetrics):
    """Records points in one event file of a directory.

        with TensorBoardRecorder(metrics_dir, global_t=lambda: store.global_t) as metrics:
            metrics.scalar("episode reward", 17.0)

    Points are written about once a second, and then survive the death of the process. While the
    file cannot be written (disk full, ...), they are dropped and counted, with one log line;
    recording resumes by itself. Packing takes about 8 us per point, in the thread.
    """

    def __init__(
        self,
        directory: str | Path,
        global_t: Callable[[], float] | None = None,
        max_queue: int = DEFAULT_MAX_QUEUE,
    ):
        """Opens a new event file.

        Args:
          directory: created if it does not exist.
          global_t: returns the x of points without one; must be fast. None: the largest x that has
            been recorded.
          max_queue: maximum number of points in memory; more are dropped.

        Raises:
          ConfigError: the directory cannot be written to.
          ValueError: `max_queue` is below 1.
        """
        super().__init__("metrics recorder", global_t, max_queue)
        self._file = _EventFile(Path(directory))
        self._failing = False
        self._start()

    @property
    def path(self) -> Path:
        """The event file."""
        return self._file.path

    def histogram(self, name: str, values: np.ndarray, x: float | None = None) -> None:
        """Records a histogram; see `Metrics.histogram` for the arguments.

        Raises:
          InvalidInputError: the name is not valid, or `x` is out of range.
        """
        finite = select_finite(values)
        if finite.size == 0:
            return
        histogram = _make_histogram(finite)
        mean = histogram.total / finite.size
        validate_point(name, mean, x)
        self.store([(name, mean, x)], histogram)

    def _consume(self, points: list[Point], closing: bool) -> int:
        try:
            self._file.append([_point_to_event(point) for point in points])
        except OSError as error:
            self._count_dropped(len(points))
            if not self._failing:
                _log.error("dropping metrics: cannot write to %s (%s)", self.path, error.strerror)
            self._failing = True
            return len(points)
        if self._failing:
            _log.info("recording metrics again; dropped so far: %d", self.dropped)
        self._failing = False
        return len(points)

    def _finish(self) -> None:
        self._file.close()


class _EventFile:
    """An append-only file of records; each record is complete or absent."""

    _count = 0

    def __init__(self, directory: Path):
        type(self)._count += 1
        self._closed = False
        now = time.time()
        name = f"events.out.tfevents.{now:017.6f}.{socket.gethostname()}.{os.getpid()}"
        self.path = directory / f"{name}.{self._count}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(
                self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666
            )
        except OSError as error:
            raise ConfigError(
                f"metrics directory {directory} cannot be written: {error.strerror}; make it "
                "writable, free disk space, or set metrics_dir (of relaax-metrics-server if there "
                "is such a section, else of relaax-parameter-server) to another folder"
            ) from None
        self._end = 0
        # TensorBoard expects this event first. It is written with the first points.
        self._header: list[Event] = [Event(wall_time=now, file_version="brain.Event:2")]

    def append(self, events: list[Event]) -> None:
        """Writes events.

        Raises:
          OSError: no event was written.
        """
        data = _pack_records(self._header + events)
        try:
            _write_all(self._fd, data, self._end)
        except OSError:
            # A partly written record would hide all records after it.
            os.ftruncate(self._fd, self._end)
            raise
        self._end += len(data)
        self._header = []

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._fd)


def _make_histogram(values: np.ndarray) -> Histogram:
    values = np.clip(values, -_MAX_FLOAT32, _MAX_FLOAT32)
    low, high = values.min(), values.max()
    # NumPy refuses bins that are too narrow for floating point.
    narrow = max(1e-9 * np.abs(values).max(), 1e-30)
    if high - low < narrow:
        low, high = low - narrow, high + narrow
    counts, edges = np.histogram(values, _HISTOGRAM_BINS, (low, high))
    return Histogram(edges, counts, float(values.sum()), float(np.square(values).sum()))


def _point_to_event(point: Point) -> Event:
    event = Event(wall_time=point.wall_time, step=round(point.x))
    if point.name == START:
        event.step += 1  # TensorBoard drops what it has read from the event's step on
        event.session_log.status = SessionLog.START
        return event
    value = event.summary.value.add()
    value.tag = point.name
    if point.histogram is None:
        value.simple_value = min(max(point.y, -_MAX_FLOAT32), _MAX_FLOAT32)
    else:
        value.histo.CopyFrom(_histogram_to_proto(point.histogram))
    return event


def _histogram_to_proto(histogram: Histogram) -> HistogramProto:
    return HistogramProto(
        min=histogram.edges[0],
        max=histogram.edges[-1],
        num=float(histogram.counts.sum()),
        sum=histogram.total,
        sum_squares=histogram.total_of_squares,
        bucket_limit=histogram.edges[1:],
        bucket=histogram.counts,
    )


def _pack_records(events: list[Event]) -> bytes:
    """Returns events in the file's format: length, its checksum, the event, its checksum."""
    bodies = [event.SerializeToString() for event in events]
    lengths = [struct.pack("<Q", len(body)) for body in bodies]
    sums = zip(mask_crcs(compute_crc32c(lengths)), mask_crcs(compute_crc32c(bodies)), strict=True)
    parts: list[bytes] = []
    for length, body, (length_sum, body_sum) in zip(lengths, bodies, sums, strict=True):
        parts += length, length_sum, body, body_sum
    return b"".join(parts)


def _write_all(fd: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, offset)
        offset += written
        rest = rest[written:]
