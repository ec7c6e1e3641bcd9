"""ReturnSupport: projection and means by hand; costs and report: tests/algorithms/test_dqn.py."""

import numpy as np
import pytest
import tensorflow as tf

from relaax_like.algorithm import ReturnSupport


def test_mass_is_shared_between_neighbours_and_clipped_at_the_ends():
    support = ReturnSupport(0.0, 2.0, 3)
    probabilities = tf.constant([[0.5, 0.25, 0.25]])
    # 0.75 and beyond 2: 0.25 and 0.75 of the first, all of the others at the end.
    got = support.project(probabilities, tf.constant([[0.75, 2.5, 9.0]]))
    np.testing.assert_allclose(got, [[0.125, 0.375, 0.5]], rtol=1e-6)


def test_means_are_the_same_in_numpy_and_of_probabilities_that_shares_give():
    support = ReturnSupport(-1.0, 3.0, 5)
    logits = np.log(np.array([[0.1, 0.2, 0.3, 0.4, 1e-9], [1, 1, 1, 1, 1]], np.float32))
    np.testing.assert_allclose(support.compute_means(logits), [1.0, 1.0], rtol=1e-5)
    np.testing.assert_allclose(support.compute_means(tf.constant(logits)), [1.0, 1.0], rtol=1e-5)


@pytest.mark.parametrize(("v_max", "number"), [(5.0, 101), (10.0, 51), (4.0, 11)])
def test_no_probability_is_negative_where_all_of_them_are_clipped(v_max, number):
    """In single precision, the atoms' distance differs from the one of which they are multiples."""
    support = ReturnSupport(-v_max, v_max, number)
    logits, returns = tf.zeros([2, number]), tf.constant([1.2 * v_max, -1.2 * v_max])
    ends = support.project(tf.nn.softmax(logits), tf.repeat(returns[:, None], number, 1)).numpy()
    np.testing.assert_allclose(ends, np.eye(number)[[-1, 0]], rtol=1e-5)
    costs, errors = support.compute_costs(logits, logits, returns, tf.zeros(2))
    np.testing.assert_allclose(costs, [np.log(number)] * 2, rtol=1e-5)
    np.testing.assert_allclose(errors, costs, rtol=1e-5)
