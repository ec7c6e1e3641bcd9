"""A copy of the newest snapshots at a URL: an object store, a network folder, another machine.

    URL/cp-GLOBAL_T-VERSION/      values.npy, slots-0.npy, ..., and finally manifest.json

Object stores cannot rename, so the manifest completes a copy: a directory without one is
incomplete; it is never restored, and is removed after the next copy. When a copy is deleted, its
manifest is deleted first. A URL belongs to one run: two would delete each other's copies.

Any file system of fsspec can be used; `pip install relaax_like[mirror]` installs support for S3.
Credentials are found where its library looks for them (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...),
so our YAML file need not contain them.
"""

import contextlib
import logging
import os
import shutil
import threading
import time
from pathlib import Path

from relaax_like.parameter_server.mirror_remote import (
    OpenSnapshot,
    Remote,
    StoppedError,
    check_files,
)
from relaax_like.parameter_server.snapshot_format import (
    MANIFEST_NAME,
    unpack_manifest,
    verify_snapshot,
)
from relaax_like.parameter_server.snapshots import (
    check_kept,
    list_names,
    select_kept,
)
from relaax_like.wire.backoff import draw_pause_sec
from relaax_like.wire.errors import DamagedError, SnapshotError
from relaax_like.wire.syncing import TEMPORARY, sync_file, sync_path

_LOG = logging.getLogger(__name__)
# Enough for a file of a few hundred megabytes on a slow connection.
_FILE_TIMEOUT_SEC = 600.0
_FIRST_PAUSE_SEC = 1.0
_LONGEST_PAUSE_SEC = 60.0
_FETCH_TRIES = 3


