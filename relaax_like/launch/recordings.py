"""Finds the recordings that `learner.offline` or `algorithm.prior` names."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from relaax_like.config.sources import MINARI
from relaax_like.experience.recordings import Recording, make_recording
from relaax_like.experience.trajectory_files import find_trajectories
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.spaces import RunSpaces


def find_recordings(
    sources: Sequence[str], masks: str = "auto", key: str = "learner.offline"
) -> list[Recording]:
    """Returns the recordings of all sources, in an order that is always the same.

    Args:
      sources: folders of trajectory files; and `minari:` with the id of a Minari data set, or with
        its folder.
      masks: where Minari data sets say which actions are legal; see `EnvironmentConfig.masks`.
      key: that has the sources, for errors.

    Raises:
      ConfigError: a source does not exist, has no recordings, or cannot be read; the error names
        it.
    """
    recordings: list[Recording] = []
    with _naming(key):
        for source in sources:
            if source.startswith(MINARI):
                from relaax_like.launch.minari_data import find_episodes

                recordings += find_episodes(source.removeprefix(MINARI), masks)
            else:
                recordings += _find_files(Path(source))
    return recordings


def find_recorded_spaces(sources: Sequence[str], masks: str = "auto") -> RunSpaces | None:
    """Returns the spaces of observations and actions of the first Minari data set, by leaf.

    Args:
      sources: see `find_recordings`.
      masks: see `find_recordings`.

    Returns:
      The spaces; None: no source is a Minari data set, and files do not contain spaces.

    Raises:
      ConfigError: the data set does not exist, or cannot be read.
    """
    for source in sources:
        if source.startswith(MINARI):
            from relaax_like.launch.minari_data import read_spaces

            with _naming("learner.offline"):
                return read_spaces(source.removeprefix(MINARI), masks)
    return None


@contextlib.contextmanager
def _naming(key: str) -> Iterator[None]:
    """Adds a key to the errors of its sources."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error


def _find_files(folder: Path) -> list[Recording]:
    # Unlike Path's methods, these functions do not raise if a permission is missing.
    is_readable = os.path.isdir(folder) and os.access(folder, os.R_OK | os.X_OK)
    files = find_trajectories(folder) if is_readable else []
    if not files:
        what = "a file" if os.path.isfile(folder) else "no such folder, or no access to it"
        if is_readable:
            what = "contains no trajectories (iteration-N.npz)"
        raise ConfigError(
            f"{folder}: {what}; expected a folder that `relaax record` has "
            "written, or RUN/trajectories of a run with learner.collect_traj: true. To record one: "
            "`relaax record RUN --steps N --output FOLDER`, where RUN is a run that has learned to "
            "play, or an experiment with --policy random"
        )
    return [make_recording(path) for path in files]
