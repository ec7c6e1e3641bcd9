"""Versions: copies of a run's folder from which the run can be resumed, as messages and on disk.

    FOLDER/runs/job-ID/v000001/     the run's folder, as its slave sent it
    FOLDER/runs/job-ID/latest       link to the newest version

A version is received in a folder with a temporary name. The folder is renamed once all files are
on the disk, with the announced sizes and CRCs. A received path is used only below that folder, and
only if all of its components are plain names.
"""

import contextlib
import os
import re
import shutil
import uuid
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from relaax_like.addons.coordinator.job import FORMAT, Attempt, Job
from relaax_like.v1 import coordinator_pb2 as pb
from relaax_like.wire import failpoints
from relaax_like.wire.errors import InvalidInputError, ServerUnavailableError
from relaax_like.wire.syncing import TEMPORARY, sync_path

CHUNK_BYTES = 512 * 1024
MAX_FILES = 10_000
_MAX_DEPTH = 8
_MAX_PATH = 1000
_NAME = re.compile(r"[A-Za-z0-9_=+@,-][A-Za-z0-9_.=+@,-]{0,254}")
# What a resumed run does not need: locks, journals of the process itself, traces; and states that
# are overwritten in place while they are read: the newest snapshot is in the version.
_LEFT_OUT = re.compile(r"lock|trace|journal.*|replay.*|cut-.*|published-.*")
_LATEST = "latest"
_SAME_VERSION = "use the same version of relaax_like at both ends"


class VersionStore:
    """Stores the versions of a coordinator's jobs. Used by several threads, for different jobs.

    Args:
      folder: folder of the coordinator.
      max_bytes: maximum size of one version.
    """

    def __init__(self, folder: Path, max_bytes: int):
        self._folder = folder / "runs"
        self._max_bytes = max_bytes

    def find_folder(self, job: Job) -> Path | None:
        """Returns the folder of a job's newest version; None: the job has no version."""
        return self._path(job.id, job.version) if job.version else None

    def receive(self, attempt: Attempt, parts: Iterator[pb.VersionPart]) -> Path:
        """Writes a version to a temporary folder; `install` makes it visible.

        Args:
          attempt: the attempt that made the version.
          parts: the messages, the header first.

        Raises:
          InvalidInputError: the version is too large, incomplete or damaged, or a message is not
            valid; nothing of the version remains.
          ServerUnavailableError: the disk is full or fails; nothing of the version remains.
          Exception: an error of `parts`; nothing of the version remains.
        """
        parent = self._folder / f"job-{attempt.job}"
        temporary = parent / f"{TEMPORARY}{attempt.number}-{uuid.uuid4().hex[:8]}"
        try:
            temporary.mkdir(parents=True)
            unpack_version(parts, temporary, self._max_bytes)
            failpoints.hit("jobs.in_version")
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(error, OSError) and not isinstance(error, ServerUnavailableError):
                raise ServerUnavailableError(
                    f"the version of {attempt} could not be written: {error.strerror or error}; "
                    "check the coordinator's disk and its free space"
                ) from error
            raise
        return temporary

    def install(self, job: Job, received: Path) -> None:
        """Renames a received version to the number after the job's newest one; records nothing.

        Args:
          job: the job.
          received: folder that `receive` returned.

        Raises:
          ServerUnavailableError: the disk fails; what remains of the version is not used, and is
            removed by the next call for the job.
        """
        target = self._path(job.id, job.version + 1)
        try:
            if target.exists():  # left behind by a crash before it was recorded
                shutil.rmtree(target)
            received.rename(target)
            sync_path(target.parent)
        except OSError as error:
            shutil.rmtree(received, ignore_errors=True)
            raise ServerUnavailableError(
                f"{target}: the version could not be stored: {error.strerror or error}; check the "
                "coordinator's disk and its free space"
            ) from error
        failpoints.hit("jobs.after_version")

    def discard(self, received: Path) -> None:
        """Removes a received version that is not installed."""
        shutil.rmtree(received, ignore_errors=True)

    def keep_newest(self, job: Job) -> None:
        """Links the newest version, if there is one, as `latest`, and removes all others.

        Errors are ignored.
        """
        parent = self._folder / f"job-{job.id}"
        newest = self.find_folder(job)
        if newest is not None:
            with contextlib.suppress(OSError):
                link = parent / f"{TEMPORARY}{_LATEST}"
                link.unlink(missing_ok=True)
                link.symlink_to(newest.name)
                link.replace(parent / _LATEST)
        for path in parent.glob("v[0-9]*"):
            if path != newest:
                shutil.rmtree(path, ignore_errors=True)

    def clean_up(self, jobs: Iterable[Job]) -> None:
        """Removes what a crash left behind of these jobs' versions, incomplete or not recorded.

        Errors are ignored.
        """
        for job in jobs:
            parent = self._folder / f"job-{job.id}"
            if not parent.is_dir():
                continue
            for path in parent.glob(f"{TEMPORARY}*"):
                if path.is_symlink():
                    with contextlib.suppress(OSError):
                        path.unlink()
                else:
                    shutil.rmtree(path, ignore_errors=True)
            self.keep_newest(job)

    def _path(self, job_id: int, version: int) -> Path:
        return self._folder / f"job-{job_id}" / f"v{version:06d}"


