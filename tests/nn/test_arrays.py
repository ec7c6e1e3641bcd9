"""Functions of arrays and tensors: both give the same numbers, of the same type and shape."""

import numpy as np
import pytest
import tensorflow as tf

from relaax_like.nn import arrays

X = np.array([[-90.0, -0.5, 0.0, 3.0], [0.25, 90.0, -3.0, 1.0]], np.float32)
Y = np.array([[-90.0, 1.0, 2.0, 3.0], [0.25, 90.0, -3.0, 1.0]], np.float32)
CASES = {
    "exp": (arrays.exp, X / 10),
    "log": (arrays.log, np.abs(X) + 1),
    "expm1": (arrays.expm1, X / 1000),
    "tanh": (arrays.tanh, X),
    "sigmoid": (arrays.sigmoid, X),
    "softplus": (arrays.softplus, X),
    "clip": (lambda x: arrays.clip(x, -1.0, np.float32(2.0)), X),
    "where": (lambda x, y: arrays.where(x > 0, x, y), X, Y),
    "add_last": (arrays.add_last, X),
    "find_largest": (arrays.find_largest, X),
    "mark_largest": (arrays.mark_largest, X),
    "to_float": (arrays.to_float, np.arange(3)),
    "to_int": (arrays.to_int, X > 0),
    "log_softmax": (arrays.log_softmax, X),
    "take_log_softmax": (arrays.take_log_softmax, X, np.array([3, 1])),
    "equal_rows": (arrays.equal_rows, X, Y),
    "equal_rows of numbers": (arrays.equal_rows, X[0], Y[0]),
    "broadcast_to": (arrays.broadcast_to, X[0], Y),
    "pad_parts": (lambda x: arrays.pad_parts(x, [1, 3]), X),
}


@pytest.mark.parametrize("name", CASES)
def test_tensors_give_what_arrays_give(name):
    function, *inputs = CASES[name]
    got, want = function(*map(tf.constant, inputs)), function(*inputs)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert got.shape == want.shape
    assert got.dtype.as_numpy_dtype == want.dtype


@pytest.mark.parametrize(
    "draw", [arrays.draw_normal, arrays.draw_uniform, arrays.draw_log_exponential]
)
def test_draws_have_the_shape_of_the_others_and_one_law(draw):
    like = np.zeros((200, 100), np.float32)
    got = draw(tf.random.Generator.from_seed(0, alg="philox"), tf.constant(like)).numpy()
    want = draw(np.random.default_rng(0), like)
    for drawn in (got, want):
        assert drawn.shape == like.shape
        assert drawn.dtype == np.float32
    quantiles = np.linspace(0.1, 0.9, 9)
    np.testing.assert_allclose(np.quantile(got, quantiles), np.quantile(want, quantiles), atol=0.08)


def test_numbers_count_as_arrays():
    assert arrays.in_numpy(np.float32(1.0))
    assert arrays.in_numpy(0.5)
    assert not arrays.in_numpy(tf.constant(0.5))
    assert arrays.to_float(0.5).dtype == np.float32
