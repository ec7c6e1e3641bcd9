"""Holes: what is computed of rows with holes equals what is computed of them without."""

# covers F22, P5

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.returns import compute_gae, compute_lambda_returns, compute_vtrace

from relaax_like.experience.holes import cut_ends, find_order, make_dense, remove_holes
from relaax_like.experience.rollout import (
    ALIVE,
    TERMINATED,
    TRUNCATED,
    Rollout,
    concatenate,
    slice_slots,
)

# name: of arrays [T, k] -> results [T, k]
RECURSIONS = {
    "gae": lambda a: [
        compute_gae(a["rewards"], a["values"], a["next_values"], a["alive"], 0.9, 0.8)
    ],
    "lambda": lambda a: [
        compute_lambda_returns(a["rewards"], a["next_values"], a["alive"], 0.9, 0.8)
    ],
    "vtrace": lambda a: compute_vtrace(
        a["ratios"], a["rewards"], a["values"], a["next_values"], a["alive"], 0.9
    ),
}

masks = st.tuples(st.integers(1, 8), st.integers(1, 4), st.integers(0, 2**32 - 1))


def draw(shape, seed):
    """Returns arrays of a rollout, and which of its rows are valid."""
    random = np.random.default_rng(seed)
    names = ("rewards", "values", "next_values", "ratios")
    arrays = {name: random.standard_normal(shape) for name in names}
    arrays["alive"] = random.choice([ALIVE, ALIVE, TERMINATED, TRUNCATED], shape)
    return arrays, random.random(shape) < random.random()


def make_rollout(arrays, valid):
    shape = valid.shape
    others = {n: x for n, x in arrays.items() if n not in ("alive", "rewards")}
    numbers = np.arange(valid.size, dtype=np.float32).reshape(shape)
    return Rollout(
        inputs={"x": numbers[..., None]},
        next_inputs={"x": numbers[..., None] + 0.5},
        next_alive=arrays["alive"].astype(np.float32),
        rewards=arrays["rewards"][..., None],
        actions={"action": numbers.astype(np.int64)},
        log_prob=-numbers,
        states={"memory": numbers[0][:, None]},
        versions=np.arange(shape[0]),
        valid=valid,
        extras={"extra": 10 * numbers, **others},
    )


@pytest.mark.parametrize("name", RECURSIONS)
@given(masks)
def test_recursions_equal_to_the_bit_those_of_the_data_without_its_holes(name, mask):
    steps, slots, seed = mask
    arrays, valid = draw((steps, slots), seed)
    dense = make_dense(make_rollout(arrays, valid))
    moved = {n: x[..., 0] if n == "rewards" else x for n, x in list_arrays(dense.rollout).items()}
    results = [dense.restore(result) for result in RECURSIONS[name](moved)]
    for slot in range(slots):
        there = valid[:, slot]
        removed = {n: array[there, slot][:, None] for n, array in arrays.items()}
        wanted = RECURSIONS[name](removed) if there.any() else []
        for result, want in zip(results, wanted, strict=False):
            np.testing.assert_array_equal(result[there, slot], want[:, 0])
        for result in results:
            assert np.isnan(result[~there, slot]).all()


def list_arrays(rollout):
    alive = cut_ends(rollout).astype(np.float64)
    return {"alive": alive, "rewards": rollout.rewards, **rollout.extras}


@given(masks)
def test_valid_rows_move_together_and_results_come_back_to_their_places(mask):
    steps, slots, seed = mask
    arrays, valid = draw((steps, slots), seed)
    rollout = make_rollout(arrays, valid)
    dense = make_dense(rollout)
    if valid.all():
        assert dense.rollout.valid is None
        np.testing.assert_array_equal(dense.restore(rollout.log_prob), rollout.log_prob)
        return
    moved = dense.rollout
    counts = moved.valid.sum(0)
    np.testing.assert_array_equal(moved.valid, np.arange(steps)[:, None] < counts)
    assert (np.diff((counts == 0).astype(int)) >= 0).all()  # slots without rows come last
    assert moved.env_steps == rollout.env_steps == valid.sum()
    for column, slot in enumerate(dense.columns):
        there, count = valid[:, slot], counts[column]
        np.testing.assert_array_equal(
            moved.states["memory"][column], rollout.states["memory"][slot]
        )
        for field in ("inputs", "next_inputs", "actions", "extras"):
            for name, array in getattr(moved, field).items():
                want = getattr(rollout, field)[name][there, slot]
                np.testing.assert_array_equal(array[:count, column], want)
        for field in ("next_alive", "rewards", "log_prob"):
            want = getattr(rollout, field)[there, slot]
            np.testing.assert_array_equal(getattr(moved, field)[:count, column], want)
    restored = dense.restore(moved.log_prob)
    np.testing.assert_array_equal(restored[valid], rollout.log_prob[valid])
    assert np.isnan(restored[~valid]).all()


def test_a_row_before_a_hole_bootstraps_like_the_last_row_of_a_rollout():
    valid = np.array([[1, 1, 0], [1, 1, 0], [0, 1, 0]], np.bool_)
    alive = np.array([[ALIVE, ALIVE, ALIVE], [ALIVE, TERMINATED, ALIVE], [ALIVE, ALIVE, ALIVE]])
    rollout = make_rollout({"alive": alive, "rewards": np.zeros((3, 3))}, valid)
    ends = cut_ends(make_dense(rollout).rollout)
    np.testing.assert_array_equal(ends[:2, 0], [ALIVE, TRUNCATED])
    np.testing.assert_array_equal(ends[:, 1], [ALIVE, TERMINATED, ALIVE])


def test_padding_repeats_the_last_row_that_is_there():
    valid = np.array([[0, 0], [1, 0], [0, 0], [1, 0]], np.bool_)
    numbers = np.arange(8).reshape(4, 2)
    np.testing.assert_array_equal(remove_holes(numbers, find_order(valid))[:, 0], [2, 6, 6, 6])


def test_holes_go_with_their_slots():
    arrays, valid = draw((3, 2), seed=1)
    valid[:] = [[1, 0], [0, 1], [1, 1]]
    holes = make_rollout(arrays, valid)
    whole = make_rollout(arrays, np.ones_like(valid))
    whole = slice_slots(whole, 0, 1)
    joined = concatenate([whole, holes])
    np.testing.assert_array_equal(joined.valid, np.column_stack([[1, 1, 1], valid]))
    np.testing.assert_array_equal(joined.extras["extra"][:, 1:], holes.extras["extra"])
    assert joined.env_steps == 3 + 4
    np.testing.assert_array_equal(slice_slots(joined, 2, 3).valid[:, 0], valid[:, 1])
