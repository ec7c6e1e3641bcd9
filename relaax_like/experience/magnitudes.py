"""Checks that numbers are small enough to learn from."""

import numpy as np

from relaax_like.experience.rollout import Rollout
from relaax_like.wire.errors import InvalidInputError

# Costs are squares of returns, gradients of relu layers are products of observations, and norms of
# gradients are sums of their squares; the limit of float32 is 3.4e38. With two relu layers of 64
# and initial weights, the gradients of a2c and ppo are infinite from 1e10 on, but finite at 1e9.
MAX_MAGNITUDE = 1e8
# Limit of an episode's return, which is not squared.
MAX_RETURN = 1e12
EXPECTED = f"expected finite numbers of at most {MAX_MAGNITUDE:g} in magnitude"


def find_too_large(array: np.ndarray) -> tuple[int, ...] | None:
    """Returns the index of the first number that cannot be learned from; None: there is none.

    These are NaN, infinity, and numbers beyond `MAX_MAGNITUDE`, which 8- and 16-bit integers never
    are.
    """
    if array.dtype.kind in "iu" and array.dtype.itemsize >= 4:
        array = array.astype(np.float64)
    elif array.dtype.kind not in "fV":
        return None
    if array.dtype.itemsize < 4:  # float16 and bfloat16, which cannot be compared with the limit
        array = array.astype(np.float32)
    # The sum of squares is fast to compute and affected by all of these. BLAS does not warn.
    if np.vdot(array, array) <= MAX_MAGNITUDE**2:
        return None
    bad = np.argwhere(~(np.abs(array) <= MAX_MAGNITUDE))
    return tuple(map(int, bad[0])) if len(bad) else None


def validate_rollout(rollout: Rollout) -> None:
    """Checks all observations and rewards of a rollout.

    Raises:
      InvalidInputError: a number cannot be learned from; the error names array, step and slot of
        the first one; in `history`, the row instead of the step.
    """
    arrays = {"rewards": rollout.rewards}
    for field in ("history", "inputs", "next_inputs"):
        named = getattr(rollout, field)
        arrays |= {f"{field}[{name}]": array for name, array in named.items()}
    for field, array in arrays.items():
        index = find_too_large(array)
        if index is not None:
            axis = "row" if field.startswith("history") else "step"
            where = f"{float(array[index]):g} at {axis} {index[0]} of slot {index[1]}"
            raise InvalidInputError(f"{field}: {where}; {EXPECTED}")
