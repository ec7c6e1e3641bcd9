"""Observation and action spaces on the wire: leaves with a name, without nesting.

A plain space has one leaf, named "observation" or "action". Dict and Tuple spaces are flattened by
the client into leaves whose names are the path to them ("camera", "arm/joints", "0").
"""

import heapq
import math
import numbers
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from relaax_like.v1 import ndarray_pb2, rlx_pb2, spaces_pb2
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.ndarray import (
    DTYPES,
    MAX_AXES,
    describe_not_finite,
    is_finite,
    message_to_ndarray,
    ndarray_to_message,
    write_ndarray,
)

OBSERVATION = "observation"
ACTION = "action"
# Beginning of the name under which a leaf's mask of legal choices stands among the observations,
# from the rlx server to the model: `mask:action`. No leaf of a client begins with it.
MASK = "mask:"
MAX_LEAVES = 1000
# Maximum size of the array of one leaf for all slots: no message is longer.
MAX_LEAF_BYTES = 64 << 20
_LEAF_NAME = re.compile(rf"(?:{MASK})?[A-Za-z0-9_\-./]{{1,200}}")
MAX_DISCRETE = 1 << 31  # values of one integer
# Maximum number of components of all MultiDiscrete leaves.
MAX_COMPONENTS = 1 << 16
_MAX_SHOWN = 16  # numbers of a list in an error
# Limits of the spaces of a run, which a client proposes.
_MAX_RUN_LEAVES = 256
_MAX_RUN_ELEMENTS = 1 << 24


