"""Actor-critics that see several leaves: joined in any form of a pass, by NumPy and TensorFlow."""

# covers J17, F7

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from support.batch import load, make_algorithm, make_config, make_rollout

from relaax_like.algorithm.acting import CompiledActor, NumpyActor, make_actor
from relaax_like.algorithm.model import get_variables, order_variables
from relaax_like.config.leaves import ObservationConfig
from relaax_like.learn.compiled_algorithm import CompiledAlgorithm
from relaax_like.wire.errors import ConfigError

STEPS, SLOTS = 5, 3
CONV = {"conv": {"filters": 4, "kernel": 3, "stride": 2}}
# Listed in another order than that of their names.
VECTORS = {"goal": {"size": 3}, "arm/joints": {"size": 4, "layers": (6,)}, "0": {"size": 1}}
IMAGE = {"camera": {"image": (9, 8, 2), "layers": (CONV, 5)}, "goal": {"size": 3}}
VARIANTS = {
    "vectors, two networks": {},
    "vectors, one trunk": {"shared_network": True},
    "vectors, no layers behind": {"layers": ()},
    "vectors, two lstms": {"layers": (8, {"lstm": 5})},
    "vectors, one gru": {"layers": ({"gru": 5}, 8), "shared_network": True},
    "vectors, normalised": {"normalize_observations": True},
    "vectors, history": {"observation_history": 3, "normalize_observations": True},
    "one leaf": {"observations": {"arm/joints": {"size": 4, "layers": (6,)}}},
    "image, two networks": {"observations": IMAGE},
    "image, one trunk, lstm": {
        "observations": IMAGE,
        "shared_network": True,
        "layers": ({"lstm": 4},),
        "normalize_observations": True,
        "observation_history": 2,
    },
}
_IN_NUMPY = [name for name in VARIANTS if name.startswith(("vector", "one"))]


def make_settings(layers=(8,), observations=VECTORS, **settings):
    leaves = {name: ObservationConfig.model_validate(own) for name, own in observations.items()}
    return make_config(layers, observations=leaves, **settings)


def make_model(**settings):
    model = make_algorithm(make_settings(**settings)).model
    random = np.random.default_rng(0)
    for variable in model.trainable_variables:  # the policy begins nearly uniform
        variable.assign(variable + 0.3 * random.standard_normal(variable.shape))
    for normalizer in model.normalizers.values():
        normalizer.count.assign(10.0)
        normalizer.mean.assign(random.standard_normal(normalizer.mean.shape))
        normalizer.m2.assign(random.uniform(1, 40, normalizer.m2.shape))
    return model


def make_inputs(model, seed=1):
    random = np.random.default_rng(seed)
    return {
        name: random.integers(256, size=(STEPS, SLOTS, *spec["shape"])).astype(np.uint8)
        if spec["dtype"] == "uint8"
        else random.standard_normal((STEPS, SLOTS, *spec["shape"])).astype(np.float32)
        for name, spec in model.get_input_specs()
    }


def make_states(model):
    random = np.random.default_rng(2)
    return {
        name: random.uniform(-1, 1, (SLOTS, *props["shape"])).astype(np.float32)
        for name, props in model.get_state_specs()
    }


def to_tensors(arrays):
    return {name: tf.constant(array) for name, array in arrays.items()}


def at(inputs, t):
    return {name: array[t] for name, array in inputs.items()}


@pytest.mark.parametrize("name", _IN_NUMPY)
def test_numpy_and_tensorflow_choose_alike(name):
    model = make_model(**VARIANTS[name])
    actor = make_actor(model, seed=0)
    assert isinstance(actor, NumpyActor)
    actor.set_values([v.numpy() for v in order_variables(model)], 3)
    inputs, states = at(make_inputs(model), 0), make_states(model)
    prediction = actor.act(inputs, states)
    distributions, next_states = model.policy(to_tensors(inputs), to_tensors(states))
    log_prob = distributions["action"].log_prob(tf.constant(prediction.actions["action"]))
    np.testing.assert_allclose(prediction.log_prob, log_prob, atol=1e-5)
    assert prediction.next_states.keys() == next_states.keys() == states.keys()
    for state in states:
        np.testing.assert_allclose(prediction.next_states[state], next_states[state], atol=1e-5)
    values = model.value(to_tensors(inputs), to_tensors(states))
    np.testing.assert_allclose(actor.value(inputs, states), values, atol=1e-5)


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_a_rollout_gives_what_single_steps_give(settings):
    model = make_model(**settings)
    x, states = make_inputs(model), to_tensors(make_states(model))
    begins = np.zeros((STEPS, SLOTS), bool)
    begins[2, 1] = begins[4, 0] = True
    seen = model.evaluate(make_rollout(to_tensors(x), states, tf.constant(begins)))
    parameters = seen.parameters.numpy()
    for t in range(STEPS):
        keep = 1.0 - begins[t].astype(np.float32)[:, None]
        states = {name: state * keep for name, state in states.items()}
        inputs = to_tensors(at(x, t))
        np.testing.assert_allclose(seen.values[t], model.value(inputs, states), atol=1e-5)
        distributions, states = model.policy(inputs, states)
        own = model.make_distribution(tf.constant(parameters[t]))
        np.testing.assert_allclose(own.kl(distributions["action"]), np.zeros(SLOTS), atol=1e-5)
        for name, state in states.items():
            np.testing.assert_allclose(seen.memory[name][t], state, atol=1e-5)


