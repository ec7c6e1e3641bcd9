"""Values outside of their boxes: one line per leaf, and the share at the end."""

from typing import Any

import numpy as np
import pytest

from relaax_like.experience.ranges import Ranges, RangeWatch
from relaax_like.wire.spaces import Box, Discrete, Space

STEPS, SLOTS = 40, 2


def watch(space: Space, *arrays: Any, chosen: Any = None, leaf: str = "observation") -> None:
    """Adds each array of one slot, `[*shape]`, once, and ends."""
    run = RangeWatch()
    ranges = Ranges(run, {leaf: space}, {})
    for array in arrays:
        ranges.add("observation", {leaf: np.asarray(array, space.dtype)[None]}, chosen)
    ranges.close()
    run.close()


def box(low: Any, high: Any, shape: tuple[int, ...] = (), dtype: str = "float32") -> Box:
    return Box(dtype=dtype, shape=shape, low=low, high=high)


INF = np.inf


@pytest.mark.parametrize(
    ("space", "values", "line", "share"),
    [
        (
            box(-1, 1),
            [0.5, 2, 0, 0],
            "observation: 2 is outside of -1 to 1 (component 0)",
            "25 % of 4",
        ),
        (box(0, 10, dtype="int64"), [11, 3], "11 is outside of 0 to 10 (component 0)", "50 % of 2"),
        (box(0, 9, dtype="uint8"), [10, 3], "10 is outside of 0 to 9 (component 0)", "50 % of 2"),
        (
            box(np.array([[0, 0], [0, 0]]), np.array([[1, 1], [1, 1]]), (2, 2)),
            [[[0, 0], [0, 5]]],
            "5 is outside of 0 to 1 (component 3)",
            "100 % of 1",
        ),
        # One row of two bad components is one observation outside.
        (
            box(0, 1, (2,)),
            [[2, 2], [0, 0]],
            "2 is outside of 0 to 1 (component 0)",
            "50 % of 2",
        ),
    ],
)
def test_values_outside_are_one_line_and_a_share(caplog, space, values, line, share) -> None:
    watch(space, *values)
    first, last = caplog.messages
    assert line in first
    assert "nothing is clipped" in first
    assert share in last


@pytest.mark.parametrize(
    ("space", "values"),
    [
        (box(-1, 1), [1.000001, -1.000001, 1, -1]),  # rounding errors
        (box(0, 0), [3, -3]),  # width zero, such as Meta-World's hidden goal
        (box(-INF, INF), [1e30, -1e30]),
        (Box(dtype="float32", shape=()), [1e30]),
        (Box(dtype="float32", shape=(), high=1), [3]),
        (box(0, INF, (2,)), [[3, 1e30], [-3, 0]]),
        (box(0, 255, dtype="uint8"), [0, 255]),
        (box(-4.8, 4.8), [0] * STEPS),
        (Discrete(n=3), [2]),
        (box(0, 1, (0,)), [np.zeros(0)]),
    ],
)
def test_other_values_are_no_line(caplog, space, values) -> None:
    watch(space, *values)
    assert caplog.messages == []


def test_rows_that_do_not_count_are_not_looked_at(caplog) -> None:
    watch(box(0, 1), 5.0, chosen=np.array([False]))
    assert caplog.messages == []


def test_each_leaf_of_all_clients_is_one_line(caplog) -> None:
    run = RangeWatch()
    spaces = {"left": box(0, 1), "right": box(0, 1), "fine": box(0, 9)}
    clients = [Ranges(run, spaces, spaces) for _ in range(3)]
    for step in range(STEPS):
        for ranges in clients:
            arrays = {name: np.full(SLOTS, 2 if step % 4 else 0, np.float32) for name in spaces}
            ranges.add("observation", arrays)
            ranges.add("action", {"left": arrays["left"]})
            ranges.add("action", None)
    for ranges in clients:
        ranges.close()
    run.close()
    run.close()
    found = [message.split(":")[0] for message in caplog.messages]
    labels = ["executed action left", "observation left", "observation right"]
    assert sorted(found[:3]) == sorted(found[3:]) == labels
    assert all(f"75 % of {3 * STEPS * SLOTS} " in message for message in caplog.messages[3:])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_swapped_bytes_are_one_line(caplog, dtype) -> None:
    values = np.tile(np.array([1.0, 2.0, -0.5, 0.0], dtype), (STEPS, 1))
    space = Box(dtype=dtype, shape=(4,))
    watch(space, *values)
    assert caplog.messages == []
    watch(space, *values.byteswap())
    first, last = caplog.messages
    assert "nearly all are subnormal" in first
    assert "swapped bytes" in first
    assert "100 % of" in last


def test_small_numbers_that_stand_alone_are_not_swapped_bytes(caplog) -> None:
    watch(Box(dtype="float32", shape=(4,)), *np.full((STEPS, 4), [1e-40, 1.0, 0.0, 2.0]))
    assert caplog.messages == []


def test_a_quiet_watch_says_nothing(caplog) -> None:
    run = RangeWatch()
    run.is_quiet = True
    ranges = Ranges(run, {"observation": box(0, 1)}, {})
    ranges.add("observation", {"observation": np.full(SLOTS, 3, np.float32)})
    ranges.close()
    run.close()
    assert caplog.messages == []
