"""Differences as text."""

import numpy as np
import pytest

from support.compare import compare

NAN = np.float32("nan")
SAME = [
    {"a": np.arange(3), "b": [1, "x", None]},
    np.array([NAN, -0.0], np.float32),
    np.zeros((2, 0)),
    np.array(["a", "b"]),
]


@pytest.mark.parametrize("state", SAME)
def test_what_is_the_same_has_no_differences(state):
    assert compare(state, state) == ""


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, "state/b: only in the second"),
        ({"a": 1}, {}, "state/a: only in the first"),
        ([1, 2], [1, 3], "state/1: 2 and 3"),
        ([1], [1, 2], "state: 1 and 2 items"),
        (1, 1.0, "state: 1 and 1.0"),
        (np.zeros(2), np.zeros(3), "state: float64 [2] and float64 [3]"),
        (np.zeros(1), np.zeros(1, np.float32), "state: float64 [1] and float32 [1]"),
        (np.float32([0.0]), np.float32([-0.0]), "1 of 1 differ, by at most 0, at [0]"),
        (np.array([[1, 2], [3, 4]]), np.array([[1, 2], [5, 6]]), "2 of 4 differ, first at [1, 0]"),
        (np.array([1.0, NAN]), np.array([1.0, 2.0]), "1 of 2 differ, first at [1]"),
    ],
)
def test_a_difference_is_named(a, b, want):
    assert want in compare(a, b)


def test_many_differences_are_counted():
    lines = compare({i: i for i in range(100)}, dict.fromkeys(range(100), -1)).splitlines()
    assert len(lines) == 41
    assert lines[-1] == "and 60 more"
