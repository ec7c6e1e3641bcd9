"""Log variables: means, and those that are routed apart. covers D20"""

import math
import re
from typing import Any

import numpy as np
import pytest

from relaax_like.learn.monitor import Monitor
from relaax_like.wire.errors import InvalidInputError


def test_each_number_is_the_mean_of_the_iterations_that_had_it() -> None:
    monitor = Monitor()
    monitor.add({"loss": 1.0, "rare": np.float32(5)})
    monitor.add({"loss": np.array([2.0])})
    monitor.add({"loss": 6, "yes": True})
    assert monitor.take().means == {"loss": 3.0, "rare": 5.0, "yes": 1.0}
    monitor.add({"loss": 4.0})
    assert monitor.take().means == {"loss": 4.0}
    assert monitor.take().means == {}


def test_scalars_become_numbers_of_their_own_and_histograms_the_newest_values() -> None:
    monitor = Monitor()
    errors = np.array([[1, 2], [3, 4]], np.int32)
    monitor.add({"[scalars]q": {"a": 1.0, "b": 2.0}, "[histogram]errors": errors})
    monitor.add({"[scalars]q": {"a": 3.0}, "[scalars] p": {"c": 0}})
    errors[:] = 0  # the policy uses its array again
    shown = monitor.take()
    assert shown.means == {"q/a": 2.0, "q/b": 2.0, "p/c": 0.0}
    np.testing.assert_array_equal(shown.histograms["errors"], [1.0, 2.0, 3.0, 4.0], strict=True)
    assert monitor.take().histograms == {}


def test_a_number_that_is_not_finite_shows_in_its_mean() -> None:
    monitor = Monitor()
    monitor.add({"loss": 1.0})
    monitor.add({"loss": float("nan")})
    assert math.isnan(monitor.take().means["loss"])


@pytest.mark.parametrize(
    ("variables", "want"),
    [
        ({"a": np.zeros(3)}, "'a': expected a number, got shape [3]"),
        ({"a": "high"}, "'a': expected numbers, got 'high'"),
        ({"a": 1j}, "'a': expected numbers, got 1j"),
        ({"a": None}, "'a': expected numbers, got None"),
        ({"[scalars]a": 3.0}, "'[scalars]a': expected a dict of numbers, got float"),
        ({"[scalars]a": {"b": [1, 2]}}, "'[scalars]a/b': expected a number, got shape [2]"),
        ({"[histogram]a": ["x"]}, "'[histogram]a': expected numbers, got ['x']"),
        ({"[histogram]a": [[1.0], [1.0, 2.0]]}, "'[histogram]a': expected numbers, got [[1.0],"),
    ],
)
def test_what_is_no_number_is_refused_by_name_and_nothing_added(
    variables: dict[str, Any], want: str
) -> None:
    monitor = Monitor()
    with pytest.raises(InvalidInputError, match=re.escape(f"log variable {want}")):
        monitor.add({"loss": 1.0, **variables})
    assert monitor.take().means == {}
