"""Converts Gymnasium spaces to named leaves, and their values in both directions."""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np

from relaax_like.client.values import LeafPath, SpaceValues, UserSpace, Values, cast, name_leaves
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.ndarray import DTYPES, make_array
from relaax_like.wire.spaces import MASK, Box, Discrete, MultiBinary, MultiDiscrete, Space


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One leaf of a nested space.

    Attributes:
      name: on the wire.
      path: keys (Dict) and indices (Tuple) that lead to it; empty for a plain space.
      space: on the wire.
      gym_space: what it was made from.
    """

    name: str
    path: LeafPath
    space: Space
    gym_space: gym.Space


class SpaceCodec(SpaceValues):
    """Values of a Gymnasium space: nested as the space is, actions clipped to its bounds.

    float64 becomes float32 on the wire, which is what networks compute with; images stay uint8.

    Attributes:
      leaves: of the space, in a fixed order.
      space: a bare `Space` for a plain space, otherwise a dict name -> `Space`.
    """

    def __init__(self, space: gym.Space, name: str = "observation") -> None:
        """Takes any nesting of Dict and Tuple over Box, Discrete, MultiDiscrete and MultiBinary.

        Args:
          space: the space.
          name: "observation" or "action".

        Raises:
          ConfigError: another kind of space, or one without leaves.
          InvalidInputError: a leaf that the protocol does not allow, such as a Box of longdouble;
            or two leaves with the same name on the wire; see `name_leaves`.
        """
        where = f"{name}_space"
        self.leaves = _flatten(space, where)
        if not self.leaves:
            raise ConfigError(f"{where}: {space!s:.200} has no leaves, expected at least one leaf")
        self._gym_space = space
        self.space: UserSpace = {leaf.name: leaf.space for leaf in self.leaves}
        if not self.leaves[0].path:
            self.space = self.leaves[0].space
        super().__init__(self.space, name)

    def empty(self, slots: int) -> Values:
        """Makes arrays `[slots, ...]` whose content is undefined."""
        arrays = {
            leaf.name: np.empty((slots, *leaf.space.shape), DTYPES[leaf.space.dtype])
            for leaf in self.leaves
        }
        return next(iter(arrays.values())) if self.bare else arrays

    def write_row(self, into: Values, slot: int, value: Any) -> None:
        """Casts one environment's nested value, and writes it into row `slot`.

        Raises:
          InvalidInputError: a leaf is missing, has another shape, does not consist of numbers, or
            has a number that the space's integer or bool dtype cannot represent; the error names
            the leaf.
        """
        for leaf in self.leaves:
            rows = into if isinstance(into, np.ndarray) else into[leaf.name]
            array = _read_leaf(value, leaf, slot)
            # Axes of length 1 are accepted; a number instead of a vector is a mistake.
            if array.size != rows[slot].size or array.dtype.kind not in "biuf":
                raise _make_misfit(leaf, array, slot)
            if array.dtype != rows.dtype and rows.dtype.kind in "biu":
                array = _cast(array, leaf, slot)
            try:
                rows[slot] = array
            except ValueError:
                raise _make_misfit(leaf, array, slot) from None

    def pack(self, batch: Any, chosen: np.ndarray | None = None) -> Values:
        """Converts a vector environment's nested batch `[k, ...]`; copies it.

        Args:
          batch: of the environment.
          chosen: `[k]` bool, the slots whose values matter; None: all.

        Raises:
          InvalidInputError: a leaf is missing, is not an array of numbers, or has a number that
            the space's integer or bool dtype cannot represent; the error names the leaf.
        """
        arrays = {
            leaf.name: self._pack_leaf(leaf, _read_leaf(batch, leaf), chosen)
            for leaf in self.leaves
        }
        return next(iter(arrays.values())) if self.bare else arrays

    def unpack(self, values: Values) -> Any:
        """Converts `[k, ...]` values to a nested batch, clipped to the boxes' bounds."""
        return _nest(self._gym_space, iter(self._clip(values)))

    def unpack_rows(self, values: Values) -> list[Any]:
        """Converts `[k, ...]` values to k nested values, clipped to the boxes' bounds."""
        columns = self._clip(values)
        if self.bare:
            return list(columns[0])
        return [
            _nest(self._gym_space, iter([column[slot] for column in columns]))
            for slot in range(len(columns[0]))
        ]

    def _clip(self, values: Values) -> list[np.ndarray]:
        arrays = [values] if isinstance(values, np.ndarray) else values.values()
        return list(map(_clip, self.leaves, arrays))

    def _pack_leaf(self, leaf: Leaf, array: np.ndarray, chosen: np.ndarray | None) -> np.ndarray:
        if array.dtype.kind not in "biuf":
            raise _make_misfit(leaf, array)
        if array.dtype == DTYPES[leaf.space.dtype]:
            return array.copy()
        return _cast(array, leaf, None, chosen)

    def to_leaves(
        self, values: Any, slots: int | None, field: str, chosen: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """See `SpaceValues`; takes a nested batch `[slots, ...]`, or one nested value."""
        return super().to_leaves(self._flatten(values, field), slots, field, chosen)

    def count_slots(self, values: Any, field: str) -> int | None:
        """See `SpaceValues`; takes nested values.

        Raises:
          InvalidInputError: a leaf is missing, or the first leaf consists of lists of different
            lengths.
        """
        return super().count_slots(self._flatten(values, field), field)

    def from_leaves(self, leaves: Mapping[str, np.ndarray]) -> Any:
        """See `SpaceValues`; returns a nested batch."""
        return self.unpack(super().from_leaves(leaves))

    def first_row(self, values: Any) -> Any:
        """See `SpaceValues`; takes a nested batch."""
        return _get_first(self._gym_space, values)

    def sample(
        self, slots: int, rng: np.random.Generator, observations: Any = MappingProxyType({})
    ) -> Any:
        """See `SpaceValues`; returns a nested batch."""
        return self.unpack(super().sample(slots, rng, observations))

    def _flatten(self, values: Any, field: str) -> Any:
        """Returns a bare value, or leaf name -> value, with any leading axes.

        Raises:
          InvalidInputError: a leaf is missing.
        """
        leaves = {}
        for leaf in self.leaves:
            try:
                leaves[leaf.name] = _get(values, leaf.path)
            except (KeyError, IndexError, TypeError):
                raise InvalidInputError(
                    f"{field}: {leaf.name!r} is missing, expected a value of {self._gym_space}"[
                        :500
                    ],
                    field,
                ) from None
        return next(iter(leaves.values())) if self.bare else leaves


def _get_first(space: gym.Space, batch: Any) -> Any:
    """Returns the first row of a nested batch: an int for Discrete."""
    if isinstance(space, gym.spaces.Dict):
        return {key: _get_first(inner, batch[key]) for key, inner in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(map(_get_first, space.spaces, batch))
    return int(batch[0]) if isinstance(space, gym.spaces.Discrete) else batch[0]


def _make_misfit(leaf: Leaf, array: np.ndarray, slot: int | None = None) -> InvalidInputError:
    return _make_unusable(leaf, f"{array.dtype} {list(array.shape)}", slot)


def _make_unusable(leaf: Leaf, came: str, slot: int | None) -> InvalidInputError:
    name, where = _name(leaf), "" if slot is None else f" (slot {slot})"
    return InvalidInputError(
        f"{name}: {came}, expected {leaf.space.dtype} {list(leaf.space.shape)} as declared by the "
        f"space{where}",
    )


def _cast(
    array: np.ndarray, leaf: Leaf, slot: int | None, chosen: np.ndarray | None = None
) -> np.ndarray:
    """Casts as `values.cast`; `slot` is for errors, None: a batch.

    Raises:
      InvalidInputError: the dtype is an integer or bool, and cannot represent a number in `chosen`.
    """
    result, changed = cast(array, DTYPES[leaf.space.dtype], chosen)
    if changed is not None:
        if slot is None:  # a batch, or wrongly a single number
            slot = int(np.argwhere(np.atleast_1d(changed))[0][0])
        name = _name(leaf)
        raise InvalidInputError(
            f"{name}: {array[changed].flat[0]}, expected numbers that {leaf.space.dtype} can "
            f"represent, as declared by the space (slot {slot})"
        )
    return result


def _name(leaf: Leaf) -> str:
    return f"observation {leaf.name}" if leaf.path else "observation"


def _read_leaf(value: Any, leaf: Leaf, slot: int | None = None) -> np.ndarray:
    """Returns a leaf of a nested observation; `slot` is for errors, None: a batch."""
    try:
        found = _get(value, leaf.path)
    except (KeyError, IndexError, TypeError):
        raise _make_unusable(leaf, "missing", slot) from None
    array = make_array(found)
    if array is None:
        raise _make_unusable(leaf, "lists of different lengths", slot)
    return array


def _get(value: Any, path: LeafPath) -> Any:
    for key in path:
        value = value[key]
    return value


def _nest(space: gym.Space, flat: Iterator[np.ndarray]) -> Any:
    """Rebuilds the nesting, taking leaves in the order of `_flatten`."""
    if isinstance(space, gym.spaces.Dict):
        return {key: _nest(inner, flat) for key, inner in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_nest(inner, flat) for inner in space.spaces)
    return next(flat)


def _clip(leaf: Leaf, array: np.ndarray) -> np.ndarray:
    """Casts to Gymnasium's dtype and clips: samples of a Gaussian can lie outside the box."""
    space = leaf.gym_space
    # Cast first: a bound rounded to float32 can lie outside the float64 box.
    array = array.astype(space.dtype)
    if isinstance(space, gym.spaces.Box):
        array = np.clip(array, space.low, space.high)
    return array


def _flatten(space: gym.Space, where: str) -> list[Leaf]:
    leaves = []
    for name, (path, inner) in name_leaves(_collect(space, ()), where).items():
        wire = _leaf_to_wire(inner, f"{where}[{name}]" if path else where)
        if name.startswith(MASK):
            wire = MultiBinary(shape=wire.shape, dtype="bool")
        leaves.append(Leaf(name=name, path=path, space=wire, gym_space=inner))
    return leaves


def _collect(space: gym.Space, path: LeafPath) -> Iterator[tuple[LeafPath, gym.Space]]:
    if isinstance(space, gym.spaces.Dict):
        members: Iterable[tuple[Hashable, gym.Space]] = space.spaces.items()
    elif isinstance(space, gym.spaces.Tuple):
        members = enumerate(space.spaces)
    else:
        yield path, space
        return
    for key, inner in members:
        yield from _collect(inner, (*path, key))


def _leaf_to_wire(space: gym.Space, where: str) -> Space:
    try:
        return _convert_leaf(space, where)
    except InvalidInputError as error:
        text = str(error).removeprefix("space: ")
        raise InvalidInputError(f"{where}: {text}", error.field) from None


def _convert_leaf(space: gym.Space, where: str) -> Space:
    if isinstance(space, gym.spaces.Box):
        return _box_to_wire(space)
    if isinstance(space, gym.spaces.Discrete):
        return Discrete(n=int(space.n), start=int(space.start))
    if isinstance(space, gym.spaces.MultiDiscrete):
        counts = tuple(int(n) for n in space.nvec.ravel())
        start = getattr(space, "start", np.zeros(1))  # Gymnasium 0.29 has none
        starts = tuple(int(first) for first in start.ravel()) if np.any(start) else ()
        return MultiDiscrete(n=counts, shape=space.nvec.shape, starts=starts)
    if isinstance(space, gym.spaces.MultiBinary):
        return MultiBinary(shape=space.shape)
    raise ConfigError(
        f"{where}: {type(space).__name__} is not supported; expected Box, Discrete, "
        "MultiDiscrete, MultiBinary, or Dict and Tuple of them; convert it with a wrapper"
    )


def _box_to_wire(space: gym.spaces.Box) -> Box:
    assert space.dtype is not None
    dtype = "float32" if space.dtype == np.float64 else space.dtype.name
    with np.errstate(over="ignore"):
        low, high = space.low.astype(dtype), space.high.astype(dtype)
    unbounded_low = low.dtype.kind == "f" and bool(np.isneginf(low).all())
    unbounded_high = high.dtype.kind == "f" and bool(np.isposinf(high).all())
    return Box(
        dtype=dtype,
        shape=space.shape,
        low=None if unbounded_low else low,
        high=None if unbounded_high else high,
    )
