"""Checks that an environment's spaces fit an algorithm; for `Config.validate_spaces`."""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from relaax_like.config.observations import MAX_VALUES
from relaax_like.config.problems import count
from relaax_like.wire.errors import InvalidInputError, RelaaxError
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

_MAX_SHOWN = 16  # numbers of a list in an error


def describe_mismatch(error: RelaaxError) -> str:
    """Describes a mismatch of spaces to people whose run has begun: no setting is a cure then."""
    text = re.sub(r"; set \S+ to [^;]*$", "", str(error))
    return (
        f"{text}. A run that has begun keeps its spaces: choose the environment with which it was "
        "trained, or begin another run"
    )


def validate_vector(spaces: Spaces, size: int) -> None:
    """Checks that the observation is one Box or MultiBinary of `size` numbers.

    Raises:
      InvalidInputError: the observation differs; the error says how, and which setting to change.
    """
    space = spaces.get(OBSERVATION)
    if len(spaces) != 1 or not isinstance(space, Box | MultiBinary):
        raise InvalidInputError(
            f"observation_spaces: got {describe_leaves(spaces)}; this algorithm reads one Box "
            f"or MultiBinary named {OBSERVATION!r}. Wrap the environment so that its observations "
            f"are one vector{_name_wrapper(spaces)}; if the algorithm has the key "
            "algorithm.observations, you can also remove algorithm.state_size, and list the "
            "leaves there or use the environment's observations",
            "observation_spaces",
        )
    numbers = math.prod(space.shape)
    if numbers != size:
        cure = f"set it to {numbers}" if numbers else "wrap the environment to add numbers"
        raise InvalidInputError(
            f"observation_spaces: shape {list(space.shape)} has {count(numbers, 'number')}, but "
            f"algorithm.state_size is {size}; {cure}",
            "observation_spaces",
        )


def validate_image(spaces: Spaces, shape: tuple[int, int, int]) -> None:
    """Checks that the observation is one uint8 image of `[height, width, channels]`.

    Raises:
      InvalidInputError: the observation differs; the error says how, and which setting to change.
    """
    space = spaces.get(OBSERVATION)
    if len(spaces) != 1 or not isinstance(space, Box) or space.dtype != "uint8":
        raise InvalidInputError(
            f"observation_spaces: got {describe_leaves(spaces)}; this algorithm reads one uint8 "
            f"Box named {OBSERVATION!r}, an image. Wrap the environment, or set "
            "algorithm.state_size (for a vector), num_states (for integers) or observations (for "
            "several leaves) instead of image, and dense layers in algorithm.network",
            "observation_spaces",
        )
    if space.shape != shape:
        raise InvalidInputError(
            f"observation_spaces: shape is {list(space.shape)}, but algorithm.image is "
            f"{list(shape)}; set it to the environment's shape if that is [height, width, "
            "channels], or else wrap the environment",
            "observation_spaces",
        )


def validate_integers(spaces: Spaces, want: Space) -> None:
    """Checks that the observation is one or several integers with these numbers of values.

    Args:
      spaces: of the observations.
      want: a Discrete or MultiDiscrete.

    Raises:
      InvalidInputError: the observation differs; the error says how, and which setting to change.
    """
    space = spaces.get(OBSERVATION)
    if len(spaces) != 1 or not isinstance(space, type(want)):
        raise InvalidInputError(
            f"observation_spaces: got {describe_leaves(spaces)}; algorithm.num_states makes this "
            f"algorithm read one {type(want).__name__} named {OBSERVATION!r}. Remove num_states "
            "to use the environment's observations",
            "observation_spaces",
        )
    if _get_n(space) != _get_n(want):
        n = _show_n(_get_n(space))
        cure = f"set it to {n}, or remove it"
        if np.max(_get_n(space), initial=0) > MAX_VALUES:
            cure = f"wrap the environment, because an integer can have at most {MAX_VALUES} values"
        raise InvalidInputError(
            f"observation_spaces: the observation has {n} values, but algorithm.num_states is "
            f"{_show_n(_get_n(want))}; {cure}",
            "observation_spaces",
        )


