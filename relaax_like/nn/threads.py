"""How many threads TensorFlow can use for one call, in this process."""

_count = 1


def set_threads(count: int) -> None:
    """Sets the number; once TensorFlow has been loaded it stays as it is.

    Args:
      count: 1 or more.
    """
    global _count
    _count = count


def get_threads() -> int:
    """Returns the number; 1 where nobody has set it."""
    return _count
