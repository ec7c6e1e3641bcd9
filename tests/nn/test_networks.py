"""Networks from their settings: shapes, names, seeds, and one number from every form of a pass."""

# covers F7, P26

import numpy as np
import pytest
import tensorflow as tf

from relaax_like.algorithm.acting import CompiledActor, NumpyActor, make_actor
from relaax_like.algorithm.model import Model
from relaax_like.config.network import NetworkConfig
from relaax_like.nn.action_heads import make_policy
from relaax_like.nn.layers import Dense, Layer
from relaax_like.nn.networks import make_network
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.spaces import Discrete

CONV = {"conv": {"filters": 4, "kernel": 3, "stride": 2}}
DENSE_AND_RECURRENT = {
    "dense": [16, 8],
    "linear": [],
    "lstm": [16, {"lstm": 8}],
    "gru, then dense": [{"gru": 8}, 16],
    "two lstms": [{"lstm": 8}, {"lstm": 6}],
    "three, with dense between and behind": [{"gru": 8}, 16, {"lstm": 4}, {"gru": 3}, 5],
}
STEPS, BATCH = 6, 3
BEGINS = np.zeros((STEPS, BATCH), bool)
BEGINS[2, 1] = BEGINS[4, 0] = True


def make_config(layers, **settings):
    return NetworkConfig.model_validate({"layers": tuple(layers), **settings})


def make(layers, input_shape=(5,), outputs=2, seed=1, **settings):
    return make_network("net", make_config(layers, **settings), input_shape, outputs, seed=seed)


def bind(network):
    """Gives the layers their values as arrays, as an actor does."""
    for module in network.submodules:
        if isinstance(module, Layer):
            module.arrays = {k: v.numpy() for k, v in module.get_variables().items()}


def make_arrays(network, input_shape=(5,), seed=0):
    random = np.random.default_rng(seed)
    x = random.standard_normal((STEPS, BATCH, *input_shape)).astype(np.float32)
    return x, random.standard_normal((BATCH, network.state_size)).astype(np.float32)


def step_by_step(network, x, state):
    """A slow reference for a call with `begins`, in NumPy."""
    outputs, states = [], []
    for t in range(STEPS):
        state = np.where(BEGINS[t][:, None], np.float32(0), state)
        y, next_state = network(x[t], state)
        outputs.append(y)
        if next_state is not None:
            states.append(state := next_state)
    return np.stack(outputs), np.stack(states) if states else None


@pytest.mark.parametrize("layers", DENSE_AND_RECURRENT.values(), ids=DENSE_AND_RECURRENT.keys())
def test_numpy_and_tensorflow_step_and_unroll_agree(layers):
    network = make(layers)
    bind(network)
    x, state = make_arrays(network)
    y, next_state = network(x[0], state)
    y_tf, next_state_tf = network(tf.constant(x[0]), tf.constant(state))
    assert isinstance(y, np.ndarray)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, y_tf, atol=1e-5)
    want, want_states = step_by_step(network, x, state)
    got, states = tf.function(network.__call__, jit_compile=True)(
        tf.constant(x), tf.constant(state), tf.constant(BEGINS)
    )
    np.testing.assert_allclose(got, want, atol=1e-5)
    if network.state_size:
        assert isinstance(next_state, np.ndarray)
        np.testing.assert_allclose(next_state, next_state_tf, atol=1e-5)
        np.testing.assert_allclose(states, want_states, atol=1e-5)
    else:
        assert next_state is next_state_tf is states is want_states is None


STACKED = [{"lstm": 8}, 5, {"gru": 4}, {"lstm": 3}]


def test_stacked_layers_are_their_layers_one_after_another():
    """Each by itself, with its own part of the memory: 16 numbers, then 4, then 6."""
    network = make(STACKED)
    assert network.state_size == 16 + 4 + 6
    x, memory = (tf.constant(array) for array in make_arrays(network))
    begins = tf.constant(BEGINS)
    first, dense, gru, last, out = network.layers
    y, one = first.unroll(x, memory[:, :16], begins)
    y, two = gru.unroll(dense(y), memory[:, 16:20], begins)
    y, three = last.unroll(y, memory[:, 20:], begins)
    got, memories = network(x, memory, begins)
    np.testing.assert_allclose(got, out(y), atol=1e-6)
    np.testing.assert_allclose(memories, tf.concat([one, two, three], -1), atol=1e-6)


