"""Checks that numbers are small enough to learn from."""

import numpy as np

from relaax_like.experience.rollout import Rollout
from relaax_like.wire.errors import InvalidInputError

# Costs are squares of returns, gradients of relu layers products of observations, and norms of
# gradients sums of squares of those; float32 holds 3.4e38. Two relu layers of 64 make the gradients
# of a2c and ppo infinite from 1e10 on, at their initial weights, and leave them finite at 1e9.
MAX_MAGNITUDE = 1e8
# Of an episode's return, which nobody squares.
MAX_RETURN = 1e12
EXPECTED = f"expected finite numbers of at most {MAX_MAGNITUDE:g} in magnitude"


def find_too_large(array: np.ndarray) -> tuple[int, ...] | None:
    """Returns the index of the first number that nothing can be learned from; None: there is none.

    That is NaN, infinity, and all beyond `MAX_MAGNITUDE`. Integers of 8 and 16 bits have none.
    """
    if array.dtype.kind in "iu" and array.dtype.itemsize >= 4:
        array = array.astype(np.float64)
    elif array.dtype.kind not in "fV":
        return None
    if array.dtype.itemsize < 4:  # float16 and bfloat16, which cannot be compared with the limit
        array = array.astype(np.float32)
    # The sum of squares is quick and spoiled by each of them. BLAS raises no warning.
    if np.vdot(array, array) <= MAX_MAGNITUDE**2:
        return None
    bad = np.argwhere(~(np.abs(array) <= MAX_MAGNITUDE))
    return tuple(map(int, bad[0])) if len(bad) else None


def validate_rollout(rollout: Rollout) -> None:
    """Checks all observations and rewards of a rollout.

    Raises:
      InvalidInputError: names the array, the step and the slot of the first number that nothing
        can be learned from.
    """
    arrays = {"rewards": rollout.rewards}
    for field in ("history", "inputs", "next_inputs"):
        named = getattr(rollout, field)
        arrays |= {f"{field}[{name}]": array for name, array in named.items()}
    for field, array in arrays.items():
        index = find_too_large(array)
        if index is not None:
            where = f"{float(array[index]):g} at step {index[0]} of slot {index[1]}"
            raise InvalidInputError(f"{field}: {where}; {EXPECTED}", field)
