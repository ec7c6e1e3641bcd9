"""BatchNorm against a slow reference: in training, in acting, in NumPy and TensorFlow."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from relaax_like.algorithm import Batch
from relaax_like.nn import BatchNorm, Norming
from relaax_like.nn.module import as_tf_variable

WIDTH, RATE, ROWS = 3, 0.25, 6


def make(seed: int = 0) -> tuple[BatchNorm, dict[str, np.ndarray]]:
    layer, random = BatchNorm("norm", WIDTH, RATE), np.random.default_rng(seed)
    values = {
        "gain": random.uniform(0.5, 2.0, WIDTH),
        "shift": random.normal(size=WIDTH),
        "mean": random.normal(size=WIDTH),
        "variance": random.uniform(0.5, 4.0, WIDTH),
    }
    arrays = {name: value.astype(np.float32) for name, value in values.items()}
    for name, variable in layer.get_variables().items():
        as_tf_variable(variable).assign(arrays[name])
    layer.arrays = arrays
    return layer, arrays


def normalize_slowly(x, mean, variance, arrays):
    y = np.empty_like(x, np.float64)
    for place in np.ndindex(*x.shape):
        i = place[-1]
        scaled = (float(x[place]) - mean[i]) / np.sqrt(variance[i] + 1e-5)
        y[place] = scaled * arrays["gain"][i] + arrays["shift"][i]
    return y


def make_batch(valid: np.ndarray, weights: np.ndarray) -> Batch:
    """Returns a batch of which only these two matter."""
    fields = dict.fromkeys(field.name for field in dataclasses.fields(Batch))
    counted = {"valid": tf.constant(valid, tf.float32), "weights": tf.constant(weights, tf.float32)}
    return Batch(**{**fields, **counted})


@pytest.mark.parametrize("stacked", [False, True])
def test_training_normalizes_by_the_rows_that_count(stacked):
    layer, arrays = make()
    random = np.random.default_rng(1)
    shape = (ROWS, 2, WIDTH) if stacked else (ROWS, WIDTH)
    x = random.normal(2.0, 3.0, shape).astype(np.float32)
    valid = np.array([1, 1, 0, 1, 1, 1], np.float32)
    weights = np.array([1, 2, 9, 0.5, 1, 1], np.float32)
    norming = Norming(make_batch(valid, weights).find_shares())
    got = layer(tf.constant(x), norming)

    counted = (valid * weights).astype(np.float64)
    flat = x.reshape(ROWS, -1, WIDTH).astype(np.float64)
    shares = np.repeat(counted[:, None], flat.shape[1], 1)[..., None]
    mean = (shares * flat).sum((0, 1)) / shares.sum()
    variance = (shares * (flat - mean) ** 2).sum((0, 1)) / shares.sum()
    np.testing.assert_allclose(
        got, normalize_slowly(x, mean, variance, arrays), rtol=1e-5, atol=1e-6
    )
    assert norming.updates.keys() == {"norm.mean", "norm.variance"}
    for name, new in (("mean", mean), ("variance", variance)):
        want = (1 - RATE) * arrays[name] + RATE * new
        np.testing.assert_allclose(norming.updates[f"norm.{name}"], want, rtol=1e-6)


def test_acting_uses_the_moving_statistics_in_numpy_and_tensorflow():
    layer, arrays = make()
    x = np.random.default_rng(2).normal(size=(ROWS, WIDTH)).astype(np.float32)
    want = normalize_slowly(x, arrays["mean"], arrays["variance"], arrays)
    np.testing.assert_allclose(layer(tf.constant(x)), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer(x), want, rtol=1e-5, atol=1e-6)
    # New values replace what was computed of the old ones.
    layer.arrays = {**arrays, "mean": arrays["mean"] + 1}
    want = normalize_slowly(x, arrays["mean"] + 1, arrays["variance"], arrays)
    np.testing.assert_allclose(layer(x), want, rtol=1e-5, atol=1e-6)


def test_the_gradient_flows_through_the_moments_and_not_into_the_buffers():
    """The gradient of the sum of y is 0: a shift of all x changes nothing."""
    layer, _ = make()
    x = tf.Variable(np.random.default_rng(3).normal(size=(ROWS, WIDTH)).astype(np.float32))
    batch = make_batch(np.ones(ROWS), np.ones(ROWS))
    with tf.GradientTape(persistent=True) as tape:
        norming = Norming(batch.find_shares())
        y = tf.reduce_sum(layer(x, norming))
        moved = tf.add_n([tf.reduce_sum(one) for one in norming.updates.values()])
    np.testing.assert_allclose(tape.gradient(y, x), np.zeros((ROWS, WIDTH)), atol=1e-5)
    assert tape.gradient(moved, x) is None