def test_an_image_and_a_vector_act_compiled_each_row_by_itself():
    model = make_model(**VARIANTS["image, one trunk, lstm"])
    assert dict(model.get_input_specs()) == {
        "camera": {"shape": (9, 8, 4), "dtype": "uint8"},
        "goal": {"shape": (6,), "dtype": "float32"},
    }
    actor = make_actor(model, seed=0)
    assert isinstance(actor, CompiledActor)
    inputs, states = at(make_inputs(model), 0), make_states(model)
    together = actor.act(inputs, states, exploit=True)
    for row in range(SLOTS):
        one = {name: array[row : row + 1] for name, array in inputs.items()}
        memory = {name: array[row : row + 1] for name, array in states.items()}
        alone = actor.act(one, memory, exploit=True)
        assert together.log_prob[row] == pytest.approx(alone.log_prob[0], abs=1e-5)


def test_every_leaf_reaches_policy_value_and_gradient():
    model = make_model(observations={**VECTORS, **IMAGE})
    x = at(make_inputs(model), 0)
    before = [model.policy(to_tensors(x), {})[0]["action"], model.value(to_tensors(x), {})]
    for name in x:
        changed = {**x, name: x[name][::-1].copy()}
        after = model.policy(to_tensors(changed), {})[0]["action"]
        assert (before[0].kl(after).numpy()[[0, -1]] > 1e-5).all(), name
        moved = model.value(to_tensors(changed), {}) - before[1]
        assert (np.abs(moved.numpy())[[0, -1]] > 1e-4).all(), name


@pytest.mark.parametrize("shared", [False, True])
def test_branches_get_gradients_and_are_named_after_their_leaf(shared):
    settings = make_settings(observations={**VECTORS, **IMAGE}, shared_network=shared)
    algorithm = make_algorithm(settings)
    compiled, x = CompiledAlgorithm(algorithm), make_inputs(algorithm.model)
    random = np.random.default_rng(0)
    gradients, _ = compiled.compute_gradients(
        inputs=x,
        next_inputs=x,
        next_alive={"alive": np.ones((STEPS, SLOTS), np.float32)},
        rewards={"reward": random.standard_normal((STEPS, SLOTS, 1)).astype(np.float32)},
        actions={
            "action": random.integers(2, size=(STEPS, SLOTS)),
            "log_prob": np.full((STEPS, SLOTS), -0.7, np.float32),
        },
    )
    names = [variable.name for variable in compiled.get_variables()]
    of = dict(zip(names, gradients, strict=True))
    layers = ["arm/joints.0.W", "camera.0.W", "camera.1.W", "0.W"]
    owners = ["trunk"] if shared else ["policy", "value"]
    for name in [f"{owner}.{layer}" for owner in owners for layer in layers]:
        assert np.abs(of[name]).max() > 0, name
    # 9 x 8 becomes 4 x 3 of 4 filters, and 5; the branch of the joints ends in 6; goal and "0" as
    # they are.
    assert of[f"{owners[0]}.camera.1.W"].shape == (48, 5)
    assert of[f"{owners[0]}.0.W"].shape == (1 + 6 + 5 + 3, 8)


def test_a_join_worked_by_hand():
    """y = out([a, tanh(b W + 1/2)]): joined by name, not in the order of the settings."""
    model = make_algorithm(
        make_config((), observations={"b": _leaf(size=2, layers=(1,)), "a": _leaf(size=1)})
    ).model
    values = {
        "policy.b.0.W": [[1], [2]],
        "policy.b.0.b": [0.5],
        "policy.out.W": [[1, 0], [0, 3]],
        "policy.out.b": [0, 0],
    }
    for variable in model.trainable_variables:
        name = variable.name.split(":")[0]
        variable.assign(np.reshape(values.get(name, variable), variable.shape))
    inputs = {"a": [[2.0]], "b": [[-0.2, 0.1]]}
    distributions, _ = model.policy(to_tensors(inputs), {})
    # b: -0.2 + 0.2 + 0.5 = 0.5; logits are 2 and 3 tanh(0.5).
    logits = np.array([2.0, 3 * np.tanh(0.5)])
    want = logits - np.log(np.exp(logits).sum())
    got = [float(distributions["action"].log_prob(tf.constant([a]))[0]) for a in (0, 1)]
    np.testing.assert_allclose(got, want, atol=1e-6)


