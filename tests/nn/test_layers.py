"""Activations: each by its formula, and in NumPy the numbers of TensorFlow."""

import math
import typing
import warnings

import numpy as np
import pytest
import tensorflow as tf

from relaax_like.config.network import Activation, NetworkConfig
from relaax_like.nn.layers import ACTIVATIONS, Dense, Layer, NoisyDense
from relaax_like.nn.networks import make_network


def below(negative, slope=1.0):
    """Returns a function that is a line above 0, and something else below."""
    return lambda x: slope * x if x > 0 else negative(x)


SCALE = 1.0507009873554805
FORMULAS = {
    "tanh": math.tanh,
    "relu": below(lambda x: 0.0),
    "leaky_relu": below(lambda x: 0.01 * x),
    "elu": below(lambda x: math.exp(x) - 1),
    "selu": below(lambda x: SCALE * 1.6732632423543772 * (math.exp(x) - 1), SCALE),
    "gelu": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "swish": lambda x: x / (1 + math.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "softplus": lambda x: math.log(1 + math.exp(x)),
    "linear": lambda x: x,
}
# By hand, at -1 and 2, from tables of exp and tanh.
AT_MINUS_ONE_AND_TWO = {
    "tanh": (-0.761594, 0.964028),
    "relu": (0, 2),
    "leaky_relu": (-0.01, 2),
    "elu": (-0.632121, 2),
    "selu": (-1.111331, 2.101402),
    "gelu": (-0.158808, 1.954598),
    "silu": (-0.268941, 1.761594),
    "swish": (-0.268941, 1.761594),
    "sigmoid": (0.268941, 0.880797),
    "softplus": (0.313262, 2.126928),
    "linear": (-1, 2),
}
X = np.concatenate([np.linspace(-12, 12, 481), [0.0, 1e-4, -1e-4]]).astype(np.float32)


def test_the_settings_name_all_of_them():
    assert set(ACTIVATIONS) == set(typing.get_args(Activation)) == set(FORMULAS)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_its_formula_in_numpy_and_in_tensorflow(name):
    activation = ACTIVATIONS[name]
    in_numpy = activation(X)
    assert isinstance(in_numpy, np.ndarray)
    assert in_numpy.dtype == np.float32
    want = [FORMULAS[name](float(x)) for x in X]
    np.testing.assert_allclose(in_numpy, want, rtol=1e-5, atol=1e-6)
    in_tensorflow = activation(tf.constant(X)).numpy()
    np.testing.assert_allclose(in_numpy, in_tensorflow, rtol=1e-6, atol=1e-6)
    by_hand = activation(np.array([-1, 2], np.float32))
    np.testing.assert_allclose(by_hand, AT_MINUS_ONE_AND_TWO[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_numbers_far_from_zero_give_no_warning_and_have_a_gradient(name):
    x = np.array([-1e4, 1e4], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(ACTIVATIONS[name](x)).all()
    tensor = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        y = ACTIVATIONS[name](tensor)
    assert np.isfinite(tape.gradient(y, tensor)).all()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_network_has_the_activation_behind_each_dense_layer_but_the_last(name):
    config = NetworkConfig.model_validate({"layers": (7,), "activation": name})
    network = make_network("net", config, (5,), 3, seed=1)
    x = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    values = {v.name.split(":")[0]: v.numpy() for v in network.variables}
    hidden = np.vectorize(FORMULAS[name])(x.astype(np.float64) @ values["net.0.W"])
    want = hidden @ values["net.out.W"]
    np.testing.assert_allclose(network(tf.constant(x)), want, rtol=1e-4, atol=1e-5)
    for layer in network.submodules:
        if isinstance(layer, Layer):
            layer.arrays = {k: v.numpy() for k, v in layer.get_variables().items()}
    np.testing.assert_allclose(network(x, None)[0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [Dense, NoisyDense])
def test_a_layer_that_is_built_for_other_inputs_names_itself_and_the_cure(kind):
    layer = kind("policy.0", 5, 2, seed=0)
    layer(tf.zeros([3, 5]))
    with pytest.raises(ValueError, match=r"^layer policy\.0 was built for 5 inputs, .* 4 numbers"):
        layer(tf.zeros([3, 4]))