def validate_leaves(spaces: Spaces, leaves: Mapping[str, Space]) -> None:
    """Checks that observations have these leaves and no others.

    Args:
      spaces: of the observations.
      leaves: leaf -> space according to the settings: a flat Box, a uint8 image, or integers; a
        Box or MultiBinary of another shape fits a flat Box.

    Raises:
      InvalidInputError: a leaf is missing, not listed, or does not fit; the error names it.
    """
    field = "observation_spaces"
    cure = "list all leaves there, or wrap the environment to remove the others"
    _validate_names(spaces, leaves, field, "algorithm.observations", cure)
    for leaf, want in leaves.items():
        space, key = spaces[leaf], f"algorithm.observations.{leaf}"
        if isinstance(want, Discrete | MultiDiscrete):
            fits = isinstance(space, type(want)) and _get_n(space) == _get_n(want)
            num = _show_n(_get_n(want))
            says = f"{key}.num is {num}, the number of values of a {type(want).__name__}"
        elif want.dtype == "uint8":
            fits = isinstance(space, Box) and (space.dtype, space.shape) == ("uint8", want.shape)
            says = f"{key}.image is {list(want.shape)}, a uint8 Box"
        else:
            size = want.shape[0]
            fits = isinstance(space, Box | MultiBinary) and math.prod(space.shape) == size
            says = f"{key}.size is {size}, the number of values in a Box or MultiBinary"
        if not fits:
            is_integers = isinstance(space, Discrete | MultiDiscrete)
            has = f", n {_show_n(_get_n(space))}" if is_integers else ""
            raise InvalidInputError(
                f"{field}: leaf {leaf!r} is a {type(space).__name__} of {space.dtype}, shape "
                f"{list(space.shape)}{has}, but {says}; change the setting, or wrap the "
                f"environment{_name_wrapper({leaf: space})}",
                field,
            )


def _get_n(space: Space) -> int | list[int]:
    assert isinstance(space, Discrete | MultiDiscrete)
    return space.n if isinstance(space, Discrete) else list(space.n)


def _show_n(n: int | Sequence[int]) -> str:
    """Returns a number, or the first few of several, for errors."""
    if isinstance(n, int):
        return str(n)
    shown = ", ".join(map(str, n[:_MAX_SHOWN]))
    return f"[{shown}]" if len(n) <= _MAX_SHOWN else f"[{shown}, ...] ({len(n)} numbers)"


def validate_discrete(spaces: Spaces, num_actions: int, any_start: bool = False) -> None:
    """Checks that the action is one of `num_actions`, counted from 0.

    Args:
      spaces: of the actions.
      num_actions: number of actions.
      any_start: whether the actions can be counted from another number.

    Raises:
      InvalidInputError: the action differs; the error says how, and which setting to change.
    """
    space = spaces.get(ACTION)
    if len(spaces) != 1 or not isinstance(space, Discrete) or (space.start != 0 and not any_start):
        raise InvalidInputError(
            f"action_spaces: got {describe_leaves(spaces)}; this algorithm is configured for one "
            f"Discrete action named {ACTION!r}"
            f"{'' if any_start else ', counted from 0 (a wrapper can do that)'}. If the algorithm "
            "supports other actions, remove algorithm.num_actions to use the environment's; or "
            "else choose another algorithm",
            "action_spaces",
        )
    if space.n != num_actions:
        cure = f"set algorithm.num_actions to {space.n}, if the algorithm has that key"
        if space.n == 1:
            cure = "wrap the environment to add actions"
        raise InvalidInputError(
            f"action_spaces: the environment has {count(space.n, 'action')}, but this algorithm "
            f"is configured for {num_actions}; {cure}",
            "action_spaces",
        )


def validate_multi_discrete(spaces: Spaces, num_actions: Sequence[int]) -> None:
    """Checks that the action is one MultiDiscrete: several choices at once, flattened.

    Args:
      spaces: of the actions.
      num_actions: number of actions of each choice.

    Raises:
      InvalidInputError: the action differs; the error says how, and which setting to change.
    """
    space = spaces.get(ACTION)
    if len(spaces) != 1 or not isinstance(space, MultiDiscrete):
        raise InvalidInputError(
            f"action_spaces: got {describe_leaves(spaces)}; this algorithm is configured for one "
            f"MultiDiscrete action named {ACTION!r}. For one Discrete action set "
            "algorithm.num_actions to a number; for a Box set algorithm.action_size instead, and "
            "for other spaces algorithm.actions",
            "action_spaces",
        )
    if space.n != tuple(num_actions):
        n = _show_n(space.n)
        raise InvalidInputError(
            f"action_spaces: the choices have {n} actions, but algorithm.num_actions is "
            f"{_show_n(num_actions)}; set it to {n}, or remove it",
            "action_spaces",
        )


def validate_continuous(spaces: Spaces, size: int) -> None:
    """Checks that the action is one Box of `size` numbers.

    Raises:
      InvalidInputError: the action differs; the error says how, and which setting to change.
    """
    space = spaces.get(ACTION)
    if len(spaces) != 1 or not isinstance(space, Box):
        raise InvalidInputError(
            f"action_spaces: got {describe_leaves(spaces)}; this algorithm is configured for one "
            f"continuous action (a Box) named {ACTION!r}. Remove algorithm.action_size, and other "
            "keys of continuous actions such as action_low, to use the environment's actions; or "
            "set algorithm.num_actions (discrete actions) or algorithm.actions instead of them, "
            "if the algorithm has that key; or else choose another algorithm",
            "action_spaces",
        )
    components = math.prod(space.shape)
    if components != size:
        cure = f"set it to {components}" if components else "wrap the environment to add components"
        raise InvalidInputError(
            f"action_spaces: shape {list(space.shape)} has {count(components, 'component')}, but "
            f"algorithm.action_size is {size}; {cure}",
            "action_spaces",
        )


