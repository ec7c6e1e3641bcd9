"""The other end of a mirror: a file system of fsspec, used with deadlines."""

import contextlib
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import unquote

from relaax_like.parameter_server.snapshot_format import (
    MANIFEST_NAME,
    unpack_manifest,
)
from relaax_like.parameter_server.snapshots import is_snapshot_name
from relaax_like.wire.errors import ConfigError, DamagedError

_URL = re.compile(r"^([a-z][a-z0-9+.-]*)://(.+)$", re.DOTALL)
# The file names allowed in a manifest, which comes from another machine.
_FILE = re.compile(r"^(values|slots-\d+|pending-\d+)\.npy$")
_KEY = "relaax-parameter-server.mirror_url"
_INSTALL = "pip install 'relaax_like[mirror]'"
# s3fs would hold ten parts of 50 MiB in memory.
_S3_PARTS = {"chunksize": 16 << 20, "max_concurrency": 2}


def check_files(body: dict[str, Any]) -> list[str]:
    """Returns the names of a manifest's data files.

    Raises:
      DamagedError: a name is not the name of a snapshot's data file; it could be any path.
    """
    for name in body["files"]:
        if not _FILE.match(name):
            raise DamagedError(
                f"manifest.json names the file {name[:100]!r}, which is not a data file of a "
                "snapshot"
            )
    return list(body["files"])


class OpenSnapshot:
    """A snapshot's files, kept open: they can be read even after they were deleted.

    Attributes:
      name: name of the snapshot's directory.
      manifest: the bytes of the snapshot's manifest.
      body: the content of the manifest.
      files: name -> data file.
    """

    def __init__(self, path: Path):
        """Opens the files.

        Raises:
          OSError: the files cannot be opened.
          DamagedError: the manifest is damaged.
          SnapshotError: the snapshot has a format that this version does not know.
        """
        self.name = path.name
        self.manifest = (path / MANIFEST_NAME).read_bytes()
        self.body = unpack_manifest(self.manifest, str(path))
        self.files: dict[str, IO[bytes]] = {}
        with contextlib.ExitStack() as stack:
            for name in check_files(self.body):
                self.files[name] = stack.enter_context(open(path / name, "rb"))
            self._stack = stack.pop_all()

    def path_of(self, file: str) -> str:
        """Returns a path from which the data file `file` can be read, even if it was deleted."""
        descriptor = self.files[file].fileno()
        os.lseek(descriptor, 0, os.SEEK_SET)  # on macOS, opening the path shares the position
        return f"/dev/fd/{descriptor}"

    def close(self) -> None:
        """Closes the files."""
        self._stack.close()


class StoppedError(Exception):
    """The mirror was closed: no more operations are allowed."""