def stage_folder(run: Path, staging: Path) -> None:
    """Links the files of a run, which can be in progress, so that the files to send do not change.

    A replaced file keeps its content in the link; a file that is appended to keeps its beginning.
    Left out are symbolic links, names that a version cannot have, and what a resumed run does not
    need (`_LEFT_OUT`).

    Args:
      run: folder of the run.
      staging: folder to fill; an existing one is replaced.

    Raises:
      OSError: a file vanished meanwhile, and the caller can retry; or it cannot be linked.
    """
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    for path in _walk(run):
        target = staging / path.relative_to(run)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, target)


def pack_version(folder: Path, header: pb.VersionHeader | None = None) -> Iterator[pb.VersionPart]:
    """Yields the messages of a version.

    Args:
      folder: folder with the files; appending to them meanwhile is harmless.
      header: header to complete with the format and the counts; None: a new one.

    Raises:
      InvalidInputError: a file became shorter while it was read.
      OSError: a file cannot be read.
    """
    files = [(path, path.stat().st_size) for path in _walk(folder)]
    header = header or pb.VersionHeader()
    header.format = FORMAT
    header.files, header.bytes = len(files), sum(size for _, size in files)
    yield pb.VersionPart(header=header)
    for path, size in files:
        crc = 0
        for chunk in _read(path, size):
            crc = zlib.crc32(chunk, crc)
        name = path.relative_to(folder).as_posix()
        yield pb.VersionPart(file=pb.VersionFile(path=name, bytes=size, crc=crc))
        for chunk in _read(path, size):
            yield pb.VersionPart(chunk=chunk)


