"""The manifest: which named arrays lie where in the one flat vector of a run."""

import math
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.ndarray import DTYPES

TRAINABLE = "trainable"
TARGET = "target"
STATISTIC = "statistic"
COUNTER = "counter"
_KINDS = {
    TRAINABLE: pb.TRAINABLE,
    TARGET: pb.TARGET,
    STATISTIC: pb.STATISTIC,
    COUNTER: pb.COUNTER,
}
_KIND_NAMES = {number: name for name, number in _KINDS.items()}
_NAME = re.compile(r"[A-Za-z0-9_\-./:]{1,200}")
# Segments behind the trainable ones begin at multiples of this, so that any dtype is aligned.
_ALIGNMENT = 8
DEFAULT_GROUP = "default"


@dataclass(frozen=True)
class Variable:
    """An array with its name and purpose: what `make_initial_values` returns a list of.

    Attributes:
      name: unique; letters, digits and `_-./:`.
      value: the initial value. Trainable ones are float32.
      group: variable group, which names the optimizer. For trainable ones only.
      kind: "trainable", "target", "statistic" or "counter".
    """

    name: str
    value: np.ndarray
    group: str = DEFAULT_GROUP
    kind: str = TRAINABLE


@dataclass(frozen=True)
class Segment:
    """Where one named array lies. `offset` is in bytes; see `Variable` for the rest."""

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
        """Length in the flat vector."""
        return self.size * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Manifest:
    """The layout of the flat vector.

    Trainable segments come first and those of one group lie side by side, so that a gradient is
    laid out exactly as the first `gradient_bytes` bytes of the values.

    Attributes:
      segments: in order of offset.
      total_bytes: length of the flat vector.
      gradient_bytes: length of its trainable part.
      fingerprint: CRC-32 of the layout.
    """

    segments: tuple[Segment, ...]
    total_bytes: int = field(init=False)
    gradient_bytes: int = field(init=False)
    fingerprint: int = field(init=False)

    def __post_init__(self) -> None:
        end = trainable_end = 0
        for segment in self.segments:
            end = max(end, segment.offset + segment.num_bytes)
            if segment.kind == TRAINABLE:
                trainable_end = segment.offset + segment.num_bytes
        layout = repr([tuple(vars(segment).values()) for segment in self.segments])
        object.__setattr__(self, "total_bytes", end)
        object.__setattr__(self, "gradient_bytes", trainable_end)
        object.__setattr__(self, "fingerprint", zlib.crc32(layout.encode()))

    @property
    def trainable(self) -> tuple[Segment, ...]:
        """The trainable segments, in order."""
        return tuple(segment for segment in self.segments if segment.kind == TRAINABLE)

    def groups(self) -> dict[str, slice]:
        """Returns each group's range of float32 elements in the gradient."""
        ranges: dict[str, slice] = {}
        for segment in self.trainable:
            start = segment.offset // 4
            known = ranges.get(segment.group)
            ranges[segment.group] = slice(known.start if known else start, start + segment.size)
        return ranges

    def pack(self, arrays: Sequence[np.ndarray], gradient: bool = False) -> np.ndarray:
        """Copies one array per segment into a new flat vector of bytes.

        Args:
          arrays: in the order of `segments` (of `trainable`, when `gradient`).
          gradient: pack the trainable part only.

        Returns:
          [total_bytes] or [gradient_bytes] uint8.

        Raises:
          InvalidInputError: wrong number of arrays, shape or dtype; names the segment.
        """
        segments = self.trainable if gradient else self.segments
        if len(arrays) != len(segments):
            raise InvalidInputError(
                f"{len(arrays)} arrays came, expected {len(segments)}: "
                f"{', '.join(segment.name for segment in segments[:8])}"
            )
        flat = np.zeros(self.gradient_bytes if gradient else self.total_bytes, np.uint8)
        for segment, array in zip(segments, arrays, strict=True):
            array = np.asarray(array)
            if array.shape != segment.shape or array.dtype != DTYPES[segment.dtype]:
                raise InvalidInputError(
                    f"{segment.name}: {array.dtype} {list(array.shape)} came, expected "
                    f"{segment.dtype} {list(segment.shape)}",
                    segment.name,
                )
            self._view(flat, segment)[...] = array
        return flat

    def unpack(self, flat: np.ndarray, gradient: bool = False) -> list[np.ndarray]:
        """Returns one view per segment into a flat vector of bytes; nothing is copied."""
        return [self._view(flat, s) for s in (self.trainable if gradient else self.segments)]

    @staticmethod
    def _view(flat: np.ndarray, segment: Segment) -> np.ndarray:
        part = flat[segment.offset : segment.offset + segment.num_bytes]
        return part.view(DTYPES[segment.dtype]).reshape(segment.shape)


