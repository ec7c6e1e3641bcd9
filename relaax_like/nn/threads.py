"""How many threads TensorFlow and NumPy can use for one call, in this process."""

import os

_count = 1
# If one of these is set, it takes precedence.
_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def set_threads(count: int) -> None:
    """Sets the number of threads of TensorFlow; without effect once TensorFlow has been loaded.

    Args:
      count: 1 or more.
    """
    global _count
    _count = count


def get_threads() -> int:
    """Returns the number of threads of TensorFlow; 1 if it was not set."""
    return _count


def limit_blas_threads() -> None:
    """Limits NumPy to one thread per matrix product, unless an environment variable sets a number.

    The variables are OPENBLAS_NUM_THREADS, MKL_NUM_THREADS and OMP_NUM_THREADS.
    By default NumPy uses one thread per core, and these wait busily for the next product. Products
    of small networks gain nothing by that, and environments on the same machine lose the cores.
    """
    if any(name in os.environ for name in _VARIABLES):
        return
    from threadpoolctl import threadpool_limits

    threadpool_limits(1, user_api="blas")
