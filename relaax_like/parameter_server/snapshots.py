"""Snapshots of a run: directories that are complete or absent.

    folder/lock                      locked (flock) while a server lives; contains its pid
    folder/epoch                     grows with each start
    folder/cp-GLOBAL_T-VERSION/      manifest.json, values.npy, slots-0.npy, slots-1.npy, ..., and
                                     pending-0.npy, ... for gradients that are held back

A snapshot is written to a temporary directory, synced, read back from the disk, and renamed, so a
directory that was not verified never has a snapshot's name. The manifest contains the size and
CRC-32 of every file, and a CRC-32 of itself.
"""

import contextlib
import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from relaax_like.core.manifest import Manifest
from relaax_like.parameter_server.folder import count_start, lock_folder
from relaax_like.parameter_server.snapshot_format import (
    State,
    read_files,
    read_manifest,
    unpack_layout,
    verify_snapshot,
    write_files,
)
from relaax_like.wire import failpoints
from relaax_like.wire.closing import Closing
from relaax_like.wire.errors import ConfigError, DamagedError, SnapshotError
from relaax_like.wire.syncing import TEMPORARY, sync_path

if TYPE_CHECKING:
    from relaax_like.parameter_server.mirror import SnapshotMirror

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
_NAME = re.compile(r"^cp-(\d{20})-(\d{20})$")
# Suffix of a snapshot that is being replaced by another one of the same name.
_REPLACED = ".old-"
# At the end: time limit for copying the newest snapshot.
_MIRROR_SEC = 60.0
# Number of versions that an error lists.
_LISTED = 20


