"""Means over the rows that count."""

import numpy as np
import pytest
import tensorflow as tf

from relaax_like.algorithm import Batch, Phase
from relaax_like.wire.errors import ConfigError

X = np.array([[1.0, 2.0], [3.0, 100.0]], np.float32)
VALID = np.array([[1.0, 1.0], [1.0, 0.0]], np.float32)


def make_batch(**fields):
    ones = tf.ones((2, 2))
    names = ("returns", "discount", "continues", "valid", "weights", "log_prob")
    tensors = dict.fromkeys(names, ones)
    named = {key: {} for key in ("inputs", "next_inputs", "actions", "rewards")}
    return Batch(**{**named, **tensors, **fields})


def test_means_leave_out_what_is_not_valid_and_weigh_the_rest():
    assert float(make_batch().mean(tf.constant(X))) == pytest.approx(26.5)
    assert float(make_batch(valid=tf.constant(VALID)).mean(tf.constant(X))) == pytest.approx(2.0)
    weights = tf.constant([[0.5, 1.0], [2.0, 9.0]])
    batch = make_batch(valid=tf.constant(VALID), weights=weights)
    assert float(batch.mean(tf.constant(X))) == pytest.approx((0.5 + 2.0 + 6.0) / 3)
    nothing = make_batch(valid=tf.zeros_like(tf.constant(VALID)))
    assert float(nothing.mean(tf.constant(X))) == 0
    assert not nothing.normalize(tf.constant(X)).numpy().any()


def test_valid_rows_are_brought_to_mean_0_and_deviation_1():
    got = make_batch(valid=tf.constant(VALID)).normalize(tf.constant(X)).numpy()
    assert got[VALID > 0] == pytest.approx([-(1.5**0.5), 0.0, 1.5**0.5])
    assert got[1, 1] == 0.0


@pytest.mark.parametrize(
    ("groups", "every", "words"),
    [((), 1, "no variable group"), (("a", "a"), 1, "named twice"), (("a",), 0, "every is 0")],
)
def test_a_phase_that_steps_nothing_is_refused(groups, every, words):
    with pytest.raises(ValueError, match=words):
        Phase(*groups, every=every)


FEATURES = np.array([[[1.0, 10.0], [3.0, 30.0]], [[7.0, 20.0], [99.0, 99.0]]], np.float32)


def test_moments_of_features_by_hand():
    x = tf.constant(FEATURES)  # [T, B, n]
    mean, variance = make_batch(valid=tf.constant(VALID)).moments(x)
    np.testing.assert_allclose(mean, [11 / 3, 20.0], rtol=1e-6)
    np.testing.assert_allclose(variance, [56 / 9, 200 / 3], rtol=1e-6)
    # Weights count rows several times: 1, 3, 3, 3, 7, 7 of the first feature.
    weights = tf.constant([[1.0, 3.0], [2.0, 9.0]])
    mean, variance = make_batch(valid=tf.constant(VALID), weights=weights).moments(x)
    np.testing.assert_allclose(mean, [4.0, 140 / 6], rtol=1e-6)
    np.testing.assert_allclose(variance, [(9 + 3 + 18) / 6, 500 / 9], rtol=1e-6)


def test_moments_go_over_all_axes_but_the_last():
    images = np.random.default_rng(0).normal(size=(2, 2, 3, 5, 4)).astype(np.float32)
    mean, variance = make_batch(valid=tf.constant(VALID)).moments(tf.constant(images))
    rows = images[VALID > 0].reshape(-1, 4).astype(np.float64)
    np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(variance, rows.var(0), rtol=1e-4)
    mean, variance = make_batch(valid=tf.constant(VALID)).moments(tf.constant(X))
    assert (float(mean), float(variance)) == pytest.approx((2.0, 2 / 3))


def test_moments_of_nothing_are_0_and_of_several_learners_refused():
    nothing = make_batch(valid=tf.zeros((2, 2))).moments(tf.constant(FEATURES))
    assert not np.any(nothing)
    with pytest.raises(ConfigError, match=r"batch\.moments"):
        make_batch(reduction=object()).moments(tf.constant(FEATURES))
