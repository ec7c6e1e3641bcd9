"""Convolutions: numbers worked out by hand, sizes, and that arrays are refused."""

# covers F7

import itertools

import numpy as np
import pytest
import tensorflow as tf

from relaax_like.nn.convolution import Conv2D, ResidualSection, scale_image

# [1, 3, 4, 1]
IMAGE = np.array([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]], np.float32)[None, :, :, None]


def make_conv(**options):
    """Returns a kernel of 2x2: x[i, j] - 2 x[i + 1, j + 1] + 0.5."""
    conv = Conv2D("conv", 1, 1, 2, seed=1, **options)
    conv.W.assign(np.array([[1, 0], [0, -2]], np.float32)[:, :, None, None])
    conv.b.assign([0.5])
    return conv


@pytest.mark.parametrize("jit", [True, False], ids=["XLA", "graph"])
@pytest.mark.parametrize(
    ("options", "want"),
    [
        # 0 - 2 * 5 + 0.5, 1 - 2 * 6 + 0.5, ...
        ({"stride": 1}, [[-9.5, -10.5, -11.5], [-13.5, -14.5, -15.5]]),
        ({"stride": 2}, [[-9.5, -11.5]]),
        ({"stride": 2, "activation": "relu"}, [[0, 0]]),
        (
            {"stride": 1, "padding": "SAME"},
            [[-9.5, -10.5, -11.5, 3.5], [-13.5, -14.5, -15.5, 7.5], [8.5, 9.5, 10.5, 11.5]],
        ),
    ],
)
def test_a_small_convolution(options, want, jit):
    conv = make_conv(**options)
    y = tf.function(conv, jit_compile=jit)(tf.constant(IMAGE))
    np.testing.assert_allclose(y[0, :, :, 0], want)


@pytest.mark.parametrize("jit", [True, False], ids=["XLA", "graph"])
def test_the_gradient_of_a_convolution(jit):
    conv = make_conv(stride=2)

    @tf.function(jit_compile=jit)
    def differentiate(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            cost = tf.reduce_sum(conv(x) * [[[[1.0], [10.0]]]])
        return tape.gradient(cost, [x, conv.W, conv.b])

    d_x, d_W, d_b = differentiate(tf.constant(IMAGE))
    want = [[1, 0, 10, 0], [0, -2, 0, -20], [0, 0, 0, 0]]
    np.testing.assert_array_equal(d_x[0, :, :, 0], want)
    # 1 * x[0, 0] + 10 * x[0, 2], and so on
    np.testing.assert_array_equal(d_W[:, :, 0, 0], [[20, 31], [64, 75]])
    np.testing.assert_array_equal(d_b, [11])


def test_initial_values_are_orthogonal_and_follow_the_seed():
    conv = Conv2D("net.0", 3, 8, 4, 2, seed=5)
    W = conv.W.numpy().reshape(4 * 4 * 3, 8)
    np.testing.assert_allclose(W.T @ W, 2 * np.eye(8), atol=1e-5)
    np.testing.assert_array_equal(conv.b, np.zeros(8))
    np.testing.assert_array_equal(conv.W, Conv2D("other", 3, 8, 4, 2, seed=5).W)
    assert (conv.W.numpy() != Conv2D("other", 3, 8, 4, 2, seed=6).W.numpy()).any()
    assert [conv.W.name, conv.b.name] == ["net.0.W:0", "net.0.b:0"]


def test_a_residual_section_whose_inner_convolutions_are_zero_only_pools():
    section = ResidualSection("section", 1, 1, itertools.count(1))
    for variable in section.trainable_variables:
        variable.assign(tf.zeros_like(variable))
    middle = np.zeros((3, 3, 1, 1), np.float32)
    middle[1, 1] = 1
    section.first.W.assign(middle)
    # [3, 4] pools to [2, 2]; SAME pads 1 row above and below, 1 column right
    np.testing.assert_array_equal(section(tf.constant(IMAGE))[0, :, :, 0], [[6, 7], [10, 11]])
    # x + 2 relu(3 relu(x)) in the first block, then nothing
    section.blocks[0][0].W.assign(3 * middle)
    section.blocks[0][1].W.assign(2 * middle)
    y = section(tf.constant(IMAGE))[0, :, :, 0]
    np.testing.assert_array_equal(y, 7 * np.array([[6, 7], [10, 11]]))
    np.testing.assert_array_equal(section(tf.constant(-IMAGE - 1)) < 0, np.ones((1, 2, 2, 1)))


def test_uint8_is_scaled_and_float32_is_not():
    scaled = scale_image(tf.constant([0, 51, 255], tf.uint8))
    assert scaled.dtype == tf.float32
    np.testing.assert_allclose(scaled, [0, 0.2, 1], rtol=1e-6)
    np.testing.assert_array_equal(scale_image(tf.constant([0.0, 51.0])), [0, 51])


@pytest.mark.parametrize("function", [make_conv(stride=1), scale_image], ids=["conv", "scale"])
def test_arrays_are_refused(function):
    with pytest.raises(TypeError, match="expected a tensor, got an array"):
        function(IMAGE)
