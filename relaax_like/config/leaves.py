"""Settings of the leaves of a space: one entry for each leaf of an observation, or of an action.

    observations:
      camera: {image: [84, 84, 3], layers: [nature]}
      joints: {size: 12, layers: [64]}
      goal: {size: 3}
      inventory: {num: [10, 4]}
    network: {layers: [256, {lstm: 128}]}
    actions:
      move: {num: 4}
      arm/aim: {size: 2, bounded: true, low: -1, high: 1}
      arm/grip: {binary: 3}

Leaves are named by their path in a Dict or Tuple space; the only leaf of another space is
`observation` or `action`.

Each leaf of an observation goes through its branch: its own layers, with the network's activation.
The outputs of the branches are joined in the order of the leaves' names, whatever their order in
the file, and go through the layers of `network`. The integers of a Discrete or MultiDiscrete leaf
(`num`) first become one-hot vectors.

Each leaf of an action has its own distribution. Given the observation, they are independent of each
other: the probability of all actions together is the product of their probabilities.
"""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from relaax_like.config.base import Settings
from relaax_like.config.network import Layers, begins_with_convolution, is_recurrent
from relaax_like.config.problems import count, describe_list, describe_names, describe_wrong
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.spaces import (
    MAX_DISCRETE,
    Box,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
)

MAX_VALUES = 4096
"""Maximum number of values of an observed integer: each is a component of a one-hot vector."""
LEARNED: Final = "learned"