def _leaf(**settings):
    return ObservationConfig.model_validate(settings)


def test_the_order_in_which_the_file_lists_leaves_changes_nothing():
    """Two processes whose files differ in it must not understand one vector differently."""
    one = make_algorithm(make_settings(), seed=3).model
    other = make_algorithm(
        make_settings(observations=dict(reversed(VECTORS.items()))), seed=3
    ).model
    for a, b in zip(get_variables(one), get_variables(other), strict=True):
        assert a.name == b.name
        np.testing.assert_array_equal(a.value, b.value)
    x = to_tensors(at(make_inputs(one), 0))
    np.testing.assert_array_equal(one.value(x, {}), other.value(x, {}))


def test_no_two_layers_begin_with_the_same_weights():
    same = {name: {"size": 6, "layers": (6, 6)} for name in "abc"}
    model = make_algorithm(make_settings((6,), same)).model
    matrices = [v.value for v in get_variables(model) if v.value.shape == (6, 6)]
    assert len(matrices) == 2 * 3 * 2  # of actor and critic; that behind the join is larger
    assert len({matrix.tobytes() for matrix in matrices}) == len(matrices)


def test_each_vector_is_normalised_by_statistics_of_its_own_and_images_are_not():
    model = make_model(observations={**VECTORS, **IMAGE}, normalize_observations=True)
    statistics = [v.name for v in get_variables(model) if v.kind == "statistic"]
    assert statistics == [
        f"{leaf}.{part}" for leaf in ("0", "arm/joints", "goal") for part in ("count", "mean", "m2")
    ]
    x = at(make_inputs(model), 0)
    plain = make_model(observations={**VECTORS, **IMAGE})
    for variable, value in zip(plain.variables, order_variables(model), strict=False):
        assert variable.name == value.name
        variable.assign(value)
    by_hand = dict(x)
    for leaf in ("0", "arm/joints", "goal"):
        own = model.normalizers[leaf]
        deviation = np.sqrt(own.m2.numpy() / own.count.numpy())
        by_hand[leaf] = ((x[leaf] - own.mean.numpy()) / deviation).astype(np.float32)
    want = plain.value(to_tensors(by_hand), {})
    np.testing.assert_allclose(model.value(to_tensors(x), {}), want, atol=1e-4)


def test_weights_of_ppo_and_bc_are_laid_out_alike():
    leaves = {name: ObservationConfig.model_validate(own) for name, own in VECTORS.items()}
    names = [
        [(v.name, v.group) for v in get_variables(module.make_model(config, 0))]
        for algorithm in ("ppo", "bc")
        for module, config in [
            (
                load("model", algorithm),
                load("config", algorithm).Config(num_actions=2, observations=leaves),
            )
        ]
    ]
    assert names[0] == names[1]
    assert ("value.arm/joints.0.W", "critic") in names[0]
    assert ("policy.arm/joints.0.W", "actor") in names[0]


def test_a_convolution_that_does_not_fit_is_named_with_its_leaf():
    small = {"camera": {"image": (8, 2, 1), "layers": (CONV,)}, "goal": {"size": 3}}
    with pytest.raises(
        ConfigError, match=r"policy\.camera: layer 0 has a kernel of 3, but its input is only 8x2"
    ):
        make_algorithm(make_settings(observations=small))


# Not with `support.batch`, which brings TensorFlow.
_ACT = """
import sys
from pathlib import Path
import numpy as np
from relaax_like.algorithm.acting import NumpyActor, make_actor
from relaax_like.config.algorithm_folder import find_algorithm, load_algorithm_module
from relaax_like.config.leaves import ObservationConfig

folder = find_algorithm("a2c", Path())
config, model = (load_algorithm_module(folder, name) for name in ("config", "model"))
leaves = {
    "a": ObservationConfig(size=2),
    "b": ObservationConfig.model_validate({"size": 3, "layers": (4,)}),
}
settings = config.Config(num_actions=2, observations=leaves, normalize_observations=True)
actor = make_actor(model.make_model(settings, 0), 0)
assert isinstance(actor, NumpyActor)
actor.act({"a": np.zeros((1, 2), np.float32), "b": np.ones((1, 3), np.float32)}, {})
print("tensorflow" in sys.modules)
"""


def test_to_act_on_vectors_needs_no_tensorflow():
    done = subprocess.run([sys.executable, "-c", _ACT], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr
