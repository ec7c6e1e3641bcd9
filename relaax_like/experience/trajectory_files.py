"""Trajectory files, which contain the rollouts that a run has learned from or recorded:

    FOLDER/iteration-00000001.npz           of a learner that publishes, or of `relaax record`
    FOLDER/iteration-5b1e9c02-00000001.npz  of one of the learners beside their agents

Each contains the arrays of one `Rollout`, which NumPy reads like any `.npz`: `inputs/NAME`,
`next_inputs/NAME`, `actions/NAME`, `states/NAME`, `extras/NAME`, `next_alive`, `rewards`,
`log_prob`, `versions`, `history/NAME` with `observation_history`, `starts` if they are known, and
`valid` if there are holes.
"""

import logging
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.experience.collector import Layout, find_layout
from relaax_like.experience.rollout import Rollout, concatenate
from relaax_like.wire.array_file import finding_damage, read_arrays, write_arrays
from relaax_like.wire.errors import DamagedError, InvalidInputError

logger = logging.getLogger(__name__)

# Subfolder of a run's folder.
TRAJECTORY_FOLDER = "trajectories"
_KIND = "trajectories 1"
_PREFIX = "iteration-"
_PATTERN = f"{_PREFIX}*.npz"
# Fields of a Rollout: arrays, and arrays by name.
_ARRAYS = ("next_alive", "rewards", "log_prob", "versions")
_OPTIONAL = ("valid", "starts")
_NAMED = ("inputs", "next_inputs", "actions", "states", "extras", "history")
# Maximum bytes of a file per array in addition to its data, unless its name is very long.
_HEADER_BYTES = 512
# Small rollouts are joined side by side until they have this many steps, or bytes.
_FILE_STEPS = 4096
_FILE_BYTES = 16_000_000


class DamagedFileError(InvalidInputError):
    """A recording does not contain trajectories, or cannot be read.

    Attributes:
      path: of the file; of another recording, its name.
      reason: what is wrong with it.
    """

    def __init__(self, path: Path, reason: str):
        super().__init__(
            f"{path}: no trajectories, or they cannot be read ({reason}); leave this recording "
            "out, or record or download it again"
        )
        self.path = path
        self.reason = reason


class TrajectoryWriter:
    """Writes iterations until `max_bytes` are reached; a failure to write a file is only logged.

    A file is complete or absent, even after `kill -9`; a power failure can damage the newest ones.
    Not thread-safe.

    Attributes:
      is_full: whether no more files are written.
      has_failed: whether a file could not be written.

    Args:
      folder: created with the first file; files that are already in it also count.
      max_bytes: of all files together; a file that would exceed it, and all later ones, are not
        written, which is logged once.
      learner: client id of the learner, if several write to one folder; a checksum of the id is
        part of the names of its files. Files that the other learners write later do not count
        towards max_bytes. "": there is only one learner.

    Raises:
      OSError: the folder cannot be accessed.
    """

    def __init__(self, folder: Path, max_bytes: float, learner: str = ""):
        self._folder = folder
        self._max_bytes = max_bytes
        self._prefix = f"{_PREFIX}{zlib.crc32(learner.encode()):08x}-" if learner else _PREFIX
        self._bytes = sum(map(find_size, find_trajectories(folder)))
        self.is_full = False
        self.has_failed = False

    def find_next(self) -> int:
        """Returns the next number for this learner's files; 1 if it has no files."""
        numbers = (path.stem.removeprefix(self._prefix) for path in find_trajectories(self._folder))
        return max((int(number) for number in numbers if number.isdecimal()), default=0) + 1

    def write(self, iteration: int, rollout: Rollout) -> None:
        """Writes a file, unless `is_full`.

        If that fails, as on a full disk, the file is left out, which is logged once.

        Args:
          iteration: number in the file's name; replaces an existing file.
          rollout: what the file contains.
        """
        if self.is_full:
            return
        arrays = _flatten(rollout)
        path = self._folder / f"{self._prefix}{iteration:08d}.npz"
        size = sum(array.nbytes + _HEADER_BYTES for array in arrays.values())
        replaced = find_size(path)
        if self._bytes - replaced + size > self._max_bytes:
            self.is_full = True
            logger.warning(
                "%s contains %.1f MB, and learner.collect_traj_max_mb is %g: %s does not fit. It "
                "and later files are not written; training continues",
                self._folder,
                self._bytes / 1e6,
                self._max_bytes / 1e6,
                path.name,
            )
            return
        try:
            # Not synced: an iteration takes milliseconds, and a disk as long.
            write_arrays(path, arrays, _KIND, sync=False)
            self._bytes += path.stat().st_size - replaced
        except OSError as error:
            if not self.has_failed:
                self.has_failed = True
                logger.warning(
                    "%s could not be written: %s; it is left out, as are others that cannot be "
                    "written",
                    path,
                    error,
                )

    def flush(self) -> None:
        """Does nothing: nothing waits; see `TrajectoryGatherer`."""