def test_a_row_of_a_stacked_network_does_not_depend_on_the_others():
    network = make(STACKED)
    bind(network)
    x, memory = make_arrays(network)
    y, after = network(x[0], memory)
    unrolled, memories = network(tf.constant(x), tf.constant(memory), tf.constant(BEGINS))
    for row in range(BATCH):
        own = slice(row, row + 1)
        y_alone, after_alone = network(x[0, own], memory[own])
        np.testing.assert_allclose(y[own], y_alone, atol=1e-6)
        np.testing.assert_allclose(after[own], after_alone, atol=1e-6)
        parts = (tf.constant(array) for array in (x[:, own], memory[own], BEGINS[:, own]))
        alone, memories_alone = network(*parts)
        np.testing.assert_allclose(unrolled[:, own], alone, atol=1e-6)
        np.testing.assert_allclose(memories[:, own], memories_alone, atol=1e-6)


def test_no_gradient_of_a_stacked_network_crosses_the_beginning_of_an_episode():
    network = make(STACKED)
    x, memory = (tf.constant(array) for array in make_arrays(network))
    with tf.GradientTape() as tape:
        tape.watch([x, memory])
        y, _ = network(x, memory, tf.constant(BEGINS))
        later = tf.reduce_sum(y[4:])
    d_x, d_memory = tape.gradient(later, [x, memory])
    # Row 0 begins an episode at step 4, row 1 at step 2, and row 2 at none.
    assert not d_x[:4, 0].numpy().any()
    assert not d_x[:2, 1].numpy().any()
    assert not d_memory[:2].numpy().any()
    assert d_x[:, 2].numpy().any(-1).all()
    assert d_memory[2].numpy().all()


def test_a_dense_network_by_hand():
    network = make([2], input_shape=(2, 1), outputs=1, activation="relu")
    for variable, value in {
        "net.0.W": [[1, 2], [3, -4]],
        "net.0.b": [0.5, 1],
        "net.out.W": [[2], [10]],
        "net.out.b": [-1],
    }.items():
        by_name(network)[variable].assign(value)
    # relu(1 + 2*3 + 0.5, 2 - 2*4 + 1) = (7.5, 0); relu(-0.5, 3) = (0, 3); the input is flattened
    y, state = network(tf.constant([[[1.0], [2.0]], [[-1.0], [0.0]]]), None)
    np.testing.assert_allclose(y, [[14], [-1]])
    assert state is None


def by_name(network):
    return {variable.name.split(":")[0]: variable for variable in network.trainable_variables}


NAMES = {
    "dense": ([8, 8], "0.W 0.b 1.W 1.b out.W out.b"),
    "lstm": ([8, {"lstm": 8}], "0.W 0.b lstm.U lstm.W lstm.b out.W out.b"),
    "gru": ([{"gru": 8}, 8], "1.W 1.b gru.U gru.W gru.b out.W out.b"),
    "two lstms": (
        [{"lstm": 8}, 8, {"lstm": 8}],
        "1.W 1.b lstm.2.U lstm.2.W lstm.2.b lstm.U lstm.W lstm.b out.W out.b",
    ),
    "lstm and gru": (
        [{"lstm": 8}, {"gru": 8}],
        "gru.1.U gru.1.W gru.1.b lstm.U lstm.W lstm.b out.W out.b",
    ),
    "conv": ([CONV, CONV, 8], "0.W 0.b 1.W 1.b 2.W 2.b out.W out.b"),
    "a3c": (["a3c"], "a3c.0.W a3c.0.b a3c.1.W a3c.1.b a3c.dense.W a3c.dense.b out.W out.b"),
}


@pytest.mark.parametrize(("layers", "names"), NAMES.values(), ids=NAMES.keys())
def test_names_of_variables_tell_their_layer(layers, names):
    network = make(layers, input_shape=(36, 36, 1))
    assert sorted(by_name(network)) == [f"net.{name}" for name in names.split()]
    assert len(by_name(network)) == len(network.trainable_variables)


def test_names_of_variables_are_unique_in_the_largest_network():
    network = make([CONV, "impala", 8, {"lstm": 8}], input_shape=(36, 36, 1))
    assert len(by_name(network)) == len(network.trainable_variables) == 41