@dataclass(frozen=True, kw_only=True)
class Space:
    """One leaf of a space: the type, shape and range of one array per slot.

    Attributes:
      dtype: name of the element type.
      shape: shape of one element, without the slot axis.
      mirror: the mirror image of a value, for `relaax_like.config.mirror.parse_mirror`: one number
        for each component, or for each choice of discrete actions; None: not known. Two spaces that
        only differ in this are equal.

    Raises:
      InvalidInputError: an unknown dtype, a shape that does not consist of integers or has too many
        or negative axes, or a mirror that does not consist of numbers or is too long. Subclasses
        raise it for their own attributes, too.
    """

    dtype: str
    shape: tuple[int, ...]
    mirror: tuple[float, ...] | None = field(default=None, compare=False)
    kind: ClassVar[Any]
    """Of its message."""

    def __post_init__(self) -> None:
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:
            raise InvalidInputError(
                f"space: unknown dtype {self.dtype!r:.60}, expected one of {', '.join(DTYPES)}",
                "dtype",
            )
        object.__setattr__(self, "shape", _read_integers("shape", self.shape))
        if len(self.shape) > MAX_AXES:
            raise InvalidInputError(
                f"space: a shape of {len(self.shape)} axes, expected at most {MAX_AXES}", "shape"
            )
        if any(length < 0 for length in self.shape):
            raise InvalidInputError(
                f"space: shape {list(self.shape)} has a negative axis, expected 0 or more", "shape"
            )
        if self.mirror is None:
            return
        _validate_numbers("mirror", self.mirror)
        if len(self.mirror) > MAX_COMPONENTS:
            raise InvalidInputError(
                f"space: a mirror of {len(self.mirror)} numbers, expected at most {MAX_COMPONENTS}",
                "mirror",
            )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of values of each integer, in C order; () for other numbers."""
        return ()

    @classmethod
    def from_json(cls, value: Any, **more: Any) -> Self:
        """Makes a space from what stands in JSON under the name of its kind, and other attributes.

        Raises:
          InvalidInputError, TypeError, ValueError, OverflowError: an attribute is wrong.
        """
        return cls(shape=value, **more)

    def sample(self, slots: int, rng: np.random.Generator) -> np.ndarray:
        """Draws `[slots, *shape]`; see `client.values.SpaceValues.sample`."""
        raise NotImplementedError

    def write(self, message: rlx_pb2.Space) -> None:
        """Writes the attributes that only this kind of space has."""

    @classmethod
    def read(cls, message: rlx_pb2.Space) -> dict[str, Any]:
        """Reads the attributes that only this kind of space has.

        Raises:
          InvalidInputError: they are not valid.
        """
        return {}

    def count_bytes(self, slots: int) -> int | None:
        """Returns the size of the array of all slots; None above `MAX_LEAF_BYTES`.

        Args:
          slots: number of slots.
        """
        size = DTYPES[self.dtype].itemsize * slots * math.prod(self.shape)  # which cannot overflow
        return size if size <= MAX_LEAF_BYTES else None

    def validate(
        self, array: np.ndarray, slots: int, field: str, chosen: np.ndarray | None = None
    ) -> np.ndarray:
        """Checks received `[slots, *shape]` values, and returns them.

        Args:
          array: as received.
          slots: expected number of slots.
          field: name of the array, for errors.
          chosen: `[slots]` bool, the slots whose values matter; None: all.

        Raises:
          InvalidInputError: wrong shape or dtype, NaN or infinity, or an integer out of range.
        """
        want = (slots, *self.shape)
        if array.shape != want:
            raise InvalidInputError(
                f"{field}: shape {list(array.shape)}, expected {list(want)} "
                f"({slots} slot{'s' * (slots > 1)} of shape {list(self.shape)})",
            )
        if array.dtype != DTYPES[self.dtype]:
            raise InvalidInputError(
                f"{field}: dtype {array.dtype}, expected {self.dtype} as declared by the space"
            )
        if chosen is None or chosen.all():
            self.validate_range(array, field)
        elif chosen.any():
            try:
                self.validate_range(array[chosen], field)
            except InvalidInputError:
                # Among allowed values, so that the error names the slots as the peer counts them.
                checked = array.copy()
                checked[~chosen] = 0 if array.dtype.kind in "fV" else array[chosen.argmax()]
                self.validate_range(checked, field)
                raise
        return array

    def describe(self) -> str:
        """Returns kind, dtype and shape, or the numbers of values, for errors."""
        numbers = math.prod(self.shape)
        return (
            f"{type(self).__name__} of {self.dtype}, shape {list(self.shape)} ({numbers} "
            f"number{'s' * (numbers != 1)})"
        )

    def validate_range(self, array: np.ndarray, field: str) -> None:
        """Checks the values of an array whose shape and dtype are correct.

        Raises:
          InvalidInputError: NaN or infinity, or an integer out of range.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Box(Space):
    """Numbers. `low` and `high` are arrays of the space's shape, or None if unbounded.

    A single number is the bound of all components, and is converted to such an array. Bounds
    describe the environment; observations outside of them are accepted, because simulators often
    exceed them by a rounding error. NaN and infinity are not accepted in observations.

    Attributes:
      low: smallest value of each component; None: unbounded.
      high: largest value of each component; None: unbounded.
    """

    low: Any = None
    high: Any = None
    kind = rlx_pb2.BOX

    @classmethod
    def from_json(cls, value: Any, **more: Any) -> Self:
        """See `Space`; null stands for no bound of a component."""
        open_ended = {"low": -math.inf, "high": math.inf}
        bounds = {
            name: _read_bound(more.get(name), unbounded) for name, unbounded in open_ended.items()
        }
        return cls(**{"shape": value, "dtype": "float32", **more, **bounds})

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("low", "high"):
            bound = getattr(self, name)
            if bound is not None and not _is_numeric(bound):
                bound = self._spread(name, bound)
                object.__setattr__(self, name, bound)
            if bound is not None and bound.shape != self.shape:
                raise InvalidInputError(
                    f"space: {name} has shape {list(bound.shape)}, expected {list(self.shape)}, "
                    "the shape of the space",
                    name,
                )
            if bound is not None and np.isnan(bound).any():
                first = np.argwhere(np.isnan(bound))[0].tolist()
                raise InvalidInputError(
                    f"space: {name} contains NaN, first at {first}, expected numbers or infinity",
                    name,
                )
        if self.low is not None and self.high is not None and (self.low > self.high).any():
            above = self.low > self.high
            raise InvalidInputError(
                f"space: low is above high, {self.low[above][0]} > {self.high[above][0]}; expected "
                "low <= high in every component",
                "low",
            )

    def _spread(self, name: str, bound: Any) -> np.ndarray:
        """Makes an array of the space's shape from one number, or from nested lists of them."""
        try:
            return np.broadcast_to(np.asarray(bound, DTYPES[self.dtype]), self.shape).copy()
        except (TypeError, ValueError, OverflowError):
            raise InvalidInputError(
                f"space: {name} is {bound!r:.80}, expected a number of {self.dtype}, or an array "
                f"of shape {list(self.shape)}",
                name,
            ) from None

    def sample(self, slots: int, rng: np.random.Generator) -> np.ndarray:
        """See `Space`."""
        shape, dtype = (slots, *self.shape), DTYPES[self.dtype]
        if dtype.kind == "b":
            return rng.integers(2, size=shape).astype(dtype)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            low = limits.min if self.low is None else self.low
            high = limits.max if self.high is None else self.high
            return rng.integers(low, high, size=shape, dtype=dtype.type, endpoint=True)
        low_f = -np.inf if self.low is None else self.low.astype(np.float64)
        high_f = np.inf if self.high is None else self.high.astype(np.float64)
        noise = rng.standard_normal(shape)
        # With one bound: normal, folded to its side. With two: uniform between them.
        below = np.where(np.isfinite(high_f), high_f - np.abs(noise), noise)
        open_ended = np.where(np.isfinite(low_f), low_f + np.abs(noise), below)
        both = np.isfinite(low_f) & np.isfinite(high_f)
        start, stop = np.where(both, low_f, 0.0), np.where(both, high_f, 0.0)
        drawn = rng.random(shape)
        with np.errstate(over="ignore", invalid="ignore"):
            width = stop - start
            between = start + drawn * width
        if np.isinf(width).any():  # bounds of about 1.8e308
            between = np.where(np.isinf(width), start * (1 - drawn) + stop * drawn, between)
        return np.where(both, between, open_ended).astype(dtype)

    def write(self, message: rlx_pb2.Space) -> None:
        """See `Space`."""
        for name, bound in (("low", self.low), ("high", self.high)):
            if bound is not None:
                getattr(message, name).CopyFrom(ndarray_to_message(bound, ndarray_pb2.NdArray))

    @classmethod
    def read(cls, message: rlx_pb2.Space) -> dict[str, Any]:
        """See `Space`."""
        return {
            name: message_to_ndarray(getattr(message, name), name)
            for name in ("low", "high")
            if message.HasField(name)
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Box):
            return NotImplemented
        return _describe(self) == _describe(other)

    def __hash__(self) -> int:
        return hash((self.dtype, self.shape))

    def validate_range(self, array: np.ndarray, field: str) -> None:
        """See `Space`."""
        if array.dtype.kind in "fV" and not is_finite(array):
            raise InvalidInputError(
                f"{field}: {describe_not_finite(array)}, expected finite numbers"
            )


