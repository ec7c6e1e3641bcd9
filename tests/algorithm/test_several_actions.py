"""Actor-critics with several actions: one distribution of all, in any form of a pass."""

# covers J17

import math

import numpy as np
import pytest
import tensorflow as tf
from support.batch import add_state_size, load, make_algorithm, make_rollout

from relaax_like.algorithm.acting import CompiledActor, NumpyActor, make_actor
from relaax_like.algorithm.model import get_variables, order_variables
from relaax_like.config.leaves import ActionConfig
from relaax_like.learn.compiled_algorithm import CompiledAlgorithm

STEPS, SLOTS = 5, 3
# Listed in another order than that of their names.
LEAVES = {
    "move": {"num": 3},
    "arm/aim": {"size": 2, "std": (0.5, 0.2)},
    "arm/turn": {"size": 1, "log_std_init": -1.0, "bounded": True, "low": -2.0, "high": 1.0},
    "0": {"num": (2, 4)},
    "grip": {"binary": 2},
}
NAMES = ["0", "arm/aim", "arm/turn", "grip", "move"]
VARIANTS = {
    "two networks": {},
    "one trunk": {"shared_network": True},
    "stacked": {"layers": ({"lstm": 4}, {"gru": 3})},
    "one leaf": {"actions": {"move": {"num": 3}}},
}


def make_config(layers=(8,), actions=LEAVES, algorithm="a2c", **settings):
    leaves = {name: ActionConfig.model_validate(own) for name, own in actions.items()}
    network = {"layers": tuple(layers)}
    settings = add_state_size(settings)
    return load("config", algorithm).Config(actions=leaves, network=network, **settings)


def make_model(**settings):
    model = make_algorithm(make_config(**settings)).model
    random = np.random.default_rng(0)
    for variable in model.trainable_variables:  # the policy begins nearly uniform
        variable.assign(variable + 0.3 * random.standard_normal(variable.shape))
    return model


def make_inputs():
    return np.random.default_rng(1).standard_normal((STEPS, SLOTS, 4)).astype(np.float32)


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
    actor = make_actor(model, seed=0)
    assert isinstance(actor, NumpyActor)
    actor.set_values([v.numpy() for v in order_variables(model)], 3)
    inputs, states = {"observation": make_inputs()[0]}, make_states(model)
    compiled = CompiledActor(model, 0)
    for exploit in (False, True):
        prediction = actor.act(inputs, states, exploit)
        distributions, next_states = model.policy(to_tensors(inputs), to_tensors(states))
        assert list(prediction.actions) == list(distributions)
        log_prob = sum(
            distribution.log_prob(tf.constant(prediction.actions[name])).numpy()
            for name, distribution in distributions.items()
        )
        np.testing.assert_allclose(prediction.log_prob, log_prob, atol=1e-5)
        for name, state in next_states.items():
            np.testing.assert_allclose(prediction.next_states[name], state, atol=1e-5)
        other = compiled.act(inputs, states, exploit)
        assert other.actions.keys() == prediction.actions.keys()
        for name, spec in model.get_action_specs():
            assert prediction.actions[name].shape == (SLOTS, *spec["shape"])
            assert prediction.actions[name].dtype == spec["dtype"]
            if exploit:
                np.testing.assert_allclose(other.actions[name], prediction.actions[name], atol=1e-5)


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_a_rollout_gives_what_single_steps_give(settings):
    model = make_model(**settings)
    x, states = make_inputs(), to_tensors(make_states(model))
    begins = np.zeros((STEPS, SLOTS), bool)
    begins[2, 1] = begins[4, 0] = True
    rollout = make_rollout({"observation": tf.constant(x)}, states, tf.constant(begins))
    seen = model.evaluate(rollout)
    parameters = seen.parameters.numpy()
    for t in range(STEPS):
        keep = 1.0 - begins[t].astype(np.float32)[:, None]
        states = {name: state * keep for name, state in states.items()}
        inputs = {"observation": tf.constant(x[t])}
        np.testing.assert_allclose(seen.values[t], model.value(inputs, states), atol=1e-5)
        distributions, states = model.policy(inputs, states)
        joint = model.make_distribution(tf.constant(parameters[t]))
        assert list(joint.parts) == list(distributions)
        for name, own in distributions.items():
            np.testing.assert_allclose(joint.parts[name].kl(own), np.zeros(SLOTS), atol=1e-5)
        for name, state in states.items():
            np.testing.assert_allclose(seen.memory[name][t], state, atol=1e-5)


