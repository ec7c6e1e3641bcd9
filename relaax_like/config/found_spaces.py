"""Settings of observations and actions that follow from an environment's spaces."""

import math
from typing import Any

import numpy as np

from relaax_like.config.network import NetworkConfig
from relaax_like.config.observations import MAX_VALUES
from relaax_like.config.spaces import describe_leaves
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.spaces import (
    ACTION,
    OBSERVATION,
    Box,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    Spaces,
)

# The convolutions of `nature` need this many rows and columns; those of `impala` any number.
_NATURE_SIDE = 36


def describe_observations(spaces: Spaces) -> dict[str, Any]:
    """Returns the keys that describe observations: state_size, image, num_states or observations.

    A uint8 Box of three axes is an image, as [height, width, channels]; an image in a Dict or Tuple
    space gets convolutions as its branch.

    Args:
      spaces: leaf -> space.

    Raises:
      InvalidInputError: a leaf cannot be observed; the error names it.
    """
    if list(spaces) == [OBSERVATION]:
        key, value = _describe_observation(OBSERVATION, spaces[OBSERVATION])
        return {{"size": "state_size", "num": "num_states"}.get(key, key): value}
    leaves: dict[str, dict[str, Any]] = {}
    for leaf, space in sorted(spaces.items()):
        key, value = _describe_observation(leaf, space)
        leaves[leaf] = {key: value}
        if key == "image":
            leaves[leaf]["layers"] = _choose_convolutions(value)
    return {"observations": leaves}


def describe_network(keys: dict[str, Any], network: NetworkConfig) -> dict[str, Any]:
    """Returns the key network with convolutions if an image needs them, otherwise {}.

    Args:
      keys: from `describe_observations`.
      network: the file's; layers that it lists are kept.
    """
    if "image" not in keys or "layers" in network.model_fields_set:
        return {}
    layers = _choose_convolutions(keys["image"])
    return {"network": network.model_dump(mode="json") | {"layers": layers}}


def describe_actions(spaces: Spaces, bounded: bool) -> dict[str, Any]:
    """Returns the keys that describe actions: num_actions, action_size (and bounds) or actions.

    Args:
      spaces: leaf -> space.
      bounded: whether the only action, if it is a Box, is squashed into bounds that the file does
        not set.

    Raises:
      InvalidInputError: a leaf cannot be acted on, and the error names it; or needed bounds are
        missing or not finite.
    """
    leaves = {leaf: _describe_action(leaf, space) for leaf, space in sorted(spaces.items())}
    if list(leaves) != [ACTION] or "binary" in leaves[ACTION]:
        return {"actions": leaves}
    [(key, value)] = leaves[ACTION].items()
    if key == "num":
        return {"num_actions": value}
    return {"action_size": value} | (_describe_bounds(spaces[ACTION]) if bounded else {})


def describe_mirrors(observation_spaces: Spaces, action_spaces: Spaces) -> dict[str, Any]:
    """Returns the keys mirror_observation and mirror_action, from the mirrors of both spaces.

    Args:
      observation_spaces: leaf -> space.
      action_spaces: the same for actions.

    Raises:
      InvalidInputError: a space has no mirror, or leaves other than one named `observation` or
        `action`.
    """
    keys = {}
    for kind, leaf, spaces in (
        ("observation", OBSERVATION, observation_spaces),
        ("action", ACTION, action_spaces),
    ):
        space = spaces.get(leaf)
        if space is None or len(spaces) > 1:
            raise InvalidInputError(
                f"algorithm.mirror: got {describe_leaves(spaces)}, but only {kind}s of one leaf, "
                f"named {leaf!r}, can be mirrored; wrap the environment, or set algorithm.mirror "
                "to 0",
                f"{kind}_spaces",
            )
        if space.mirror is None:
            raise InvalidInputError(
                "algorithm.mirror: the environment does not define the mirror image of its "
                f"{kind}s; add a method get_{kind}_mirror_indices to a Gymnasium environment, or "
                f"mirror=(...) to an {kind} space of relaax_like.wire, or set "
                "algorithm.mirror_observation and algorithm.mirror_action, or set algorithm.mirror "
                "to 0",
                f"{kind}_spaces",
            )
        keys[f"mirror_{kind}"] = list(space.mirror)
    return keys


def _describe_observation(leaf: str, space: Space) -> tuple[str, Any]:
    if isinstance(space, Discrete) or (isinstance(space, MultiDiscrete) and space.n):
        most = space.n if isinstance(space, Discrete) else max(space.n)
        if most > MAX_VALUES:
            raise InvalidInputError(
                f"observation_spaces: leaf {leaf!r}, a {type(space).__name__}, has an integer of "
                f"{most} values, but at most {MAX_VALUES} can become a one-hot vector; wrap the "
                "environment so that the leaf is a Box",
                "observation_spaces",
            )
        return "num", space.n if isinstance(space, Discrete) else list(space.n)
    size = math.prod(space.shape)
    if not size:
        raise InvalidInputError(
            f"observation_spaces: leaf {leaf!r} has shape {list(space.shape)}, so it has no "
            "values; wrap the environment to remove the leaf, or to add values to it",
            "observation_spaces",
        )
    if isinstance(space, Box) and space.dtype == "uint8" and len(space.shape) == 3:
        return "image", list(space.shape)
    return "size", size


def _choose_convolutions(shape: list[int]) -> list[str]:
    return ["nature" if min(shape[:2]) >= _NATURE_SIDE else "impala"]


def _describe_action(leaf: str, space: Space) -> dict[str, Any]:
    if isinstance(space, Discrete):
        if space.n < 2:
            raise InvalidInputError(
                f"action_spaces: leaf {leaf!r} is a Discrete of {space.n} action, expected 2 or "
                "more to choose from; wrap the environment to remove the leaf, or to add actions",
                "action_spaces",
            )
        return {"num": space.n}
    size = math.prod(space.shape)
    if not size:
        raise InvalidInputError(
            f"action_spaces: leaf {leaf!r} has shape {list(space.shape)}, so it has no components; "
            "wrap the environment to remove the leaf, or to add components",
            "action_spaces",
        )
    if isinstance(space, MultiDiscrete):
        return {"num": list(space.n)}
    return {"binary" if isinstance(space, MultiBinary) else "size": size}


def _describe_bounds(space: Space) -> dict[str, Any]:
    assert isinstance(space, Box)
    with np.errstate(over="ignore"):
        bounds = {
            key: None if bound is None else np.asarray(bound, np.float32).reshape(-1)
            for key, bound in (("action_low", space.low), ("action_high", space.high))
        }
    for key, bound in bounds.items():
        wrong = np.array([True]) if bound is None else ~np.isfinite(bound)
        if wrong.any():
            at = int(wrong.argmax())
            value = "missing" if bound is None else f"{bound[at]} (as float32)"
            raise InvalidInputError(
                f"action_spaces: {key.removeprefix('action_')} is {value} in component {at} of the "
                "environment's action, but this algorithm needs finite bounds; set "
                "algorithm.action_low and algorithm.action_high, or algorithm.bounded: false, if "
                "the algorithm has that key",
                "action_spaces",
            )
    return {key: np.asarray(bound).tolist() for key, bound in bounds.items()}
