"""The codec of arrays: microseconds per array, both ways."""

import functools
import time
from collections.abc import Callable

import numpy as np

from benchmarks.report import report
from relaax_like.v1 import ndarray_pb2
from relaax_like.wire.ndarray import message_to_ndarray, ndarray_to_message

SHAPES = ((1, 4), (64, 4), (64, 84, 84, 4))


def time_call(function: Callable[[], object], seconds: float = 0.5) -> float:
    """Returns the microseconds of one call, the best of five rounds."""
    start = time.perf_counter()
    function()
    calls = max(1, int(seconds / 5 / max(time.perf_counter() - start, 1e-6)))
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        best = min(best, (time.perf_counter() - start) / calls)
    return 1e6 * best


def main() -> None:
    """Measures small and large arrays."""
    rows = []
    for shape in SHAPES:
        array = np.zeros(shape, np.float32)
        message = ndarray_to_message(array, ndarray_pb2.NdArray)
        rows.append(
            {
                "array": f"float32 {list(shape)}",
                "to message us": time_call(
                    functools.partial(ndarray_to_message, array, ndarray_pb2.NdArray)
                ),
                "to array us": time_call(functools.partial(message_to_ndarray, message)),
            }
        )
    report("codec", rows)


if __name__ == "__main__":
    main()