class Snapshots(Closing):
    """The snapshots in one folder, which belongs to one server at a time.

        with Snapshots(directory, keep=3, keep_best=2) as snapshots:
            state = snapshots.restore_latest(manifest)
            ...
            snapshots.save(store.export_state(), score=statistics.take_score())

    Not thread-safe: the caller ensures that only one thread saves at a time.

    The folder is created if it is missing, and locked; what a crash left behind is removed.

    Args:
      directory: the folder.
      keep: number of newest snapshots to keep; older ones are deleted after a newer one has
        been written.
      keep_best: number of snapshots to keep for their score, even if they are older; see
        `select_kept`.
      every_sec: seconds between two snapshots of a server; None: not by time.
      every_env_steps: environment steps between two; None: not by steps.
      recipe: what the initial values were made from; stored in snapshots, under `RECIPE`.

    Attributes:
      directory: the folder.
      epoch: grows with each server that opens the folder, and is larger for newer folders.
      mirror: where new snapshots are copied to; it is closed with this object. None: nowhere.
      every_sec, every_env_steps, recipe: as the arguments, for the server.

    Raises:
      ConfigError: `keep` is below 1, `keep_best` is negative, or an interval is not above 0.
      SnapshotError: another process has locked the folder, or it cannot be locked, read or
        written to.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        keep: int = 3,
        keep_best: int = 0,
        *,
        every_sec: float | None = None,
        every_env_steps: int | None = None,
        recipe: str = "",
    ):
        check_kept(keep, keep_best)
        for name, every in (("every_sec", every_sec), ("every_env_steps", every_env_steps)):
            if every is not None and not every > 0:
                raise ConfigError(f"{name}: {every}, expected more than 0")
        self.directory = Path(directory)
        self.mirror: SnapshotMirror | None = None
        self.every_sec = every_sec
        self.every_env_steps = every_env_steps
        self.recipe = recipe
        self._keep = keep
        self._keep_best = keep_best
        # Of every snapshot in the folder. Replaced, never changed: another thread might read it.
        self._scores: Mapping[str, float | None] = {}
        self._damaged: set[str] = set()
        self._lock: IO[str] | None = None
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(self.directory)
            self._clean_up()
            self.epoch = count_start(self.directory / "epoch")
        except OSError as error:
            self.close()
            raise SnapshotError(
                f"{directory}: cannot hold snapshots: {error}; set checkpoint_dir to a folder that "
                "can be written to, on a disk with space"
            ) from error

    def save(self, state: State, score: float | None = None, newest: str = "") -> Path:
        """Writes a snapshot, syncs it to the disk and reads it back; then deletes old ones.

        The snapshot is read back in pieces: this needs no second copy of the state in memory, and
        other threads run meanwhile.

        Args:
          state: the state to save.
          score: larger is better; None or not finite: no score.
          newest: name of the snapshot that counts as the newest, if it is newer than this one; "":
            this one does.

        Returns:
          The snapshot's directory, which no longer exists if the snapshot was not kept.

        Raises:
          SnapshotError: the snapshot could not be written (disk full, ...), or the disk returned
            other data, and older snapshots are untouched; or this object is closed.
        """
        if self._lock is None:
            raise SnapshotError(f"{self.directory}: closed; no more snapshots can be saved")
        if score is not None and not math.isfinite(score):
            score = None
        target = self.path_of(state)
        self._write(target, state, score)
        self._damaged.discard(target.name)
        self._scores = {**self._scores, target.name: score}
        try:
            self._delete_old(newest or target.name)
        except SnapshotError as error:
            _LOG.warning("could not delete old snapshots: %s", error)
        return target

    def _write(self, target: Path, state: State, score: float | None) -> None:
        """Writes a snapshot that is complete, or not there at all."""
        temporary = self.directory / (TEMPORARY + target.name)
        try:
            temporary.mkdir(parents=True)  # the folder might have been deleted meanwhile
            write_files(temporary, state, score)
            verify_snapshot(temporary)
            failpoints.hit("ps.in_snapshot")
            self._move_into_place(temporary, target)
        except DamagedError as error:
            raise SnapshotError(
                f"{target}: the snapshot was discarded, because the disk did not return what was "
                f"written ({error}); older snapshots are untouched. Check the disk"
            ) from error
        except ValueError as error:
            raise SnapshotError(
                f"{target}: the snapshot could not be written, because a number in its statistics "
                f"is not finite ({error}); older snapshots are untouched. Check the rewards"
            ) from error
        except OSError as error:
            raise SnapshotError(
                f"{target}: the snapshot could not be written: {error}; older snapshots are "
                "untouched. Check the disk's space and the folder's permissions"
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def path_of(self, state: State) -> Path:
        """Returns the directory of a state's snapshot, written or not."""
        # 20 digits can represent any uint64, so that names sort as the numbers do.
        return self.directory / f"cp-{state.global_t:020d}-{state.version:020d}"

    @property
    def best_score(self) -> float | None:
        """The best score of a snapshot in the folder; None if no undamaged snapshot has a score.

        Known without reading the folder: of the snapshots that were in it at the last call of
        `restore_latest` or `save`. Thread-safe.
        """
        found = [score for name, score in self._scores.items() if name not in self._damaged]
        return max((score for score in found if score is not None), default=None)

    def restore_latest(self, manifest: Manifest) -> State | None:
        """Reads the newest snapshot that is not damaged; damaged ones are logged.

        Returns:
          Its state; None if the folder contains no snapshot at all.

        Raises:
          SnapshotError: there are snapshots, but none can be used; the newest usable one has
            another layout or an unknown format; or the folder cannot be read.
        """
        state = read_latest(self.directory, self._damaged)
        self._scores = self._find_scores(list_names(self.directory))
        if state is None:
            return None
        if state.manifest.fingerprint != manifest.fingerprint:
            raise SnapshotError(
                f"{self.path_of(state)}: the snapshot belongs to a different model: "
                f"{describe_difference(state.manifest, manifest)}; use the settings and "
                "the algorithm's code of that run, or another checkpoint_dir (and mirror_url, if "
                "it is set)"
            )
        return replace(state, manifest=manifest)

    def close(self, timeout_sec: float = _MIRROR_SEC) -> None:
        """Closes the mirror, and releases the folder lock. Idempotent.

        Args:
          timeout_sec: longest wait for the copy of the newest snapshot.
        """
        if self.mirror is not None:
            self.mirror.close(timeout_sec)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _move_into_place(self, temporary: Path, target: Path) -> None:
        replaced = self.directory / (_REPLACED + target.name)
        if target.exists():  # damaged, or from before a restart from an older snapshot
            os.rename(target, replaced)
        try:
            os.rename(temporary, target)
        except OSError:
            if replaced.exists():
                os.rename(replaced, target)  # a damaged snapshot is better than none
            raise
        sync_path(self.directory)
        shutil.rmtree(replaced, ignore_errors=True)

    def _delete_old(self, newest: str) -> None:
        scores = self._find_scores(list_names(self.directory))
        kept = select_kept(scores, newest, self._damaged, self._keep, self._keep_best)
        self._scores = {name: score for name, score in scores.items() if name in kept}
        for name in scores:
            if name not in kept:
                self._delete(name)

    def _find_scores(self, names: list[str]) -> dict[str, float | None]:
        """Returns the scores of snapshots; None: it has none, or cannot be read."""
        known = self._scores
        return {name: known[name] if name in known else self._read_score(name) for name in names}

    def _read_score(self, name: str) -> float | None:
        try:
            score: float | None = read_manifest(self.directory / name).get("score")
        except DamagedError:
            return None
        except SnapshotError as error:  # of another version of relaax_like
            _LOG.warning("ignoring the score of a snapshot: %s", error)
            return None
        return score

    def _delete(self, name: str) -> None:
        # Renamed first: a partly deleted directory must not look like a damaged snapshot.
        doomed = self.directory / (TEMPORARY + name)
        try:
            os.rename(self.directory / name, doomed)
        except OSError as error:
            _LOG.warning("%s: could not delete the old snapshot: %s", self.directory / name, error)
            return
        shutil.rmtree(doomed, ignore_errors=True)

    def _clean_up(self) -> None:
        for path in self.directory.iterdir():
            if path.name.startswith(_REPLACED):
                original = self.directory / path.name.removeprefix(_REPLACED)
                if not original.exists():  # died between the two renames
                    os.rename(path, original)
                    continue
            elif not path.name.startswith(TEMPORARY):
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def check_kept(keep: int, keep_best: int) -> None:
    """Checks the numbers of snapshots to keep.

    Raises:
      ConfigError: `keep` is below 1, or `keep_best` is negative.
    """
    if keep < 1:
        raise ConfigError(f"keep: {keep} snapshots, expected 1 or more")
    if keep_best < 0:
        raise ConfigError(f"keep_best: {keep_best} snapshots, expected 0 or more")