def validate_bounds(spaces: Spaces, low: np.ndarray, high: np.ndarray) -> None:
    """Checks the bounds of a continuous action; a component without a bound accepts any.

    Args:
      spaces: of the actions; `action` is a Box.
      low, high: of the settings, `[size] float32`.

    Raises:
      InvalidInputError: the environment has other bounds; the error shows the first that differs.
    """
    _validate_bounds(spaces[ACTION], low, high, "algorithm.action_")


def validate_action_leaves(spaces: Spaces, leaves: Mapping[str, Space]) -> None:
    """Checks that actions have these leaves and no others.

    Args:
      spaces: of the actions.
      leaves: leaf -> space according to the settings; the shape (not the number of components), the
        dtype and the first number of discrete actions can differ.

    Raises:
      InvalidInputError: a leaf is missing, not listed, or does not fit; the error names it.
    """
    field = "action_spaces"
    cure = (
        "for a new run, list all leaves there, or remove it to use the environment's; a run that "
        "has begun keeps its actions, so wrap the environment"
    )
    _validate_names(spaces, leaves, field, "algorithm.actions", cure)
    for leaf, want in leaves.items():
        key = f"algorithm.actions.{leaf}"
        if _describe_action(spaces[leaf]) != _describe_action(want):
            raise InvalidInputError(
                f"{field}: leaf {leaf!r} is a {_describe_action(spaces[leaf]):.200}, but {key} "
                f"says {_describe_action(want):.200}; change the setting, or wrap the environment",
                field,
            )
        if isinstance(want, Box) and want.low is not None:
            _validate_bounds(spaces[leaf], want.low, want.high, f"{key}.")


def _validate_names(
    spaces: Spaces, leaves: Mapping[str, Space], field: str, key: str, cure: str
) -> None:
    """Checks that the environment's leaves are those of the settings.

    Raises:
      InvalidInputError: one is missing, or is not listed in the settings; `cure` says what helps.
    """
    if missing := sorted(leaves.keys() - spaces.keys()):
        raise InvalidInputError(
            f"{field}: {key} names {_join_names(missing)}, but the environment only has "
            f"{describe_leaves(spaces)}; correct the names",
            field,
        )
    if unread := sorted(spaces.keys() - leaves.keys()):
        raise InvalidInputError(
            f"{field}: the environment has {_join_names(unread)}, not listed in {key}, which only "
            f"has {_join_names(sorted(leaves))}; {cure}",
            field,
        )


def _validate_bounds(space: Space, low: np.ndarray, high: np.ndarray, prefix: str) -> None:
    assert isinstance(space, Box)
    for name, bound, own in (("low", low, space.low), ("high", high, space.high)):
        if own is None:
            continue
        flat = own.reshape(-1).astype(np.float32)
        wrong = np.isfinite(flat) & (flat != bound)
        if wrong.any():
            at = int(wrong.argmax())
            raise InvalidInputError(
                f"action_spaces: {name} is {flat[at]} in component {at}, but {prefix}{name} is "
                f"{bound[at]} there; set it to the environment's bound, or, if the algorithm has "
                f"the key bounded, set that to false and remove {prefix}low and {prefix}high",
                "action_spaces",
            )


def _name_wrapper(spaces: Spaces) -> str:
    """Returns a hint to the wrapper that makes a vector; "" if all leaves are boxes."""
    if all(isinstance(space, Box) for space in spaces.values()):
        return ""
    return " (gymnasium.wrappers.FlattenObservation does that, with integers as one-hot vectors)"


def _join_names(names: Sequence[str]) -> str:
    """Joins the first few names."""
    return ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")


def _describe_action(space: Space) -> str:
    """Describes a leaf's actions, without its dtype and its shape."""
    if isinstance(space, Discrete):
        return f"Discrete of {count(space.n, 'action')}"
    if isinstance(space, MultiDiscrete):
        return f"MultiDiscrete of {list(space.n)} actions"
    number = math.prod(space.shape)
    if isinstance(space, MultiBinary):
        return f"MultiBinary of {count(number, 'switch', 'switches')}"
    return f"Box of {count(number, 'component')}"


def describe_leaves(spaces: Spaces) -> str:
    """Returns kinds, names and dtypes of the first few leaves, for errors."""
    leaves = [
        f"{type(space).__name__} {name!r} of {space.dtype}"
        for name, space in list(spaces.items())[:5]
    ]
    return ", ".join(leaves) + (", ..." if len(spaces) > 5 else "")
