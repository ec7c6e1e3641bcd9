"""The normalizer against numbers worked out by hand, in both forms. covers P16"""

import numpy as np
import pytest
import tensorflow as tf

from relaax_like.nn.normalization import Normalizer


def make_normalizer(count, mean, m2):
    normalizer = Normalizer("observation", (len(mean),))
    for variable, value in (
        (normalizer.count, count),
        (normalizer.mean, mean),
        (normalizer.m2, m2),
    ):
        variable.assign(value)
    normalizer.arrays = {
        name: variable.numpy() for name, variable in normalizer.get_variables().items()
    }
    return normalizer


def test_it_shifts_by_the_mean_scales_by_the_deviation_and_clips_in_both_forms():
    # Four observations with squared deviations 16 and 1: deviations 2 and 0.5.
    normalizer = make_normalizer(4.0, [1.0, -2.0], [16.0, 1.0])
    x = np.array([[5.0, -2.5], [1.0, 100.0]], np.float32)
    want = [[2.0, -1.0], [0.0, 10.0]]
    np.testing.assert_allclose(normalizer(x), want, rtol=1e-6)
    np.testing.assert_allclose(normalizer(tf.constant(x)), want, rtol=1e-6)
    assert normalizer(x).dtype == np.float32


def test_before_any_data_nothing_is_shifted_or_scaled():
    normalizer = make_normalizer(0.0, [0.0], [0.0])
    x = np.array([[3.0], [-0.5]], np.float32)
    np.testing.assert_allclose(normalizer(x), x, rtol=1e-6)
    np.testing.assert_allclose(normalizer(tf.constant(x)), x, rtol=1e-6)


def test_new_statistics_are_taken_up():
    normalizer = make_normalizer(2.0, [0.0], [2.0])
    x = np.array([[4.0]], np.float32)
    assert normalizer(x)[0, 0] == pytest.approx(4.0)
    normalizer.arrays = {"count": np.float64(2.0), "mean": np.ones(1), "m2": np.full(1, 8.0)}
    assert normalizer(x)[0, 0] == pytest.approx(1.5)


def test_its_variables_are_no_parameters():
    normalizer = Normalizer("observation", (3,))
    assert normalizer.trainable_variables == ()
    names = {variable.name for variable in normalizer.get_variables().values()}
    assert {name.split(":")[0] for name in names} == {
        "observation.count",
        "observation.mean",
        "observation.m2",
    }
