"""The manifest: where each named array is in the flat vector of a run."""

import collections
import functools
import math
import re
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from relaax_like.core.message_fields import to_message, to_record
from relaax_like.core.moments import Moments
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.ndarray import DTYPES

TRAINABLE = "trainable"
TARGET = "target"
STATISTIC = "statistic"
COUNTER = "counter"
BUFFER = "buffer"
CONSTANT = "constant"
_KINDS = {
    TRAINABLE: pb.TRAINABLE,
    TARGET: pb.TARGET,
    STATISTIC: pb.STATISTIC,
    COUNTER: pb.COUNTER,
    BUFFER: pb.BUFFER,
    CONSTANT: pb.CONSTANT,
}
# A gradient has an array of each variable of these kinds; of a buffer, the new value.
PUSHED = (TRAINABLE, BUFFER)
_KIND_NAMES = {number: name for name, number in _KINDS.items()}
_NAME = re.compile(r"[A-Za-z0-9_\-./:]{1,200}")
# Segments after the trainable ones begin at multiples of this, so that any dtype is aligned.
_ALIGNMENT = 8
DEFAULT_GROUP = "default"
# A running statistic NAME is three segments: NAME.count, NAME.mean and NAME.m2.
_PARTS = ("count", "mean", "m2")
# All deltas of a push are in its first message, which therefore limits their total size.
MAX_STATISTICS = 64
MAX_STATISTIC_BYTES = 64 * 1024 * 1024
_MAX_COUNT = 2.0**40
_MAX_NAMES = 8  # in an error
# Largest |count|, |mean| and |m2| in one push, and in the initial values of a run. Merged, all the
# deltas that a run can ever send stay far below the limit of float64, so no NaN can result.
_MAX_DELTA = (_MAX_COUNT, 1e100, 1e250)
_MAX_START = (1e30, 1e101, 1e290)


@dataclass(frozen=True)
class Follow:
    """How a target variable follows a trainable one; `every`, `tau` or both are set.

    A trainable variable that follows itself is scaled to unit norm after each step of its group:
    the numbers with the same index of the last axis, which are the weights of one unit, then have
    the norm 1.

    Attributes:
      source: name of the trainable variable.
      every: number of optimizer steps between two updates; None: 1.
      tau: proportion of the source that is mixed in at each update; None: 1, it is copied.
    """

    source: str
    every: int | None = None
    tau: float | None = None


@dataclass(frozen=True)
class Variable:
    """An array with its name and purpose; `make_initial_values` returns a list of these.

    Attributes:
      name: unique; letters, digits and `_-./:`.
      value: the initial value. Trainable variables and buffers are float32.
      group: variable group, which selects the optimizer. For trainable variables, and for buffers,
        which are set at each optimizer step of their group.
      kind: "trainable", "target", "statistic", "counter", "buffer" (set to the value that comes
        with each gradient) or "constant". A running statistic NAME of shape [...]
        is three variables of kind "statistic", all float64, 0 without rows: `NAME.count` [],
        `NAME.mean` [...] and `NAME.m2` [...] (see `Moments`).
      follow: for kind "target": what it follows; None: only a learner changes it. For kind
        "trainable": None, or itself (see `Follow`).
    """

    name: str
    value: np.ndarray
    group: str = DEFAULT_GROUP
    kind: str = TRAINABLE
    follow: Follow | None = None


@dataclass(frozen=True)
class Segment:
    """The position of one named array in the flat vector.

    Attributes:
      name: of the variable.
      dtype: name of its NumPy dtype.
      shape: its shape.
      offset: position of its first byte.
      group: its variable group; "" if it is neither trainable nor a buffer.
      kind: see `Variable`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    group: str
    kind: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Length in the flat vector, in bytes."""
        return self.size * DTYPES[self.dtype].itemsize

    def describe(self, prefix: str = "") -> str:
        """Returns all but the place and the name, with a prefix of the group, on one line."""
        group = f" in group {prefix}{self.group}" if self.group else ""
        return f"{self.kind} {self.dtype} {list(self.shape)}{group}"


# The parts of one running statistic: count [], mean [...] and m2 [...], float64.
StatisticSegments = tuple[Segment, Segment, Segment]


