"""Settings that change with the environment steps of a run, and settings that can change live."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

_TOO_LARGE = 2**1023  # for a float; JSON can have larger integers


# Marks a field of a `Config` as `Tunable`.
TUNABLE: Final = "TUNABLE"
# A float that changes neither a shape nor a branch of the algorithm: compiled functions take it as
# an input, so a new value does not require a new function.
Tunable = Annotated[float, TUNABLE]


@dataclass(frozen=True)
class Schedule:
    """A number that depends on the environment steps of all clients of the run together.

        epsilon: Schedule = Linear(1.0, 0.05, steps=10_000)

    In YAML: a number, or `{kind: linear, start: 1.0, end: 0.05, steps: 10000}`; kind can be omitted
    if it is linear.

    Attributes:
      kind: "linear", or "exponential": start * (end / start) ** done, where done is the fraction of
        `steps` so far.
      start: value at step 0.
      end: value from step `steps` on.
      steps: environment steps from start to end.

    Raises:
      ValueError: an attribute is not valid, or an exponential schedule contains 0 or both signs.
    """

    kind: Literal["linear", "exponential"]
    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        if self.kind not in ("linear", "exponential"):
            raise ValueError(f"kind: {self.kind!r:.80}, expected linear or exponential")
        if not (math.isfinite(self.start) and math.isfinite(self.end)):
            raise ValueError(f"start {self.start}, end {self.end}: expected finite numbers")
        if self.steps < 1:
            raise ValueError(f"steps: {self.steps}, expected 1 or more")
        # Not by their product, which can be too small for a float.
        ends = (self.start, self.end)
        if self.kind == "exponential" and min(ends) <= 0 <= max(ends):
            raise ValueError(
                f"start {self.start}, end {self.end}: an exponential schedule needs two positive "
                "or two negative numbers; use kind: linear"
            )

    def compute(self, global_t: float) -> float:
        """Returns the value after `global_t` environment steps."""
        return self.interpolate(min(global_t / self.steps, 1.0))

    def interpolate(self, done: Any) -> Any:
        """Returns the value at a fraction `done` of the steps, 0 to 1: a number or a tensor."""
        if self.kind == "exponential":
            return self.start * (self.end / self.start) ** done
        return self.start + done * (self.end - self.start)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _parse, serialization=core_schema.plain_serializer_function_ser_schema(_dump)
        )


def Linear(start: float, end: float, *, steps: int) -> Schedule:
    """Returns a schedule that changes linearly from `start` to `end`, then stays at `end`.

    Args:
      start: value at the start.
      end: value after `steps`.
      steps: environment steps of the change.

    Raises:
      ValueError: `steps` is less than 1, or a value is not finite.
    """
    return Schedule("linear", start, end, steps)


def Exponential(start: float, end: float, *, steps: int) -> Schedule:
    """Returns a schedule that changes by the same factor in each step, then stays at `end`.

    Args:
      start: value at the start.
      end: value after `steps`; of the same sign as `start`.
      steps: environment steps of the change.

    Raises:
      ValueError: `steps` is less than 1, or a value is not finite, 0 or of the other sign.
    """
    return Schedule("exponential", start, end, steps)


def Constant(value: float) -> Schedule:
    """Returns a schedule whose value never changes.

    Raises:
      ValueError: the value is not finite.
    """
    return Schedule("linear", value, value, 1)


def _parse(value: Any) -> Schedule:
    if isinstance(value, Schedule):
        return value
    if _is_number(value):
        if not math.isfinite(value):
            raise ValueError(f"expected a finite number, got {value}")
        return Constant(float(value))
    keys = {"start", "end", "steps"}
    if isinstance(value, Mapping) and keys <= set(value) <= keys | {"kind"}:
        start, end, steps = value["start"], value["end"], value["steps"]
        are_numbers = all(map(_is_number, (start, end, steps)))
        if are_numbers and math.isfinite(steps) and steps == int(steps):
            return Schedule(value.get("kind", "linear"), float(start), float(end), int(steps))
    raise ValueError(
        "expected a number, or {kind: linear or exponential, start: NUMBER, end: NUMBER, steps: N},"
        f" got {value!r:.80}"
    )


def _is_number(value: Any) -> bool:
    """Returns whether a value is a number that fits into a float."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < _TOO_LARGE
    return isinstance(value, float)


def _dump(schedule: Schedule) -> Any:
    if schedule.start == schedule.end:
        return schedule.start
    return {
        "kind": schedule.kind,
        "start": schedule.start,
        "end": schedule.end,
        "steps": schedule.steps,
    }
