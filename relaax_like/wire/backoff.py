"""How long to wait before one more attempt."""

import random


def draw_pause_sec(attempt: int, first_sec: float, longest_sec: float) -> float:
    """Returns a pause in seconds, doubled with each attempt, bounded, times 0.5 to 1 at random.

    So processes that failed at the same time do not retry at the same time.

    Args:
      attempt: number of repetitions so far; 0 before the first one.
      first_sec: longest pause before the first repetition.
      longest_sec: longest pause before any repetition.
    """
    doublings = min(attempt, 60)  # no float overflows
    return min(first_sec * 2.0**doublings, longest_sec) * random.uniform(0.5, 1.0)
