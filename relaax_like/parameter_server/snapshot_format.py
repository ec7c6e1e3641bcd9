"""The files of one snapshot: `.npy` arrays, and a manifest with their sizes and checksums."""

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from relaax_like.core.manifest import Manifest, Segment
from relaax_like.parameter_server.targets import GroupStep
from relaax_like.wire.errors import DamagedError, SnapshotError
from relaax_like.wire.syncing import sync_file, sync_path

_FORMAT = 2
MANIFEST_NAME = "manifest.json"
_READ_BYTES = 1 << 20
# What reading an invalid snapshot can raise; RecursionError: very deeply nested brackets.
_DAMAGES = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    EOFError,
    RecursionError,
)


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything that a run needs to resume as if it had never stopped.

    Attributes:
      manifest: the layout of `values`.
      version: version of the values.
      global_t: environment steps of all clients together.
      values: [total_bytes] uint8.
      slots: group -> [s, n] float32, state of the optimizer.
      slot_names: group -> what the rows of its slots hold.
      steps: group -> optimizer steps taken.
      optimizers: group -> settings used for its newest gradient; empty: unknown.
      statistics: everything else that is saved; JSON types only.
      pending: groups of a push -> sum [n] float32 and number of the gradients that are held back.
      score: score of its snapshot; None: no score, or not read from a snapshot.
    """

    manifest: Manifest
    version: int
    global_t: int
    values: np.ndarray
    slots: Mapping[str, np.ndarray]
    slot_names: Mapping[str, tuple[str, ...]]
    steps: Mapping[str, int]
    optimizers: Mapping[str, GroupStep] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict)
    pending: Mapping[tuple[str, ...], tuple[np.ndarray, int]] = field(default_factory=dict)
    score: float | None = None

    @property
    def age(self) -> tuple[int, int]:
        """Version and steps, which are larger in newer states.

        Steps can be counted without a new version.
        """
        return self.version, self.global_t


def write_files(directory: Path, state: State, score: float | None) -> None:
    """Writes the files of a snapshot, and syncs them.

    Args:
      directory: an existing, empty folder.
      state: to write.
      score: of the state; None: no score.

    Raises:
      OSError: a file could not be written or synced.
      ValueError: the score, or a number in `statistics`, is not finite.
    """
    arrays = {"values.npy": state.values}
    groups = {}
    for index, (group, slots) in enumerate(state.slots.items()):
        arrays[f"slots-{index}.npy"] = slots
        groups[group] = {
            "file": f"slots-{index}.npy",
            "slots": list(state.slot_names[group]),
            "steps": state.steps[group],
        }
    pending = []
    for index, (names, (total, count)) in enumerate(state.pending.items()):
        arrays[f"pending-{index}.npy"] = total
        pending.append({"file": f"pending-{index}.npy", "groups": list(names), "count": count})
    body = {
        "format": _FORMAT,
        "global_t": state.global_t,
        "version": state.version,
        "fingerprint": state.manifest.fingerprint,
        "segments": [vars(segment) for segment in state.manifest.segments],
        "groups": groups,
        "optimizers": pack_optimizers(state.optimizers),
        "statistics": state.statistics,
        "pending": pending,
        "score": score,
        "files": {name: _write_array(directory / name, array) for name, array in arrays.items()},
    }
    manifest = {"crc32": zlib.crc32(_canonical(body)), "body": body}
    with open(directory / MANIFEST_NAME, "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1, allow_nan=False)
        sync_file(file)
    sync_path(directory)


def pack_optimizers(optimizers: Mapping[str, GroupStep]) -> dict[str, dict[str, Any]]:
    """Returns the settings of optimizers in JSON types."""
    return {group: one.model_dump(mode="json") for group, one in optimizers.items()}


def unpack_optimizers(data: Mapping[str, Any]) -> dict[str, GroupStep]:
    """Returns the settings that `pack_optimizers` packed.

    Raises:
      ValueError: the data is invalid.
    """
    # Validated as JSON, so that lists become tuples again.
    return {group: GroupStep.model_validate_json(json.dumps(one)) for group, one in data.items()}


class _ChecksumWriter:
    """A file for `np.save` that computes the checksum of what is written to it."""

    def __init__(self, file: IO[bytes]):
        self._file = file
        self.size = 0
        self.crc32 = 0

    def write(self, data: bytes) -> int:
        """Writes data; returns its length."""
        self._file.write(data)
        self.size += len(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        return len(data)


def _write_array(path: Path, array: np.ndarray) -> dict[str, int]:
    with open(path, "wb") as file:
        writer = _ChecksumWriter(file)
        np.save(writer, array, allow_pickle=False)
        sync_file(file)
    return {"size": writer.size, "crc32": writer.crc32}


def _canonical(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def verify_snapshot(directory: Path) -> None:
    """Reads all files of a snapshot, and compares checksums.

    Where the system allows it, they are read from the disk, not from the page cache. They must have
    been synced: unwritten pages cannot be dropped from the cache.

    Raises:
      DamagedError: the snapshot is damaged, or cannot be read.
      SnapshotError: the snapshot has a format that this version does not know.
    """
    with _raising_damaged():
        _drop_cached(directory / MANIFEST_NAME)
        for name, entry in read_manifest(directory)["files"].items():
            _drop_cached(directory / name)
            _check_file(directory / name, entry["size"], entry["crc32"])


def _drop_cached(path: Path) -> None:
    if hasattr(os, "posix_fadvise"):  # not on macOS
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_files(directory: Path) -> State:
    """Reads a snapshot.

    Raises:
      DamagedError: the snapshot is damaged, or cannot be read.
      SnapshotError: the snapshot has a format that this version does not know.
    """
    with _raising_damaged():
        return _unpack_state(directory, read_manifest(directory))


@contextmanager
def _raising_damaged() -> Iterator[None]:
    """Converts exceptions caused by damaged files to `DamagedError`."""
    try:
        yield
    except _DAMAGES as error:
        raise DamagedError(f"{type(error).__name__}: {error}") from error


def read_manifest(directory: Path) -> dict[str, Any]:
    """Returns the body of a snapshot's manifest; see `unpack_manifest`."""
    with _raising_damaged():
        return unpack_manifest((directory / MANIFEST_NAME).read_bytes(), str(directory))