def select_kept(
    scores: Mapping[str, float | None],
    newest: str,
    damaged: Collection[str],
    keep: int,
    keep_best: int,
) -> set[str]:
    """Chooses the snapshots to keep: the newest ones, and those with the best scores.

    A snapshot can count as both, so at most `keep + keep_best` are kept.

    Args:
      scores: name of each existing snapshot -> its score; None: no score.
      newest: name of the snapshot that counts as the newest, usually the one just saved.
      damaged: names of snapshots that count as the oldest; their scores are ignored.
      keep: number of newest snapshots to keep.
      keep_best: number of best snapshots to keep; with equal scores, the newer one is better.

    Returns:
      The names of the snapshots to keep.
    """
    by_age = sorted(scores, key=lambda name: (name == newest, name not in damaged, name))
    scored = [
        (score, age, name)
        for age, name in enumerate(by_age)
        if (score := scores[name]) is not None and name not in damaged
    ]
    best = sorted(scored, reverse=True)[:keep_best]
    return {*by_age[-keep:], *(name for _, _, name in best)}


def read_latest(directory: Path, damaged: set[str] | None = None) -> State | None:
    """Reads the newest snapshot that is not damaged, whatever its layout.

    Takes no lock and writes nothing, so it can be called while a server saves to the folder.

    Args:
      directory: the folder.
      damaged: the names of skipped snapshots are added to this set.

    Returns:
      Its state; None if there is no folder, or no snapshot in it at all.

    Raises:
      SnapshotError: there are snapshots, but all are damaged; one has a format that this version
        does not know; or the folder cannot be read.
    """
    names = list_names(directory)
    for name in reversed(names):
        if (state := _read(read_files, directory / name, damaged)) is not None:
            return state
    if names != list_names(directory):  # a server has replaced them while they were read
        return read_latest(directory, damaged)
    if names:
        raise _make_none_usable(directory, len(names))
    return None


def _read(read: Callable[[Path], T], path: Path, damaged: set[str] | None) -> T | None:
    """Returns what `read` returns; None: it is damaged, which is logged and noted in `damaged`."""
    try:
        return read(path)
    except DamagedError as error:
        _LOG.warning("%s: skipping a damaged snapshot: %s", path, error)
        if damaged is not None:
            damaged.add(path.name)
        return None


def _make_none_usable(directory: Path, count: int) -> SnapshotError:
    """Returns the error for a folder whose snapshots are all damaged or unreadable."""
    return SnapshotError(
        f"{directory}: no usable snapshot, {count} damaged or unreadable (see the log). Correct "
        "the permissions, or restore one from a backup; a run that is to start from scratch needs "
        "another checkpoint_dir (and mirror_url, if it is set)"
    )


