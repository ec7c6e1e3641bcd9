"""A copy of the newest snapshots at a URL: an object store, a network folder, another machine.

    URL/cp-GLOBAL_T-VERSION/      values.npy, slots-0.npy, ..., and manifest.json, which comes last

Object stores cannot rename, so the manifest makes a copy whole: a directory without one is a half,
which is never restored and is removed after the next copy. The manifest goes first when a copy is
deleted. A URL belongs to one run: two would delete each other's copies.

Any file system of fsspec will do; `pip install relaax_like[mirror]` brings S3. Keys are found where
its library looks for them (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...), never in our YAML file.
"""

import contextlib
import logging
import os
import random
import re
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from relaax_like.parameter_server.snapshots import (
    MANIFEST_NAME,
    TEMPORARY,
    DamagedError,
    check_kept,
    is_snapshot_name,
    list_names,
    select_kept,
    sync_directory,
    sync_file,
    unpack_manifest,
    verify_snapshot,
)
from relaax_like.wire.errors import ConfigError, SnapshotError

_LOG = logging.getLogger(__name__)
_URL = re.compile(r"^([a-z][a-z0-9+.-]*)://(.+)$", re.DOTALL)
# What a manifest may name: it comes from elsewhere.
_FILE = re.compile(r"^(values|slots-\d+|pending-\d+)\.npy$")
_INSTALL = "pip install 'relaax_like[mirror]'"
# A file of some hundred megabytes has time for it on a slow line.
_FILE_TIMEOUT_SEC = 600.0
_FIRST_PAUSE_SEC = 1.0
_LONGEST_PAUSE_SEC = 60.0
_FETCH_TRIES = 3
# s3fs would hold ten parts of 50 MiB in memory.
_S3_PARTS = {"chunksize": 16 << 20, "max_concurrency": 2}


@dataclass(frozen=True, kw_only=True)
class MirrorStatus:
    """How a mirror is doing.

    Attributes:
      newest_global_t: of the newest snapshot that is whole at the other end; None: none yet, since
        this start.
      error: why the last attempt failed; "" when it did not.
    """

    newest_global_t: int | None
    error: str


