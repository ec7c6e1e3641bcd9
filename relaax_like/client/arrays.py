"""Converts what users pass to arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.ndarray import make_array


def validate_array(value: Any, field: str, shape: Sequence[int | str]) -> np.ndarray:
    """Returns a user's value as an array, of any shape and dtype.

    Args:
      value: an array, a number, or nested lists of numbers.
      field: name of the value, for the error.
      shape: expected shape, only for the error; its axes are lengths, letters or "...".

    Raises:
      InvalidInputError: lists of different lengths, which are not an array.
    """
    array = make_array(value)
    if array is None:
        expected = ", ".join(map(str, shape))
        raise InvalidInputError(
            f"{field}: lists of different lengths, {value!r:.80}; expected an array of shape "
            f"[{expected}]"
        )
    return array
