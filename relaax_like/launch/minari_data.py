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
from relaax_like.config.sources import MINARI
from relaax_like.experience.recordings import Recording
from relaax_like.experience.rollout import ALIVE, TERMINATED, TRUNCATED, Rollout
from relaax_like.experience.trajectory_files import DamagedFileError
from relaax_like.extras import describe_cure
from relaax_like.nn.action_heads import actions_from_wire
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import (
    ACTION,
    MASK,
    OBSERVATION,
    Box,
    RunSpaces,
    Space,
    make_masks,
)

logger = logging.getLogger(__name__)

# Short episodes are joined, one after another, until they have this many steps.
_STEPS = 4096
_AUTO, _OFF, _USUAL_MASK = "auto", "off", "action_mask"


class _Layout:
    """The leaves of a data set: observations, with a mask of legal actions if it has one, actions.

    Args:
      data_set: Minari's.
      masks: see `EnvironmentConfig.masks`; it is the same in a data set.

    Raises:
      ConfigError: a space is of a kind that is not supported; or the data set has no such mask.
      InvalidInputError: see `SpaceCodec`.
    """

    def __init__(self, data_set: Any, masks: str):
        import gymnasium as gym

        from relaax_like.client.gym_spaces import SpaceCodec

        self._name = _USUAL_MASK if masks == _AUTO else masks
        self._actions = SpaceCodec(data_set.action_space, ACTION)
        whole = data_set.observation_space
        self._mask = None if masks == _OFF else make_masks(self._actions.spaces).get(MASK + ACTION)
        self._in_info = not (isinstance(whole, gym.spaces.Dict) and self._name in whole.spaces)
        if self._mask is not None and self._in_info:
            first = next(iter(data_set.iterate_episodes(data_set.episode_indices[:1])), None)
            if first is None or self._name not in (first.infos or {}):
                self._mask = None
        if self._mask is None and masks not in (_AUTO, _OFF):
            raise ConfigError(
                f"environment.masks is {masks!r:.60}, but neither its observations nor its infos "
                "have that beside one Discrete or MultiDiscrete action"
            )
        if self._mask is not None and not self._in_info:
            rest = {key: one for key, one in whole.spaces.items() if key != self._name}
            whole = gym.spaces.Dict(rest)
        self._observations = SpaceCodec(whole, OBSERVATION)

    @property
    def spaces(self) -> RunSpaces:
        """The spaces of observations, with that of the mask, and of actions."""
        observations = dict(self._observations.spaces)
        if self._mask is not None:
            observations[MASK + ACTION] = self._mask
        return RunSpaces(observations, self._actions.spaces)

    def read_observations(self, episode: Any, ends: bool) -> dict[str, np.ndarray]:
        """Returns the observations of an episode of T steps as models read them, `[T + 1, ...]`.

        Args:
          episode: Minari's.
          ends: whether it terminated; then the last observation needs no legal action.

        Raises:
          InvalidInputError: they do not fit the spaces, or a mask has no legal action.
        """
        steps = len(episode.rewards)
        values = self._observations
        leaves = values.to_leaves(episode.observations, steps + 1, "observations")
        seen = {leaf: _to_input(values.spaces[leaf], array) for leaf, array in leaves.items()}
        if self._mask is not None:
            source = (episode.infos or {}) if self._in_info else episode.observations
            where = f"{'infos' if self._in_info else 'observations'}[{self._name}]"
            mask = _join_flags(source.get(self._name), steps + 1, where)
            needed = np.arange(steps + 1) < steps + (not ends)
            seen[MASK + ACTION] = self._mask.validate(mask, steps + 1, where, needed)
        return seen

    def read_actions(self, episode: Any) -> dict[str, np.ndarray]:
        """Returns the actions of an episode of T steps as models have them, `[T, ...]`.

        Raises:
          InvalidInputError: they do not fit the spaces.
        """
        spaces = self._actions.spaces
        leaves = self._actions.to_leaves(episode.actions, len(episode.rewards), "actions")
        return {name: actions_from_wire(spaces[name], array) for name, array in leaves.items()}