class Remote:
    """The other end: one call at a time, each with a deadline.

    A call that hangs is abandoned in a daemon thread. If fsspec supports it (object stores), the
    call is cancelled. Otherwise the next call first waits for its end, so that nothing is ever
    written out of order.

    All methods that contact the mirror raise TimeoutError if there is no answer in time,
    StoppedError after `stop`, and any error of the file system.

    Args:
      url: see `Mirror`.
      timeout_sec: longest time of one call, and of the wait for a call that hangs.

    Attributes:
      shown_url: the URL without password and query.

    Raises:
      ConfigError: the URL cannot be used, or a package is missing.
    """

    def __init__(self, url: str, timeout_sec: float):
        self.shown_url = hide_password(url)
        match = _URL.match(url)
        if match is None:
            raise ConfigError(
                f"{_KEY}: {self.shown_url!r}, expected a URL such as s3://bucket/prefix or "
                "file:///folder, with the protocol in lower case"
            )
        if "?" in url:
            raise ConfigError(
                f"{_KEY}: {self.shown_url}: the URL must not contain ?; put credentials "
                "into environment variables"
            )
        self._url = url
        self._timeout_sec = timeout_sec
        self._password = _split_password(url)[1]
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
        """Makes all further calls raise `StoppedError`."""
        self._stopped.set()

    def describe(self, error: BaseException) -> str:
        """Returns an error on one line, without the URL's password."""
        text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        for secret in {self._password, unquote(self._password)} - {""}:
            text = text.replace(secret, "***")
        return text

    def forget_listings(self) -> None:
        """Clears cached listings, so that new ones are requested."""
        self._call(lambda **_: self._fs.invalidate_cache())

    def list_names(self) -> list[str]:
        """Returns the names of all snapshots there, including incomplete ones, oldest first."""
        try:
            entries = self._call(lambda **options: self._fs.ls(self._root, detail=False, **options))
        except FileNotFoundError:
            return []
        names = (PurePosixPath(entry).name for entry in entries)
        return sorted(name for name in names if is_snapshot_name(name))

    def read_manifest(self, name: str) -> bytes:
        """Returns a snapshot's manifest.

        Raises:
          FileNotFoundError: the snapshot is incomplete, or not there at all.
        """
        path = f"{self._root}/{name}/{MANIFEST_NAME}"
        return self._call(lambda **options: self._fs.cat_file(path, **options))

    def read_file(self, name: str, file: str, target: Path) -> None:
        """Copies a data file to the disk.

        Raises:
          FileNotFoundError: the mirror does not have the file.
        """
        source = f"{self._root}/{name}/{file}"
        self._call(lambda **options: self._fs.get_file(source, str(target), **options))

    def write(self, snapshot: OpenSnapshot) -> None:
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
        """Makes a snapshot incomplete, by deleting its manifest."""
        path = f"{self._root}/{name}/{MANIFEST_NAME}"
        self._call(lambda **options: self._fs.rm_file(path, **options))

    def delete(self, name: str, whole: bool) -> None:
        """Deletes a snapshot, its manifest first.

        Args:
          name: its name.
          whole: whether it is complete, that is, has a manifest.
        """
        if whole:
            self.unmake(name)
        folder = f"{self._root}/{name}"
        # An object store has no empty directories: there might be nothing left to delete.
        with contextlib.suppress(FileNotFoundError):
            self._call(lambda **options: self._fs.rm(folder, recursive=True, **options))

    def _check_size(self, path: str, size: int) -> None:
        found = self._call(lambda **options: self._fs.info(path, **options))["size"]
        if found != size:
            raise OSError(f"{path}: the mirror has {found} bytes, but {size} were sent")

    def _check_packages(self) -> None:
        try:
            import fsspec

            fsspec.get_filesystem_class(self._protocol)
        except ImportError as error:
            raise ConfigError(
                f"{_KEY}: {self.shown_url} needs a package that is not installed ({error}); "
                f"install it, for S3 with {_INSTALL}"
            ) from None
        except ValueError:
            raise ConfigError(
                f"{_KEY}: {self.shown_url}: unknown protocol {self._protocol}://, expected "
                "a protocol of fsspec, such as s3:// or file://"
            ) from None

    def _connect(self) -> None:
        import fsspec

        # A separate instance: other code in the process must not change its cache.
        self._fs, self._root = fsspec.core.url_to_fs(self._url, skip_instance_cache=True)
        self._root = self._root.rstrip("/")

    def _call(self, operation: Callable[..., Any]) -> Any:
        """Runs an operation of the file system; connects before the first one.

        Raises:
          TimeoutError: the operation did not end in time.
          StoppedError: `stop` was called.
          Exception: whatever the operation raises.
        """
        if self._stopped.is_set():
            raise StoppedError
        if self._hanging is not None:
            self._hanging.join(self._timeout_sec)
            if self._hanging.is_alive():
                raise TimeoutError(
                    f"an earlier call still hangs after another {self._timeout_sec:g} s"
                )
        outcome: list[Any] = []
        failure: list[BaseException] = []

        def run() -> None:
            try:
                if self._fs is None:
                    self._connect()
                # The synchronous methods of fsspec's asynchronous file systems accept a timeout.
                options = {"timeout": self._timeout_sec} if self._fs.async_impl else {}
                outcome.append(operation(**options))
            except BaseException as error:
                failure.append(error)

        # A second later than fsspec's own deadline, which is preferable.
        thread = self._hanging = threading.Thread(target=run, name="mirror call", daemon=True)
        thread.start()
        thread.join(self._timeout_sec + 1.0)
        if thread.is_alive():
            raise TimeoutError(f"no answer in {self._timeout_sec:g} s")
        self._hanging = None
        if failure:
            raise failure[0]
        return outcome[0]


def hide_password(url: str) -> str:
    """Returns a URL without password and query, for display.

    A password is looked for after `://`, or from the start if the URL has none.

    Raises:
      ConfigError: the password seems to contain a /, so its end is not known.
    """
    scheme, separator, rest = _split_scheme(url)
    place, slash, path = rest.partition("/")
    _, at, host = place.rpartition("@")
    if not at and "@" in path and ":" in host and not host.rpartition(":")[2].isdigit():
        raise ConfigError(
            f"{_KEY}: the password seems to contain a /, which a URL cannot have there; use "
            "another password, or a way to log in without one in the URL, such as an SSH key"
        )
    shown = f"{scheme}{separator}{_split_password(url)[0]}{at}{host}{slash}{path}"
    return shown.partition("?")[0]


def _split_scheme(url: str) -> tuple[str, str, str]:
    scheme, separator, rest = url.partition("://")
    return (scheme, separator, rest) if separator else ("", "", url)


def _split_password(url: str) -> tuple[str, str]:
    """Returns a URL's user and password; "" for what it does not have.

    Unlike `urlsplit`, it accepts every URL, and passwords with `#`.
    """
    place = _split_scheme(url)[2].partition("/")[0]
    user, _, password = place.rpartition("@")[0].partition(":")
    return user, password
