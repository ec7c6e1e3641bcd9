"""Selectors against slow references, and frequencies of what they draw.

covers F19 (uniform or prioritised), F28, F29 (balanced), J13
"""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relaax_like.experience.replay.sum_tree import SumTree
from relaax_like.replay import Balanced, Prioritized, Uniform
from relaax_like.wire.errors import InvalidInputError

# The 1 - 1e-4 quantile of chi-square with 63 degrees of freedom, by Wilson and Hilferty.
CHI_SQUARE = 63 * (1 - 2 / (9 * 63) + 3.719 * (2 / (9 * 63)) ** 0.5) ** 3


def start(selector, capacity, ids):
    selector.start(capacity)
    selector.insert(np.array(ids, np.int64))
    return selector


def compute_chi_square(counts, probabilities):
    expected = counts.sum() * probabilities
    return ((counts - expected) ** 2 / expected).sum()


# Prioritized.


def draw_slowly(priorities, ids, size, random, alpha, beta):
    """One minibatch, written from Schaul et al. 2016: sections 3.3, 3.4 and B.2.1."""
    powers = [p**alpha for p in priorities]
    total = sum(powers)
    drawn, weights = [], []
    for k, uniform in enumerate(random.random(size)):
        mass = (k + uniform) * total / size
        running = 0.0
        place, power = -1, 0.0
        while mass >= running:
            place += 1
            power = powers[place]
            running += power
        drawn.append(ids[place])
        weights.append((len(ids) * power / total) ** -beta)
    return drawn, [w / max(weights) for w in weights]


@pytest.mark.parametrize(("size", "count"), [(1, 1), (8, 5), (32, 200), (64, 1000)])
def test_a_minibatch_equals_a_slow_reference(size, count):
    random = np.random.default_rng(count)
    errors = random.standard_normal(count) * 10
    selector = start(Prioritized(alpha=0.7, beta=0.5), 1024, range(count))
    assert selector.update(np.arange(count), errors) == 0
    drawn, weights = selector.draw(1, size, np.random.Generator(np.random.PCG64(7)), 0)
    want, want_weights = draw_slowly(
        (abs(errors) + 0.01).tolist(),
        range(count),
        size,
        np.random.Generator(np.random.PCG64(7)),
        0.7,
        0.5,
    )
    assert drawn[0].tolist() == want
    np.testing.assert_allclose(weights[0], want_weights, rtol=1e-6)
    assert weights.max() == 1.0


def test_the_defaults_are_those_of_the_row():
    selector = start(Prioritized(), 8, [0, 1])
    random = np.random.default_rng(0)
    selector.update(np.array([0, 1]), np.array([-0.99, 3.99]))  # epsilon 0.01
    probabilities = np.array([1.0, 4.0**0.6]) / (1.0 + 4.0**0.6)
    ids, weights = selector.draw(601, 64, random, 0)
    betas = np.minimum(1.0, 0.4 + 0.001 * np.arange(601))
    rare = (probabilities[1] / probabilities[0]) ** -betas
    np.testing.assert_allclose(weights.min(1), rare, rtol=1e-6)
    assert abs((ids == 1).mean() - probabilities[1]) < 0.01
    _, weights = selector.draw(1, 64, random, 601)
    np.testing.assert_allclose(weights.min(), rare[-1], rtol=1e-6)


