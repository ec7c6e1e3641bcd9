"""Recordings: rollouts that were played earlier, each of which is read when it is needed."""

from pathlib import Path
from typing import Protocol

from relaax_like.experience.rollout import Rollout
from relaax_like.experience.trajectory_files import read_trajectories


class Recording(Protocol):
    """One rollout that is read when it is needed."""

    @property
    def name(self) -> str:
        """Describes the recording in errors: a path, or a data set and its episodes."""

    @property
    def bytes(self) -> int:
        """Approximate size in bytes."""

    def read(self) -> Rollout:
        """Reads the rollout.

        Raises:
          DamagedFileError: the recording cannot be read.
        """


class RecordedFile:
    """A file as written by `TrajectoryWriter`; see `Recording`."""

    def __init__(self, path: Path):
        self._path = path

    @property
    def name(self) -> str:
        """The path."""
        return str(self._path)

    @property
    def bytes(self) -> int:
        """Size of the file in bytes; 0 if there is no access to it."""
        try:
            return self._path.stat().st_size
        except OSError:  # `read` names the file
            return 0

    def read(self) -> Rollout:
        """Reads the file, and verifies its checksums; see `Recording`."""
        return read_trajectories(self._path)