@dataclass(frozen=True, kw_only=True)
class Discrete(Space):
    """One integer in start .. start + n - 1.

    Attributes:
      n: number of values.
      start: smallest value.
    """

    n: int
    start: int = 0
    dtype: str = "int64"
    shape: tuple[int, ...] = ()
    kind = rlx_pb2.DISCRETE

    @property
    def sizes(self) -> tuple[int, ...]:
        """See `Space`."""
        return (self.n,)

    @classmethod
    def from_json(cls, value: Any, **more: Any) -> Self:
        """See `Space`."""
        return cls(n=value, **more)

    def sample(self, slots: int, rng: np.random.Generator) -> np.ndarray:
        """See `Space`."""
        drawn = rng.integers(self.start, self.start + self.n, size=slots)
        return drawn.astype(DTYPES[self.dtype])

    def write(self, message: rlx_pb2.Space) -> None:
        """See `Space`."""
        message.n.append(self.n)
        message.start = self.start

    @classmethod
    def read(cls, message: rlx_pb2.Space) -> dict[str, Any]:
        """See `Space`."""
        if len(message.n) != 1:
            raise InvalidInputError(f"DISCRETE needs exactly one n, got {len(message.n)}", "n")
        return {"n": message.n[0], "start": message.start}

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("n", "start"):
            object.__setattr__(self, name, _read_integer(name, getattr(self, name)))
        if not 1 <= self.n <= MAX_DISCRETE or self.shape != ():
            raise InvalidInputError(
                f"space: Discrete with n={self.n}, shape {list(self.shape)}; expected n from 1 to "
                f"{MAX_DISCRETE} and shape []",
                "n",
            )
        _validate_integers(self.dtype, "Discrete", self.start, self.start + self.n - 1)

    def describe(self) -> str:
        """See `Space`."""
        return f"Discrete of {self.n} value{'s' * (self.n != 1)}"

    def validate_range(self, array: np.ndarray, field: str) -> None:
        """See `Space`."""
        wrong = (array < self.start) | (array >= self.start + self.n)
        if wrong.any():
            raise InvalidInputError(
                f"{field}: {array[wrong][0]} is outside {self.start}..{self.start + self.n - 1}"
            )


