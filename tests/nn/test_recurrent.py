"""Recurrent layers: other libraries' numbers, one step and many, and gradients written by hand."""

# covers F7

import warnings

import numpy as np
import pytest
import tensorflow as tf

from relaax_like.nn.recurrent import GRU, LSTM

LAYERS = {"lstm": LSTM, "gru": GRU}
STEPS, BATCH, INPUTS, UNITS = 7, 3, 5, 4
# Episodes that begin at the first step, in the middle, and twice in one sequence.
BEGINS = np.zeros((STEPS, BATCH), bool)
BEGINS[0, 1] = BEGINS[3, 0] = BEGINS[4, 2] = BEGINS[6, 2] = True
MODES = {"eager": None, "graph": False, "XLA": True}


def make_layer(name, seed=1):
    """Returns a layer whose weights are far from their initial values."""
    layer = LAYERS[name]("net.cell", INPUTS, UNITS, seed=seed)
    random = np.random.default_rng(seed)
    for variable in layer.trainable_variables:
        variable.assign_add(0.5 * random.standard_normal(variable.shape))
    layer.arrays = {k: v.numpy() for k, v in layer.get_variables().items()}
    return layer


def make_arrays(layer, seed=2):
    random = np.random.default_rng(seed)
    shapes = [(STEPS, BATCH, INPUTS), (BATCH, layer.state_size)]
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


def step_by_step(layer, x, state, begins):
    """A slow reference for `unroll`; in NumPy or TensorFlow."""
    where, stack = (np.where, np.stack) if isinstance(x, np.ndarray) else (tf.where, tf.stack)
    outputs, states = [], []
    for t in range(STEPS):
        state = where(begins[t][:, None], np.float32(0), state)
        y, state = layer(x[t], state)
        outputs.append(y)
        states.append(state)
    return stack(outputs), stack(states)


def compile_for(mode, function):
    return function if MODES[mode] is None else tf.function(function, jit_compile=MODES[mode])


def assert_close(got, want):
    """Compares to 1e-5 of the largest number."""
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("name", LAYERS)
def test_numpy_and_tensorflow_agree(name):
    layer = make_layer(name)
    x, state = make_arrays(layer)
    got = step_by_step(layer, x, state, BEGINS)
    want = step_by_step(layer, tf.constant(x), tf.constant(state), BEGINS)
    for array, tensor in zip(got, want, strict=True):
        assert isinstance(array, np.ndarray)
        assert array.dtype == np.float32
        assert_close(array, tensor.numpy())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", LAYERS)
def test_unrolled_is_step_by_step_with_its_gradients(name, mode):
    layer = make_layer(name)
    x, state = (tf.constant(array) for array in make_arrays(layer))
    random = np.random.default_rng(3)
    y_weights = random.standard_normal((STEPS, BATCH, UNITS)).astype(np.float32)
    state_weights = random.standard_normal((STEPS, BATCH, layer.state_size)).astype(np.float32)

    def differentiate(unroll):
        def compute(x, state, begins):
            with tf.GradientTape() as tape:
                tape.watch([x, state])
                y, states = unroll(x, state, begins)
                cost = tf.reduce_sum(y * y_weights) + tf.reduce_sum(states * state_weights)
            gradients = tape.gradient(cost, [x, state, *layer.trainable_variables])
            return [y, states, *gradients]

        return compute

    want = differentiate(lambda *arrays: step_by_step(layer, *arrays))(x, state, BEGINS)
    got = compile_for(mode, differentiate(layer.unroll))(x, state, tf.constant(BEGINS))
    for result, expected in zip(got, want, strict=True):
        assert_close(result.numpy(), expected.numpy())


@pytest.mark.parametrize("name", LAYERS)
def test_lengths_may_be_unknown_until_it_is_compiled(name):
    layer = make_layer(name)
    specs = [
        tf.TensorSpec([None, None, INPUTS]),
        tf.TensorSpec([1, layer.state_size]),
        tf.TensorSpec([None, None]),
    ]

    @tf.function(jit_compile=True, input_signature=specs)
    def differentiate(x, state, begins):
        with tf.GradientTape() as tape:
            y, _ = layer.unroll(x, state, begins)
        return y, tape.gradient(y, layer.U)

    x, state = make_arrays(layer)
    x, state = x[:, :1], state[:1]
    want, _ = step_by_step(layer, x, state, BEGINS[:, :1])
    for steps in (STEPS, 2, 1):
        # Numbers instead of bool.
        y, _ = differentiate(x[:steps], state, BEGINS[:steps, :1].astype(np.float32))
        assert_close(y.numpy(), want[:steps])


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_inside_of_a_compiled_loop(name):
    """As an update that goes through all minibatches in one graph needs it."""
    layer = make_layer(name)
    x, state = (tf.constant(array) for array in make_arrays(layer))

    def differentiate():
        with tf.GradientTape() as tape:
            y, _ = layer.unroll(x, state, tf.constant(BEGINS))
            cost = tf.reduce_sum(y * y)
        return tape.gradient(cost, layer.W)

    @tf.function(jit_compile=True)
    def add_three():
        body = lambda i, total: (i + 1, total + differentiate())  # noqa: E731
        return tf.while_loop(lambda i, _: i < 3, body, (0, tf.zeros_like(layer.W)))[1]

    assert_close(add_three().numpy(), 3 * differentiate().numpy())


