"""Numbers that are too large to learn from are found, and the slot that they came from is named."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.rollouts import make_rollout

from relaax_like.experience.magnitudes import find_too_large, validate_rollout
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.ndarray import DTYPES


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_found_in_any_dtype(dtype: str, bad: float) -> None:
    array = np.ones((3, 2), DTYPES[dtype])
    assert find_too_large(array) is None
    array[1, 1] = bad
    assert find_too_large(array) == (1, 1)


@pytest.mark.parametrize("number", [3e38, -1e18, 1.1e8])
def test_a_large_number_is_found_though_its_square_overflows(number: float) -> None:
    array = np.zeros((3, 2), np.float32)
    array[2, 0] = number
    assert find_too_large(array) == (2, 0)


def test_many_allowed_numbers_are_allowed_whatever_their_sum() -> None:
    assert find_too_large(np.full((100, 100), 1e8, np.float32)) is None
    assert find_too_large(np.full(3, np.iinfo(np.int16).min, np.int16)) is None


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint64"])
def test_a_large_integer_is_found(dtype: str) -> None:
    array = np.full((2, 2), 10**8, dtype)
    assert find_too_large(array) is None
    array[1, 0] = np.iinfo(dtype).max
    assert find_too_large(array) == (1, 0)


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("rewards", "rewards"),
        ("inputs", "inputs[observation]"),
        ("next_inputs", "next_inputs[observation]"),
    ],
)
def test_a_rollout_is_refused_by_array_step_and_slot(field: str, name: str) -> None:
    rollout = make_rollout(slots=3, seed=1)
    validate_rollout(rollout)
    array = getattr(rollout, field)
    bad: Any = np.array(array if field == "rewards" else array["observation"])
    bad[4, 2, -1] = 3e38
    changed = {field: bad if field == "rewards" else {"observation": bad}}
    with pytest.raises(InvalidInputError) as caught:
        validate_rollout(replace(rollout, **changed))
    assert str(caught.value) == (
        f"{name}: 3e+38 at step 4 of slot 2; expected finite numbers of at most 1e+08 in magnitude"
    )