@dataclass(frozen=True, kw_only=True)
class MultiDiscrete(Space):
    """Several integers; component i (C order) is in 0 .. n[i] - 1 on the wire.

    Attributes:
      n: number of values of each component.
      starts: smallest value of each component as users hold it; (): 0. Clients subtract it.
    """

    n: tuple[int, ...]
    dtype: str = "int64"
    starts: tuple[int, ...] = ()
    kind = rlx_pb2.MULTI_DISCRETE

    @property
    def sizes(self) -> tuple[int, ...]:
        """See `Space`."""
        return self.n

    @classmethod
    def from_json(cls, value: Any, **more: Any) -> Self:
        """See `Space`; without a shape there is one axis."""
        shape = more.pop("shape", None)
        return cls(n=value, shape=(len(value),) if shape is None else shape, **more)

    def sample(self, slots: int, rng: np.random.Generator) -> np.ndarray:
        """See `Space`."""
        limits = np.asarray(self.n, np.int64).reshape(self.shape)
        return rng.integers(limits, size=(slots, *self.shape)).astype(DTYPES[self.dtype])

    def write(self, message: rlx_pb2.Space) -> None:
        """See `Space`."""
        message.n.extend(self.n)
        message.starts.extend(self.starts)

    @classmethod
    def read(cls, message: rlx_pb2.Space) -> dict[str, Any]:
        """See `Space`."""
        shape = tuple(message.shape[: MAX_AXES + 1])
        if math.prod(shape) != len(message.n):
            raise InvalidInputError(f"MULTI_DISCRETE {_describe_count(message.n, shape)}", "n")
        # One more than there can be, for the error.
        return {"n": tuple(message.n), "starts": tuple(message.starts[: len(message.n) + 1])}

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("n", "starts"):
            object.__setattr__(self, name, _read_integers(name, getattr(self, name)))
        if math.prod(self.shape) != len(self.n):
            raise InvalidInputError(
                f"space: MultiDiscrete {_describe_count(self.n, self.shape)}", "n"
            )
        for index, n in enumerate(self.n):
            if not 1 <= n <= MAX_DISCRETE:
                raise InvalidInputError(
                    f"space: MultiDiscrete with n[{index}]={n}, expected 1 to {MAX_DISCRETE}", "n"
                )
        _validate_integers(self.dtype, "MultiDiscrete", 0, max(self.n, default=1) - 1)
        if len(self.starts) not in (0, len(self.n)):
            raise InvalidInputError(
                f"space: MultiDiscrete with {len(self.starts)} starts, expected none, or one for "
                f"each of {len(self.n)} components",
                "starts",
            )
        for first, n in zip(self.starts, self.n, strict=False):
            _validate_integers(self.dtype, "MultiDiscrete", first, first + n - 1)

    def describe(self) -> str:
        """See `Space`."""
        return f"MultiDiscrete of {show_number(self.n)} values"

    def validate_range(self, array: np.ndarray, field: str) -> None:
        """See `Space`."""
        limits = np.asarray(self.n, np.int64).reshape(self.shape)
        wrong = (array < 0) | (array >= limits)
        if wrong.any():
            last = np.broadcast_to(limits, array.shape)[wrong][0] - 1
            first = np.broadcast_to(self.get_start(), array.shape)[wrong][0]
            raise InvalidInputError(
                f"{field}: {array[wrong][0] + first} is outside {first}..{first + last}"
            )

    def get_start(self) -> np.ndarray:
        """Returns the smallest values, with the space's shape and dtype."""
        starts = np.asarray(self.starts or (0,) * len(self.n), DTYPES[self.dtype])
        return starts.reshape(self.shape)