def test_leaves_are_laid_out_by_name_in_whatever_order_the_file_lists_them():
    one, other = (
        make_algorithm(make_config(actions=dict(leaves)), seed=3).model
        for leaves in (LEAVES.items(), reversed(LEAVES.items()))
    )
    assert [name for name, _ in one.get_action_specs()] == NAMES
    for a, b in zip(get_variables(one), get_variables(other), strict=True):
        assert a.name == b.name
        np.testing.assert_array_equal(a.value, b.value)
    # 2 + 4 logits, 2 means, 1 mean, 2 switches, 3 logits.
    shapes = {variable.name: variable.value.shape for variable in get_variables(one)}
    assert shapes["policy.out.W"] == (8, 14)
    # That of arm/aim is fixed.
    assert [name for name in shapes if "log_std" in name] == ["log_std.arm/turn"]
    x = {"observation": tf.constant(make_inputs()[0])}
    seen = one.evaluate(make_rollout({"observation": x["observation"][None]}, {}, None))
    assert seen.parameters.shape == (1, SLOTS, 6 + 4 + 2 + 2 + 3)
    # What the policy does on average: probabilities, means, probabilities.
    assert one.compute_means(seen.parameters).shape == (1, SLOTS, 6 + 2 + 1 + 2 + 3)


@pytest.mark.parametrize("algorithm", ["ppo", "bc"])
def test_heads_are_trained_with_the_actor(algorithm):
    config = make_config(algorithm=algorithm)
    groups = {
        variable.name: variable.group
        for variable in get_variables(load("model", algorithm).make_model(config, 0))
    }
    assert groups["log_std.arm/turn"] == groups["policy.out.W"] == "actor"
    assert groups["value.out.W"] == "critic"


def test_the_gradient_of_one_probability_of_all_actions_by_hand():
    """Cloning of uniform actions: cost ln 2 + ln 3 + ln 2, and each head its own gradient."""
    leaves = {"b": {"num": 3}, "a": {"num": 2}, "c": {"binary": 1}}
    config = make_config((), leaves, "bc", state_size=1)
    model = load("model", "bc").make_model(config, 0)
    compiled = CompiledAlgorithm(load("algorithm", "bc").make_algorithm(config, model, 0))
    zeros = [np.zeros_like(variable.value) for variable in compiled.get_variables()]
    compiled.set_values(zeros)
    gradients, costs = compiled.compute_gradients(
        inputs={"observation": np.ones((1, 1), np.float32)},
        next_inputs={"observation": np.ones((1, 1), np.float32)},
        next_alive={"alive": np.ones((1, 1), np.float32)},
        rewards={"reward": np.zeros((1, 1), np.float32)},
        actions={"b": np.array([1]), "a": np.array([0]), "c": np.array([[1]])},
    )
    assert costs["cloning"] == pytest.approx(math.log(2) + math.log(3) + math.log(2), abs=1e-6)
    assert costs["entropy"] == pytest.approx(costs["cloning"], abs=1e-6)
    names = [variable.name for variable in compiled.get_variables()]
    got = dict(zip(names, gradients, strict=True))["policy.out.b"]
    # In the order a, b, c: p - 1 for what was done, else p.
    want = [1 / 2 - 1, 1 / 2, 1 / 3, 1 / 3 - 1, 1 / 3, 1 / 2 - 1]
    np.testing.assert_allclose(got, want, atol=1e-6)
