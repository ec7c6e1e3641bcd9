"""Moments: measured, and merged in any order. covers P16"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaax_like.core import moments as moments_module
from relaax_like.core.moments import Moments


def assert_moments(got: Moments, count: float, mean: object, m2: object) -> None:
    assert got.count == count
    np.testing.assert_array_equal(got.mean, mean)
    np.testing.assert_array_equal(got.m2, m2)


def test_moments_of_rows_by_hand() -> None:
    # Columns: 1, 3 and 8 around 4 (9 + 1 + 16); 0, 0, 3 around 1 (1 + 1 + 4).
    assert_moments(Moments.of(np.array([[1, 0], [3, 0], [8, 3]])), 3, [4, 1], [26, 6])


def test_merge_by_hand() -> None:
    # 1, 3: mean 2, m2 2. 8 alone: m2 0. Together: mean 4, m2 = 2 + 0 + 6^2 * 2 * 1 / 3.
    one, other = Moments.of(np.array([1.0, 3.0])), Moments.of(np.array([8.0]))
    assert_moments(one, 2, 2, 2)
    assert_moments(one.merge(other), 3, 4, 26)
    assert_moments(other.merge(one), 3, 4, 26)
    assert_moments(one, 2, 2, 2)


def test_no_rows_change_nothing() -> None:
    none, some = Moments.of(np.zeros((0, 2))), Moments.of(np.array([[1.0, 2.0], [3.0, 2.0]]))
    assert_moments(none, 0, [0, 0], [0, 0])
    for merged in (none.merge(some), some.merge(none)):
        assert_moments(merged, 2, [2, 2], [2, 0])
    assert none.merge(none).count == 0


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32", "float64"])
def test_rows_of_any_dtype_become_float64(dtype: str) -> None:
    rows = np.array([[0], [1], [1], [0]]).astype(dtype)
    moments = Moments.of(rows)
    assert moments.mean.dtype == moments.m2.dtype == np.float64
    assert_moments(moments, 4, [0.5], [1])


def test_equal_rows_have_no_spread_at_all() -> None:
    # 0.1 is no binary fraction: naive sums of squares would come out negative or above 0.
    moments = Moments.of(np.full((1000, 3), 0.1))
    assert_moments(moments, 1000, 0.1, 0)


def test_rows_beyond_one_block_are_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).normal(5.0, 2.0, (1000, 3, 2)).astype(np.float32)
    monkeypatch.setattr(moments_module, "_BLOCK_ELEMENTS", 50)
    moments = Moments.of(rows)
    exact = rows.astype(np.float64)
    assert moments.count == 1000
    np.testing.assert_allclose(moments.mean, exact.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.m2, exact.var(axis=0) * 1000, rtol=1e-12)


@st.composite
def parts(draw: st.DrawFn) -> list[np.ndarray]:
    """Rows [n, 3] in one to ten parts, some empty; spread about 1, offsets up to 1e8."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    offset = draw(st.sampled_from([0.0, 1.0, -1e4, 1e8, -1e8]))
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=10))
    return [offset + random.uniform(-1, 1, (size, 3)) for size in sizes]


@settings(deadline=None)
@given(parts(), st.randoms(use_true_random=False))
def test_merging_in_any_order_and_grouping_gives_the_moments_of_all_rows(parts, random) -> None:  # type: ignore[no-untyped-def]
    pool = [Moments.of(part) for part in parts]
    while len(pool) > 1:  # any two at a time: every grouping can come
        random.shuffle(pool)
        pool.append(pool.pop().merge(pool.pop()))
    rows = np.concatenate(parts)
    (merged,) = pool
    assert merged.count == len(rows)
    if not len(rows):
        return
    # A float64 near 1e8 is rounded to 1.5e-8; sums of squares would be off by 1 per row there.
    np.testing.assert_allclose(merged.mean, rows.mean(axis=0), rtol=1e-15, atol=1e-7)
    np.testing.assert_allclose(merged.m2, rows.var(axis=0) * len(rows), rtol=1e-7, atol=1e-6)
    assert (merged.m2 >= 0).all()
