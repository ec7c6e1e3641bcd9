"""Spaces of an environment: whether they fit the settings, and the settings that they stand for."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relaax_like.config.leaves import ActionConfig, LeafConfig, ObservationConfig
from relaax_like.config.network import NetworkConfig
from relaax_like.wire.errors import InvalidInputError, RelaaxError
from relaax_like.wire.spaces import (
    ACTION,
    OBSERVATION,
    Box,
    Discrete,
    Space,
    Spaces,
    show_number,
    split_masks,
)

# Keys of the section `algorithm` for the only leaf, named observation or action -> the same key of
# a leaf that is listed.
PLAIN_OBSERVATION = {"state_size": "size", "image": "image", "num_states": "num"}
PLAIN_ACTION = {"num_actions": "num", "action_size": "size"}
# The convolutions of `nature` need this many rows and columns; those of `impala` any number.
_NATURE_SIDE = 36


def describe_mismatch(error: RelaaxError) -> str:
    """Describes a mismatch of spaces to people whose run has begun: no setting is a cure then."""
    text = re.sub(r"; set \S+ to [^;]*$", "", str(error))
    return (
        f"{text}. A run that has begun keeps its spaces: choose the environment with which it was "
        "trained, or begin another run"
    )


def validate_run_spaces(config: Any, observation_spaces: Spaces, action_spaces: Spaces) -> None:
    """Refuses an environment whose spaces the algorithm cannot use; see `validate_spaces` of it.

    Args:
      config: the algorithm's.
      observation_spaces: with those of masks, which do not concern it.
      action_spaces: leaf -> space.

    Raises:
      InvalidInputError: a space does not fit; or a leaf with masks has another number of choices.
    """
    observation_spaces, _ = split_masks(observation_spaces)
    config.validate_spaces(observation_spaces, action_spaces)
    for leaf, sizes in config.masks.items():
        space = action_spaces.get(leaf)
        if space is None or tuple(space.sizes) != tuple(sizes):
            came = "no such action" if space is None else space.describe()
            raise InvalidInputError(
                f"action_spaces: algorithm.masks has {leaf!r} with {show_number(sizes)} choices, "
                f"but the environment has {came}; correct or remove the key"
            )


def validate_vector(spaces: Spaces, size: int) -> None:
    """Checks that the observation is one Box or MultiBinary of `size` numbers.

    Raises:
      InvalidInputError: the observation differs; the error says how, and which setting to change.
    """
    validate_leaves(
        spaces, {OBSERVATION: ObservationConfig.model_construct(size=size)}, listed=False
    )


def validate_discrete(spaces: Spaces, num_actions: int) -> None:
    """Checks that the action is one of `num_actions`, counted from 0.

    Raises:
      InvalidInputError: the action differs; the error says how, and which setting to change.
    """
    validate_leaves(spaces, {ACTION: ActionConfig.model_construct(num=num_actions)}, listed=False)
    space = spaces[ACTION]
    if not isinstance(space, Discrete) or space.start:
        raise InvalidInputError(
            f"action_spaces: leaf {ACTION!r} is {space.describe()}, but this algorithm counts "
            "actions from 0; wrap the environment"
        )


def validate_leaves(spaces: Spaces, leaves: Mapping[str, LeafConfig], *, listed: bool) -> None:
    """Checks that the environment has these leaves and no others, and that each one fits.

    A vector fits Boxes and switches of any shape. The shape of an action, its dtype and the first
    number of discrete actions can differ.

    Args:
      spaces: of the environment's observations or actions.
      leaves: what the settings say of each.
      listed: whether the settings list the leaves by name, in `observations` or `actions`.

    Raises:
      InvalidInputError: a leaf is missing, not listed, or does not fit; the error names it, and the
        setting to change.
    """
    if listed:
        _validate_names(spaces, leaves)
    for leaf, own in leaves.items():
        key = f"algorithm.{own.role}s.{leaf}.{own.kind}" if listed else _find_key(own)
        _validate_leaf(spaces, leaf, own, key, listed)
        if isinstance(own, ActionConfig) and own.bounded:
            prefix = f"algorithm.actions.{leaf}." if listed else "algorithm.action_"
            _validate_bounds(spaces[leaf], own.space, prefix)


def _find_key(own: LeafConfig) -> str:
    """Returns the key that says of which kind the only leaf is."""
    keys = PLAIN_OBSERVATION if own.role == OBSERVATION else PLAIN_ACTION
    return next(f"algorithm.{key}" for key, kind in keys.items() if kind == own.kind)


def _validate_leaf(spaces: Spaces, leaf: str, own: LeafConfig, key: str, listed: bool) -> None:
    is_there = listed or list(spaces) == [leaf]
    value: Any = own.measure(spaces[leaf]).get(own.kind) if is_there else None
    want = f"{key} is {show_number(own.value)}"
    if type(value) is not type(own.value):
        want += f", for a {own.needs}"
    if not listed and type(value) is not type(own.value):
        is_continuous = own.role == ACTION and own.kind == "size"
        others = ", and other keys of continuous actions such as action_low," * is_continuous
        raise InvalidInputError(
            f"{own.role}_spaces: got {describe_leaves(spaces)}, but {want} named {leaf!r}; remove "
            f"{key}{others} to use the environment's {own.role}s, or list its leaves in "
            f"algorithm.{own.role}s, if the algorithm has that key, or wrap the environment"
            f"{_name_wrapper(own, spaces)}"
        )
    if value != own.value:
        own.describe(leaf, spaces[leaf])  # refuses what no setting can describe
        cure = f"change the setting, or wrap the environment{_name_wrapper(own, spaces)}"
        if not listed:
            is_image = own.kind == "image"
            cure = f"set it to {show_number(value)}"
            cure += " if that is [height, width, channels], or else wrap the environment" * is_image
        raise InvalidInputError(
            f"{own.role}_spaces: leaf {leaf!r} is a {spaces[leaf].describe()}, but {want}; {cure}"
        )


def _validate_names(spaces: Spaces, leaves: Mapping[str, LeafConfig]) -> None:
    role = next(iter(leaves.values())).role
    field, key = f"{role}_spaces", f"algorithm.{role}s"
    if missing := sorted(leaves.keys() - spaces.keys()):
        raise InvalidInputError(
            f"{field}: {key} names {_join_names(missing)}, but the environment only has "
            f"{describe_leaves(spaces)}; correct the names"
        )
    if unread := sorted(spaces.keys() - leaves.keys()):
        raise InvalidInputError(
            f"{field}: the environment has {_join_names(unread)}, not listed in {key}, which only "
            f"has {_join_names(sorted(leaves))}; for a new run, list all leaves there, or remove "
            f"it to use the environment's; a run that has begun keeps its {role}s, so wrap the "
            "environment"
        )


def _validate_bounds(space: Space, want: Space, prefix: str) -> None:
    """Checks the bounds of a Box; a component without a bound accepts any."""
    assert isinstance(space, Box)
    assert isinstance(want, Box)
    for name, bound, own in (("low", want.low, space.low), ("high", want.high, space.high)):
        if own is None:
            continue
        flat = own.reshape(-1).astype(np.float32)
        wrong = np.isfinite(flat) & (flat != bound)
        if wrong.any():
            at = int(wrong.argmax())
            raise InvalidInputError(
                f"action_spaces: {name} is {flat[at]} in component {at}, but {prefix}{name} is "
                f"{bound[at]} there; set it to the environment's bound, or, if the algorithm has "
                f"the key bounded, set that to false and remove {prefix}low and {prefix}high"
            )


def _name_wrapper(own: LeafConfig, spaces: Spaces) -> str:
    """Returns a hint to the wrapper that makes a vector; "" if it would not help."""
    is_vector = own.role == OBSERVATION and own.kind == "size"
    if not is_vector or all(isinstance(space, Box) for space in spaces.values()):
        return ""
    return (
        " (gymnasium.wrappers.FlattenObservation makes one vector, with integers as one-hot "
        "vectors)"
    )


def _join_names(names: Sequence[str]) -> str:
    """Joins the first few names."""
    return ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")


def describe_leaves(spaces: Spaces) -> str:
    """Returns kinds, names and dtypes of the first few leaves, for errors."""
    leaves = [
        f"{type(space).__name__} {name!r} of {space.dtype}"
        for name, space in list(spaces.items())[:5]
    ]
    return ", ".join(leaves) + (", ..." if len(spaces) > 5 else "")


def describe_observations(spaces: Spaces) -> dict[str, Any]:
    """Returns the keys that describe observations: state_size, image, num_states or observations.

    A uint8 Box of three axes is an image, as [height, width, channels]; an image in a Dict or Tuple
    space gets convolutions as its branch.

    Args:
      spaces: leaf -> space.

    Raises:
      InvalidInputError: a leaf cannot be observed; the error names it.
    """
    leaves: dict[str, dict[str, Any]] = {}
    for leaf, space in sorted(spaces.items()):
        key, value = ObservationConfig.describe(leaf, space)
        leaves[leaf] = {key: value}
        if list(spaces) == [OBSERVATION]:
            return {own: value for own, kind in PLAIN_OBSERVATION.items() if kind == key}
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
    leaves = {}
    for leaf, space in sorted(spaces.items()):
        key, value = ActionConfig.describe(leaf, space)
        leaves[leaf] = {key: value}
        if list(spaces) == [ACTION] and key in PLAIN_ACTION.values():
            bounds = _describe_bounds(space) if bounded and key == "size" else {}
            return {own: value for own, kind in PLAIN_ACTION.items() if kind == key} | bounds
    return {"actions": leaves}


def _choose_convolutions(shape: list[int]) -> list[str]:
    return ["nature" if min(shape[:2]) >= _NATURE_SIDE else "impala"]


def _describe_bounds(space: Space) -> dict[str, Any]:
    assert isinstance(space, Box)
    keys = {}
    for name, bound in (("low", space.low), ("high", space.high)):
        with np.errstate(over="ignore"):
            numbers = np.full(1, np.nan) if bound is None else bound.astype(np.float32).reshape(-1)
        wrong = ~np.isfinite(numbers)
        if wrong.any():
            at = int(wrong.argmax())
            value = "missing" if bound is None else f"{numbers[at]} (as float32)"
            raise InvalidInputError(
                f"action_spaces: {name} is {value} in component {at} of the environment's action, "
                "but this algorithm needs finite bounds; set algorithm.action_low and "
                "algorithm.action_high, or algorithm.bounded: false, if the algorithm has that key"
            )
        keys[f"action_{name}"] = numbers.tolist()
    return keys