class SnapshotMirror:
    """Copies snapshots to a URL in a thread of its own; only `close` waits for it.

        mirror = Mirror("s3://bucket/my-run", keep=3)
        mirror.offer(snapshots.save(state))
        ...
        mirror.close(timeout_sec=30.0)

    While one snapshot is being copied, another one can wait; a newer one replaces it. A failed copy
    is retried, at growing intervals, with the newest snapshot available. Thread-safe.

    Attributes:
      newest_global_t: environment steps of the newest complete copy; None: no copy was completed
        since this start.
      error: why the last attempt failed; "" if it succeeded, or there was none.
    """

    def __init__(
        self,
        url: str,
        *,
        keep: int = 3,
        keep_best: int = 0,
        file_timeout_sec: float = _FILE_TIMEOUT_SEC,
    ):
        """Starts the thread. It does not connect yet, so an unavailable mirror delays nothing.

        Args:
          url: `s3://bucket/prefix`, `file:///folder`, ...
          keep: number of newest snapshots that are kept at the URL.
          keep_best: number of snapshots that are kept there for their score, as in `Snapshots`.
          file_timeout_sec: longest time for one file, or for one other operation.

        Raises:
          ConfigError: the URL cannot be used, a package is missing, or a number is out of range.
        """
        check_kept(keep, keep_best)
        self._remote = Remote(url, file_timeout_sec)
        self._keep = keep
        self._keep_best = keep_best
        # Used by the thread only: name -> score of the copies there, and the useless ones.
        self._scores: dict[str, float | None] = {}
        self._damaged: set[str] = set()
        self._condition = threading.Condition()  # guards all attributes below
        self._waiting: OpenSnapshot | None = None
        self._copying = ""
        self._copied = ""  # name of the newest complete copy
        self._closing = False
        self.newest_global_t: int | None = None
        self.error = ""
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    def offer(self, path: Path) -> None:
        """Queues a snapshot for copying, replacing a waiting one. Returns at once, never raises.

        The files are opened here, because they can be deleted from the folder before they are
        copied. If they cannot be opened, a warning is logged, unless the last attempt failed, too.
        """
        try:
            snapshot = OpenSnapshot(path)
        except (OSError, DamagedError, SnapshotError) as error:
            self._note_failure(path.name, error)
            return
        with self._condition:
            if self._closing:
                replaced: OpenSnapshot | None = snapshot
            else:
                replaced, self._waiting = self._waiting, snapshot
                self._condition.notify_all()
        if replaced is not None:
            replaced.close()

    def close(self, timeout_sec: float) -> None:
        """Copies a waiting snapshot, for at most `timeout_sec`, and stops. Idempotent.

        If the snapshot could not be copied, a warning is logged; it is still in the folder. Old
        copies that could not be removed are removed by the next run of the server.
        """
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join(timeout_sec)
        is_first = not self._remote.stopped
        self._remote.stop()
        with self._condition:
            waiting, self._waiting = self._waiting, None
            missing = waiting.name if waiting is not None else self._copying
            if missing == self._copied:  # only old copies could not be removed
                missing = ""
            self._condition.notify_all()
        if waiting is not None:
            waiting.close()
        if missing and is_first:
            _LOG.warning(
                "mirror %s: %s could not be copied within %g s at the end; it exists in the "
                "folder only",
                self._remote.shown_url,
                missing,
                timeout_sec,
            )

    def _run(self) -> None:
        failures = 0  # in a row
        while (snapshot := self._take()) is not None:
            try:
                self._copy(snapshot)
            except StoppedError:
                snapshot.close()
                return
            except Exception as error:  # a file system of fsspec can raise anything
                with self._condition:
                    is_copied = self._copied == snapshot.name
                    must_end = is_copied and failures > 0 and self._closing
                self._note_failure(snapshot.name, error, is_copied)
                if must_end:
                    snapshot.close()
                    continue
                self._put_back(snapshot)
                self._pause(draw_pause_sec(failures, _FIRST_PAUSE_SEC, _LONGEST_PAUSE_SEC))
                failures += 1
            else:
                snapshot.close()
                self._note_success(snapshot.name)
                failures = 0

    def _take(self) -> OpenSnapshot | None:
        with self._condition:
            self._condition.wait_for(lambda: self._waiting is not None or self._closing)
            snapshot, self._waiting = self._waiting, None
            self._copying = snapshot.name if snapshot is not None else ""
            return snapshot

    def _put_back(self, snapshot: OpenSnapshot) -> None:
        with self._condition:
            if self._waiting is None and not self._remote.stopped:
                self._waiting = snapshot
                return
        snapshot.close()

    def _pause(self, pause_sec: float) -> None:
        """Waits before the next attempt; `close` shortens it."""
        with self._condition:
            was_closing = self._closing
            self._condition.wait_for(
                lambda: self._remote.stopped or self._closing != was_closing,
                pause_sec,
            )

    def _copy(self, snapshot: OpenSnapshot) -> None:
        """Copies a snapshot to the URL; then removes the copies that are not kept."""
        self._remote.forget_listings()
        if not self._is_there(snapshot):
            self._remote.write(snapshot)
        self._scores[snapshot.name] = snapshot.body.get("score")
        self._damaged.discard(snapshot.name)
        with self._condition:
            self.newest_global_t = snapshot.body["global_t"]
            self._copying, self._copied = "", snapshot.name
        self._delete_old(snapshot.name)

    def _is_there(self, snapshot: OpenSnapshot) -> bool:
        """Returns whether a snapshot was already copied; makes a different copy incomplete."""
        try:
            content = self._remote.read_manifest(snapshot.name)
        except FileNotFoundError:
            return False
        if content == snapshot.manifest:
            return True
        self._scores.pop(snapshot.name, None)
        with self._condition:
            self._copied = ""
        self._remote.unmake(snapshot.name)
        return False

    def _delete_old(self, copied: str) -> None:
        names = self._remote.list_names()
        whole = {name for name in names if self._is_whole(name)}
        scores = {name: self._scores[name] for name in whole}
        kept = select_kept(scores, copied, self._damaged, self._keep, self._keep_best)
        for name in names:
            if name not in kept:
                self._scores.pop(name, None)  # first, because the deletion can fail halfway
                self._remote.delete(name, whole=name in whole)

    def _is_whole(self, name: str) -> bool:
        """Returns whether a copy has its manifest; `_scores` then has its score."""
        if name in self._scores:
            return True
        try:
            self._scores[name] = unpack_manifest(self._remote.read_manifest(name), name).get(
                "score"
            )
        except FileNotFoundError:
            return False
        except DamagedError:
            self._scores[name] = None
            self._damaged.add(name)
        return True

    def _note_failure(self, name: str, error: Exception, is_copied: bool = False) -> None:
        text = self._remote.describe(error)
        with self._condition:
            is_news = not self.error
            self.error = text
        if is_news:
            what = "could not be copied", "this snapshot or a newer one is copied later"
            if is_copied:
                what = "was copied, but old copies could not be removed", "this is retried later"
            _LOG.warning(
                "mirror %s: %s %s: %s. Training continues; %s",
                self._remote.shown_url,
                name,
                what[0],
                text,
                what[1],
            )

    def _note_success(self, name: str) -> None:
        with self._condition:
            was_failing = bool(self.error)
            self.error = ""
        if was_failing:
            _LOG.info("mirror %s is available again: it has %s", self._remote.shown_url, name)