@pytest.mark.parametrize("name", LAYERS)
def test_nothing_of_an_earlier_episode_reaches_a_later_one(name):
    layer = make_layer(name)
    x, state = (tf.constant(array) for array in make_arrays(layer))
    begins = np.zeros((STEPS, BATCH), bool)
    begins[3, 0] = True
    with tf.GradientTape() as tape:
        tape.watch([x, state])
        y, states = layer.unroll(x, state, begins)
        later = tf.reduce_sum(y[3:])
    d_x, d_state = tape.gradient(later, [x, state])
    assert not d_x[:3, 0].numpy().any()
    assert not d_state[0].numpy().any()
    assert d_x[:3, 1].numpy().all()
    assert d_state[1].numpy().any()
    alone, _ = layer.unroll(x[3:, :1], tf.zeros((1, layer.state_size)), np.zeros((4, 1)))
    np.testing.assert_allclose(y[3:, :1], alone, atol=1e-6)
    # The memory after the last step of the earlier episode is still told.
    assert states[2, 0].numpy().any()


# Gates of Keras in our order: ours are i f o g, theirs i f g o; z r n is the same.
KERAS = {"lstm": ("LSTM", [0, 1, 3, 2]), "gru": ("GRU", [0, 1, 2])}


@pytest.mark.parametrize("name", LAYERS)
def test_the_numbers_are_those_of_keras(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import keras
    kind, order = KERAS[name]
    layer = make_layer(name)
    x, _ = make_arrays(layer)
    reference = getattr(keras.layers, kind)(UNITS, return_sequences=True)
    reference.build((BATCH, STEPS, INPUTS))

    def reorder(array):
        gates = np.split(array.numpy(), len(order), axis=-1)
        return np.concatenate([gates[order.index(i)] for i in range(len(order))], axis=-1)

    W, U, b = (reorder(variable) for variable in (layer.W, layer.U, layer.b))
    # Their GRU has a second bias, in h U.
    reference.set_weights([W, U, np.stack([b, np.zeros_like(b)]) if name == "gru" else b])
    want = reference(x.transpose(1, 0, 2)).numpy().transpose(1, 0, 2)
    y, _ = layer.unroll(x, tf.zeros((BATCH, layer.state_size)), np.zeros((STEPS, BATCH), bool))
    assert_close(y.numpy(), want)


def test_one_step_of_an_lstm_by_hand():
    layer = LSTM("net.lstm", 1, 1, seed=0)
    layer.arrays = {
        "W": np.array([[1.0, 0.0, 0.0, 2.0]], np.float32),
        "U": np.array([[0.0, 0.0, 1.0, 0.0]], np.float32),
        "b": np.array([0.0, 1.0, 0.0, 0.0], np.float32),
    }
    y, state = layer(np.array([[0.5]], np.float32), np.array([[0.2, -1.0]], np.float32))
    # i = s(0.5) = 0.62246, f = s(1) = 0.73106, o = s(0.2) = 0.54983, g = tanh(1) = 0.76159
    # c = -0.73106 + 0.62246 * 0.76159 = -0.25700, h = 0.54983 * tanh(-0.25700) = -0.13829
    np.testing.assert_allclose(state, [[-0.13829, -0.25700]], atol=2e-5)
    np.testing.assert_array_equal(y, state[:, :1])


def test_initial_values():
    lstm, gru = LSTM("a.lstm", 6, 4, seed=3), GRU("a.gru", 6, 4, seed=3)
    for layer, gates in ((lstm, 4), (gru, 3)):
        for matrix in np.split(layer.U.numpy(), gates, axis=1):
            np.testing.assert_allclose(matrix @ matrix.T, np.eye(4), atol=1e-6)
        for matrix in np.split(layer.W.numpy(), gates, axis=1):
            np.testing.assert_allclose(matrix.T @ matrix, np.eye(4), atol=1e-6)
    np.testing.assert_array_equal(lstm.b, [0] * 4 + [1] * 4 + [0] * 8)  # the forget gate is open
    np.testing.assert_array_equal(gru.b, [0] * 12)
    assert [v.name for v in (lstm.W, lstm.U, lstm.b)] == ["a.lstm.W:0", "a.lstm.U:0", "a.lstm.b:0"]
    assert (lstm.state_size, gru.state_size) == (8, 4)
    np.testing.assert_array_equal(lstm.W, LSTM("b", 6, 4, seed=3).W)
    assert (lstm.W.numpy() != LSTM("b", 6, 4, seed=4).W.numpy()).any()


def test_numbers_far_from_zero_give_no_warning():
    layer = make_layer("lstm")
    x = np.full((1, INPUTS), 1e4, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for sign in (1, -1):
            y, _ = layer(sign * x, np.zeros((1, layer.state_size), np.float32))
            assert np.isfinite(y).all()