class Mirror:
    """Copies snapshots to a URL in a thread of its own; nobody ever waits for it.

        mirror = Mirror("s3://bucket/my-run", keep=3)
        mirror.offer(snapshots.save(state))
        ...
        mirror.close(timeout_sec=30.0)

    While one snapshot is copied another one may wait; a newer one takes its place. What fails is
    tried again, ever more rarely, with the newest snapshot there is. Thread-safe.
    """

    def __init__(
        self,
        url: str,
        *,
        keep: int = 3,
        keep_best: int = 0,
        file_timeout_sec: float = _FILE_TIMEOUT_SEC,
    ):
        """Starts the thread. The other end is not asked yet: one that is down delays nothing.

        Args:
          url: `s3://bucket/prefix`, `file:///folder`, ...
          keep: newest snapshots that stay at the other end.
          keep_best: those that stay there for their score, as in `Snapshots`.
          file_timeout_sec: longest time for one file, or for one question about it.

        Raises:
          ConfigError: the URL cannot be used, a package is missing, or a number makes no sense.
        """
        check_kept(keep, keep_best)
        self._remote = _Remote(url, file_timeout_sec)
        self._keep = keep
        self._keep_best = keep_best
        # What the thread alone uses: name -> score of the copies there, and those of no use.
        self._scores: dict[str, float | None] = {}
        self._damaged: set[str] = set()
        self._condition = threading.Condition()  # guards all that follows
        self._waiting: _OpenSnapshot | None = None
        self._copying = ""
        self._closing = False
        self._newest_global_t: int | None = None
        self._error = ""
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    @property
    def status(self) -> MirrorStatus:
        """How it is doing."""
        with self._condition:
            return MirrorStatus(newest_global_t=self._newest_global_t, error=self._error)

    def offer(self, path: Path) -> None:
        """Has a snapshot copied, in place of one that waits. Returns at once and never raises.

        Its files are opened here: it may be deleted from the folder before they are copied.
        """
        try:
            snapshot = _OpenSnapshot(path)
        except (OSError, DamagedError) as error:
            self._note_failure(path.name, error)
            return
        with self._condition:
            if self._closing:
                replaced: _OpenSnapshot | None = snapshot
            else:
                replaced, self._waiting = self._waiting, snapshot
                self._condition.notify_all()
        if replaced is not None:
            replaced.close()

    def close(self, timeout_sec: float) -> None:
        """Copies what waits, for so long at most, and stops. May be called twice.

        What could not be copied is named in the log; it is still in the folder.
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
            self._condition.notify_all()
        if waiting is not None:
            waiting.close()
        if missing and is_first:
            _LOG.warning(
                "mirror %s: %s was not copied in %g s at the end; it is in the folder, and only "
                "there",
                self._remote.shown_url,
                missing,
                timeout_sec,
            )

    def _run(self) -> None:
        pause_sec = _FIRST_PAUSE_SEC
        while (snapshot := self._take()) is not None:
            try:
                self._copy(snapshot)
            except _StoppedError:
                snapshot.close()
                return
            except Exception as error:  # a file system of fsspec may raise anything
                self._note_failure(snapshot.name, error)
                self._put_back(snapshot)
                self._pause(pause_sec)
                pause_sec = min(2 * pause_sec, _LONGEST_PAUSE_SEC)
            else:
                snapshot.close()
                self._note_success(snapshot.name)
                pause_sec = _FIRST_PAUSE_SEC

    def _take(self) -> "_OpenSnapshot | None":
        with self._condition:
            self._condition.wait_for(lambda: self._waiting is not None or self._closing)
            snapshot, self._waiting = self._waiting, None
            self._copying = snapshot.name if snapshot is not None else ""
            return snapshot

    def _put_back(self, snapshot: "_OpenSnapshot") -> None:
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
                random.uniform(0.5, 1.0) * pause_sec,
            )

    def _copy(self, snapshot: "_OpenSnapshot") -> None:
        """Makes a snapshot whole at the other end; then removes what is not to stay there."""
        self._remote.forget_listings()
        if not self._is_there(snapshot):
            self._remote.write(snapshot)
        self._scores[snapshot.name] = snapshot.body.get("score")
        self._damaged.discard(snapshot.name)
        with self._condition:
            self._newest_global_t = snapshot.body["global_t"]
            self._copying = ""
        self._delete_old(snapshot.name)

    def _is_there(self, snapshot: "_OpenSnapshot") -> bool:
        """Tells whether it is there already; a copy of the same name that differs is unmade."""
        try:
            content = self._remote.read_manifest(snapshot.name)
        except FileNotFoundError:
            return False
        if content == snapshot.manifest:
            return True
        self._scores.pop(snapshot.name, None)
        self._remote.unmake(snapshot.name)
        return False

    def _delete_old(self, copied: str) -> None:
        names = self._remote.list_names()
        whole = {name for name in names if self._is_whole(name)}
        scores = {name: self._scores[name] for name in whole}
        kept = select_kept(scores, copied, self._damaged, self._keep, self._keep_best)
        for name in names:
            if name not in kept:
                self._scores.pop(name, None)  # first: this may fail in the middle
                self._remote.delete(name, whole=name in whole)

    def _is_whole(self, name: str) -> bool:
        """Tells whether a copy has its manifest; `_scores` then has its score."""
        if name in self._scores:
            return True
        try:
            self._scores[name] = unpack_manifest(self._remote.read_manifest(name)).get("score")
        except FileNotFoundError:
            return False
        except DamagedError:
            self._scores[name] = None
            self._damaged.add(name)
        return True

    def _note_failure(self, name: str, error: Exception) -> None:
        text = self._remote.describe(error)
        with self._condition:
            is_news = not self._error
            self._error = text
        if is_news:
            _LOG.warning(
                "mirror %s: %s was not copied: %s. Training goes on, and it is tried again",
                self._remote.shown_url,
                name,
                text,
            )

    def _note_success(self, name: str) -> None:
        with self._condition:
            was_failing = bool(self._error)
            self._error = ""
        if was_failing:
            _LOG.info("mirror %s is back: it has %s", self._remote.shown_url, name)


def fetch_newest(
    url: str, directory: Path, *, file_timeout_sec: float = _FILE_TIMEOUT_SEC
) -> Path | None:
    """Brings the newest whole snapshot of a mirror to a folder that has none.

    To be called by the holder of the folder, before it restores. Nothing that lies there is ever
    replaced: with any snapshot there, damaged or not, this does nothing and asks nobody.

    Args:
      url: as for `Mirror`.
      directory: the folder.
      file_timeout_sec: as for `Mirror`.

    Returns:
      Its directory; None when the folder has a snapshot, or the mirror has none.

    Raises:
      ConfigError: the URL cannot be used, or a package is missing.
      SnapshotError: the mirror cannot be asked, all its snapshots are damaged, or the folder cannot
        be written to. Starting a run afresh would be wrong then.
    """
    if list_names(directory):
        return None
    remote = _Remote(url, file_timeout_sec)
    for attempt in range(_FETCH_TRIES):
        if attempt:
            time.sleep(_FIRST_PAUSE_SEC)
        try:
            remote.forget_listings()
            return _fetch_newest(remote, directory)
        except SnapshotError:
            raise
        except Exception as error:  # a file system of fsspec may raise anything
            failure = error
    raise SnapshotError(
        f"mirror {remote.shown_url}: no snapshot could be fetched to {directory}, which has none: "
        f"{remote.describe(failure)}; bring the mirror back, or start without mirror_url to begin "
        "afresh"
    ) from failure


def _fetch_newest(remote: "_Remote", directory: Path) -> Path | None:
    damaged = 0
    for name in reversed(remote.list_names()):
        try:
            content = remote.read_manifest(name)
        except FileNotFoundError:
            _LOG.warning("mirror %s: %s is a half, skipped", remote.shown_url, name)
            continue
        try:
            return _fetch(remote, name, content, directory)
        except DamagedError as error:
            _LOG.warning(
                "mirror %s: damaged snapshot %s skipped: %s", remote.shown_url, name, error
            )
            damaged += 1
    if damaged:
        raise SnapshotError(
            f"mirror {remote.shown_url}: all {damaged} snapshots are damaged (see the log); "
            "nothing was started. Bring one back from a backup, or start without mirror_url to "
            "begin afresh"
        )
    return None


def _fetch(remote: "_Remote", name: str, manifest: bytes, directory: Path) -> Path:
    """Brings one snapshot.

    Raises:
      DamagedError: it is not what was written.
    """
    files = _check_files(unpack_manifest(manifest))
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
        sync_directory(temporary)
        verify_snapshot(temporary)
        os.rename(temporary, target)
        sync_directory(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _check_files(body: dict[str, Any]) -> list[str]:
    """Returns the names of a manifest's data files.

    Raises:
      DamagedError: a name that no snapshot has, perhaps of a file elsewhere.
    """
    for name in body["files"]:
        if not _FILE.match(name):
            raise DamagedError(f"manifest.json names a file {name!r}")
    return list(body["files"])


class _OpenSnapshot:
    """A snapshot's files, held open: they can be read although the folder deletes them.

    Attributes:
      name: of its directory.
      manifest: the bytes of its manifest.
      body: what the manifest says.
      files: name -> data file.
    """

    def __init__(self, path: Path):
        """Opens the files.

        Raises:
          OSError: it is not there.
          DamagedError: it is no snapshot.
        """
        self.name = path.name
        self.manifest = (path / MANIFEST_NAME).read_bytes()
        self.body = unpack_manifest(self.manifest)
        self.files: dict[str, IO[bytes]] = {}
        with contextlib.ExitStack() as stack:
            for name in _check_files(self.body):
                self.files[name] = stack.enter_context(open(path / name, "rb"))
            self._stack = stack.pop_all()

    def path_of(self, file: str) -> str:
        """Returns a path that a data file can be read from, wherever it has gone."""
        descriptor = self.files[file].fileno()
        os.lseek(descriptor, 0, os.SEEK_SET)  # macOS shares the position with who opens the path
        return f"/dev/fd/{descriptor}"

    def close(self) -> None:
        """Lets go of the files."""
        self._stack.close()


class _StoppedError(Exception):
    """The mirror was closed and nothing more is to be done."""


class _Remote:
    """The other end: one call at a time, each with a deadline.

    A call that hangs is left behind in a daemon thread. Where fsspec can (object stores), it is
    cancelled. Otherwise the next call waits for its end first, so that nothing is ever written
    out of order.
    """

    def __init__(self, url: str, timeout_sec: float):
        self.shown_url = _hide_password(url)
        match = _URL.match(url)
        if match is None:
            raise ConfigError(
                f"mirror_url: {self.shown_url!r} is no URL, expected one like s3://bucket/prefix "
                "or file:///folder"
            )
        if "?" in url:
            raise ConfigError(
                f"mirror_url: {self.shown_url}: a mirror's URL has no ? in it; keys belong in the "
                "environment"
            )
        self._url = url
        self._timeout_sec = timeout_sec
        self._password = urlsplit(url).password
        self._protocol = match[1]
        self._check_packages()
        self._fs: Any = None
        self._root = ""
        self._hanging: threading.Thread | None = None
        self._stopped = threading.Event()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Has all further calls raise `_StoppedError`."""
        self._stopped.set()

    def describe(self, error: BaseException) -> str:
        """Returns an error in one line, without the URL's password."""
        text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        for secret in {self._password, unquote(self._password or "")} - {None, ""}:
            text = text.replace(str(secret), "***")
        return text

    def forget_listings(self) -> None:
        """Has the other end really be asked what lies there."""
        self._call(lambda **_: self._fs.invalidate_cache())

    def list_names(self) -> list[str]:
        """Returns the names of all snapshots there, halves too, oldest first."""
        try:
            entries = self._call(lambda **options: self._fs.ls(self._root, detail=False, **options))
        except FileNotFoundError:
            return []
        names = (PurePosixPath(entry).name for entry in entries)
        return sorted(name for name in names if is_snapshot_name(name))

    def read_manifest(self, name: str) -> bytes:
        """Returns a snapshot's manifest.

        Raises:
          FileNotFoundError: it is a half, or not there at all.
        """
        path = f"{self._root}/{name}/{MANIFEST_NAME}"
        return self._call(lambda **options: self._fs.cat_file(path, **options))

    def read_file(self, name: str, file: str, target: Path) -> None:
        """Copies a data file to the disk.

        Raises:
          FileNotFoundError: it is not there.
        """
        source = f"{self._root}/{name}/{file}"
        self._call(lambda **options: self._fs.get_file(source, str(target), **options))

    def write(self, snapshot: _OpenSnapshot) -> None:
        """Copies all files of a snapshot, the manifest last."""
        folder = f"{self._root}/{snapshot.name}"
        self._call(lambda **options: self._fs.makedirs(folder, exist_ok=True, **options))
        parts = _S3_PARTS if self._protocol in ("s3", "s3a") else {}
        for file in snapshot.files:
            source, target = snapshot.path_of(file), f"{folder}/{file}"
            self._call(lambda s=source, t=target, **o: self._fs.put_file(s, t, **parts, **o))
            self._check_size(target, snapshot.body["files"][file]["size"])
        manifest = f"{folder}/{MANIFEST_NAME}"
        self._call(lambda **o: self._fs.pipe_file(manifest, snapshot.manifest, **o))

    def unmake(self, name: str) -> None:
        """Makes a half of a snapshot."""
        path = f"{self._root}/{name}/{MANIFEST_NAME}"
        self._call(lambda **options: self._fs.rm_file(path, **options))

    def delete(self, name: str, whole: bool) -> None:
        """Deletes a snapshot, its manifest first.

        Args:
          name: its name.
          whole: whether it has a manifest.
        """
        if whole:
            self.unmake(name)
        folder = f"{self._root}/{name}"
        # An object store has no empty directories: there may be nothing left to delete.
        with contextlib.suppress(FileNotFoundError):
            self._call(lambda **options: self._fs.rm(folder, recursive=True, **options))

    def _check_size(self, path: str, size: int) -> None:
        found = self._call(lambda **options: self._fs.info(path, **options))["size"]
        if found != size:
            raise OSError(f"{path} has {found} bytes there, {size} were sent")

    def _check_packages(self) -> None:
        try:
            import fsspec

            fsspec.get_filesystem_class(self._protocol)
        except ImportError as error:
            raise ConfigError(
                f"mirror_url: {self.shown_url} needs a package that is missing; {_INSTALL} "
                f"({error})"
            ) from None
        except ValueError:
            raise ConfigError(
                f"mirror_url: {self.shown_url}: {self._protocol}:// is unknown, expected a "
                "protocol of fsspec, such as s3:// or file://"
            ) from None

    def _connect(self) -> None:
        import fsspec

        # An instance of its own: another user of the process must not change what it caches.
        self._fs, self._root = fsspec.core.url_to_fs(self._url, skip_instance_cache=True)
        self._root = self._root.rstrip("/")

    def _call(self, operation: Callable[..., Any]) -> Any:
        """Runs an operation of the file system, which is made at the first one.

        Raises:
          TimeoutError: it has not ended in time.
          _StoppedError: `stop` was called.
          Exception: whatever the operation raises.
        """
        if self._stopped.is_set():
            raise _StoppedError
        if self._hanging is not None:
            self._hanging.join(self._timeout_sec)
            if self._hanging.is_alive():
                raise TimeoutError(f"a call still hangs after {self._timeout_sec:g} s more")
        outcome: list[Any] = []
        failure: list[BaseException] = []

        def run() -> None:
            try:
                if self._fs is None:
                    self._connect()
                # The synchronous face of fsspec's asynchronous file systems takes a timeout.
                options = {"timeout": self._timeout_sec} if self._fs.async_impl else {}
                outcome.append(operation(**options))
            except BaseException as error:
                failure.append(error)

        # A second later than fsspec's own deadline, which is the better one.
        thread = self._hanging = threading.Thread(target=run, name="mirror call", daemon=True)
        thread.start()
        thread.join(self._timeout_sec + 1.0)
        if thread.is_alive():
            raise TimeoutError(f"no answer in {self._timeout_sec:g} s")
        self._hanging = None
        if failure:
            raise failure[0]
        return outcome[0]


def _hide_password(url: str) -> str:
    """Returns a URL without password and query, to be shown.

    Raises:
      ConfigError: it cannot be told where the password ends.
    """
    scheme, separator, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    user, at, host = place.rpartition("@")
    if not at and "@" in path and ":" in host and not host.rpartition(":")[2].isdigit():
        raise ConfigError("mirror_url: a / in its password? Write it as %2F")
    shown = f"{scheme}{separator}{user.partition(':')[0]}{at}{host}{slash}{path}"
    return shown.partition("?")[0]
