"""The NumPy border of TensorFlow, on a model small enough to work out by hand."""

# covers F1, F2, F3, F4, F5, F6, F8

import numpy as np
import pytest
import tensorflow as tf

from relaax_like.algorithm import Algorithm, FlareAlgorithm
from relaax_like.algorithm.model import Model, get_variables
from relaax_like.core.manifest import make_manifest
from relaax_like.learn.compiled_algorithm import CompiledAlgorithm
from relaax_like.nn.distributions import Categorical, Deterministic
from relaax_like.nn.module import declare
from relaax_like.wire.errors import ConfigError, InvalidInputError


class LinearModel(Model):
    """action = a * w1 + b * w2, with the two weights in groups of their own."""

    def __init__(self):
        super().__init__(name="linear")
        # The attribute names sort against the groups' order, so that order is tested too.
        self.z = tf.Variable([[2.0], [0.0]], name="z")
        self.y = tf.Variable([[0.5]], name="y")
        self.x = tf.Variable(1.0, name="x")

    def get_input_specs(self):
        return [("a", {"shape": [2]}), ("b", {"shape": [1]})]

    def get_state_specs(self):
        return [("memory", {"shape": [1]})]

    def get_action_specs(self):
        return [("action", {"shape": [1]})]

    def policy(self, inputs, states):
        mean = inputs["a"] @ self.z + inputs["b"] @ self.y + self.x
        return {"action": Deterministic(mean)}, {"memory": states["memory"] + 1.0}

    def get_group(self, name):
        return "critic" if name == "y" else "actor"


class Regression(FlareAlgorithm):
    """Two costs, whose sum is minimised."""

    def learn(
        self, inputs, next_inputs, states, next_states, next_alive, actions, next_actions, rewards
    ):
        distributions, _ = self.model.policy(inputs, states)
        error = distributions["action"].mean - actions["action"]
        return {"squared": error**2, "bias": 0.5 * self.model.x**2}


@pytest.fixture
def compiled():
    return CompiledAlgorithm(Regression(LinearModel()))


INPUTS = {"a": np.array([[1, 0], [0, 1]]), "b": np.array([[2.0], [4.0]]), "c": np.zeros((2, 9))}
STATES = {"memory": np.zeros((2, 1))}


def test_predict_sees_exactly_the_inputs_that_the_specs_name(compiled):
    actions, states = compiled.predict(INPUTS, STATES)
    np.testing.assert_allclose(actions["action"], [[2 + 1 + 1], [0 + 2 + 1]])
    np.testing.assert_allclose(states["memory"], [[1], [1]])
    assert isinstance(actions["action"], np.ndarray)


def test_predictions_are_the_same_alone_and_batched(compiled):
    both, _ = compiled.predict(INPUTS, STATES)
    for row in range(2):
        alone, _ = compiled.predict(
            {k: v[row : row + 1] for k, v in INPUTS.items()}, {"memory": np.zeros((1, 1))}
        )
        np.testing.assert_array_equal(alone["action"][0], both["action"][row])


def learn(compiled, **changes):
    arguments = {
        "inputs": INPUTS,
        "next_inputs": INPUTS,
        "next_alive": {"alive": np.ones((2, 1))},
        "rewards": {"reward": np.zeros((2, 1))},
        "actions": {"action": np.zeros((2, 1))},
        "states": STATES,
        "next_states": STATES,
    }
    return compiled.compute_gradients(**{**arguments, **changes})


def test_gradients_worked_out_by_hand_come_in_manifest_order(compiled):
    gradients, costs = learn(compiled)
    # errors are 4 and 3; d/dmean = [4, 3]
    assert costs["squared"] == pytest.approx((16 + 9) / 2)
    assert costs["bias"] == pytest.approx(0.5)
    by_name = dict(zip([v.name for v in compiled.get_variables()], gradients, strict=True))
    np.testing.assert_allclose(by_name["z"], [[4], [3]])
    np.testing.assert_allclose(by_name["y"], [[4 * 2 + 3 * 4]])
    np.testing.assert_allclose(by_name["x"], 4 + 3 + 1)
    manifest = make_manifest(compiled.get_variables())
    assert [s.name for s in manifest.segments] == list(by_name)
    assert [s.group for s in manifest.segments] == ["actor", "actor", "critic"]


def test_set_values_takes_manifest_order_and_predictions_follow(compiled):
    values = [np.zeros_like(v.value) for v in compiled.get_variables()]
    compiled.set_values(values)
    actions, _ = compiled.predict(INPUTS, STATES)
    np.testing.assert_array_equal(actions["action"], [[0], [0]])