@pytest.mark.parametrize(
    "layers",
    [[8, {"lstm": 8}], [{"lstm": 8}, {"lstm": 8}], ["impala"]],
    ids=["lstm", "two lstms", "impala"],
)
def test_initial_values_follow_the_seed(layers):
    one, same, other = (make(layers, (36, 36, 1), seed=seed) for seed in (3, 3, 4))
    for name, variable in by_name(one).items():
        np.testing.assert_array_equal(variable, by_name(same)[name])
        if name.endswith("W"):
            assert (variable.numpy() != by_name(other)[name].numpy()).any()
    # No two layers of one network begin with the same values.
    matrices = [v.numpy() for name, v in by_name(one).items() if name.endswith("W")]
    assert len({matrix.tobytes() for matrix in matrices}) == len(matrices)


def test_gains_of_dense_layers():
    network = make_network("net", make_config([8]), (8,), 8, seed=1, output_gain=0.01)
    for name, gain in (("net.0.W", 2**0.5), ("net.out.W", 0.01)):
        W = by_name(network)[name].numpy()
        np.testing.assert_allclose(W.T @ W, gain**2 * np.eye(8), atol=1e-6)


def test_a_trunk_gives_its_features():
    trunk = make([16, {"lstm": 8}, 12], outputs=None)
    assert trunk.features == 12
    assert trunk.state_size == 16
    x, state = make_arrays(trunk)
    y, _ = trunk(tf.constant(x[0]), tf.constant(state))
    assert y.shape == (BATCH, 12)
    assert make([16, 7]).features == 7


IMAGE_NETWORKS = {
    # name: (layers, features, shape of the first matrix after the convolutions)
    "a3c": (["a3c"], 256, (9 * 9 * 32, 256)),
    "nature": (["nature"], 512, (7 * 7 * 64, 512)),
    "impala": (["impala"], 256, (11 * 11 * 32, 256)),
}


@pytest.mark.parametrize(
    ("layers", "features", "shape"), IMAGE_NETWORKS.values(), ids=list(IMAGE_NETWORKS)
)
def test_the_stacks_have_the_sizes_of_their_papers(layers, features, shape):
    network = make([*layers, {"lstm": 32}], input_shape=(84, 84, 4), outputs=None)
    assert by_name(network)[f"net.{layers[0]}.dense.W"].shape == shape
    assert by_name(network)["net.lstm.W"].shape[0] == features
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 84, 84, 4), np.uint8)
    state = tf.zeros((3, 64))
    unroll = tf.function(network.__call__, jit_compile=True)
    y, states = unroll(tf.constant(images), state, tf.zeros((2, 3)))
    assert (y.shape, states.shape) == ((2, 3, 32), (2, 3, 64))
    step, _ = network(tf.constant(images[0]), state)  # not compiled by XLA
    np.testing.assert_allclose(y[0], step, atol=1e-5)
    # The same image in [0, 1].
    scaled, _ = network(tf.constant(images[0] / np.float32(255)), state)
    np.testing.assert_allclose(step, scaled, atol=1e-5)


def test_convolutions_of_a_stack_are_those_of_the_paper():
    """One pixel of the first layer, and the layers' shapes."""
    network = make(["nature"], input_shape=(84, 84, 4), activation="tanh", outputs=None)
    convolutions = [network.layers[index] for index in (1, 2, 3)]
    assert [c.W.shape.as_list() for c in convolutions] == [
        [8, 8, 4, 32],
        [4, 4, 32, 64],
        [3, 3, 64, 64],
    ]
    image = np.random.default_rng(0).random((1, 84, 84, 4)).astype(np.float32)
    y = convolutions[0](tf.constant(image))
    assert y.shape == (1, 20, 20, 32)
    # The stride is 4; relu, whatever the network's activation.
    window = image[0, 8:16, 12:20, :]
    want = np.maximum(np.einsum("hwc,hwcf->f", window, convolutions[0].W.numpy()), 0)
    np.testing.assert_allclose(y[0, 2, 3], want, atol=1e-5)
    dense = network.layers[-1]
    assert isinstance(dense, Dense)
    assert not (network(tf.constant(image), None)[0].numpy() < 0).any()


def test_what_leaves_the_last_residual_section_goes_through_relu():
    network = make(["impala"], input_shape=(8, 8, 1), outputs=None)
    for name, variable in by_name(network).items():
        if "dense" not in name:
            variable.assign(tf.zeros_like(variable))
    image = tf.ones((1, 8, 8, 1))
    by_name(network)["net.impala.2.in.b"].assign(tf.ones(32))
    assert network(image, None)[0].numpy().any()
    by_name(network)["net.impala.2.in.b"].assign(-tf.ones(32))
    assert not network(image, None)[0].numpy().any()


