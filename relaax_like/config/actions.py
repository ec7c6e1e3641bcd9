"""Settings of continuous actions: their standard deviation."""

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator

from relaax_like.config.problems import describe_value

LEARNED: Final = "learned"


def _parse_std(value: Any) -> Any:
    several = isinstance(value, list | tuple)
    numbers = list(value) if several else [value]
    if value == LEARNED or (numbers and all(map(_is_positive, numbers))):
        return tuple(value) if several else value
    raise ValueError(
        "expected learned, a number above 0, or a list of such numbers (one per component), got "
        f"{value if several else describe_value(value)}"
    )


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


Std = Annotated[Literal["learned"] | float | tuple[float, ...], BeforeValidator(_parse_std)]
