"""Compiles loops over arrays with numba, and keeps them in its cache."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)


class LoopType(NamedTuple):
    """Type of an argument: NumPy dtype, number of axes, whether the array must be writable."""

    dtype: str
    ndim: int = 0
    writable: bool = False


def compile_loop(
    loop: Callable[..., Any], arguments: Sequence[LoopType], returns: int = 0
) -> Callable[..., Any]:
    """Compiles a loop, or loads it from numba's cache. Imports numba (0.2 s or more).

    Args:
      loop: the Python form.
      arguments: types of its arguments. Explicit, because read-only and writable arguments would
        otherwise be compiled separately.
      returns: number of int64 that it returns.

    Raises:
      ImportError: numba is not installed, is broken, or is too old for this NumPy.
    """
    import numba

    def make_type(one: LoopType) -> Any:
        scalar = getattr(numba.types, one.dtype)
        if not one.ndim:
            return scalar
        return numba.types.Array(scalar, one.ndim, "C", readonly=not one.writable)

    result = {0: numba.void, 1: numba.int64}.get(
        returns, numba.types.UniTuple(numba.int64, returns)
    )
    signature = result(*map(make_type, arguments))
    # error_model: with Python's, the test for a zero divisor prevents vectorisation of the loop.
    # nogil: other threads continue during a long loop.
    options: dict[str, Any] = {"error_model": "numpy", "fastmath": False, "nogil": True}
    try:
        return numba.njit(signature, cache=True, **options)(loop)
    except Exception as error:  # whatever a read-only, full or damaged cache raises
        logger.info(
            "%s is compiled again at each start, because it cannot be cached: %s",
            loop.__name__.removeprefix("_"),
            error,
        )
    return numba.njit(signature, cache=False, **options)(loop)
