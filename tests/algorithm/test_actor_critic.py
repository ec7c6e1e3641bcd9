"""The actor-critic model: NumPy and TensorFlow, step by step, unrolled. covers F2, F4, F7"""

import math

import numpy as np
import pytest
import tensorflow as tf
from support.batch import make_algorithm, make_config, make_rollout

from relaax_like.algorithm.acting import CompiledActor, NumpyActor, make_actor
from relaax_like.algorithm.model import get_variables, order_variables
from relaax_like.config.loader import dump_experiment, load_experiment
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.spaces import Box, Discrete, MultiDiscrete

STEPS, SLOTS = 5, 3
VARIANTS = {
    "two networks": {},
    "one trunk": {"shared_network": True},
    "two lstms": {"layers": (8, {"lstm": 5})},
    "one gru": {"layers": ({"gru": 5}, 8), "shared_network": True},
    "stacked": {"layers": ({"lstm": 5}, 6, {"gru": 3})},
    "stacked in a trunk": {"layers": ({"lstm": 5}, {"lstm": 5}), "shared_network": True},
    "normalised": {"normalize_observations": True},
    "continuous": {"action_size": 2, "layers": ({"lstm": 4},)},
    "several choices": {"num_actions": (3, 1, 2)},
    "bounded": {"action_size": 2, "bounded": True, "action_low": -2.0, "action_high": (1.0, 3.0)},
    "fixed deviation": {"action_size": 2, "std": 0.3, "shared_network": True},
    "fixed deviations, bounded": {
        **{"action_size": 2, "std": (0.2, 3), "layers": ({"gru": 3},)},
        **{"bounded": True, "action_low": -2.0, "action_high": 2.0},
    },
}


def make_model(**settings):
    model = make_algorithm(make_config(**{"layers": (8,), **settings})).model
    random = np.random.default_rng(0)
    for variable in model.trainable_variables:  # the policy begins nearly uniform
        variable.assign(variable + 0.3 * random.standard_normal(variable.shape))
    for normalizer in model.normalizers.values():
        normalizer.count.assign(10.0)
        normalizer.mean.assign(random.standard_normal(4))
        normalizer.m2.assign(random.uniform(1, 40, 4))
    return model


def make_inputs(seed=1):
    random = np.random.default_rng(seed)
    return random.standard_normal((STEPS, SLOTS, 4)).astype(np.float32)


def make_states(model):
    random = np.random.default_rng(2)
    return {
        name: random.uniform(-1, 1, (SLOTS, *props["shape"])).astype(np.float32)
        for name, props in model.get_state_specs()
    }


def to_tensors(arrays):
    return {name: tf.constant(array) for name, array in arrays.items()}


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_numpy_and_tensorflow_choose_alike(settings):
    model = make_model(**settings)
    actor = NumpyActor(model, seed=0)
    actor.set_values([v.numpy() for v in order_variables(model)], 3)
    inputs, states = {"observation": make_inputs()[0]}, make_states(model)
    prediction = actor.act(inputs, states)
    distributions, next_states = model.policy(to_tensors(inputs), to_tensors(states))
    log_prob = distributions["action"].log_prob(tf.constant(prediction.actions["action"]))
    np.testing.assert_allclose(prediction.log_prob, log_prob, atol=1e-5)
    assert prediction.next_states.keys() == next_states.keys() == states.keys()
    for name, state in next_states.items():
        np.testing.assert_allclose(prediction.next_states[name], state, atol=1e-5)


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_a_rollout_gives_what_single_steps_give(settings):
    model = make_model(**settings)
    x, states = make_inputs(), to_tensors(make_states(model))
    begins = np.zeros((STEPS, SLOTS), bool)
    begins[2, 1] = begins[4, 0] = True
    rollout = make_rollout({"observation": tf.constant(x)}, states, tf.constant(begins))
    seen = model.evaluate(rollout)
    modes = seen.policy.mode()
    for t in range(STEPS):
        keep = 1.0 - begins[t].astype(np.float32)[:, None]
        states = {name: state * keep for name, state in states.items()}
        inputs = {"observation": tf.constant(x[t])}
        np.testing.assert_allclose(seen.values[t], model.value(inputs, states), atol=1e-5)
        distributions, states = model.policy(inputs, states)
        np.testing.assert_allclose(modes[t], distributions["action"].mode(), atol=1e-5)
        for name, state in states.items():
            np.testing.assert_allclose(seen.memory[name][t], state, atol=1e-5)