@dataclass(frozen=True, kw_only=True)
class MultiBinary(Space):
    """Zeros and ones."""

    dtype: str = "int8"
    kind = rlx_pb2.MULTI_BINARY

    @property
    def sizes(self) -> tuple[int, ...]:
        """See `Space`."""
        return (2,) * math.prod(self.shape)

    def sample(self, slots: int, rng: np.random.Generator) -> np.ndarray:
        """See `Space`."""
        return rng.integers(2, size=(slots, *self.shape)).astype(DTYPES[self.dtype])

    def validate_range(self, array: np.ndarray, field: str) -> None:
        """See `Space`."""
        wrong = (array != 0) & (array != 1)
        if wrong.any():
            raise InvalidInputError(f"{field}: {array[wrong][0]}, expected 0 or 1")


@dataclass(frozen=True, kw_only=True)
class Mask(MultiBinary):
    """Which choices of a leaf of the action space are legal: bool, component after component.

    Attributes:
      choices: number of choices of each component.
    """

    choices: tuple[int, ...] = ()
    dtype: str = "bool"

    def validate_range(self, array: np.ndarray, field: str) -> None:
        """See `Space`; refuses a component without a legal choice."""
        starts = np.cumsum((0, *self.choices[:-1]))
        legal = np.logical_or.reduceat(array, starts, axis=1)
        if not legal.all():
            slot, component = np.argwhere(~legal)[0]
            raise InvalidInputError(
                f"{field}: no legal choice in slot {slot}, component {component}; mark at least "
                "one of them true"
            )


def show_number(n: int | Sequence[int]) -> str:
    """Returns a number, or the first few of several, for errors."""
    if isinstance(n, int):
        return str(n)
    shown = ", ".join(map(str, n[:_MAX_SHOWN]))
    return f"[{shown}]" if len(n) <= _MAX_SHOWN else f"[{shown}, ...] ({len(n)} numbers)"


def _read_bound(bound: Any, unbounded: float) -> Any:
    """Returns a bound in which null stands for none."""
    if isinstance(bound, list):
        return [unbounded if one is None else _read_bound(one, unbounded) for one in bound]
    return bound


def _read_integer(name: str, value: Any) -> int:
    """Returns an attribute, or one number of it, as Python's integer."""
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidInputError(
            f"space: {name} is {value!r:.80}, expected an integer", name
        ) from None


def _read_integers(name: str, values: Any) -> tuple[int, ...]:
    """Returns an attribute as a tuple of Python's integers."""
    try:
        return tuple(operator.index(value) for value in values)
    except TypeError:
        raise InvalidInputError(
            f"space: {name} is {values!r:.80}, expected a tuple of integers, such as (4,)", name
        ) from None


def _validate_numbers(name: str, values: Any) -> None:
    """Refuses an attribute that is not a sequence of numbers."""
    is_sequence = isinstance(values, Sequence) and not isinstance(values, str)
    if not is_sequence or not all(isinstance(value, numbers.Real) for value in values):
        raise InvalidInputError(
            f"space: {name} is {values!r:.80}, expected a tuple of numbers, such as (-1, 1)", name
        )


def _is_numeric(bound: Any) -> bool:
    """Returns whether a bound is an array of numbers."""
    return isinstance(bound, np.ndarray) and bound.dtype.kind in "biufV"


def _validate_integers(dtype: str, kind: str, first: int, last: int) -> None:
    """Refuses a dtype that cannot hold the values of a space of integers."""
    if DTYPES[dtype].kind not in "iu":
        raise InvalidInputError(
            f"space: {kind} of dtype {dtype}, expected an integer dtype, such as int64", "dtype"
        )
    limits = np.iinfo(dtype)
    if first < limits.min or last > limits.max:
        raise InvalidInputError(
            f"space: {kind} with values {first}..{last}, which do not fit into {dtype}; use a "
            "larger integer dtype, or smaller values",
            "dtype",
        )