class TrajectoryGatherer:
    """Joins rollouts side by side until they are large enough for a file; for small batches.

    Rollouts that are not in a file when the process is killed are lost. A resumed run adds files to
    those that are there, also to those that were written after the snapshot that it resumes from.
    For each step, `versions` of a file are the oldest of all its rollouts. Not thread-safe.

    Args:
      writer: writes the files.
    """

    def __init__(self, writer: TrajectoryWriter):
        self._writer = writer
        self._number = writer.find_next()
        self._rollouts: list[Rollout] = []
        self._steps = self._bytes = 0

    def write(self, iteration: int, rollout: Rollout) -> None:
        """Adds a rollout, whose arrays must not change before the next file is written.

        Writes a file if there are enough steps or bytes; once the writer is full, does nothing.
        Files are numbered by themselves, not by the iteration.
        """
        if self._writer.is_full:
            return
        if self._rollouts and _describe(rollout) != _describe(self._rollouts[0]):
            self.flush()
        self._rollouts.append(rollout)
        self._steps += rollout.next_alive.size
        self._bytes += sum(array.nbytes for array in _flatten(rollout).values())
        if self._steps >= _FILE_STEPS or self._bytes >= _FILE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes the rollouts added since the last file."""
        if not self._rollouts:
            return
        rollouts, self._rollouts = self._rollouts, []
        self._steps = self._bytes = 0
        self._writer.write(self._number, concatenate(rollouts))
        self._number += 1


def find_trajectories(folder: Path) -> list[Path]:
    """Returns the files of a folder, sorted by name; [] if the folder does not exist.

    The files of each learner are in the order of their iterations.

    Raises:
      OSError: the folder cannot be accessed.
    """
    return sorted(folder.glob(_PATTERN))


def find_size(path: Path) -> int:
    """Returns the size of a file in bytes; 0 if there is none, or it cannot be accessed."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def read_trajectories(path: Path) -> Rollout:
    """Reads one file, and verifies its checksums.

    Raises:
      DamagedFileError: the file does not exist, cannot be read, is damaged, has no steps, or is of
        another kind.
    """
    try:
        with finding_damage():
            arrays = read_arrays(path, _KIND)
            missing = [field for field in _ARRAYS if field not in arrays]
            if missing:
                raise DamagedError(f"{missing[0]} is missing, expected {', '.join(_ARRAYS)}")
            fields: dict[str, Any] = {field: arrays[field] for field in _ARRAYS}
            for field in _NAMED:
                prefix = f"{field}/"
                fields[field] = {
                    name.removeprefix(prefix): array
                    for name, array in arrays.items()
                    if name.startswith(prefix)
                }
            fields |= {field: arrays.get(field) for field in _OPTIONAL}
            alive = fields["next_alive"]
            if alive.ndim != 2 or not alive.size:
                raise DamagedError(
                    f"next_alive has shape {list(alive.shape)}, expected [T, k] with at least one "
                    "step of one slot"
                )
            return Rollout(**fields)
    except FileNotFoundError as error:
        raise DamagedFileError(path, "no such file") from error
    except DamagedError as error:
        raise DamagedFileError(path, str(error)) from error


def _flatten(rollout: Rollout) -> dict[str, np.ndarray]:
    arrays = {field: getattr(rollout, field) for field in _ARRAYS}
    optional = {field: getattr(rollout, field) for field in _OPTIONAL}
    arrays.update({field: array for field, array in optional.items() if array is not None})
    for field in _NAMED:
        arrays.update({f"{field}/{name}": a for name, a in getattr(rollout, field).items()})
    return arrays


def _describe(rollout: Rollout) -> tuple[int, Layout]:
    """Returns a description that is equal for rollouts that can be joined side by side."""
    steps = len(rollout.next_alive)
    return steps, find_layout(rollout, steps)
