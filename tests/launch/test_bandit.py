"""The bandit of `relaax check-algorithm`: contexts within each space, rewards of actions."""

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


@pytest.mark.parametrize(
    ("low", "high", "actions"),
    [
        (None, None, [-0.5, 0.5]),
        (0, 8, [2, 6]),
        (0, None, [0.5, 1.5]),
        (None, 4, [2.5, 3.5]),
        (-np.inf, np.inf, [-0.5, 0.5]),
    ],
)
def test_a_quarter_and_three_quarters_of_a_range_are_the_best_actions(
    low: float | None, high: float | None, actions: list[float]
) -> None:
    box = Box(dtype="float32", shape=(2,), low=low, high=high)
    slots = BanditSlots(Discrete(n=2), box, 20, 0)
    best = np.array(actions, np.float32)[slots.reset()]
    rewards = slots.step(np.stack([best, best], 1)).rewards
    assert rewards.tolist() == pytest.approx([1.0] * 20)


def test_a_range_of_one_number_is_always_met() -> None:
    """Its rewards are finite, and those of the other components count."""
    box = Box(dtype="float32", shape=(2,), low=np.array([1, 0]), high=np.array([1, 8]))
    slots = BanditSlots(Discrete(n=2), box, 20, 0)
    best = np.array([2.0, 6.0], np.float32)[slots.reset()]
    fixed = np.full(20, 5.0, np.float32)
    assert slots.step(np.stack([fixed, best], 1)).rewards.tolist() == pytest.approx([1.0] * 20)