@pytest.mark.parametrize("size", [1, 16])
def test_frequencies_of_priorities_pass_a_chi_square_test(size):
    random = np.random.default_rng(5)
    errors = random.random(64) * 5
    selector = start(Prioritized(alpha=0.6), 100, range(64))
    selector.update(np.arange(64), errors)
    drawn, _ = selector.draw(64_000 // size, size, random, 0)
    powers = (errors + 0.01) ** 0.6
    chi_square = compute_chi_square(
        np.bincount(drawn.reshape(-1), minlength=64), powers / powers.sum()
    )
    assert chi_square < CHI_SQUARE
    # And would not if priorities were ignored.
    assert (
        compute_chi_square(np.bincount(drawn.reshape(-1), minlength=64), np.full(64, 1 / 64)) > 1e3
    )


def test_each_equal_segment_of_a_minibatch_is_drawn_from_once():
    selector = start(Prioritized(), 64, range(64))  # all alike
    drawn, _ = selector.draw(50, 64, np.random.default_rng(0), 0)
    assert (np.sort(drawn, 1) == np.arange(64)).all()


def test_new_items_get_the_largest_priority_in_the_table():
    selector = start(Prioritized(alpha=0.5), 8, [0, 1])
    assert selector.get_state()["leaves"][:3].tolist() == [1.0, 1.0, 0.0]
    selector.update(np.array([0, 1]), np.array([8.99, 3.99]))
    selector.insert(np.array([2]))
    assert selector.get_state()["leaves"][:4].tolist() == [3.0, 2.0, 3.0, 0.0]
    selector.remove(np.array([0, 2]))
    selector.insert(np.array([3]))  # the largest that is there, not the largest ever
    assert selector.get_state()["leaves"][:5].tolist() == [0.0, 2.0, 0.0, 2.0, 0.0]


def test_errors_of_items_that_are_gone_are_dropped_and_counted():
    selector = start(Prioritized(alpha=1.0), 4, [4, 5, 6])
    selector.remove(np.array([4]))
    selector.insert(np.array([8]))  # at the same position as 4
    before = selector.get_state()["leaves"].copy()
    assert selector.update(np.array([4, 7, 0]), np.array([5.0, 5.0, 5.0])) == 3
    np.testing.assert_array_equal(selector.get_state()["leaves"], before)
    assert selector.update(np.array([4, 8]), np.array([5.0, 1.99])) == 1
    assert selector.get_state()["leaves"].tolist() == [2.0, 1.0, 1.0, 0.0]


def test_an_error_that_is_not_finite_is_refused_by_number():
    selector = start(Prioritized(), 4, [0, 1])
    before = selector.get_state()["leaves"].copy()
    with pytest.raises(InvalidInputError, match=r"errors\[1\] of item 1 is nan"):
        selector.update(np.array([0, 1]), np.array([1.0, np.nan]))
    np.testing.assert_array_equal(selector.get_state()["leaves"], before)


# The tree.


def test_the_sum_tree_does_not_drift():
    random = np.random.default_rng(0)
    tree = SumTree(1000)
    numbers = np.zeros(1000)
    for _ in range(1_000):  # 1e5 updates, of numbers of very different sizes
        positions = random.integers(0, 1000, 100)
        changed = 10.0 ** random.uniform(-12, 12, 100) * (random.random(100) < 0.9)
        tree.set(positions, changed)
        for position, number in zip(positions.tolist(), changed.tolist(), strict=True):
            numbers[position] = number
    fresh = SumTree(1000)
    fresh.set_leaves(numbers)
    np.testing.assert_array_equal(tree.nodes, fresh.nodes)
    assert tree.largest == numbers.max()
    tree.set(np.arange(1000), np.zeros(1000))
    assert tree.total == 0.0
    tree.set(np.array([17]), np.array([1e-12]))
    assert tree.total == 1e-12


@given(
    st.lists(st.one_of(st.just(0.0), st.floats(1e-300, 1e300)), min_size=1, max_size=40),
    st.lists(st.floats(0, 1), min_size=1, max_size=20),
)
@example([1.0, 0.0, 2.0, 0.0, 0.0], [1.0])  # rounding can reach the end of the sum
def test_the_sum_tree_never_finds_a_zero(numbers, shares):
    tree = SumTree(len(numbers))
    tree.set(np.arange(len(numbers)), np.array(numbers))
    found = tree.find(np.array(shares) * tree.total)
    assert (found < len(numbers)).all() or not any(numbers)
    if any(numbers):
        assert all(numbers[position] > 0 for position in found)


# Uniform.


def test_uniform_frequencies_pass_a_chi_square_test_after_evictions():
    selector = start(Uniform(), 128, range(100))
    selector.remove(np.arange(0, 72, 2))
    for place in (np.arange(128, 164), np.arange(100, 128)):
        selector.insert(place)
    selector.remove(np.arange(100, 164))
    drawn, weights = selector.draw(100, 640, np.random.default_rng(2), 0)
    counts = np.bincount(drawn.reshape(-1), minlength=164)
    there = [i for i in range(100) if i % 2 or i >= 72]
    assert sorted(np.flatnonzero(counts).tolist()) == there
    assert len(there) == 64
    assert compute_chi_square(counts[there], np.full(64, 1 / 64)) < CHI_SQUARE
    assert (weights == 1.0).all()


# Balanced.


def start_balanced(rewarded, others, capacity=64):
    selector = Balanced()
    selector.start(capacity)
    ids = np.array([*rewarded, *others], np.int64)
    selector.insert(ids, np.arange(len(ids)) < len(rewarded))
    return selector


def test_half_of_a_minibatch_has_a_reward_and_is_drawn_without_replacement():
    selector = start_balanced(range(5), range(5, 12))
    random = np.random.default_rng(0)
    counts = np.zeros(12)
    for _ in range(50):
        ids, weights = selector.draw(20, 8, random, 0)
        assert (weights == 1).all()
        assert (ids[:, :4] < 5).all()
        assert (ids[:, 4:] >= 5).all()
        assert all(len(set(row)) == 8 for row in ids.tolist())
        np.add.at(counts, ids, 1)
    # Each of 1000 minibatches has 4 of 5 items with a reward, and 4 of 7 others.
    np.testing.assert_allclose(counts[:5] / 1000, 4 / 5, atol=0.06)
    np.testing.assert_allclose(counts[5:] / 1000, 4 / 7, atol=0.08)


def test_a_half_with_fewer_items_than_it_needs_is_drawn_with_replacement():
    selector = start_balanced([9], range(3))
    ids, _ = selector.draw(3, 8, np.random.default_rng(1), 0)
    assert (ids[:, :4] == 9).all()
    assert set(ids[:, 4:].reshape(-1).tolist()) == {0, 1, 2}


def test_nothing_can_be_drawn_while_one_of_the_halves_is_empty():
    assert not start_balanced([], range(3)).can_draw
    assert not start_balanced(range(3), []).can_draw
    selector = start_balanced([1], [2])
    assert selector.can_draw
    selector.remove(np.array([1]))
    assert not selector.can_draw
    selector.insert(np.array([65]), np.array([True]))  # where the first one was
    assert selector.can_draw


def test_a_restored_balanced_selector_draws_and_removes_the_same():
    selector = start_balanced(range(5), range(5, 12))
    selector.remove(np.array([0, 7]))
    restored = start_balanced([], [])
    restored.set_state(selector.get_state())
    for one in (selector, restored):
        one.remove(np.array([3, 8]))
        one.insert(np.array([64, 65]), np.array([False, True]))
    drawn = [one.draw(4, 6, np.random.default_rng(3), 0)[0] for one in (selector, restored)]
    np.testing.assert_array_equal(*drawn)