def unpack_version(parts: Iterator[pb.VersionPart], target: Path, max_bytes: int) -> None:
    """Writes the files of a version, and syncs them.

    Args:
      parts: the messages, the header first.
      target: an empty folder.
      max_bytes: maximum size of all files together.

    Raises:
      InvalidInputError: a message is not valid, or the version is incomplete, damaged or too large.
      OSError: a file cannot be written.
      Exception: an error of `parts`.
    """
    header = _expect(parts, "header").header
    _validate_header(header, max_bytes)
    left = header.bytes
    folders = {target}
    files: set[Path] = set()
    for _ in range(header.files):
        file = _expect(parts, "file").file
        path = target / validate_path(file.path)
        left -= file.bytes
        if left < 0:
            raise InvalidInputError(
                f"file.bytes: {file.bytes} for {file.path[:100]!r}, expected at most "
                f"{left + file.bytes}, because header.bytes announced {header.bytes} for all "
                f"files; {_SAME_VERSION}",
                "bytes",
            )
        if path in files or path in folders or not files.isdisjoint(path.parents):
            raise InvalidInputError(
                f"path: {file.path[:100]!r} is the path of an earlier file, of a folder with "
                "earlier files, or in an earlier file; expected a path of its own for each file; "
                f"{_SAME_VERSION}"
            )
        files.add(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        folders.update(path.parents[: len(path.relative_to(target).parts)])
        _write(path, file, parts)
    _validate_end(parts, header, left)
    for folder in folders:
        sync_path(folder)


def _validate_end(parts: Iterator[pb.VersionPart], header: pb.VersionHeader, left: int) -> None:
    if left:
        raise InvalidInputError(
            f"header.bytes: {header.bytes}, but the sizes of the files add up to "
            f"{header.bytes - left}; {_SAME_VERSION}",
            "bytes",
        )
    if (extra := next(parts, None)) is not None:
        raise InvalidInputError(
            f"version: a message with {_name_content(extra)} follows the last file that the header "
            f"announced (files: {header.files}); {_SAME_VERSION}"
        )


def _validate_header(header: pb.VersionHeader, max_bytes: int) -> None:
    if header.files > MAX_FILES:
        raise InvalidInputError(
            f"files: a version of {header.files} files, expected at most {MAX_FILES}; write fewer "
            "files to the run's folder"
        )
    if header.bytes > max_bytes:
        raise InvalidInputError(
            f"bytes: a version of {header.bytes:,} bytes, but this coordinator accepts at most "
            f"{max_bytes:,} (--max-version-mb); raise that limit, or write less to the run's "
            "folder"
        )


def validate_path(text: str) -> Path:
    """Converts a received path to a relative path that cannot leave its folder.

    Raises:
      InvalidInputError: a component is not a plain name, or the path is too long.
    """
    names = text.split("/")
    if len(text) > _MAX_PATH or len(names) > _MAX_DEPTH or not all(map(_NAME.fullmatch, names)):
        raise InvalidInputError(
            f"path: {text[:100]!r}, expected at most {_MAX_PATH} characters and {_MAX_DEPTH} "
            "names with / between them, of 1 to 255 letters, digits and _ . = + @ , - each, that "
            "do not begin with a period"
        )
    return Path(*names)


def _expect(parts: Iterator[pb.VersionPart], kind: str) -> pb.VersionPart:
    part = next(parts, None)
    if part is None:
        raise InvalidInputError(
            f"version: its messages ended, but a {kind} was expected; a retry can succeed"
        )
    if part.WhichOneof("part") != kind:
        raise InvalidInputError(
            f"version: expected a message with a {kind}, got one with {_name_content(part)}; "
            f"{_SAME_VERSION}"
        )
    return part


def _name_content(part: pb.VersionPart) -> str:
    kind = part.WhichOneof("part")
    return f"a {kind}" if kind else "nothing"


def _write(path: Path, file: pb.VersionFile, parts: Iterator[pb.VersionPart]) -> None:
    left, crc = file.bytes, 0
    with open(path, "xb") as output:
        while left:
            chunk = _expect(parts, "chunk").chunk
            if not 0 < len(chunk) <= min(left, CHUNK_BYTES):
                raise InvalidInputError(
                    f"{file.path}: a chunk of {len(chunk)} bytes, expected 1 to "
                    f"{min(left, CHUNK_BYTES)}; {_SAME_VERSION}",
                    "chunk",
                )
            output.write(chunk)
            crc = zlib.crc32(chunk, crc)
            left -= len(chunk)
        if crc != file.crc:
            raise InvalidInputError(
                f"{file.path}: the content does not match its CRC: the file was changed while it "
                "was sent, or damaged on the way; a retry can succeed",
                "crc",
            )
        output.flush()
        os.fsync(output.fileno())


def _walk(folder: Path) -> list[Path]:
    found = []
    for name in sorted(os.listdir(folder)):
        path = folder / name
        if not _NAME.fullmatch(name) or _LEFT_OUT.fullmatch(name) or path.is_symlink():
            continue
        if path.is_dir():
            found += _walk(path)
        elif path.is_file():
            found.append(path)
    return found


def _read(path: Path, size: int) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while size:
            chunk = file.read(min(size, CHUNK_BYTES))
            if not chunk:
                raise InvalidInputError(
                    f"{path}: shrank while it was being read, so this version is incomplete; a "
                    "retry can succeed"
                )
            size -= len(chunk)
            yield chunk