def make_manifest(variables: Iterable[Variable]) -> Manifest:
    """Lays variables out: trainable ones first, group by group, in the order of appearance.

    Raises:
      InvalidInputError: no variable, a bad or double name, an unknown kind or dtype, or a
        trainable one that is not float32.
    """
    variables = list(variables)
    _validate_variables(variables)
    groups = list(dict.fromkeys(v.group for v in variables if v.kind == TRAINABLE))
    ordered = [v for group in groups for v in variables if (v.kind, v.group) == (TRAINABLE, group)]
    ordered += [v for v in variables if v.kind != TRAINABLE]
    segments, end = [], 0
    for variable in ordered:
        trainable = variable.kind == TRAINABLE
        if not trainable:
            end = -(-end // _ALIGNMENT) * _ALIGNMENT
        value = np.asarray(variable.value)
        segment = Segment(
            name=variable.name,
            dtype=value.dtype.name,
            shape=value.shape,
            offset=end,
            group=variable.group if trainable else "",
            kind=variable.kind,
        )
        segments.append(segment)
        end += segment.num_bytes
    return Manifest(tuple(segments))


def _validate_variables(variables: Sequence[Variable]) -> None:
    if not variables:
        raise InvalidInputError("no variables: a run needs at least one trainable array")
    seen = set()
    for variable in variables:
        name, value = variable.name, np.asarray(variable.value)
        if not _NAME.fullmatch(name):
            raise InvalidInputError(
                f"variable name {name[:60]!r}: expected 1 to 200 of A-Z a-z 0-9 _ - . / :", name
            )
        if name in seen:
            raise InvalidInputError(f"{name}: two variables have this name", name)
        seen.add(name)
        if variable.kind not in _KINDS:
            raise InvalidInputError(
                f"{name}: kind {variable.kind!r}, expected one of {', '.join(_KINDS)}", name
            )
        if value.dtype.name not in DTYPES:
            raise InvalidInputError(f"{name}: dtype {value.dtype} is not supported", name)
        if variable.kind == TRAINABLE and value.dtype != np.float32:
            raise InvalidInputError(f"{name}: trainable, but {value.dtype}; use float32", name)


def manifest_to_message(manifest: Manifest) -> pb.Manifest:
    """Converts a manifest to its message."""
    return pb.Manifest(
        segments=[
            pb.Segment(
                name=s.name,
                dtype=s.dtype,
                shape=s.shape,
                offset=s.offset,
                group=s.group,
                kind=_KINDS[s.kind],
            )
            for s in manifest.segments
        ],
        total_bytes=manifest.total_bytes,
        gradient_bytes=manifest.gradient_bytes,
        fingerprint=manifest.fingerprint,
    )


def message_to_manifest(message: pb.Manifest) -> Manifest:
    """Converts a received message to a manifest.

    Raises:
      InvalidInputError: when its sizes or fingerprint contradict its segments.
    """
    manifest = Manifest(
        tuple(
            Segment(
                name=s.name,
                dtype=s.dtype,
                shape=tuple(s.shape),
                offset=s.offset,
                group=s.group,
                kind=_KIND_NAMES.get(s.kind, ""),
            )
            for s in message.segments
        )
    )
    sent = (message.total_bytes, message.gradient_bytes, message.fingerprint)
    if sent != (manifest.total_bytes, manifest.gradient_bytes, manifest.fingerprint):
        raise InvalidInputError("manifest: its sizes or fingerprint contradict its segments")
    return manifest
