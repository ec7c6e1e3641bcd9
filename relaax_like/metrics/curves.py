"""Reads the curves of a run back from its event files, without TensorFlow."""

import logging
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError

from relaax_like.metrics.tensorboard_files import Event, masked_crc32c

_HEADER = struct.Struct("<QI")  # length of the body, and the checksum of these eight bytes
_CRC_BYTES = 4

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Curve:
    """Points of one curve, in the order of their steps.

    Attributes:
      steps: [n] int64, not decreasing.
      values: [n] float64.
      wall_times: [n] float64, seconds since 1970.
      seconds: [n] float64, since the run began; the time between two starts is left out.
    """

    steps: np.ndarray
    values: np.ndarray
    wall_times: np.ndarray
    seconds: np.ndarray


class EventFileReader:
    """Reads an event file, even while it grows.

        reader = EventFileReader(path)
        for event in reader.read():
            ...
        for event in reader.read():  # new events since then
            ...

    The checksums of the bodies are not compared: TensorBoard's implementation is in Python, and
    would take most of the time.

    Args:
      path: the file.
    """

    def __init__(self, path: Path):
        self._path = path
        self._read = 0  # bytes
        self._damaged = False

    def read(self) -> Iterator[Event]:
        """Yields the next events, up to the file's end, or the first incomplete or damaged record.

        A damaged record is logged; this reader reads nothing after it.

        Raises:
          OSError: the file cannot be read.
        """
        if self._damaged:
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        start = 0
        while start + _HEADER.size <= len(data):
            length, crc = _HEADER.unpack_from(data, start)
            body = start + _HEADER.size
            end = body + length + _CRC_BYTES
            if masked_crc32c(data[start : start + 8]) != crc:
                self._give_up()
                return
            if end > len(data):
                return
            try:
                event = Event.FromString(data[body : body + length])
            except DecodeError:
                self._give_up()
                return
            start = end
            self._read += _HEADER.size + length + _CRC_BYTES
            yield event

    def _give_up(self) -> None:
        self._damaged = True
        _log.warning("%s: damaged at byte %d; ignoring the rest", self._path, self._read)


@dataclass
class _Points:
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    wall_times: list[float] = field(default_factory=list)


@dataclass
class _File:
    start: float
    end: float
    curves: dict[str, _Points]


def read_curves(metrics_dir: str | Path) -> dict[str, Curve]:
    """Returns the curves of all event files of a folder, without histograms; {}: there are none.

    Each start of a run has its own file. A start that resumed from an older snapshot repeats steps:
    in each curve, points of earlier starts are dropped from the first step of the later start on. A
    file is read up to its end, or to the first incomplete or damaged record.

    Args:
      metrics_dir: the folder.

    Raises:
      OSError: a file cannot be read.
    """
    paths = Path(metrics_dir).glob("events.out.tfevents.*")
    files = [file for path in paths if (file := _read_file(path)) is not None]
    files.sort(key=lambda file: file.start)
    spans = _merge_spans([(file.start, file.end) for file in files])
    names = sorted({name for file in files for name in file.curves})
    return {
        name: _join([file.curves[name] for file in files if name in file.curves], spans)
        for name in names
    }


def _read_file(path: Path) -> _File | None:
    """Reads one file; returns None if it has no readable event."""
    times: list[float] = []
    curves: dict[str, _Points] = {}
    for event in EventFileReader(path).read():
        times.append(event.wall_time)
        for value in event.summary.value:
            if value.HasField("simple_value"):
                points = curves.setdefault(value.tag, _Points())
                points.steps.append(event.step)
                points.values.append(value.simple_value)
                points.wall_times.append(event.wall_time)
    return _File(min(times), max(times), curves) if times else None


def _join(parts: Sequence[_Points], spans: Sequence[tuple[float, float]]) -> Curve:
    """Joins the points of several starts, the earliest first, to one curve."""
    kept: list[np.ndarray] = []
    for part in reversed(parts):
        # Steps are at most 2**53, which a float represents exactly.
        points = np.array([part.steps, part.values, part.wall_times], np.float64)  # [3, n]
        points = points[:, np.argsort(points[0], kind="stable")]
        if kept:
            points = points[:, points[0] < kept[0][0, 0]]
        if points.size:
            kept.insert(0, points)
    steps, values, wall_times = np.concatenate(kept, axis=1)
    seconds = np.zeros(len(steps))
    for start, end in spans:
        seconds += np.clip(wall_times, start, end) - start
    return Curve(steps.astype(np.int64), values, wall_times, seconds)


def _merge_spans(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Joins spans of time that overlap; `spans` are sorted by their starts."""
    merged: list[tuple[float, float]] = []
    for start, end in spans:
        if merged and start <= merged[-1][1]:
            start, end = merged[-1][0], max(end, merged.pop()[1])
        merged.append((start, end))
    return merged
