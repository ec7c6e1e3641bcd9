"""Values of a space as a user holds them (bare arrays, or dicts of arrays) and as leaves."""

import re
from collections.abc import Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from relaax_like.client.arrays import validate_array
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.ndarray import DTYPES
from relaax_like.wire.spaces import MASK, Discrete, MultiDiscrete, Space, Spaces, split_masks

# What users pass: one leaf, or named leaves.
UserSpace = Space | Mapping[str, Space]
# [k, ...] array for a bare leaf, else leaf name -> [k, ...].
Values = np.ndarray | dict[str, np.ndarray]
# Keys (Dict) and indices (Tuple) that lead to a leaf.
LeafPath = tuple[Hashable, ...]
T = TypeVar("T")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_\-.]")
# The protocol allows 200.
_NAME_LENGTH = 190


class SpaceValues:
    """Converts between a user's values and named leaves, checking them on the way.

    Attributes:
      spaces: leaf name -> leaf.
      bare: whether the user passed one leaf; then values are bare arrays, not dicts.
    """

    def __init__(self, space: UserSpace, name: str) -> None:
        """Takes a space.

        Args:
          space: one leaf, or a dict of them.
          name: "observation" or "action": the name of a bare leaf.

        Raises:
          ConfigError: neither a `Space` nor a dict of them, or an empty dict.
        """
        self.bare = isinstance(space, Space)
        self._name = name
        spaces: Any = {name: space} if isinstance(space, Space) else space
        if (
            not isinstance(spaces, Mapping)
            or not spaces
            or not all(isinstance(leaf, Space) for leaf in spaces.values())
            or not all(isinstance(leaf, str) for leaf in spaces)
        ):
            raise ConfigError(
                f"{name}_space: expected a leaf of relaax_like.wire.spaces (Box, Discrete, "
                "MultiDiscrete, MultiBinary), a dict name -> leaf, or, except in "
                f"EnvironmentSlots, a Gymnasium space; got {space!r:.200}"
            )
        self.spaces: Spaces = dict(spaces)

    def to_leaves(
        self, values: Any, slots: int | None, field: str, chosen: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Checks `[slots, ...]` values and casts them to their spaces' dtypes.

        Where the space declares floats, such as float32, numbers can be rounded. Where it declares
        integers or bool, all values must stay the same.

        Args:
          values: as the user holds them.
          slots: number of slots; None: values of one slot, which have no slot axis.
          field: name of the values, for errors.
          chosen: `[slots]` bool, the slots whose values matter; None: all.

        Returns:
          Leaf name -> `[slots, ...]`, or `[1, ...]` without a slot axis.

        Raises:
          InvalidInputError: wrong structure, shape, dtype or range, or NaN or infinity; the error
            names the leaf.
        """
        if self.bare:
            return {self._name: self._to_leaf(self._name, values, slots, field, chosen)}
        if not isinstance(values, Mapping) or values.keys() != self.spaces.keys():
            came = (
                f"leaves {sorted(map(str, values))}"
                if isinstance(values, Mapping)
                else f"a value of type {type(values).__name__}"
            )
            raise InvalidInputError(
                f"{field}: {came:.200}, expected a dict with {sorted(self.spaces)!s:.200} as "
                "declared by the space"
            )
        return {
            name: self._to_leaf(name, values[name], slots, f"{field}[{name}]", chosen)
            for name in self.spaces
        }

    def row_to_leaves(self, values: Any, field: str) -> dict[str, np.ndarray]:
        """Checks and casts one slot's values, which have no slot axis; returns `[1, ...]` leaves.

        Raises:
          InvalidInputError: see `to_leaves`.
        """
        return self.to_leaves(values, None, field)

    def count_slots(self, values: Any, field: str) -> int | None:
        """Returns k of values `[k, ...]`; None: they have no slot axis.

        The axes of the first leaf decide. Values that do not fit the space at all count as having
        no slot axis.

        Raises:
          InvalidInputError: the first leaf consists of lists of different lengths.
        """
        name, space = next(iter(self.spaces.items()))
        if not self.bare:
            values = values.get(name) if isinstance(values, Mapping) else None
            field = f"{field}[{name}]"
        shape = validate_array(values, field, space.shape).shape
        return shape[0] if len(shape) == len(space.shape) + 1 else None

    def from_leaves(self, leaves: Mapping[str, np.ndarray]) -> Values:
        """Returns writable `[k, ...]` arrays as the user holds them."""
        own = {name: self._from_wire(name, leaf) for name, leaf in leaves.items()}
        return own[self._name] if self.bare else own

    def first_row(self, values: Values) -> Any:
        """Returns the first slot's values: an int for Discrete, otherwise an array; or a dict."""
        if isinstance(values, np.ndarray):
            return _first(self.spaces[self._name], values)
        return {name: _first(self.spaces[name], leaf) for name, leaf in values.items()}

    def sample(
        self, slots: int, rng: np.random.Generator, observations: Any = MappingProxyType({})
    ) -> Values:
        """Draws random values, `[slots, ...]`: uniform between the limits of the space.

        Of actions, only legal ones where there are masks among the observations.

        Components of a Box of floats that lack a bound are drawn from a standard normal
        distribution, folded to the inner side of the other bound, if there is one.
        """
        masks = split_masks(observations)[1] if isinstance(observations, Mapping) else {}
        leaves = {
            name: _draw_legal(space, masks[MASK + name], rng)
            if MASK + name in masks
            else space.sample(slots, rng)
            for name, space in self.spaces.items()
        }
        return SpaceValues.from_leaves(self, leaves)

    def _from_wire(self, name: str, leaf: np.ndarray) -> np.ndarray:
        space = self.spaces[name]
        return leaf + space.get_start() if isinstance(space, MultiDiscrete) else leaf.copy()

    def _to_leaf(
        self, name: str, value: Any, slots: int | None, field: str, chosen: np.ndarray | None
    ) -> np.ndarray:
        space = self.spaces[name]
        if slots is None:
            row = validate_array(value, field, space.shape)
            if row.shape != space.shape:
                raise InvalidInputError(
                    f"{field}: shape {list(row.shape)}, expected {list(space.shape)} as declared "
                    "by the space"
                )
            array, slots = row[None], 1
        else:
            array = validate_array(value, field, (slots, *space.shape))
        dtype = DTYPES[space.dtype]
        if array.dtype != dtype and array.dtype.kind in "biuf":  # the space refuses the others
            before = array
            array, changed = cast(before, dtype, chosen)
            if changed is not None:
                raise InvalidInputError(
                    f"{field}: {before[changed].flat[0]}, expected numbers that {dtype} can "
                    "represent, as declared by the space"
                )
        if isinstance(space, MultiDiscrete) and space.starts and array.dtype.kind in "iu":
            array = array - space.get_start()
        return space.validate(array, slots, field, chosen)


def _draw_legal(space: Space, mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws one of the legal choices of each component, as `Space.sample` draws one of all."""
    noise = np.where(mask, rng.random(mask.shape), -1.0)
    parts = np.split(noise, np.cumsum(space.sizes)[:-1], axis=-1)
    chosen = np.stack([part.argmax(-1) for part in parts], -1).reshape(len(mask), *space.shape)
    return (chosen + getattr(space, "start", 0)).astype(DTYPES[space.dtype])


def _first(space: Space, leaf: np.ndarray) -> Any:
    return int(leaf[0]) if isinstance(space, Discrete) else leaf[0]


def cast(
    array: np.ndarray, dtype: np.dtype, chosen: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Casts numbers to the dtype of a space.

    Args:
      array: of one slot, or of a batch `[k, ...]`.
      dtype: of the space.
      chosen: `[k]` bool, the slots of a batch that matter; None: all.

    Returns:
      The array, and where the dtype, of integers or bool, cannot represent a number in `chosen`;
      None: nowhere.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        result = array.astype(dtype)
    if dtype.kind not in "biu" or np.can_cast(array.dtype, dtype, "safe"):
        return result, None
    changed = result != array
    if chosen is not None and array.shape[:1] == chosen.shape:
        changed[~chosen] = False
    return result, changed if changed.any() else None


def name_leaves(leaves: Iterable[tuple[LeafPath, T]], where: str) -> dict[str, tuple[LeafPath, T]]:
    """Names the leaves of a nested space, or of a nested value, by their paths.

    A name depends on its own path only: the keys and indices, joined with "/". Characters that are
    not allowed on the wire become "_", and a name ends after 190 characters.

    Args:
      leaves: path and leaf of each; the path of a plain space is empty.
      where: what is nested, for errors.

    Raises:
      InvalidInputError: two paths have the same name; the error has both.
    """
    named: dict[str, tuple[LeafPath, T]] = {}
    for path, leaf in leaves:
        parts = [_NOT_IN_NAMES.sub("_", str(key).removeprefix(MASK)) for key in path]
        name = "/".join(parts)[:_NAME_LENGTH] or "_"
        if path and str(path[0]).startswith(MASK):
            name = f"{MASK}{name}"
        if name in named:
            first, second = ("".join(f"[{key!r}]" for key in one) for one in (named[name][0], path))
            raise InvalidInputError(
                f"{where}: the keys {first} and {second} would have the same name on the wire, "
                f"{name!r}; rename one with a wrapper, such as "
                "gymnasium.wrappers.TransformObservation or TransformAction"
            )
        named[name] = path, leaf
    return named
