"""ReturnSupport: projection and means by hand; costs and report: tests/algorithms/test_dqn.py."""

import numpy as np
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
