"""Reads the curves of a run back from its event files, without TensorFlow."""

import itertools
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
class _Start:
    start: float
    end: float
    first_step: float  # at which it resumed; inf: unknown
    # Name -> steps, values, wall times.
    curves: dict[str, tuple[list[float], ...]] = field(default_factory=dict)


def read_curves(metrics_dir: str | Path) -> dict[str, Curve]:
    """Returns the curves of all event files of a folder, without histograms; {}: there are none.

    A start that resumed from an older snapshot repeats steps: points of earlier starts are dropped
    from the later start's step on, and in each curve from its first point on. A file is read up to
    its end, or to the first incomplete or damaged record.

    Args:
      metrics_dir: the folder.

    Raises:
      OSError: a file cannot be read.
    """
    paths = Path(metrics_dir).glob("events.out.tfevents.*")
    starts = sorted(
        itertools.chain.from_iterable(map(_read_file, paths)), key=lambda one: one.start
    )
    spans = _merge_spans([(one.start, one.end) for one in starts])
    names = sorted({name for one in starts for name in one.curves})
    return {name: _join(starts, name, spans) for name in names}


def _read_file(path: Path) -> list[_Start]:
    """Reads one file; a metrics server's can have several starts."""
    starts: list[_Start] = []
    for event in EventFileReader(path).read():
        now = event.wall_time
        if event.HasField("session_log"):
            starts.append(_Start(starts[-1].end if starts else now, now, event.step))
        elif not starts:
            starts.append(_Start(now, now, np.inf))
        one = starts[-1]
        one.start, one.end = min(one.start, now), max(one.end, now)
        for value in event.summary.value:
            if value.HasField("simple_value"):
                lists = one.curves.setdefault(value.tag, ([], [], []))
                for numbers, number in zip(
                    lists, (event.step, value.simple_value, now), strict=True
                ):
                    numbers.append(number)
    return starts


def _join(starts: Sequence[_Start], name: str, spans: Sequence[tuple[float, float]]) -> Curve:
    """Joins the points of several starts, the earliest first, to one curve."""
    kept = [np.zeros((3, 0))]
    limit: float = np.inf
    for one in reversed(starts):
        # Steps are at most 2**53, which a float represents exactly.
        points = np.array(one.curves.get(name, ([], [], [])), np.float64)  # [3, n]
        points = points[:, np.argsort(points[0], kind="stable")]
        points = points[:, points[0] < limit]
        if points.size:
            kept.insert(0, points)
            limit = points[0, 0]
        limit = min(limit, one.first_step)
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