def read_newest_manifest(directory: Path) -> dict[str, Any] | None:
    """Reads the manifest of the newest snapshot whose manifest is not damaged, without its arrays.

    Returns:
      The body of the manifest; None if no snapshot has an undamaged manifest with a layout.

    Raises:
      SnapshotError: the snapshot has a format that this version does not know, or the folder cannot
        be read.
    """
    for name in reversed(list_names(directory)):
        with contextlib.suppress(DamagedError):
            body = read_manifest(directory / name)
            unpack_layout(body)
            return body
    return None


def read_best(directory: Path) -> State | None:
    """Reads the snapshot with the best score that is not damaged, whatever its layout.

    With equal scores, the newer one is better. Takes no lock and writes nothing, like
    `read_latest`.

    Returns:
      Its state; None if no snapshot has a score (or there is no snapshot at all).

    Raises:
      SnapshotError: the snapshots with a score are damaged, or damaged ones might have a score; one
        has a format that this version does not know; or the folder cannot be read.
    """
    names = list_names(directory)
    damaged: set[str] = set()
    bodies = {name: _read(read_manifest, directory / name, damaged) or {} for name in names}
    found = ((body.get("score"), name) for name, body in bodies.items())
    scored = [(score, name) for score, name in found if score is not None]
    for _, name in sorted(scored, reverse=True):
        if (state := _read(read_files, directory / name, damaged)) is not None:
            return state
    if names != list_names(directory):  # a server has replaced them while they were read
        return read_best(directory)
    if damaged and len(damaged) == len(names):
        raise _make_none_usable(directory, len(damaged))
    if damaged:
        raise SnapshotError(
            f"{directory}: no usable snapshot has a score, {len(damaged)} damaged or unreadable "
            "(see the log); use version latest, or the number of a version"
        )
    return None


def read_version(directory: Path, version: int) -> State:
    """Reads the snapshot of a version, whatever its layout.

    Takes no lock and writes nothing, like `read_latest`.

    Raises:
      SnapshotError: there is no such snapshot (the error lists the existing versions), it is
        damaged or has a format that this version does not know, or the folder cannot be read.
    """
    names = {int(name.rpartition("-")[2]): name for name in list_names(directory)}
    if version not in names:
        existing = "the folder does not exist, or contains no snapshots"
        if names:
            newest = sorted(names)[-_LISTED:]
            are = "version is" if len(names) == 1 else "versions are"
            which = "" if len(names) == len(newest) else f"newest of {len(names)} "
            existing = f"the {which}{are} {', '.join(map(str, newest))}"
        raise SnapshotError(f"{directory}: no snapshot of version {version}; {existing}")
    path = directory / names[version]
    try:
        return read_files(path)
    except DamagedError as error:
        if not path.exists():  # a server has deleted it while it was read
            return read_version(directory, version)
        raise SnapshotError(
            f"{path}: the snapshot is damaged or unreadable ({error}); use another version, or "
            "correct the permissions"
        ) from error


def list_names(directory: Path) -> list[str]:
    """Returns the names of the snapshots in a folder, oldest first; [] if there is no folder.

    Raises:
      SnapshotError: the folder cannot be read.
    """
    try:
        return sorted(filter(is_snapshot_name, os.listdir(directory)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise SnapshotError(
            f"{directory}: the folder of snapshots cannot be read: {error}; correct its "
            "permissions, or check the disk"
        ) from None


def is_snapshot_name(name: str) -> bool:
    """Returns whether a directory of this name is a snapshot."""
    return _NAME.match(name) is not None


def describe_difference(saved: Manifest, wanted: Manifest) -> str:
    """Describes how the model of a snapshot differs: the first five variables that do.

    Args:
      saved: layout of the snapshot.
      wanted: layout of this run.
    """
    ours = {segment.name: segment for segment in wanted.segments}
    theirs = {segment.name: segment for segment in saved.segments}
    lines = []
    for name in dict.fromkeys([*theirs, *ours]):
        if name not in ours:
            lines.append(f"{name} is only in the snapshot")
        elif name not in theirs:
            lines.append(f"{name} is missing from the snapshot")
        elif ours[name].describe() != theirs[name].describe():
            lines.append(f"{name} is {theirs[name].describe()}, here {ours[name].describe()}")
    more = f" and {len(lines) - 5} more" if len(lines) > 5 else ""
    return ("; ".join(lines[:5]) or "the same variables in a different order") + more