def _is_integer(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _parse_values(value: Any) -> Any:
    return _parse_one_or_several(
        value,
        lambda size: _is_integer(size, 1, MAX_VALUES),
        f"an integer of 1 to {MAX_VALUES}, or a list of such integers (the number of values of "
        "each)",
    )


def _parse_choices(value: Any) -> Any:
    least = 1 if isinstance(value, list | tuple) else 2
    return _parse_one_or_several(
        value,
        lambda size: _is_integer(size, least, MAX_DISCRETE),
        f"an integer of 2 to {MAX_DISCRETE}, or a list of integers of 1 to {MAX_DISCRETE} (one per "
        "choice)",
    )


def _parse_std(value: Any) -> Any:
    def is_positive(number: Any) -> bool:
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        return is_number and number > 0

    expected = "learned, a number above 0, or a list of such numbers (one per component)"
    return value if value == LEARNED else _parse_one_or_several(value, is_positive, expected)


def _parse_one_or_several(value: Any, fits: Callable[[Any], bool], expected: str) -> Any:
    """Returns a value that fits, or None; a list of such values as a tuple."""
    several = isinstance(value, list | tuple)
    if value is None or (value and all(map(fits, value)) if several else fits(value)):
        return tuple(value) if several else value
    raise ValueError(f"expected {expected}, got {describe_wrong(value, fits)}")


Bound = float | tuple[float, ...]
NumValues = Annotated[int | tuple[int, ...] | None, BeforeValidator(_parse_values)]
Choices = Annotated[int | tuple[int, ...] | None, BeforeValidator(_parse_choices)]
Std = Annotated[Literal["learned"] | float | tuple[float, ...], BeforeValidator(_parse_std)]


class LeafConfig(Settings):
    """One entry of the section `observations` or `actions`; its key is the leaf's name.

    Attributes:
      role: what the leaf is a part of: "observation" or "action".
      parts: what a leaf consists of, for errors.
      kinds: the keys for the kind of space, of which exactly one is set -> what each is for.
      vectors: the spaces that `size` can describe.
    """

    role: ClassVar[str] = ""
    parts: ClassVar[str] = ""
    kinds: ClassVar[Mapping[str, str]] = {}
    vectors: ClassVar[str] = "Box"

    @model_validator(mode="after")
    def _validate_kind(self) -> Self:
        given = [key for key in self.kinds if getattr(self, key) is not None]
        if len(given) != 1:
            *others, last = (f"{key} ({what})" for key, what in self.kinds.items())
            raise ValueError(
                f"expected exactly one of {', '.join(others)} and {last}, but "
                f"{describe_names(given)}"
            )
        return self

    @classmethod
    def measure(cls, space: Space) -> dict[str, Any]:
        """Returns the keys that can describe a space, with their values; the best one first."""
        if isinstance(space, Discrete):
            return {"num": space.n}
        if isinstance(space, MultiDiscrete):
            return {"num": list(space.n)}
        size = math.prod(space.shape)
        if isinstance(space, MultiBinary) and "binary" in cls.kinds:
            return {"binary": size}
        is_image = isinstance(space, Box) and space.dtype == "uint8" and len(space.shape) == 3
        best = {"image": list(space.shape)} if is_image and size and "image" in cls.kinds else {}
        return {**best, "size": size}

    @classmethod
    def describe(cls, leaf: str, space: Space) -> tuple[str, Any]:
        """Returns the key that describes a space of the environment, with its value.

        Raises:
          InvalidInputError: no key can describe it; the error names the leaf.
        """
        key, value = next(iter(cls.measure(space).items()))
        if not value:
            raise InvalidInputError(
                f"{cls.role}_spaces: leaf {leaf!r} has shape {list(space.shape)}, so it has no "
                f"{cls.parts}; wrap the environment to remove the leaf, or to add {cls.parts}"
            )
        return key, value

    @property
    def kind(self) -> str:
        """The key that is set."""
        return next(key for key in self.kinds if getattr(self, key) is not None)

    @property
    def value(self) -> Any:
        """Its value, as in the file."""
        value = getattr(self, self.kind)
        return list(value) if isinstance(value, tuple) else value

    @property
    def needs(self) -> str:
        """The spaces that the leaf can be, for errors."""
        known = {"size": self.vectors, "image": "uint8 Box"}
        return known.get(self.kind, type(self.space).__name__)

    @property
    def space(self) -> Space:
        """The space of the model: flat, or an image; integers are counted from 0."""
        value = getattr(self, self.kind)
        match self.kind:
            case "num" if isinstance(value, int):
                return Discrete(n=value)
            case "num":
                return MultiDiscrete(n=value, shape=(len(value),))
            case "binary":
                return MultiBinary(dtype="int64", shape=(value,))
            case "image":
                return Box(dtype="uint8", shape=value)
        return Box(dtype="float32", shape=(value,))


class ObservationConfig(LeafConfig):
    """One entry of the section `observations`; its key is the leaf's name."""

    role: ClassVar[str] = "observation"
    parts: ClassVar[str] = "values"
    kinds: ClassVar[Mapping[str, str]] = {
        "size": "for a vector",
        "image": "for an image",
        "num": "for integers",
    }
    vectors: ClassVar[str] = "Box or MultiBinary"

    size: int | None = Field(default=None, ge=1)
    """Number of values in the leaf, a Box or MultiBinary, flattened. Set exactly one of size, image
    and num."""
    image: tuple[int, int, int] | None = None
    """Shape [height, width, channels] of the leaf, a uint8 image."""
    num: NumValues = None
    """Number of values of the leaf, an integer (Discrete); a list for several integers, with the
    number of values of each (MultiDiscrete)."""
    layers: Layers = ()
    """Layers of the branch, as in `network`, none of them recurrent; without layers the leaf itself
    is joined."""

    @model_validator(mode="after")
    def _validate_branch(self) -> Self:
        validate_image_shape(self.image)
        convolution = begins_with_convolution(self.layers)
        if convolution and self.image is None:
            raise ValueError(
                "layers: the first layer is a convolution, but the leaf is not an image; set "
                "image: [height, width, channels] instead of size or num, or use dense layers"
            )
        if self.image is not None and not convolution:
            found = "the first layer of the branch is not a convolution"
            if not self.layers:
                found = "the branch has no layers, but an image needs a convolution first"
            raise ValueError(
                f"image: {found}; start its layers with nature, a3c, impala or {{conv: ...}}"
            )
        if is_recurrent(self.layers):
            raise ValueError(
                "layers: a branch cannot contain lstm or gru; put them into network.layers, "
                "which follow the branches"
            )
        return self

    @classmethod
    def describe(cls, leaf: str, space: Space) -> tuple[str, Any]:
        """See `LeafConfig`; an integer cannot have more than `MAX_VALUES` values."""
        key, value = super().describe(leaf, space)
        most = np.max(value) if key == "num" else 0
        if most > MAX_VALUES:
            raise InvalidInputError(
                f"observation_spaces: leaf {leaf!r}, a {type(space).__name__}, has an integer of "
                f"{most} values, but at most {MAX_VALUES} can become a one-hot vector; wrap the "
                "environment so that the leaf is a Box"
            )
        return key, value


def validate_image_shape(image: tuple[int, int, int] | None) -> None:
    """Raises ValueError if an image has no pixels."""
    if image is not None and min(image) < 1:
        raise ValueError(
            f"image: {list(image)}, expected [height, width, channels], each 1 or more"
        )


class ActionConfig(LeafConfig):
    """One entry of the section `actions`; its key is the leaf's name."""

    role: ClassVar[str] = "action"
    parts: ClassVar[str] = "components"
    kinds: ClassVar[Mapping[str, str]] = {
        "num": "discrete",
        "size": "continuous",
        "binary": "switches",
    }

    num: Choices = None
    """Number of discrete actions; a list for several choices at once, with the number of actions of
    each (MultiDiscrete). Set exactly one of num, size and binary."""
    size: int | None = Field(default=None, ge=1)
    """Number of components of a continuous action (a Box)."""
    binary: int | None = Field(default=None, ge=1)
    """Number of switches, each on or off (MultiBinary)."""
    std: Std = LEARNED
    """Continuous actions: standard deviation, learned, or fixed: a number, or one per component."""
    log_std_init: float = 0.0
    """Continuous actions: initial logarithm of a learned standard deviation."""
    bounded: bool = False
    """Continuous actions: squash them into low .. high with tanh."""
    low: Bound | None = None
    """With bounded: lowest action of the environment, as one number or one per component."""
    high: Bound | None = None
    """With bounded: highest action of the environment, as one number or one per component."""

    @model_validator(mode="after")
    def _validate_action(self) -> Self:
        self.validate_keys()
        return self

    @classmethod
    def describe(cls, leaf: str, space: Space) -> tuple[str, Any]:
        """See `LeafConfig`; there must be something to choose from."""
        key, value = super().describe(leaf, space)
        if value == 1 and key == "num":
            raise InvalidInputError(
                f"action_spaces: leaf {leaf!r} is a Discrete of 1 action, expected 2 or more to "
                "choose from; wrap the environment to remove the leaf, or to add actions"
            )
        return key, value

    def validate_keys(self, prefix: str = "", *, is_known: bool = True) -> None:
        """Checks the keys of continuous actions.

        Args:
          prefix: of the keys size, low and high in the file.
          is_known: whether the kind of the action is known; False: the environment's is used.

        Raises:
          ValueError: the keys contradict each other, or one that they need is missing.
        """
        self._validate_bounds(prefix, is_known)
        if is_known:
            self._validate_std(f"{prefix}size")

    @property
    def space(self) -> Space:
        """The space of the distribution's actions: flat; integers are counted from 0."""
        space = super().space
        if not (isinstance(space, Box) and self.bounded):
            return space
        low, high = self._spread(self.low, "low"), self._spread(self.high, "high")
        return Box(dtype="float32", shape=space.shape, low=low, high=high)

    @property
    def fixed_log_std(self) -> np.ndarray | None:
        """Logarithm of the standard deviation, `[size] float32`; None: it is learned."""
        if self.std == LEARNED:
            return None
        std = np.asarray(self.std, np.float64)
        return np.log(np.broadcast_to(std, (self.size or 0,))).astype(np.float32)

    def _validate_bounds(self, prefix: str, is_known: bool) -> None:
        low_key, high_key = f"{prefix}low", f"{prefix}high"
        bounds = {low_key: self.low, high_key: self.high}
        missing = " and ".join(key for key, bound in bounds.items() if bound is None)
        given = " and ".join(key for key, bound in bounds.items() if bound is not None)
        is_other = is_known and self.size is None
        if given and not self.bounded:
            on = " and ".join(["bounded: true", *filter(None, [missing])])
            raise ValueError(
                f"{given} {'has' if missing else 'have'} no effect without bounded: true, which is "
                f"only for continuous actions; {'' if is_other else f'set {on}, or '}remove {given}"
            )
        if not self.bounded:
            return
        off = "bounded: false" + (f" and remove {given}" if given else "")
        if is_other:
            raise ValueError(
                f"bounded: true is only for continuous actions; set {off}; or set {prefix}size, "
                f"{low_key} and {high_key} instead of the other kind of action"
            )
        if missing and (given or is_known):
            cure = f"set {off}" if is_known else f"remove {given} to use the environment's bounds"
            raise ValueError(
                f"a bounded action needs {low_key} and {high_key}; set {missing}, or {cure}"
            )
        if not is_known:
            return
        low = self._spread(self.low, low_key, f"{prefix}size")
        high = self._spread(self.high, high_key, f"{prefix}size")
        wrong = ~(low < high)
        if wrong.any():
            at = int(wrong.argmax())
            raise ValueError(
                f"{low_key}: {low[at]} in component {at}, expected less than {high_key} "
                f"({high[at]})"
            )

    def _validate_std(self, size_key: str) -> None:
        if self.std == LEARNED:
            return
        if self.size is None:
            raise ValueError(
                f"std: {describe_list(self.std)} also needs {size_key}; only continuous actions "
                f"have a standard deviation: remove std, or set {size_key} instead of the other "
                "kind of action"
            )
        if self.log_std_init:
            raise ValueError(
                f"log_std_init: {self.log_std_init:g} has no effect with std: "
                f"{describe_list(self.std)}, which is fixed; remove one of them"
            )
        if isinstance(self.std, tuple) and len(self.std) != self.size:
            raise ValueError(
                f"std: {count(len(self.std), 'number')}, expected one number, or {self.size} (one "
                f"per component, {size_key})"
            )

    def _spread(self, bound: Bound | None, key: str, size_key: str = "size") -> np.ndarray:
        """Returns one number per component, `[size] float32`.

        Raises:
          ValueError: the bound has neither one number nor `size` numbers, and the error names both
            keys; or a number is too large for float32.
        """
        assert self.size is not None
        with np.errstate(over="ignore"):
            array = np.asarray(bound, np.float32)
        if array.shape not in ((), (self.size,)):
            raise ValueError(
                f"{key}: {count(len(array), 'number')}, expected one number, or {self.size} "
                f"(one per component, {size_key})"
            )
        wrong = ~np.isfinite(array)
        if wrong.any():
            place = f" in component {wrong.argmax()}" if array.ndim else ""
            raise ValueError(
                f"{key}: {np.asarray(bound).reshape(-1)[wrong.argmax()]}{place}, expected a number "
                "that fits into float32, at most 3.4e38 in magnitude"
            )
        return np.broadcast_to(array, (self.size,)).copy()
