"""The bandit of `relaax check-algorithm` shows its contexts within each space."""

import numpy as np
import pytest

from relaax_like.launch.bandit import BanditSlots
from relaax_like.wire.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space


@pytest.mark.parametrize(
    ("space", "low", "high"),
    [
        (Discrete(n=5), 0, 4),
        (Discrete(n=5, start=2), 2, 6),
        (MultiDiscrete(n=(3, 7), shape=(2,)), [0, 0], [2, 6]),
        (Box(dtype="float32", shape=(2,)), [-1, -1], [1, 1]),
        (Box(dtype="uint8", shape=(2,)), [0, 0], [255, 255]),
        (Box(dtype="int8", shape=(2,)), [0, 0], [127, 127]),
        (Box(dtype="int32", shape=(2,)), [0, 0], [255, 255]),
        (MultiBinary(shape=(2,)), [0, 0], [1, 1]),
    ],
)
def test_contexts_are_the_smallest_and_the_largest_observation(space: Space, low, high) -> None:
    observations = BanditSlots(space, Discrete(n=2), 20, 0).reset()
    assert observations.dtype == space.dtype
    shown = {str(row.tolist()) for row in observations}
    assert shown == {str(np.array(row, space.dtype).tolist()) for row in (low, high)}
    for row in observations:
        space.validate_range(row, "observation")