def _describe_count(n: Sequence[int], shape: tuple[int, ...]) -> str:
    return (
        f"with n of length {len(n)}, expected one number from 1 to {MAX_DISCRETE} for each "
        f"component of shape {list(shape)}"
    )


Spaces = dict[str, Space]
# Name in JSON -> kind of space.
KINDS: dict[str, type[Space]] = {
    "box": Box,
    "discrete": Discrete,
    "multi_discrete": MultiDiscrete,
    "multi_binary": MultiBinary,
}


def make_masks(action_spaces: Spaces) -> Spaces:
    """Returns the mask of each leaf of discrete actions, by its name among the observations.

    Leaves of more than `MAX_COMPONENTS` choices have none.
    """
    return {
        MASK + leaf: Mask(shape=(sum(space.sizes),), choices=space.sizes)
        for leaf, space in action_spaces.items()
        if isinstance(space, Discrete | MultiDiscrete) and 0 < sum(space.sizes) <= MAX_COMPONENTS
    }


def split_masks(observations: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the observations of a mapping by leaf, and the masks in it."""
    masks = {name: value for name, value in observations.items() if name.startswith(MASK)}
    return {name: observations[name] for name in observations if name not in masks}, masks


def find_legal(mask: np.ndarray, actions: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Returns for actions `[B, ...]` whether each component is legal, `[B, m] bool`.

    Args:
      mask: `[B, n] bool`, component after component.
      actions: one integer for each component, counted from 0.
      sizes: number of choices of each of the m components.
    """
    first = np.cumsum((0, *sizes[:-1]))
    return np.take_along_axis(mask, actions.reshape(len(mask), len(sizes)) + first, -1)


def space_to_message(space: Space) -> rlx_pb2.Space:
    """Converts a leaf to its message."""
    message = _describe(space)
    message.mirror.extend(space.mirror or ())
    return message


def _describe(space: Space) -> rlx_pb2.Space:
    """Returns a leaf's message without its mirror."""
    message = rlx_pb2.Space(kind=space.kind, dtype=space.dtype, shape=space.shape)
    space.write(message)
    return message


def message_to_space(message: rlx_pb2.Space, field: str) -> Space:
    """Converts a received message to a leaf.

    Raises:
      InvalidInputError: it does not describe a space; the error names `field`.
    """
    # A message can have millions; one more than is allowed is kept, for the error.
    shape = tuple(message.shape[: MAX_AXES + 1])
    common: dict[str, Any] = {"dtype": message.dtype[:40], "shape": shape}
    if message.mirror:
        common["mirror"] = tuple(message.mirror[: MAX_COMPONENTS + 1])
    kind = next((kind for kind in KINDS.values() if kind.kind == message.kind), None)
    if kind is not None:
        try:
            return kind(**common, **kind.read(message))
        except InvalidInputError as error:
            raise InvalidInputError(f"{field}: {error}") from None
    raise InvalidInputError(
        f"{field}: unknown kind {message.kind}, expected one of {', '.join(KINDS).upper()}"
    )


def messages_to_spaces(messages: Mapping[str, rlx_pb2.Space], field: str, slots: int = 1) -> Spaces:
    """Converts a received map of leaves to spaces, in the order of their names.

    Args:
      messages: leaf -> message, as received.
      field: name of the map, for errors.
      slots: number of slots.

    Raises:
      InvalidInputError: no leaf, more than `MAX_LEAVES`, more than `MAX_COMPONENTS` numbers n, an
        invalid name, a leaf that is not a valid space, or a leaf whose array for all slots is
        longer than `MAX_LEAF_BYTES`.
    """
    if not 1 <= len(messages) <= MAX_LEAVES:
        raise InvalidInputError(f"{field}: {len(messages)} leaves, expected 1 to {MAX_LEAVES}")
    components = sum(len(message.n) for message in messages.values())
    if components > MAX_COMPONENTS:
        raise InvalidInputError(
            f"{field}: {components} numbers n in all leaves, expected at most {MAX_COMPONENTS}"
        )
    spaces = {}
    for name in sorted(messages):
        if not _LEAF_NAME.fullmatch(name):
            raise InvalidInputError(
                f"{field}: leaf name {name[:60]!r}, expected 1 to 200 characters of A-Z a-z 0-9 _ "
                "- . /"
            )
        space = message_to_space(messages[name], f"{field}[{name}]")
        if space.count_bytes(slots) is None:
            raise InvalidInputError(
                f"{field}[{name}]: {space.dtype} {list(space.shape)} needs more than "
                f"{MAX_LEAF_BYTES} bytes for {slots} slot{'s' * (slots > 1)}; use "
                f"{'fewer slots or ' * (slots > 1)}a smaller array",
                f"{field}[{name}]",
            )
        spaces[name] = space
    return spaces


class RunSpaces(NamedTuple):
    """The spaces of a run's observations and actions."""

    observations: Spaces
    actions: Spaces


def run_spaces_to_message(spaces: RunSpaces) -> spaces_pb2.Spaces:
    """Converts the spaces of a run to their message."""
    message = spaces_pb2.Spaces()
    for leaves, into in (
        (spaces.observations, message.observation_spaces),
        (spaces.actions, message.action_spaces),
    ):
        for leaf, space in leaves.items():
            into[leaf].CopyFrom(space_to_message(space))
    return message


def message_to_run_spaces(message: spaces_pb2.Spaces) -> RunSpaces:
    """Converts a received message to the spaces of a run.

    Raises:
      InvalidInputError: see `messages_to_spaces`; or more than 256 leaves or 2^24 elements in
        total.
    """
    spaces = RunSpaces(
        messages_to_spaces(message.observation_spaces, "observation_spaces"),
        messages_to_spaces(message.action_spaces, "action_spaces"),
    )
    leaves = [*spaces.observations.values(), *spaces.actions.values()]
    elements = sum(math.prod(leaf.shape) for leaf in leaves)
    if len(leaves) > _MAX_RUN_LEAVES or elements > _MAX_RUN_ELEMENTS:
        raise InvalidInputError(
            f"spaces: {len(leaves)} leaves with {elements} elements in total, expected at most "
            f"{_MAX_RUN_LEAVES} leaves and {_MAX_RUN_ELEMENTS} elements; define the spaces in the "
            "`algorithm` section of the YAML file instead",
            "observation_spaces",
        )
    return spaces


def pack_arrays(arrays: Mapping[str, np.ndarray], into: Any) -> None:
    """Writes named arrays into a protobuf map of `NdArray`.

    Raises:
      TypeError: the dtype of an array cannot be sent.
    """
    for name, array in arrays.items():
        message = into[name]
        message.Clear()
        write_ndarray(array, message)


def unpack_arrays(
    messages: Mapping[str, ndarray_pb2.NdArray], spaces: Spaces, slots: int, field: str
) -> dict[str, np.ndarray]:
    """Reads named arrays `[slots, ...]`, and checks them; see `check_arrays`."""
    return check_arrays(read_arrays(messages, field), spaces, slots, field)


def read_arrays(messages: Mapping[str, ndarray_pb2.NdArray], field: str) -> dict[str, np.ndarray]:
    """Reads named arrays, which are not checked against spaces yet.

    Raises:
      InvalidInputError: a message is not an array; the error names it with `field`.
    """
    return {
        name: message_to_ndarray(message, f"{field}[{name}]") for name, message in messages.items()
    }


def check_arrays(
    arrays: Mapping[str, np.ndarray],
    spaces: Spaces,
    slots: int,
    field: str,
    chosen: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Checks named arrays `[slots, ...]` against their spaces; returns them in the spaces' order.

    Args:
      arrays: leaf -> array.
      spaces: leaf -> its space.
      slots: k.
      field: name for errors.
      chosen: `[slots] bool`, the slots whose values matter; None: all.

    Raises:
      InvalidInputError: a missing or unknown leaf, or one that does not fit its space.
    """
    if len(arrays) != len(spaces) or arrays.keys() != spaces.keys():
        raise InvalidInputError(
            f"{field}: got leaves {[name[:60] for name in heapq.nsmallest(8, arrays)]}, "
            f"expected {sorted(spaces)[:8]} as in the hello (got {len(arrays)}, expected "
            f"{len(spaces)})",
        )
    return {
        name: space.validate(arrays[name], slots, f"{field}[{name}]", chosen)
        for name, space in spaces.items()
    }