def unpack_manifest(content: bytes, name: str) -> dict[str, Any]:
    """Returns the body of a snapshot's manifest.

    Args:
      content: content of the file.
      name: name of the snapshot, for the error.

    Raises:
      DamagedError: the manifest is damaged.
      SnapshotError: the snapshot has a format that this version does not know.
    """
    with _raising_damaged():
        document = json.loads(content)
        body = document["body"]
        if zlib.crc32(_canonical(body)) != document["crc32"]:
            raise DamagedError("manifest.json does not match its checksum")
        if body["format"] != _FORMAT:
            raise SnapshotError(
                f"{name}: a snapshot of format {body['format']}, but this version reads format "
                f"{_FORMAT}; use the version of relaax_like that wrote it. A run that is to start "
                "from scratch needs another checkpoint_dir (and mirror_url, if it is set)"
            )
        return body


def unpack_layout(body: Mapping[str, Any]) -> Manifest:
    """Returns the layout of the values, from the body of a snapshot's manifest.

    Raises:
      DamagedError: the layout is missing or invalid, such as the shape or position of an array.
    """
    with _raising_damaged():
        return Manifest(tuple(map(_unpack_segment, body["segments"])))


def _unpack_segment(entry: Mapping[str, Any]) -> Segment:
    """Returns one segment, whose offset and shape are valid.

    Raises:
      ValueError: the offset or an axis is not an integer of 0 or more.
    """
    numbers = [entry["offset"], *entry["shape"]]
    # A product of sizes would repeat a string or a list.
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError(
            f"segment {entry['name']!r}: offset and shape are {numbers}, expected integers, 0 or "
            "more"
        )
    return Segment(**{**entry, "shape": tuple(entry["shape"])})


def _unpack_state(directory: Path, body: dict[str, Any]) -> State:
    arrays = {
        name: _read_array(directory / name, entry["size"], entry["crc32"])
        for name, entry in body["files"].items()
    }
    groups = body["groups"]
    return State(
        manifest=unpack_layout(body),
        version=body["version"],
        global_t=body["global_t"],
        values=arrays["values.npy"],
        slots={group: arrays[entry["file"]] for group, entry in groups.items()},
        slot_names={group: tuple(entry["slots"]) for group, entry in groups.items()},
        steps={group: entry["steps"] for group, entry in groups.items()},
        optimizers=unpack_optimizers(body["optimizers"]),
        statistics=body["statistics"],
        pending={
            tuple(entry["groups"]): (arrays[entry["file"]], entry["count"])
            for entry in body["pending"]
        },
        score=body["score"],
    )


def _read_array(path: Path, size: int, crc32: int) -> np.ndarray:
    _check_file(path, size, crc32)
    with open(path, "rb") as file:
        return np.load(file, allow_pickle=False)


def _check_file(path: Path, size: int, crc32: int) -> None:
    """Compares a file's size and CRC-32 with the manifest, piece by piece; releases the GIL.

    Raises:
      DamagedError: the size or the checksum differs.
      OSError: the file cannot be read.
    """
    if path.stat().st_size != size:
        raise DamagedError(f"{path.name} has {path.stat().st_size} bytes, but {size} were written")
    found = 0
    buffer = memoryview(bytearray(_READ_BYTES))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            found = zlib.crc32(buffer[:count], found)
    if found != crc32:
        raise DamagedError(f"{path.name} does not match its checksum")