def fetch_newest(
    url: str, directory: Path, *, file_timeout_sec: float = _FILE_TIMEOUT_SEC
) -> Path | None:
    """Downloads the newest complete snapshot of a mirror to a folder that has none.

    To be called by the owner of the folder, before it restores. Nothing is ever replaced: if the
    folder has any snapshot, damaged or not, this does nothing and does not contact the mirror.

    Args:
      url: as for `SnapshotMirror`.
      directory: the folder.
      file_timeout_sec: as for `SnapshotMirror`.

    Returns:
      The snapshot's directory; None if the folder already has one, or the mirror has none.

    Raises:
      ConfigError: the URL cannot be used, or a package is missing.
      SnapshotError: the mirror is unavailable, all its snapshots are damaged, one has a format that
        this version does not know, or the folder cannot be read or written to. The run must not be
        started from scratch then.
    """
    if list_names(directory):
        return None
    remote = Remote(url, file_timeout_sec)
    for attempt in range(_FETCH_TRIES):
        if attempt:
            time.sleep(_FIRST_PAUSE_SEC)
        try:
            remote.forget_listings()
            return _fetch_newest(remote, directory)
        except SnapshotError:
            raise
        except Exception as error:  # a file system of fsspec can raise anything
            failure = error
    raise SnapshotError(
        f"mirror {remote.shown_url}: no snapshot could be downloaded to {directory}, which has "
        f"none: {remote.describe(failure)}; make the mirror available again, and the folder "
        "writable, on a disk with space; or set relaax-parameter-server.mirror_url to null to "
        "start from scratch"
    ) from failure


def find_newest_step(url: str, *, file_timeout_sec: float = _FILE_TIMEOUT_SEC) -> int | None:
    """Returns the environment steps of a mirror's newest complete snapshot; None: it has none.

    Reads manifests only; snapshots whose manifest is damaged do not count.

    Args:
      url: as for `SnapshotMirror`.
      file_timeout_sec: as for `SnapshotMirror`.

    Raises:
      ConfigError: the URL cannot be used, or a package is missing.
      SnapshotError: the mirror is unavailable, or a snapshot has a format that this version does
        not know.
    """
    remote = Remote(url, file_timeout_sec)
    try:
        for name in reversed(remote.list_names()):
            with contextlib.suppress(FileNotFoundError, DamagedError):
                place = f"mirror {remote.shown_url}: {name}"
                body = unpack_manifest(remote.read_manifest(name), place)
                return int(body["global_t"])
    except SnapshotError:  # of another format
        raise
    except Exception as error:  # a file system of fsspec can raise anything
        raise SnapshotError(
            f"mirror {remote.shown_url}: cannot be read: {remote.describe(error)}; make the mirror "
            "available again"
        ) from error
    return None


def _fetch_newest(remote: Remote, directory: Path) -> Path | None:
    damaged = 0
    for name in reversed(remote.list_names()):
        try:
            content = remote.read_manifest(name)
        except FileNotFoundError:
            _LOG.warning("mirror %s: skipping incomplete snapshot %s", remote.shown_url, name)
            continue
        try:
            return _fetch(remote, name, content, directory)
        except DamagedError as error:
            _LOG.warning(
                "mirror %s: skipping damaged snapshot %s: %s", remote.shown_url, name, error
            )
            damaged += 1
    if damaged:
        raise SnapshotError(
            f"mirror {remote.shown_url}: no usable snapshot, {damaged} damaged (see the log). "
            "Restore one from a backup, or set relaax-parameter-server.mirror_url to null to "
            "start from scratch"
        )
    return None


def _fetch(remote: Remote, name: str, manifest: bytes, directory: Path) -> Path:
    """Downloads one snapshot.

    Raises:
      DamagedError: the snapshot is damaged.
      SnapshotError: the snapshot has a format that this version does not know.
      Exception: the errors of `Remote`; OSError: the folder cannot be written to.
    """
    files = check_files(unpack_manifest(manifest, f"mirror {remote.shown_url}: {name}"))
    target = directory / name
    temporary = directory / (TEMPORARY + name)
    try:
        temporary.mkdir(parents=True)
        for file in files:
            try:
                remote.read_file(name, file, temporary / file)
            except FileNotFoundError:
                raise DamagedError(f"{file} is missing") from None
        (temporary / MANIFEST_NAME).write_bytes(manifest)
        for path in temporary.iterdir():
            with open(path, "rb") as opened:
                sync_file(opened)
        sync_path(temporary)
        verify_snapshot(temporary)
        os.rename(temporary, target)
        sync_path(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target
