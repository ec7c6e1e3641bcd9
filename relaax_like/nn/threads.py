"""The number of threads that TensorFlow can use for one call in this process."""

_count = 1


def set_threads(count: int) -> None:
    """Sets the number; it has no effect once TensorFlow has been loaded.

    Args:
      count: 1 or more.
    """
    global _count
    _count = count


def get_threads() -> int:
    """Returns the number; 1 by default."""
    return _count
