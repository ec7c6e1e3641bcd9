"""Checks that an environment's spaces fit an algorithm; for `Config.validate_spaces`."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.spaces import ACTION, OBSERVATION, Box, Discrete, MultiDiscrete, Spaces


def validate_vector(spaces: Spaces, size: int) -> None:
    """Checks that the observation is one array of `size` numbers.

    Raises:
      InvalidInputError: it is not; says what came and which setting to change.
    """
    space = spaces.get(OBSERVATION)
    if len(spaces) != 1 or not isinstance(space, Box):
        raise InvalidInputError(
            f"observation_spaces: {_describe(spaces)}; this algorithm reads one Box named "
            f"{OBSERVATION!r}: wrap the environment to turn its observations into one vector"
            f"{_name_wrapper(spaces)}, or name its leaves in algorithm.observations, where it has "
            "that setting",
            "observation_spaces",
        )
    if math.prod(space.shape) != size:
        raise InvalidInputError(
            f"observation_spaces: shape {list(space.shape)} has {math.prod(space.shape)} numbers, "
            f"algorithm.state_size is {size}; set it to {math.prod(space.shape)}",
            "observation_spaces",
        )


def validate_image(spaces: Spaces, shape: tuple[int, int, int]) -> None:
    """Checks that the observation is one uint8 image of `[height, width, channels]`.

    Raises:
      InvalidInputError: it is not; says what came and which setting to change.
    """
    space = spaces.get(OBSERVATION)
    if len(spaces) != 1 or not isinstance(space, Box) or space.dtype != "uint8":
        raise InvalidInputError(
            f"observation_spaces: {_describe(spaces)}; this algorithm reads one Box of uint8 named "
            f"{OBSERVATION!r}, an image: wrap the environment, or set algorithm.state_size instead "
            "of image, or algorithm.observations for several leaves",
            "observation_spaces",
        )
    if space.shape != shape:
        raise InvalidInputError(
            f"observation_spaces: shape {list(space.shape)}, algorithm.image is {list(shape)}; set "
            "it to the environment's [height, width, channels]",
            "observation_spaces",
        )


def validate_leaves(spaces: Spaces, leaves: Mapping[str, int | tuple[int, int, int]]) -> None:
    """Checks that observations have these leaves and no others.

    Args:
      spaces: of the observations.
      leaves: leaf -> numbers in it, or `[height, width, channels]` of an image.

    Raises:
      InvalidInputError: a leaf is missing, or not named, or does not fit; says which.
    """
    field = "observation_spaces"
    if missing := sorted(leaves.keys() - spaces.keys()):
        raise InvalidInputError(
            f"{field}: no leaf {_join_names(missing)}, which algorithm.observations names; the "
            f"environment has {_describe(spaces)}",
            field,
        )
    if unread := sorted(spaces.keys() - leaves.keys()):
        raise InvalidInputError(
            f"{field}: leaf {_join_names(unread)} is not named in algorithm.observations, which "
            f"has {_join_names(sorted(leaves))}; name all leaves there, or wrap the environment to "
            "leave it out",
            field,
        )
    for leaf, extent in leaves.items():
        space, key = spaces[leaf], f"algorithm.observations.{leaf}"
        if isinstance(extent, tuple):
            fits = isinstance(space, Box) and (space.dtype, space.shape) == ("uint8", extent)
            want = f"{key}.image is {list(extent)}, a Box of uint8"
        else:
            fits = isinstance(space, Box) and math.prod(space.shape) == extent
            want = f"{key}.size is {extent}, the numbers in a Box"
        if not fits:
            raise InvalidInputError(
                f"{field}: leaf {leaf!r} is a {type(space).__name__} of {space.dtype}, shape "
                f"{list(space.shape)}; {want}: change the setting, or wrap the environment"
                f"{_name_wrapper({leaf: space})}",
                field,
            )


def validate_discrete(spaces: Spaces, num_actions: int) -> None:
    """Checks that the action is one of `num_actions`, counted from 0.

    Raises:
      InvalidInputError: it is not.
    """
    space = spaces.get(ACTION)
    if len(spaces) != 1 or not isinstance(space, Discrete) or space.start != 0:
        raise InvalidInputError(
            f"action_spaces: {_describe(spaces)}; this algorithm is set up for one Discrete action "
            f"named {ACTION!r}, counted from 0 (algorithm.num_actions: a list for MultiDiscrete, "
            "where it has that setting)",
            "action_spaces",
        )
    if space.n != num_actions:
        raise InvalidInputError(
            f"action_spaces: {space.n} actions, this algorithm is set up for {num_actions} "
            "(algorithm.num_actions, where it has that setting)",
            "action_spaces",
        )


def validate_multi_discrete(spaces: Spaces, num_actions: Sequence[int]) -> None:
    """Checks that the action is several choices at once, of `num_actions` each.

    Raises:
      InvalidInputError: it is not.
    """
    space = spaces.get(ACTION)
    if len(spaces) != 1 or not isinstance(space, MultiDiscrete):
        raise InvalidInputError(
            f"action_spaces: {_describe(spaces)}; this algorithm is set up for one MultiDiscrete "
            f"action named {ACTION!r}; for one Discrete action set num_actions to a number, for "
            "continuous ones set action_size",
            "action_spaces",
        )
    if space.n != tuple(num_actions):
        raise InvalidInputError(
            f"action_spaces: choices of {list(space.n)} actions, algorithm.num_actions is "
            f"{list(num_actions)}; set it to {list(space.n)}",
            "action_spaces",
        )


def validate_continuous(spaces: Spaces, size: int) -> None:
    """Checks that the action is one Box of `size` numbers.

    Raises:
      InvalidInputError: it is not.
    """
    space = spaces.get(ACTION)
    if len(spaces) != 1 or not isinstance(space, Box):
        raise InvalidInputError(
            f"action_spaces: {_describe(spaces)}; this algorithm is set up for one continuous "
            f"action (a Box) named {ACTION!r}; for discrete actions set num_actions instead of "
            "action_size",
            "action_spaces",
        )
    if math.prod(space.shape) != size:
        raise InvalidInputError(
            f"action_spaces: shape {list(space.shape)} has {math.prod(space.shape)} components, "
            f"algorithm.action_size is {size}; set it to {math.prod(space.shape)}",
            "action_spaces",
        )


def validate_bounds(spaces: Spaces, low: np.ndarray, high: np.ndarray) -> None:
    """Checks the bounds of a continuous action; an environment without bounds takes any.

    Raises:
      InvalidInputError: the environment has others.
    """
    space = spaces[ACTION]
    assert isinstance(space, Box)
    for name, bound, own in (("low", low, space.low), ("high", high, space.high)):
        if own is None:
            continue
        flat = own.reshape(-1).astype(np.float32)
        if (np.isfinite(flat) & (flat != bound)).any():
            raise InvalidInputError(
                f"action_spaces: {name} is {flat.tolist()}, algorithm.action_{name} is "
                f"{bound.tolist()}; set it to the environment's, or leave out bounded",
                "action_spaces",
            )


def _name_wrapper(spaces: Spaces) -> str:
    """Names the wrapper that makes a vector of what is no Box; "" where all leaves are."""
    if all(isinstance(space, Box) for space in spaces.values()):
        return ""
    return " (gymnasium.wrappers.FlattenObservation does it, with integers as one-hot)"


def _join_names(names: Sequence[str]) -> str:
    """Lists names, the first few."""
    return ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")


def _describe(spaces: Spaces) -> str:
    """Says what came: kinds and names of the leaves, the first few."""
    leaves = [
        f"{type(space).__name__} {name!r} of {space.dtype}"
        for name, space in list(spaces.items())[:5]
    ]
    return ", ".join(leaves) + (", ..." if len(spaces) > 5 else "")
