"""The pause before one more attempt."""

import pytest

from relaax_like.wire.backoff import draw_pause_sec


@pytest.mark.parametrize(
    ("attempt", "longest"), [(0, 0.5), (1, 1.0), (2, 2.0), (3, 3.0), (10, 3.0), (10_000, 3.0)]
)
def test_pauses_double_up_to_the_longest_and_half_of_each_is_random(
    attempt: int, longest: float
) -> None:
    pauses = [draw_pause_sec(attempt, 0.5, 3.0) for _ in range(200)]
    assert longest / 2 <= min(pauses) < 0.6 * longest
    assert 0.9 * longest < max(pauses) <= longest