def _join_flags(found: Any, rows: int, where: str) -> np.ndarray:
    """Returns a mask `[rows, n] bool`; one for each component, in their order, are joined.

    Raises:
      InvalidInputError: it is missing, or has another number of rows.
    """
    parts = list(found.values()) if isinstance(found, Mapping) else found
    parts = list(parts) if isinstance(parts, tuple | list) else [parts]
    arrays = [np.asarray(part) for part in parts]
    if shapes := [list(one.shape) for one in arrays if one.shape[:1] != (rows,)]:
        raise InvalidInputError(f"{where}: shape {shapes[0]}, expected [{rows}, ...]")
    return np.concatenate([one.reshape(rows, -1) for one in arrays], -1).astype(np.bool_)


def _read(name: str, data_set: Any, layout: _Layout, lengths: Mapping[int, int]) -> Rollout:
    """Reads some episodes of a data set as one rollout `[T, 1, ...]`.

    Args:
      name: of the recording.
      data_set: Minari's.
      layout: of the data set.
      lengths: index of each episode -> its number of steps.

    Raises:
      DamagedFileError: the episodes cannot be read, do not have their numbers of steps, or do not
        fit the data set's spaces.
    """
    indices = list(lengths)
    try:
        found = zip(indices, data_set.iterate_episodes(indices), strict=True)
        parts = [_convert(layout, index, lengths[index], one) for index, one in found]
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


def _convert(layout: _Layout, index: int, length: int, episode: Any) -> dict[str, Any]:
    """Returns the arrays of an episode of T steps, `[T, ...]`.

    An episode that neither terminated nor was truncated counts as truncated: what followed its
    last observation is not known.
    """
    steps = len(episode.rewards)
    if steps != length:
        raise ValueError(
            f"episode {index} has {steps} steps, expected its total_steps, "
            f"{length}; Minari cuts episodes of 32768 steps or more in the "
            "formats arrow and parquet: write the data set with data_format hdf5"
        )
    alive = np.where(
        episode.terminations, TERMINATED, np.where(episode.truncations, TRUNCATED, ALIVE)
    ).astype(np.float32)
    if alive[-1] == ALIVE:
        alive[-1] = TRUNCATED
    seen = layout.read_observations(episode, alive[-1] == TERMINATED)
    return {
        "inputs": {leaf: array[:-1] for leaf, array in seen.items()},
        "next_inputs": {leaf: array[1:] for leaf, array in seen.items()},
        "next_alive": alive,
        "rewards": np.asarray(episode.rewards, np.float32),
        "actions": layout.read_actions(episode),
    }


def find_episodes(name: str, masks: str = _AUTO) -> list[Recording]:
    """Returns the episodes of a local data set, in order; short ones share a recording.

    Args:
      name: id of a data set in Minari's folder (MINARI_DATASETS_PATH), or a data set's folder.
      masks: where it says which actions are legal; see `EnvironmentConfig.masks`.

    Raises:
      ConfigError: Minari is not installed; or there is no such data set, or it is damaged or empty,
        or has a space or masks that cannot be used.
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
        raise ConfigError(f"{source}: the data set has no steps; name another one")
    with _explain(source):
        layout = _Layout(data_set, masks)
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
            read = functools.partial(_read, part, data_set, layout, chosen)
            recordings.append(Recording(part, share, read))
            chosen, steps = {}, 0
    return recordings


def read_spaces(name: str, masks: str = _AUTO) -> RunSpaces:
    """Returns the spaces of observations and actions of a local data set, by leaf.

    Args:
      name: see `find_episodes`.
      masks: see `find_episodes`.

    Raises:
      ConfigError: see `find_episodes`.
    """
    with _explain(f"{MINARI}{name}"):
        return _Layout(_load(name), masks).spaces


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
        raise ConfigError(f"{source}: {what}; name another data set") from None
    except ImportError as error:  # also of h5py, which Minari describes by itself
        is_missing = isinstance(error, ModuleNotFoundError) and error.name
        what = f"{error.name} is not installed" if is_missing else str(error)
        raise ConfigError(f"{source}: {what}; {describe_cure('offline')}") from error
    except Exception as error:
        raise ConfigError(
            f"{source}: not a readable Minari data set ({error!s:.300}); expected "
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
