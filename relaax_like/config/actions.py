"""Settings of actions: one entry for each leaf of the environment's action space.

    actions:
      move: {num: 4}
      arm/aim: {size: 2, bounded: true, low: -1, high: 1}
      arm/grip: {binary: 3}

Leaves are named by their path in a Dict or Tuple space; the only leaf of another space is `action`.
Each has its own distribution. Given the observation, they are independent of each other: the
probability of all actions together is the product of their probabilities.
"""

from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from relaax_like.config.base import Settings
from relaax_like.config.problems import count, describe_list, describe_names, describe_wrong
from relaax_like.wire.spaces import (
    MAX_DISCRETE,
    Box,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
)

LEARNED: Final = "learned"


def _parse_choices(value: Any) -> Any:
    several = isinstance(value, list | tuple)
    sizes, least = (list(value), 1) if several else ([value], 2)

    def fits(size: Any) -> bool:
        is_integer = isinstance(size, int) and not isinstance(size, bool)
        return is_integer and least <= size <= MAX_DISCRETE

    if value is None or (sizes and all(map(fits, sizes))):
        return tuple(value) if several else value
    raise ValueError(
        f"expected an integer of 2 to {MAX_DISCRETE}, or a list of integers of 1 to "
        f"{MAX_DISCRETE} (one per choice), got {describe_wrong(value, fits)}"
    )


def _parse_std(value: Any) -> Any:
    several = isinstance(value, list | tuple)
    numbers = list(value) if several else [value]
    if value == LEARNED or (numbers and all(map(_is_positive, numbers))):
        return tuple(value) if several else value
    raise ValueError(
        "expected learned, a number above 0, or a list of such numbers (one per component), got "
        f"{describe_wrong(value, _is_positive)}"
    )


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


Bound = float | tuple[float, ...]
Choices = Annotated[int | tuple[int, ...] | None, BeforeValidator(_parse_choices)]
Std = Annotated[Literal["learned"] | float | tuple[float, ...], BeforeValidator(_parse_std)]


class ActionConfig(Settings):
    """One entry of the section `actions`; its key is the leaf's name."""

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
        given = [name for name in ("num", "size", "binary") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                "expected exactly one of num (discrete), size (continuous) and binary (switches), "
                f"but {describe_names(given)}"
            )
        self.validate_keys()
        return self

    def validate_keys(self, prefix: str = "") -> None:
        """Checks the keys of continuous actions.

        Args:
          prefix: of the keys size, low and high in the file.

        Raises:
          ValueError: the keys contradict each other, or one that they need is missing.
        """
        self._validate_bounds(prefix)
        self._validate_std(f"{prefix}size")

    @property
    def space(self) -> Space:
        """The space of the distribution's actions: flat; integers are counted from 0."""
        if isinstance(self.num, int):
            return Discrete(n=self.num)
        if self.num is not None:
            return MultiDiscrete(n=self.num, shape=(len(self.num),))
        if self.binary is not None:
            return MultiBinary(dtype="int64", shape=(self.binary,))
        assert self.size is not None
        shape = (self.size,)
        if not self.bounded:
            return Box(dtype="float32", shape=shape)
        low, high = self._spread(self.low, "low"), self._spread(self.high, "high")
        return Box(dtype="float32", shape=shape, low=low, high=high)

    @property
    def fixed_log_std(self) -> np.ndarray | None:
        """Logarithm of the standard deviation, `[size] float32`; None: it is learned."""
        if self.std == LEARNED:
            return None
        std = np.asarray(self.std, np.float64)
        return np.log(np.broadcast_to(std, (self.size or 0,))).astype(np.float32)

    def _validate_bounds(self, prefix: str) -> None:
        low_key, high_key = f"{prefix}low", f"{prefix}high"
        bounds = {low_key: self.low, high_key: self.high}
        missing = [key for key, bound in bounds.items() if bound is None]
        names = " and ".join(key for key in bounds if key not in missing)
        off = "bounded: false" + (f" and remove {names}" if names else "")
        if not self.bounded:
            if names:
                has = "has" if missing else "have"
                on = " and ".join(["bounded: true", *missing])
                cure = "" if self.size is None else f"set {on}, or "
                raise ValueError(
                    f"{names} {has} no effect without bounded: true, which is only for continuous "
                    f"actions; {cure}remove {names}"
                )
            return
        if self.size is None:
            raise ValueError(
                f"bounded: true is only for continuous actions; set {off}; or set {prefix}size, "
                f"{low_key} and {high_key} instead of the other kind of action"
            )
        if missing:
            raise ValueError(
                f"a bounded action needs {low_key} and {high_key}; set {' and '.join(missing)}, or "
                f"set {off}"
            )
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
