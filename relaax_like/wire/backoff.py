"""How long to wait before one more attempt."""

import random


def draw_pause_sec(attempt: int, first_sec: float, longest_sec: float) -> float:
    """Returns a pause that doubles with each attempt, half of it drawn at random.

    Those who failed together do not retry together.

    Args:
      attempt: 0 before the first repetition.
      first_sec: the longest pause then.
      longest_sec: of any attempt.
    """
    doublings = min(attempt, 60)  # no float overflows
    return min(first_sec * 2.0**doublings, longest_sec) * random.uniform(0.5, 1.0)
