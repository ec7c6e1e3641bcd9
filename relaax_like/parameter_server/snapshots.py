"""Snapshots of a run: directories that are whole or absent.

    folder/lock                      held with flock while a server lives; holds its pid
    folder/epoch                     grows with each start
    folder/cp-GLOBAL_T-VERSION/      manifest.json, values.npy, slots-0.npy, slots-1.npy, ...

A snapshot is written to a temporary directory, synced and renamed. Its manifest has the size and
CRC-32 of every file, and a CRC-32 of itself.
"""

import fcntl
import json
import logging
import os
import re
import shutil
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from relaax_like.bridge.manifest import Manifest, Segment
from relaax_like.wire import failpoints
from relaax_like.wire.errors import ConfigError, SnapshotError

_LOG = logging.getLogger(__name__)
_FORMAT = 1
_NAME = re.compile(r"^cp-(\d{20})-(\d{20})$")
_TEMPORARY = ".tmp-"
# A snapshot that is being replaced by another of the same name.
_REPLACED = ".old-"
_READ_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class State:
    """All that a run needs to go on as if it had never stopped.

    Attributes:
      manifest: the layout of `values`.
      version: of the values.
      global_t: environment steps of all clients together.
      values: [total_bytes] uint8.
      slots: group -> [s, n] float32, what the optimizer remembers.
      slot_names: group -> what the rows of its slots hold.
      steps: group -> optimizer steps taken.
      statistics: what else is to be kept; JSON types only.
      pending: groups of a push -> sum [n] float32 and number of the gradients that are held back.
    """

    manifest: Manifest
    version: int
    global_t: int
    values: np.ndarray
    slots: Mapping[str, np.ndarray]
    slot_names: Mapping[str, tuple[str, ...]]
    steps: Mapping[str, int]
    statistics: Mapping[str, Any] = field(default_factory=dict)
    pending: Mapping[tuple[str, ...], tuple[np.ndarray, int]] = field(default_factory=dict)


class DamagedError(Exception):
    """One snapshot cannot be used; there may be another. Never leaves this module."""