KINDS = {
    "odd": np.arange(3, dtype=np.float32),
    "flags": np.array([True, False, True]),
    "count": np.array(-7),
    "halves": np.arange(4, dtype=np.float16).reshape(2, 2),
    "bytes": np.arange(5, dtype=np.int8),
    "none": np.zeros((0, 2), np.float32),
}


class ManyKinds(LinearModel):
    """A model with constants of several dtypes, which the manifest aligns."""

    def __init__(self):
        super().__init__()
        self.constants = {
            name: declare(tf.Variable(value, trainable=False, name=name), "constant")
            for name, value in KINDS.items()
        }


def test_the_flat_vector_has_the_layout_of_the_manifest():
    compiled = CompiledAlgorithm(Regression(ManyKinds()))
    variables = compiled.get_variables()
    manifest = make_manifest(variables)
    flat = compiled.get_flat()
    np.testing.assert_array_equal(flat, manifest.pack([v.value for v in variables]))
    assert not flat.flags.writeable
    changed = [np.ones_like(v.value) for v in variables]
    compiled.set_flat(manifest.pack(changed))
    for got, want in zip(compiled.get_values(), changed, strict=True):
        assert (got.dtype, got.tolist()) == (want.dtype, want.tolist())
    # What was read before has not changed.
    np.testing.assert_array_equal(flat, manifest.pack([v.value for v in variables]))


def test_another_number_of_values_is_refused(compiled):
    values = [v.value for v in compiled.get_variables()]
    with pytest.raises(
        InvalidInputError, match=rf"received {len(values) + 1}, expected {len(values)}"
    ):
        compiled.set_values([*values, values[0]])


def test_a_missing_input_is_named(compiled):
    with pytest.raises(InvalidInputError, match="inputs: b is missing"):
        compiled.predict({"a": INPUTS["a"]}, STATES)


def test_a_missing_state_is_named(compiled):
    with pytest.raises(InvalidInputError, match="states: memory is missing"):
        compiled.predict(INPUTS)


def test_a_wrong_shape_is_named(compiled):
    with pytest.raises(InvalidInputError, match=r"inputs\[a\]: shape \[2, 1\]"):
        compiled.predict({"a": np.zeros((2, 1)), "b": INPUTS["b"]}, STATES)


def test_an_algorithm_need_not_learn():
    with pytest.raises(ConfigError, match="NotImplementedError: Algorithm does not learn"):
        learn(CompiledAlgorithm(Algorithm(LinearModel())))


def test_one_model_serves_two_algorithms():
    model = LinearModel()
    first, second = CompiledAlgorithm(Regression(model)), CompiledAlgorithm(Algorithm(model))
    first.set_values([np.ones_like(v.value) for v in get_variables(model)])
    np.testing.assert_array_equal(
        second.predict(INPUTS, STATES)[0]["action"], first.predict(INPUTS, STATES)[0]["action"]
    )


def test_reward_specs_default_to_one_scalar():
    assert LinearModel().get_reward_specs() == [("reward", {"shape": [1]})]


def test_a_deterministic_distribution_samples_its_mean():
    mean = tf.constant([[1.0, 2.0]])
    generator = tf.random.Generator.from_seed(0)
    np.testing.assert_array_equal(Deterministic(mean).sample(generator), mean)


def test_categorical_probabilities_modes_and_frequencies():
    logits = np.log(np.array([[0.7, 0.2, 0.1]], np.float32)) + 3
    distribution = Categorical(tf.constant(np.repeat(logits, 20_000, axis=0)))
    for action, probability in enumerate((0.7, 0.2, 0.1)):
        log_prob = Categorical(tf.constant(logits)).log_prob(tf.constant([action]))
        np.testing.assert_allclose(log_prob, [np.log(probability)], rtol=1e-5)
    drawn = distribution.sample(tf.random.Generator.from_seed(1)).numpy()
    # Five standard deviations of a proportion of 20 000 draws.
    np.testing.assert_allclose(np.bincount(drawn) / 20_000, [0.7, 0.2, 0.1], atol=0.017)
    assert set(distribution.mode().numpy()) == {0}


def test_draws_depend_on_the_seed_alone():
    def draw(seed):
        algorithm = Algorithm(CoinModel(), seed=seed)
        compiled = CompiledAlgorithm(algorithm)
        return [int(compiled.predict({"a": np.zeros((1, 1))})[0]["action"][0]) for _ in range(40)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


class CoinModel(Model):
    """A fair coin."""

    def __init__(self):
        super().__init__(name="coin")
        self.w = tf.Variable([[0.0, 0.0]], name="w")

    def get_input_specs(self):
        return [("a", {"shape": [1]})]

    def get_action_specs(self):
        return [("action", {"shape": [], "dtype": "int64"})]

    def policy(self, inputs, states):
        return {"action": Categorical(inputs["a"] @ self.w)}, states