@dataclass(frozen=True)
class Manifest:
    """The layout of a run's flat vector, which holds the values of all its variables.

    Trainable segments and buffers come first, and those of one group are adjacent, its buffers
    last, so that a gradient is laid out exactly like the first `gradient_bytes` bytes of the
    values. In the place of a buffer's gradient is its new value.

    Attributes:
      segments: in order of offset.
      total_bytes: length of the flat vector.
      gradient_bytes: length of the part with trainable variables and buffers.
      fingerprint: CRC-32 of the layout.
      statistics: name (without ".count", ".mean", ".m2") -> the three segments of a running
        statistic, in that order.

    Raises:
      InvalidInputError: a running statistic lacks a part, its parts do not fit together, or a push
        cannot carry so many, or such large, statistics.
    """

    segments: tuple[Segment, ...]
    total_bytes: int = field(init=False)
    gradient_bytes: int = field(init=False)
    fingerprint: int = field(init=False)
    statistics: Mapping[str, StatisticSegments] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        end = gradient_end = 0
        for segment in self.segments:
            end = max(end, segment.offset + segment.num_bytes)
            if segment.kind in PUSHED:
                gradient_end = segment.offset + segment.num_bytes
        layout = repr([tuple(vars(segment).values()) for segment in self.segments])
        object.__setattr__(self, "total_bytes", end)
        object.__setattr__(self, "gradient_bytes", gradient_end)
        object.__setattr__(self, "fingerprint", zlib.crc32(layout.encode()))
        object.__setattr__(self, "statistics", _find_statistics(self.segments))

    @property
    def pushed(self) -> tuple[Segment, ...]:
        """The segments of a gradient, in order: trainable variables and buffers."""
        return tuple(segment for segment in self.segments if segment.kind in PUSHED)

    def groups(self) -> dict[str, slice]:
        """Returns group -> range of its trainable float32 elements in the gradient.

        Its buffers follow.
        """
        ranges: dict[str, slice] = {}
        for segment in self.pushed:
            if segment.kind == BUFFER:
                continue
            start = segment.offset // 4
            known = ranges.get(segment.group)
            ranges[segment.group] = slice(known.start if known else start, start + segment.size)
        return ranges

    def select_groups(self, groups: Sequence[str]) -> "Manifest":
        """Returns the layout of a gradient for some variable groups only.

        Their segments keep this manifest's order, whatever the order of the names.

        Args:
          groups: names, each once; empty: all groups, and this manifest is returned.

        Raises:
          InvalidInputError: there is no such group, or a name occurs twice.
        """
        if not groups:
            return self
        names = frozenset(groups)
        if len(names) < len(groups):
            twice = collections.Counter(groups).most_common(1)[0][0]
            raise InvalidInputError(f"groups: duplicate name {twice[:60]!r}; name each group once")
        return _select_groups(self, names)

    def find_ranges(self, names: Collection[str]) -> tuple[slice, ...]:
        """Returns the bytes of some variables in the flat vector, in ascending order.

        Neighbours share a range, as do variables with only padding between them.

        Raises:
          InvalidInputError: a name is not in the manifest.
        """
        unknown = sorted(set(names) - {segment.name for segment in self.segments})
        if unknown:
            raise InvalidInputError(
                f"values: unknown variable {unknown[0][:60]!r}; use the same algorithm folder for "
                "client and server"
            )
        ranges: list[slice] = []
        is_open = False  # the newest range can be extended
        for segment in self.segments:
            end = segment.offset + segment.num_bytes
            if segment.name not in names:
                is_open = False
            elif is_open:
                ranges[-1] = slice(ranges[-1].start, end)
            elif segment.num_bytes:
                ranges.append(slice(segment.offset, end))
                is_open = True
        return tuple(ranges)

    def pack(
        self,
        arrays: Sequence[np.ndarray],
        gradient: bool = False,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Copies one array per segment into a flat vector of bytes.

        Args:
          arrays: in the order of `segments` (of `pushed`, if `gradient` is set).
          gradient: pack the part of a gradient only.
          out: the vector to fill, of the length given below; None: a new one.

        Returns:
          [total_bytes] or [gradient_bytes] uint8.

        Raises:
          InvalidInputError: wrong number of arrays, and the error names the first segments; or a
            wrong shape or dtype, and the error names the segment.
        """
        segments = self.pushed if gradient else self.segments
        if len(arrays) != len(segments):
            what, each = ("gradients", "trainable variable") if gradient else ("values", "variable")
            names = _join_names([segment.name for segment in segments])
            raise InvalidInputError(
                f"{what}: received {len(arrays)}, expected {len(segments)}, one for each {each}"
                f"{f': {names}' if names else ''}"
            )
        flat = out
        if flat is None:
            flat = np.zeros(self.gradient_bytes if gradient else self.total_bytes, np.uint8)
        for segment, array in zip(segments, arrays, strict=True):
            array = np.asarray(array)
            if array.shape != segment.shape or array.dtype != DTYPES[segment.dtype]:
                raise InvalidInputError(
                    f"{segment.name}: expected {segment.dtype} {list(segment.shape)}, got "
                    f"{array.dtype} {list(array.shape)}"
                )
            self._view(flat, segment)[...] = array
        return flat

    def unpack(self, flat: np.ndarray, gradient: bool = False) -> list[np.ndarray]:
        """Returns one view per segment into a flat vector; nothing is copied.

        Args:
          flat: [total_bytes] uint8; [gradient_bytes] uint8 if `gradient` is set.
          gradient: whether the vector only has the part of a gradient.
        """
        return [self._view(flat, s) for s in (self.pushed if gradient else self.segments)]

    def view_statistic(
        self, flat: np.ndarray, name: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns count [], mean [...] and m2 [...] as float64 views into a flat vector."""
        count, mean, m2 = self.statistics[name]
        return self._view(flat, count), self._view(flat, mean), self._view(flat, m2)

    def validate_moments(self, name: str, moments: Moments) -> None:
        """Checks moments before they are merged into a running statistic.

        Raises:
          InvalidInputError: there is no such statistic, or the count, a shape, a dtype or a value
            is wrong; the error names the statistic.
        """
        segments = self.statistics.get(name)
        if segments is None:
            known, cure = "no statistics", "add"
            if self.statistics:
                known, cure = _join_names(list(self.statistics)), "name one of them, or add"
            raise InvalidInputError(
                f"statistics: unknown statistic {name[:60]!r}; this run has {known}; {cure} a "
                "Normalizer of this name to the model",
                name,
            )
        if not 0 < moments.count <= _MAX_COUNT:
            raise InvalidInputError(
                f"{name}.count: {moments.count}, expected more than 0 and at most 2^40 rows"
            )
        parts = [np.asarray(part) for part in (moments.count, moments.mean, moments.m2)]
        for segment, part in zip(segments[1:], parts[1:], strict=True):
            if part.shape != segment.shape or part.dtype != np.float64:
                raise InvalidInputError(
                    f"{segment.name}: expected float64 {list(segment.shape)}, got {part.dtype} "
                    f"{list(part.shape)}"
                )
        _validate_ranges(segments, parts, _MAX_DELTA, "check the measured values, or clip them")

    def validate_statistics(
        self, flat: np.ndarray, cure: str = "start running statistics at 0"
    ) -> None:
        """Checks the running statistics in values.

        Args:
          flat: [total_bytes] uint8, the values.
          cure: what the user can do, for the error.

        Raises:
          InvalidInputError: a number is not finite, out of range, or negative where it must not be;
            the error names the variable.
        """
        for name, segments in self.statistics.items():
            _validate_ranges(segments, self.view_statistic(flat, name), _MAX_START, cure)

    @staticmethod
    def _view(flat: np.ndarray, segment: Segment) -> np.ndarray:
        part = flat[segment.offset : segment.offset + segment.num_bytes]
        return part.view(DTYPES[segment.dtype]).reshape(segment.shape)


@functools.lru_cache(maxsize=64)  # pushes use the same few selections again and again
def _select_groups(manifest: Manifest, groups: frozenset[str]) -> Manifest:
    known = manifest.groups()
    for name in sorted(groups - known.keys()):
        raise InvalidInputError(
            f"groups: unknown variable group {name[:60]!r}; this run has "
            f"{_join_names(list(known)) or 'no groups'}; "
            f"{'name one of them, or ' if known else ''}use the same algorithm folder for client "
            "and server"
        )
    segments, end = [], 0
    for segment in manifest.pushed:
        if segment.group in groups:
            segments.append(replace(segment, offset=end))
            end += segment.num_bytes
    return Manifest(tuple(segments))


def _join_names(names: Sequence[str]) -> str:
    """Returns the first names for an error, with an ellipsis if there are more."""
    return ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")


def _validate_ranges(
    segments: StatisticSegments, arrays: Sequence[np.ndarray], limits: Sequence[float], cure: str
) -> None:
    """Checks that count, mean and m2 of one statistic are within limits.

    Args:
      segments: of count, mean and m2.
      arrays: count, mean and m2.
      limits: the largest count, |mean| and m2.
      cure: what the user can do, for the error.

    Raises:
      InvalidInputError: a number is NaN or out of range.
    """
    lows = (0.0, -limits[1], 0.0)
    for segment, array, low, high in zip(segments, arrays, lows, limits, strict=True):
        wrong = ~((array >= low) & (array <= high))  # true for NaN
        if wrong.any():
            raise InvalidInputError(
                f"{segment.name}: {array[wrong][0]:g}, expected numbers from {low:g} to "
                f"{high:g}; {cure}"
            )


def _find_statistics(segments: Iterable[Segment]) -> dict[str, StatisticSegments]:
    parts: dict[str, dict[str, Segment]] = {}
    for segment in segments:
        name, dot, part = segment.name.rpartition(".")
        if segment.kind == STATISTIC and dot and part in _PARTS:
            parts.setdefault(name, {})[part] = segment
    statistics = {name: _make_statistic(name, found) for name, found in parts.items()}
    if len(statistics) > MAX_STATISTICS:
        raise InvalidInputError(
            f"statistics: {len(statistics)} running statistics, but at most {MAX_STATISTICS} are "
            "supported; combine several inputs into one, or normalise fewer of them"
        )
    num_bytes = sum(segment.num_bytes for found in statistics.values() for segment in found)
    if num_bytes > MAX_STATISTIC_BYTES:
        raise InvalidInputError(
            f"statistics: the running statistics have {num_bytes} bytes together, but at most "
            f"{MAX_STATISTIC_BYTES} fit into a push; normalise fewer or smaller inputs"
        )
    return statistics


def _make_statistic(name: str, parts: Mapping[str, Segment]) -> StatisticSegments:
    missing = [f"{name}.{part}" for part in _PARTS if part not in parts]
    if missing:
        raise InvalidInputError(
            f"statistic {name}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} "
            "missing; a running statistic consists of "
            f"{', '.join(f'{name}.{part}' for part in _PARTS)}: define all three, of kind "
            f"{STATISTIC}",
            name,
        )
    shapes = {"count": (), "mean": parts["mean"].shape, "m2": parts["mean"].shape}
    for part, shape in shapes.items():
        segment = parts[part]
        if (segment.dtype, segment.shape) != ("float64", shape):
            raise InvalidInputError(
                f"{segment.name}: {segment.dtype} {list(segment.shape)}, expected float64 "
                f"{list(shape)}"
            )
    return parts["count"], parts["mean"], parts["m2"]


def make_manifest(variables: Iterable[Variable]) -> Manifest:
    """Lays variables out: trainable ones first, group by group, in the order of appearance.

    The buffers of each group follow its trainable variables.

    Raises:
      InvalidInputError: there is no variable, a name is not valid or occurs twice, a kind or dtype
        is unknown, a trainable variable or buffer is not float32, a buffer is in a group without
        trainable variables, or running statistics are not valid (see `Manifest`).
    """
    variables = list(variables)
    _validate_variables(variables)
    groups = list(dict.fromkeys(v.group for v in variables if v.kind == TRAINABLE))
    places = [(group, kind) for group in groups for kind in PUSHED]
    ordered = [v for place in places for v in variables if (v.group, v.kind) == place]
    ordered += [v for v in variables if v.kind not in PUSHED]
    segments, end = [], 0
    for variable in ordered:
        is_pushed = variable.kind in PUSHED
        if not is_pushed:
            end = -(-end // _ALIGNMENT) * _ALIGNMENT
        value = np.asarray(variable.value)
        segment = Segment(
            name=variable.name,
            dtype=value.dtype.name,
            shape=value.shape,
            offset=end,
            group=variable.group if is_pushed else "",
            kind=variable.kind,
        )
        segments.append(segment)
        end += segment.num_bytes
    return Manifest(tuple(segments))


def _validate_variables(variables: Sequence[Variable]) -> None:
    if not variables:
        raise InvalidInputError(
            "no variables, expected at least one; define it in the algorithm's model, or in the "
            "file of relaax-parameter-server.initial_values"
        )
    seen = set()
    trained = {variable.group for variable in variables if variable.kind == TRAINABLE}
    for variable in variables:
        name, value = variable.name, np.asarray(variable.value)
        if not _NAME.fullmatch(name):
            raise InvalidInputError(
                f"variable name {name[:60]!r} of length {len(name)}: expected 1 to 200 characters "
                "of A-Z a-z 0-9 _ - . / :",
                name,
            )
        if name in seen:
            raise InvalidInputError(f"{name}: duplicate variable name; rename one of them")
        seen.add(name)
        if variable.kind not in _KINDS:
            raise InvalidInputError(
                f"{name}: kind {variable.kind!r}, expected one of {', '.join(_KINDS)}"
            )
        if value.dtype.name not in DTYPES:
            raise InvalidInputError(
                f"{name}: dtype {value.dtype}, expected one of {', '.join(DTYPES)}"
            )
        if variable.kind in PUSHED and value.dtype != np.float32:
            raise InvalidInputError(
                f"{name}: {variable.kind}, but of dtype {value.dtype}; use float32"
            )
        if variable.kind == BUFFER and variable.group not in trained:
            raise InvalidInputError(
                f"{name}: a buffer of the variable group {variable.group!r}, which has no "
                "trainable variable, so that no optimizer step would set it; put it into a group "
                "that is trained (`groups` of the model)"
            )


def manifest_to_message(manifest: Manifest) -> pb.Manifest:
    """Converts a manifest to its message."""
    return pb.Manifest(
        segments=[
            to_message(pb.Segment, segment, kind=_KINDS[segment.kind])
            for segment in manifest.segments
        ],
        total_bytes=manifest.total_bytes,
        gradient_bytes=manifest.gradient_bytes,
        fingerprint=manifest.fingerprint,
    )


def message_to_manifest(message: pb.Manifest) -> Manifest:
    """Converts a received message to a manifest.

    Raises:
      InvalidInputError: a segment has an unknown dtype or a negative axis, a size or the
        fingerprint contradicts the segments, or running statistics are not valid (see `Manifest`).
    """
    for segment in message.segments:
        if segment.dtype not in DTYPES or min(segment.shape, default=0) < 0:
            raise InvalidInputError(
                f"manifest: {segment.name[:200]} is {segment.dtype[:40]!r} "
                f"{list(segment.shape[:8])}, expected axes of 0 or more and one of the dtypes "
                f"{', '.join(DTYPES)}; run the same version of relaax_like on both ends, and "
                "install ml_dtypes for bfloat16",
                segment.name[:200],
            )
    manifest = Manifest(
        tuple(
            to_record(Segment, segment, kind=_KIND_NAMES.get(segment.kind, ""))
            for segment in message.segments
        )
    )
    for field_name in ("total_bytes", "gradient_bytes", "fingerprint"):
        sent, own = getattr(message, field_name), getattr(manifest, field_name)
        if sent != own:
            raise InvalidInputError(
                f"manifest: {field_name} is {sent}, but the segments give {own}; run the same "
                "version of relaax_like on both ends",
                field_name,
            )
    return manifest


def find_follows(variables: Iterable[Variable]) -> dict[str, Follow]:
    """Returns variable -> what it follows, for those that follow a variable."""
    return {v.name: v.follow for v in variables if v.follow is not None}