class Snapshots:
    """The snapshots in one folder, which belongs to one server at a time.

        with Snapshots(directory, keep=3) as snapshots:
            state = snapshots.restore_latest(manifest)
            ...
            snapshots.save(store.export_state())

    Not thread-safe: the caller sees to it that one thread saves at a time.

    Attributes:
      directory: the folder.
      epoch: 1 for the first server that opened the folder, and larger for each one after it.
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int = 3):
        """Makes the folder where it is missing, locks it, and removes what a crash left behind.

        Args:
          directory: the folder.
          keep: snapshots that stay; older ones are deleted after a newer one was written.

        Raises:
          ConfigError: `keep` is below 1.
          SnapshotError: another process holds the folder, or it cannot be written to.
        """
        if keep < 1:
            raise ConfigError(f"keep: {keep} snapshots, expected 1 or more")
        self.directory = Path(directory)
        self._keep = keep
        self._damaged: set[str] = set()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock: IO[str] | None = lock_folder(self.directory)
        except OSError as error:
            raise SnapshotError(f"{directory}: cannot hold snapshots: {error}") from error
        try:
            self._clean_up()
            self.epoch = _count_start(self.directory / "epoch")
        except OSError as error:
            self.close()
            raise SnapshotError(f"{directory}: cannot hold snapshots: {error}") from error

    def save(self, state: State) -> Path:
        """Writes a snapshot and syncs it to the disk; then deletes the oldest ones.

        Returns:
          Its directory.

        Raises:
          SnapshotError: it could not be written (disk full, ...); the older ones are untouched.
        """
        if self._lock is None:
            raise SnapshotError(f"{self.directory}: closed, no snapshot can be saved any more")
        target = self.path_of(state)
        temporary = self.directory / (_TEMPORARY + target.name)
        try:
            temporary.mkdir(parents=True)  # the folder may have been removed under us
            _write_files(temporary, state)
            failpoints.hit("ps.in_snapshot")
            self._move_into_place(temporary, target)
        except (OSError, ValueError) as error:
            raise SnapshotError(f"{target}: the snapshot was not written: {error}") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._damaged.discard(target.name)
        self._delete_old(target.name)
        return target

    def path_of(self, state: State) -> Path:
        """Returns the directory of a state's snapshot, written or not."""
        # 20 digits hold any uint64, so that names sort as numbers do.
        return self.directory / f"cp-{state.global_t:020d}-{state.version:020d}"

    def restore_latest(self, manifest: Manifest) -> State | None:
        """Reads the newest snapshot that is not damaged; damaged ones are named in the log.

        Returns:
          None when the folder holds no snapshot at all.

        Raises:
          SnapshotError: there are snapshots, but none can be used; or the newest usable one has
            another layout.
        """
        state = read_latest(self.directory, self._damaged)
        if state is None:
            return None
        if state.manifest.fingerprint != manifest.fingerprint:
            raise SnapshotError(
                f"{self.path_of(state)}: the snapshot is of another model: "
                f"{_describe_difference(state.manifest, manifest)}; use the configuration of "
                "that run, or another checkpoint directory"
            )
        return replace(state, manifest=manifest)

    def close(self) -> None:
        """Gives the folder free. May be called twice."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> "Snapshots":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _move_into_place(self, temporary: Path, target: Path) -> None:
        replaced = self.directory / (_REPLACED + target.name)
        if target.exists():  # damaged, or of a run that went back to an older snapshot
            os.rename(target, replaced)
        os.rename(temporary, target)
        _sync_directory(self.directory)
        shutil.rmtree(replaced, ignore_errors=True)

    def _delete_old(self, saved: str) -> None:
        """Keeps the one just saved and the newest others; damaged ones count as the oldest."""
        names = sorted(
            _list(self.directory), key=lambda name: (name == saved, name not in self._damaged, name)
        )
        for name in names[: -self._keep]:
            # Renamed first: a half-deleted directory must not look like a damaged snapshot.
            doomed = self.directory / (_TEMPORARY + name)
            try:
                os.rename(self.directory / name, doomed)
            except OSError as error:
                _LOG.warning("%s: old snapshot not deleted: %s", self.directory / name, error)
                continue
            shutil.rmtree(doomed, ignore_errors=True)

    def _clean_up(self) -> None:
        for path in self.directory.iterdir():
            if path.name.startswith(_REPLACED):
                original = self.directory / path.name.removeprefix(_REPLACED)
                if not original.exists():  # died between the two renames
                    os.rename(path, original)
                    continue
            elif not path.name.startswith(_TEMPORARY):
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def read_latest(directory: Path, damaged: set[str] | None = None) -> State | None:
    """Reads the newest snapshot that is not damaged, whatever its layout.

    Takes no lock and writes nothing: it may be called while a server saves to the folder.

    Args:
      directory: the folder.
      damaged: receives the names of those that were skipped.

    Returns:
      None when there is no folder, or no snapshot in it at all.

    Raises:
      SnapshotError: there are snapshots, but all are damaged.
    """
    names = _list(directory)
    for name in reversed(names):
        try:
            return _read_files(directory / name)
        except DamagedError as error:
            _LOG.warning("%s: damaged snapshot skipped: %s", directory / name, error)
            if damaged is not None:
                damaged.add(name)
    if names:
        raise SnapshotError(
            f"{directory}: all {len(names)} snapshots are damaged (see the log); nothing was "
            "started. Bring one back from a backup, or use another checkpoint directory to start "
            "anew"
        )
    return None


def _list(directory: Path) -> list[str]:
    """Returns the names of the snapshots, oldest first."""
    if not directory.is_dir():
        return []
    return sorted(path.name for path in directory.iterdir() if _NAME.match(path.name))


def lock_folder(directory: Path) -> IO[str]:
    """Takes the folder's lock; it is given back when the file is closed or the process dies.

    Raises:
      SnapshotError: another process holds it, which is named.
    """
    file = open(directory / "lock", "a+", encoding="ascii")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        holder = file.read(20).strip() or "unknown"
        file.close()
        if not isinstance(error, BlockingIOError):
            raise
        raise SnapshotError(
            f"{directory}: held by another parameter server, pid {holder}; stop it, or use another "
            "checkpoint directory"
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def _count_start(path: Path) -> int:
    try:
        epoch = int(path.read_text("ascii")) + 1
    except FileNotFoundError:
        epoch = 1
    except ValueError:
        # Larger than any count of starts, so that it still grows.
        epoch = int(time.time())
        _LOG.warning("%s: damaged, the epoch goes on at %d", path, epoch)
    temporary = path.with_name(f"{_TEMPORARY}{path.name}")
    with open(temporary, "w", encoding="ascii") as file:
        file.write(str(epoch))
        _sync_file(file)
    os.replace(temporary, path)
    _sync_directory(path.parent)
    return epoch


class _ChecksumWriter:
    """A file for `np.save` that sums up what passes through it."""

    def __init__(self, file: IO[bytes]):
        self._file = file
        self.size = 0
        self.crc32 = 0

    def write(self, data: bytes) -> int:
        """Writes a piece."""
        self._file.write(data)
        self.size += len(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        return len(data)


def _write_files(directory: Path, state: State) -> None:
    """Writes arrays and manifest and syncs them.

    Raises:
      OSError: as the file system says.
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
        "statistics": state.statistics,
        "pending": pending,
        "files": {name: _write_array(directory / name, array) for name, array in arrays.items()},
    }
    manifest = {"crc32": zlib.crc32(_canonical(body)), "body": body}
    with open(directory / "manifest.json", "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1, allow_nan=False)
        _sync_file(file)
    _sync_directory(directory)


def _write_array(path: Path, array: np.ndarray) -> dict[str, int]:
    with open(path, "wb") as file:
        writer = _ChecksumWriter(file)
        np.save(writer, array, allow_pickle=False)
        _sync_file(file)
    return {"size": writer.size, "crc32": writer.crc32}


def _canonical(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _sync_file(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_files(directory: Path) -> State:
    """Reads a snapshot.

    Raises:
      DamagedError: it is not what was written.
    """
    try:
        return _unpack_state(directory, _read_manifest(directory / "manifest.json"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise DamagedError(f"{type(error).__name__}: {error}") from error


def _read_manifest(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_bytes())
    body = document["body"]
    if zlib.crc32(_canonical(body)) != document["crc32"]:
        raise DamagedError("manifest.json does not match its checksum")
    if body["format"] != _FORMAT:
        raise DamagedError(f"format {body['format']}, this version reads format {_FORMAT}")
    return body


def _unpack_state(directory: Path, body: dict[str, Any]) -> State:
    arrays = {
        name: _read_array(directory / name, entry["size"], entry["crc32"])
        for name, entry in body["files"].items()
    }
    segments = (Segment(**{**s, "shape": tuple(s["shape"])}) for s in body["segments"])
    groups = body["groups"]
    return State(
        manifest=Manifest(tuple(segments)),
        version=body["version"],
        global_t=body["global_t"],
        values=arrays["values.npy"],
        slots={group: arrays[entry["file"]] for group, entry in groups.items()},
        slot_names={group: tuple(entry["slots"]) for group, entry in groups.items()},
        steps={group: entry["steps"] for group, entry in groups.items()},
        statistics=body["statistics"],
        pending={
            tuple(entry["groups"]): (arrays[entry["file"]], entry["count"])
            for entry in body.get("pending", ())  # snapshots of older versions have none
        },
    )


def _read_array(path: Path, size: int, crc32: int) -> np.ndarray:
    if path.stat().st_size != size:
        raise DamagedError(f"{path.name} has {path.stat().st_size} bytes, {size} were written")
    found = 0
    with open(path, "rb") as file:
        while piece := file.read(_READ_BYTES):
            found = zlib.crc32(piece, found)
        if found != crc32:
            raise DamagedError(f"{path.name} does not match its checksum")
        file.seek(0)
        return np.load(file, allow_pickle=False)


def _describe_difference(saved: Manifest, wanted: Manifest) -> str:
    """Names the segments that differ, the first few of them."""
    ours = {segment.name: segment for segment in wanted.segments}
    theirs = {segment.name: segment for segment in saved.segments}
    lines = []
    for name in dict.fromkeys([*theirs, *ours]):
        if name not in ours:
            lines.append(f"{name} is only in the snapshot")
        elif name not in theirs:
            lines.append(f"{name} is missing in the snapshot")
        elif _layout(ours[name]) != _layout(theirs[name]):
            lines.append(f"{name} is {_layout(theirs[name])}, here {_layout(ours[name])}")
    more = f" and {len(lines) - 5} more" if len(lines) > 5 else ""
    return ("; ".join(lines[:5]) or "the same variables in another order") + more


def _layout(segment: Segment) -> str:
    group = f" in group {segment.group}" if segment.group else ""
    return f"{segment.kind} {segment.dtype} {list(segment.shape)}{group}"
