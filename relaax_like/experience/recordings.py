"""Recordings: rollouts that were played earlier, each of which is read when it is needed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from relaax_like.experience.rollout import Rollout
from relaax_like.experience.trajectory_files import find_size, read_trajectories


@dataclass(frozen=True)
class Recording:
    """One rollout that is read when it is needed.

    Attributes:
      name: describes it in errors: a path, or a data set and its episodes.
      bytes: approximate size.
      read: reads the rollout; raises DamagedFileError if it cannot be read.
    """

    name: str
    bytes: int
    read: Callable[[], Rollout]


def make_recording(path: Path) -> Recording:
    """Returns the recording in a file as written by `TrajectoryWriter`."""
    return Recording(str(path), find_size(path), lambda: read_trajectories(path))
