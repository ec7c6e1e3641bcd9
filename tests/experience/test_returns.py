"""Returns against hand-worked numbers and a slow reference."""

# covers R7, R29

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaax_like.experience.returns import compute_discounted_returns, normalize


def test_discounted_returns_of_three_steps_worked_out_by_hand():
    # R2 = 4; R1 = 2 + 0.5 * 4 = 4; R0 = 1 + 0.5 * 4 = 3
    returns = compute_discounted_returns(np.array([1.0, 2.0, 4.0]), 0.5)
    np.testing.assert_allclose(returns, [3, 4, 4])


def test_integer_rewards_are_not_truncated():
    returns = compute_discounted_returns(np.array([1, 1, 1]), 0.5)
    np.testing.assert_allclose(returns, [1.75, 1.5, 1.0])
    assert returns.dtype == np.float64


def test_the_rewards_are_left_as_they_were():
    rewards = np.ones(3)
    compute_discounted_returns(rewards, 0.9)
    np.testing.assert_array_equal(rewards, np.ones(3))


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30),
    st.floats(0, 1),
)
def test_returns_equal_the_definitions_sum(rewards, gamma):
    want = [
        sum(gamma ** (j - t) * rewards[j] for j in range(t, len(rewards)))
        for t in range(len(rewards))
    ]
    np.testing.assert_allclose(compute_discounted_returns(rewards, gamma), want, atol=1e-8)


def test_several_slots_are_several_episodes():
    rewards = np.random.default_rng(0).standard_normal((7, 3))
    both = compute_discounted_returns(rewards, 0.9)
    for slot in range(3):
        np.testing.assert_allclose(both[:, slot], compute_discounted_returns(rewards[:, slot], 0.9))


def test_normalised_values_have_mean_zero_and_deviation_one():
    # mean 2, deviation sqrt(2/3)
    np.testing.assert_allclose(normalize(np.array([1, 2, 3])), np.array([-1, 0, 1]) * np.sqrt(1.5))


@pytest.mark.parametrize("values", [[5.0], [0.1, 0.1, 0.1], [0.0, 0.0], [-1e300] * 3], ids=repr)
def test_values_that_do_not_differ_become_zero_and_not_nan(values):
    np.testing.assert_array_equal(normalize(np.array(values)), np.zeros(len(values)))