def test_a_convolution_of_ones_own_has_the_networks_activation():
    network = make([CONV], input_shape=(7, 5, 1), outputs=None, activation="tanh")
    assert network.features == 3 * 2 * 4  # (7 - 3) // 2 + 1, (5 - 3) // 2 + 1
    y, _ = network(tf.constant(np.random.default_rng(0).random((1, 7, 5, 1)), tf.float32), None)
    assert (y.numpy() < 0).any()
    assert (np.abs(y) < 1).all()


@pytest.mark.parametrize(
    ("layers", "input_shape", "message"),
    [
        (
            ["a3c"],
            (4,),
            r"network net: layer a3c\.0 is a convolution, but its input has shape \[4\], "
            r"expected an image \[height, width, channels\]; use dense layers",
        ),
        (
            ["impala", 8],
            (84, 84),
            r"layer impala\.0 is a convolution, but its input has .* \[84, 84\]",
        ),
        (
            ["nature"],
            (30, 84, 3),
            r"layer nature\.2 has a kernel of 3, but its input is only 2x9; "
            r"list conv layers with smaller kernels or strides in network\.layers",
        ),
    ],
)
def test_convolutions_that_do_not_fit_are_refused(layers, input_shape, message):
    with pytest.raises(ConfigError, match=message):
        make(layers, input_shape=input_shape)


class Policy(Model):
    """One model for all kinds of networks and inputs."""

    def __init__(self, layers, input_shape, dtype="float32"):
        super().__init__(name="policy")
        self.spec = {"shape": list(input_shape), "dtype": dtype}
        self.net = make(layers, input_shape, outputs=3)

    def get_input_specs(self):
        return [("observation", self.spec)]

    def get_state_specs(self):
        size = self.net.state_size
        return [("memory", {"shape": [size]})] if size else []

    def get_action_specs(self):
        return [("action", {"shape": [], "dtype": "int64"})]

    def policy(self, inputs, states):
        observation = inputs["observation"]
        parameters, memory = self.net(observation, states.get("memory"))
        next_states = {"memory": memory} if self.net.state_size else {}
        return {"action": make_policy(Discrete(n=3), parameters)}, next_states


@pytest.mark.parametrize(
    ("arguments", "form"),
    [
        (([16], (2, 3)), NumpyActor),
        (([{"lstm": 8}], (4,)), NumpyActor),
        (([{"gru": 8}], (4,)), NumpyActor),
        (([{"lstm": 8}, 8, {"gru": 8}], (4,)), NumpyActor),
        (([CONV, 8, {"lstm": 8}], (9, 9, 1), "uint8"), CompiledActor),
    ],
    ids=["dense", "lstm", "gru", "stacked", "conv"],
)
def test_one_model_acts_in_the_form_that_its_layers_allow(arguments, form):
    model = Policy(*arguments)
    actor = make_actor(model, 0)
    assert isinstance(actor, form)
    x = np.ones((3, *model.spec["shape"]), model.spec["dtype"])
    states = {k: np.ones((3, *p["shape"]), np.float32) for k, p in model.get_state_specs()}
    prediction = actor.act({"observation": x}, states, exploit=True)
    compiled = CompiledActor(model, 0).act({"observation": x}, states, exploit=True)
    np.testing.assert_array_equal(prediction.actions["action"], compiled.actions["action"])
    np.testing.assert_allclose(prediction.log_prob, compiled.log_prob, atol=1e-5)
    for name in states:
        got, want = prediction.next_states[name], compiled.next_states[name]
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_a_call_takes_any_leading_axes_and_memory_where_there_is_one():
    plain, recurrent = make([8], (3,), 2), make([{"lstm": 4}], (3,), 2)
    x = np.random.default_rng(0).random((5, 2, 3)).astype(np.float32)
    y = plain(tf.constant(x))
    np.testing.assert_array_equal(y, plain(tf.constant(x), None)[0])
    np.testing.assert_allclose(y[2], plain(tf.constant(x[2])), rtol=1e-6)
    memory = np.random.default_rng(1).random((5, 2, 8)).astype(np.float32)
    y, after = recurrent(tf.constant(x), tf.constant(memory))
    for t in range(5):
        want, want_after = recurrent(tf.constant(x[t]), tf.constant(memory[t]))
        np.testing.assert_allclose(y[t], want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(after[t], want_after, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="net has a recurrent layer; pass its memory"):
        recurrent(tf.constant(x))