def test_an_image_goes_through_convolutions_in_a_compiled_call():
    config = make_config(layers=("a3c",), image=(84, 84, 1), observation_history=4)
    algorithm = make_algorithm(config)
    actor = make_actor(algorithm.model, seed=0)
    assert isinstance(actor, CompiledActor)
    images = np.random.default_rng(0).integers(256, size=(3, 84, 84, 4)).astype(np.uint8)
    prediction = actor.act({"observation": images}, {}, exploit=True)
    alone = [actor.act({"observation": image[None]}, {}, exploit=True) for image in images]
    assert prediction.actions["action"].shape == (3,)
    np.testing.assert_allclose(prediction.log_prob, [one.log_prob[0] for one in alone], atol=1e-5)


def test_statistics_follow_the_parameters_and_are_none():
    model = make_model(normalize_observations=True)
    kinds = [variable.kind for variable in get_variables(model)]
    assert kinds[-3:] == ["statistic"] * 3
    assert set(kinds[:-3]) == {"trainable"}
    names = [variable.name for variable in get_variables(model)]
    assert names[-3:] == ["observation.count", "observation.mean", "observation.m2"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": ("nature",)}, "set image"),
        ({"image": (84, 84, 4)}, "not a convolution"),
        (
            {"layers": ("nature",), "image": (84, 84, 4), "normalize_observations": True},
            "image: nothing to normalise, because images are scaled to",
        ),
        (
            {"num_actions": 1},
            "expected an integer of 2 to 2147483648, or a list of integers of 1 to .*, got 1",
        ),
        ({"num_actions": 2**31 + 1}, "expected an integer of 2 to .*, got 2147483649"),
        ({"num_actions": (3, 2**31 + 1)}, "integers of 1 to .*, got 2147483649 at index 1"),
        (
            {"action_size": 1, "bounded": True, "action_low": -1e39, "action_high": 1e39},
            r"action_low: -1e\+39, expected a number that fits into float32",
        ),
        ({"num_actions": ()}, r"got \(\)"),
        (
            {"num_actions": (3, 1.5)},
            r"expected an integer of 2 to .*, or a list .*, got 1\.5 at index 1",
        ),
        ({"action_size": 2, "action_low": -1.0}, "action_low has no effect without bounded"),
        (
            {"action_size": 2, "bounded": True, "action_low": -1.0},
            "a bounded action needs action_low and action_high; set action_high, or set bounded",
        ),
        (
            {"bounded": True, "action_low": -1.0, "action_high": 1.0},
            "bounded: true is only for continuous actions; set bounded: false and remove action_l",
        ),
        (
            {"action_size": 2, "bounded": True, "action_low": -1.0, "action_high": (1.0, -1.0)},
            "action_low: .* expected less than action_high",
        ),
        ({"action_size": 2, "std": 0}, r"expected learned, a number above 0, or .*, got 0"),
        ({"action_size": 2, "std": "fixed"}, r"expected learned, .*, got 'fixed'"),
        ({"action_size": 2, "std": True}, r"expected learned, .*, got true"),
        ({"action_size": 2, "std": (1.0, -1.0)}, r"expected learned, .*, got -1\.0 at index 1"),
        ({"action_size": 2, "std": ()}, r"expected learned, .*, got \(\)"),
        ({"action_size": 2, "std": (1, 1, 1)}, "std: 3 numbers, expected one number, or 2"),
        ({"std": 0.5}, "std: 0.5 also needs action_size"),
        (
            {"action_size": 2, "std": 0.5, "log_std_init": -1.0},
            "log_std_init: -1 has no effect with std: 0.5, which is fixed",
        ),
        (
            {"action_size": 2, "bounded": True, "action_low": -1.0, "action_high": (1.0,) * 3},
            r"action_high: 3 numbers, expected one number, or 2 \(one per component",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        make_config(**settings)


def test_images_of_another_shape_or_type_are_refused_with_the_cure():
    config = make_config(layers=("nature",), image=(84, 84, 4))
    action = {"action": Discrete(n=2)}
    fits = Box(dtype="uint8", shape=(84, 84, 4))
    config.validate_spaces({"observation": fits}, action)
    with pytest.raises(InvalidInputError, match=r"set it to \[64, 64, 4\] if that is"):
        config.validate_spaces({"observation": Box(dtype="uint8", shape=(64, 64, 4))}, action)
    with pytest.raises(InvalidInputError, match=r"uint8"):
        config.validate_spaces({"observation": Box(dtype="float32", shape=(84, 84, 4))}, action)


OBSERVATION = {"observation": Box(dtype="float32", shape=(4,))}


def test_several_choices_fit_an_environment_with_as_many():
    config = make_config(num_actions=(3, 2))
    config.validate_spaces(OBSERVATION, {"action": MultiDiscrete(n=(3, 2), shape=(2,))})
    with pytest.raises(InvalidInputError, match=r"set it to \[2, 3\]"):
        config.validate_spaces(OBSERVATION, {"action": MultiDiscrete(n=(2, 3), shape=(2,))})
    with pytest.raises(InvalidInputError, match=r"remove algorithm\.num_actions to use the env"):
        config.validate_spaces(OBSERVATION, {"action": Discrete(n=3)})
    with pytest.raises(
        InvalidInputError, match=r"remove algorithm\.num_actions to use the environment's"
    ):
        make_config().validate_spaces(OBSERVATION, {"action": MultiDiscrete(n=(2,), shape=(1,))})


def test_bounds_are_those_of_the_environment():
    config = make_config(action_size=2, bounded=True, action_low=-2.0, action_high=(0.4, 2.0))
    high = np.array([0.4, 2.0], np.float32)
    fits = Box(dtype="float32", shape=(2,), low=np.full(2, -2.0, np.float32), high=high)
    config.validate_spaces(OBSERVATION, {"action": fits})
    config.validate_spaces(OBSERVATION, {"action": Box(dtype="float32", shape=(2,))})
    wider = Box(dtype="float32", shape=(2,), low=np.full(2, -3.0, np.float32), high=high)
    words = r"low is -3.0 in component 0, but algorithm.action_low is"
    with pytest.raises(InvalidInputError, match=words):
        config.validate_spaces(OBSERVATION, {"action": wider})


def test_a_fixed_deviation_is_not_a_variable_and_is_the_same_wherever_the_policy_is():
    """log N(a; mean, std), by hand."""
    std = np.array([0.5, 2.0])
    model = make_model(action_size=2, std=(0.5, 2))
    assert all("log_std" not in variable.name for variable in get_variables(model))
    assert len(get_variables(model)) == len(get_variables(make_model(action_size=2))) - 1
    actor = make_actor(model, seed=0)
    assert isinstance(actor, NumpyActor)
    actor.set_values([v.numpy() for v in order_variables(model)], 0)
    inputs = {"observation": np.tile(make_inputs()[0, :1], (2000, 1))}
    means = actor.act(inputs, {}, exploit=True).actions["action"]
    drawn = actor.act(inputs, {})
    actions = drawn.actions["action"]
    np.testing.assert_allclose((actions - means).std(axis=0), std, rtol=0.05)
    each = -(((actions - means) / std) ** 2) / 2 - np.log(std) - math.log(2 * math.pi) / 2
    np.testing.assert_allclose(drawn.log_prob, each.sum(-1), atol=1e-4)
    compiled = CompiledActor(model, 0).act(inputs, {})
    spread = (compiled.actions["action"] - means).std(axis=0)
    np.testing.assert_allclose(spread, std, rtol=0.05)
    seen = model.evaluate(
        make_rollout({"observation": tf.constant(inputs["observation"])}, {}, None)
    )
    got = seen.policy.log_prob(tf.constant(actions))
    np.testing.assert_allclose(got, drawn.log_prob, atol=1e-4)


def test_a_fixed_deviation_survives_dumping(tmp_path):
    file = tmp_path / "experiment.yaml"
    file.write_text("algorithm: {name: a2c, action_size: 2, std: [1, 0.5]}\n")
    experiment = load_experiment(file)
    assert experiment.algorithm.std == (1, 0.5)
    (tmp_path / "config.yaml").write_text(dump_experiment(experiment))
    assert load_experiment(tmp_path / "config.yaml").algorithm == experiment.algorithm


@pytest.mark.parametrize("explore", [False, True])
def test_bounded_actions_stay_within_their_bounds(explore):
    model = make_model(action_size=2, bounded=True, action_low=-2.0, action_high=(1.0, 3.0))
    model.heads["action"].log_std.variable.assign([3.0, 3.0])
    actor = make_actor(model, seed=0)
    actor.set_values([v.numpy() for v in order_variables(model)], 0)
    inputs = {"observation": 100 * np.random.default_rng(0).standard_normal((200, 4), np.float32)}
    actions = actor.act(inputs, {}, exploit=not explore).actions["action"]
    assert (actions >= -2).all()
    assert (actions <= [1, 3]).all()
    assert np.ptp(actions, axis=0) == pytest.approx([3, 5], abs=0.3)  # and fill them
