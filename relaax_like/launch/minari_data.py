"""Recordings from a local Minari data set; needs the extra `offline`. Nothing is downloaded."""

import contextlib
import functools
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.config.leaves import ObservationConfig
from relaax_like.config.models import MINARI
from relaax_like.experience.recordings import Recording
from relaax_like.experience.rollout import ALIVE, TERMINATED, TRUNCATED, Rollout
from relaax_like.experience.trajectory_files import DamagedFileError
from relaax_like.extras import describe_cure
from relaax_like.nn.action_heads import actions_from_wire
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import (
    ACTION,
    OBSERVATION,
    Box,
    RunSpaces,
    Space,
)

logger = logging.getLogger(__name__)

# Short episodes are joined, one after another, until they have this many steps.
_STEPS = 4096


def _read(name: str, data_set: Any, lengths: Mapping[int, int]) -> Rollout:
    """Reads some episodes of a data set as one rollout `[T, 1, ...]`.

    Args:
      name: of the recording.
      data_set: Minari's.
      lengths: index of each episode -> its number of steps.

    Raises:
      DamagedFileError: the episodes cannot be read, do not have their numbers of steps, or do not
        fit the data set's spaces.
    """
    indices = list(lengths)
    try:
        found = zip(indices, data_set.iterate_episodes(indices), strict=True)
        parts = [_convert(data_set, index, lengths[index], one) for index, one in found]
    except (OSError, KeyError, ValueError, InvalidInputError) as error:
        raise DamagedFileError(Path(name), str(error)) from error
    rewards = np.concatenate([part["rewards"] for part in parts])
    steps = len(rewards)
    return Rollout(
        inputs=_join(parts, "inputs"),
        next_inputs=_join(parts, "next_inputs"),
        next_alive=np.concatenate([part["next_alive"] for part in parts])[:, None],
        rewards=rewards[:, None, None],
        actions=_join(parts, "actions"),
        log_prob=np.zeros((steps, 1), np.float32),
        states={},
        versions=np.zeros(steps, np.int64),
    )


def _convert(data_set: Any, index: int, length: int, episode: Any) -> dict[str, Any]:
    """Returns the arrays of an episode of T steps, `[T, ...]`.

    An episode that neither terminated nor was truncated counts as truncated: what followed its
    last observation is not known.
    """
    from relaax_like.client.gym_spaces import SpaceCodec

    steps = len(episode.rewards)
    if steps != length:
        raise ValueError(
            f"episode {index} has {steps} steps, expected its total_steps, "
            f"{length}; Minari cuts episodes of 32768 steps or more in the "
            "formats arrow and parquet: write the data set with data_format hdf5"
        )
    values = SpaceCodec(data_set.observation_space, OBSERVATION)
    leaves = values.to_leaves(episode.observations, steps + 1, "observations")
    seen = {leaf: _to_input(values.spaces[leaf], array) for leaf, array in leaves.items()}
    acts = SpaceCodec(data_set.action_space, ACTION)
    actions = acts.to_leaves(episode.actions, steps, "actions")
    alive = np.where(
        episode.terminations, TERMINATED, np.where(episode.truncations, TRUNCATED, ALIVE)
    ).astype(np.float32)
    if alive[-1] == ALIVE:
        alive[-1] = TRUNCATED
    return {
        "inputs": {leaf: array[:-1] for leaf, array in seen.items()},
        "next_inputs": {leaf: array[1:] for leaf, array in seen.items()},
        "next_alive": alive,
        "rewards": np.asarray(episode.rewards, np.float32),
        "actions": {n: actions_from_wire(acts.spaces[n], a) for n, a in actions.items()},
    }


def find_episodes(name: str) -> list[Recording]:
    """Returns the episodes of a local data set, in order; short ones share a recording.

    Args:
      name: id of a data set in Minari's folder (MINARI_DATASETS_PATH), or a data set's folder.

    Raises:
      ConfigError: Minari is not installed; or there is no such data set, or it is damaged or empty.
    """
    source = f"{MINARI}{name}"
    with _explain(source):
        data_set = _load(name)
        numbers = [int(index) for index in data_set.episode_indices]
        metadata = data_set.storage.get_episode_metadata(numbers)
        lengths = [int(one["total_steps"]) for one in metadata]
        files = Path(data_set.storage.data_path).rglob("*")
        size = sum(file.stat().st_size for file in files if file.is_file())
        _warn_of_jpeg(source, data_set)
    if not sum(lengths):
        raise ConfigError(f"learner.offline: {source}: the data set has no steps; name another one")
    recordings: list[Recording] = []
    chosen: dict[int, int] = {}
    steps = 0
    for index, length in zip(numbers, lengths, strict=True):
        if length:
            chosen[index] = length
            steps += length
        if steps >= _STEPS or (index == numbers[-1] and chosen):
            share = size * steps // sum(lengths)
            part = f"{source} (episodes {min(chosen)} to {max(chosen)})"
            read = functools.partial(_read, part, data_set, chosen)
            recordings.append(Recording(part, share, read))
            chosen, steps = {}, 0
    return recordings


def read_spaces(name: str) -> RunSpaces:
    """Returns the spaces of observations and actions of a local data set, by leaf.

    Args:
      name: see `find_episodes`.

    Raises:
      ConfigError: see `find_episodes`; or a space is of a kind that is not supported.
    """
    with _explain(f"{MINARI}{name}"):
        from relaax_like.client.gym_spaces import SpaceCodec

        data_set = _load(name)
        observations = SpaceCodec(data_set.observation_space, OBSERVATION)
        actions = SpaceCodec(data_set.action_space, ACTION)
    return RunSpaces(observations.spaces, actions.spaces)


def _load(name: str) -> Any:
    import minari

    if Path(name).is_dir():
        return minari.MinariDataset(Path(name) / "data")
    return minari.load_dataset(name, download=False)


def _warn_of_jpeg(source: str, data_set: Any) -> None:
    """Logs a warning if the observations have images that were compressed with losses."""
    from minari.dataset.minari_storage import is_image_space

    from relaax_like.client.gym_spaces import SpaceCodec

    leaves = SpaceCodec(data_set.observation_space, "observation").leaves
    if data_set.storage.jpeg_encoding and any(is_image_space(leaf.gym_space) for leaf in leaves):
        logger.warning(
            "%s: its images were stored as JPEG, so they differ from those that the environment "
            "sends; a data set written with jpeg_encoding=False has the same ones",
            source,
        )


@contextlib.contextmanager
def _explain(source: str) -> Iterator[None]:
    """Converts an error of Minari to a ConfigError that names the data set."""
    try:
        yield
    except (ConfigError, InvalidInputError) as error:  # of the spaces
        what = re.split("; (?:convert it|rename one) with a wrapper", str(error))[0]
        raise ConfigError(f"learner.offline: {source}: {what}; name another data set") from None
    except ImportError as error:  # also of h5py, which Minari describes by itself
        is_missing = isinstance(error, ModuleNotFoundError) and error.name
        what = f"{error.name} is not installed" if is_missing else str(error)
        raise ConfigError(
            f"learner.offline: {source}: {what}; {describe_cure('offline')}"
        ) from error
    except Exception as error:
        raise ConfigError(
            f"learner.offline: {source}: not a readable Minari data set ({error!s:.300}); expected "
            "the id of a data set that `minari list local` shows, or its folder. To download a "
            "data set: minari download ID"
        ) from error


def _to_input(space: Space, array: np.ndarray) -> np.ndarray:
    """Returns observations `[n, *shape]` as models read them: images, vectors, integers from 0."""
    if isinstance(space, Box) and space.dtype == "uint8" and len(space.shape) == 3:
        return array
    flat = array.reshape(len(array), -1)
    if "num" in ObservationConfig.measure(space):
        return flat.astype(np.int64) - getattr(space, "start", 0)
    return flat.astype(np.float32)


def _join(parts: Sequence[dict[str, Any]], field: str) -> dict[str, np.ndarray]:
    """Returns name -> `[T, 1, ...]`, the episodes one after another."""
    return {
        name: np.concatenate([part[field][name] for part in parts])[:, None]
        for name in parts[0][field]
    }
