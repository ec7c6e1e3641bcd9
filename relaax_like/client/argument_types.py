"""Types of the arguments that users pass, checked where their ranges are."""

import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from relaax_like.wire.errors import ConfigError

# NumPy's numbers count as numbers; True and False do not.
INTEGER, NUMBER = "an integer", "a number"
TEXT, FLAG, FUNCTION = "a text", "True or False", "a function"
_TYPES: dict[str, Any] = {
    INTEGER: numbers.Integral,
    NUMBER: numbers.Real,
    TEXT: str,
    FLAG: bool | np.bool_,
    FUNCTION: Callable,
}


def validate_type(name: str, value: Any, expected: str | type, *, is_secret: bool = False) -> None:
    """Checks the type of an argument.

    Args:
      name: of the argument, for the error.
      value: of the argument.
      expected: one of this module's constants, or a class.
      is_secret: the error must not show the value.

    Raises:
      ConfigError: the value has another type.
    """
    kind = _TYPES[expected] if isinstance(expected, str) else expected
    if isinstance(value, kind) and (expected == FLAG or not isinstance(value, bool)):
        return
    what = expected if isinstance(expected, str) else f"an instance of {expected.__name__}"
    shown = "" if is_secret else f"{value!r:.80}, "
    raise ConfigError(f"{name}: {shown}a value of type {type(value).__name__}, expected {what}")
