"""Returns in compiled graphs: the numbers of the NumPy forms, which have slow references."""

# covers F22, P5

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from relaax_like.experience import returns as np_form
from relaax_like.nn import returns as tf_form

ALIVE, TERMINATED, TRUNCATED = 1.0, 0.0, -1.0


def split(m, next_alive, gamma):
    """The last arguments of either form: what next_alive and the discount say."""
    if m is np_form:
        return next_alive, gamma
    return gamma * tf.abs(next_alive), tf.cast(next_alive > 0, tf.float32)


# name: of either module, [log_ratios, rewards, values, next_values, next_alive] -> arrays
ESTIMATORS = {
    "n_step 1": lambda m, lr, r, v, nv, na: [
        m.compute_n_step_returns(r, nv, *split(m, na, 0.97), 1)
    ],
    "n_step 4": lambda m, lr, r, v, nv, na: [
        m.compute_n_step_returns(r, nv, *split(m, na, 0.97), 4)
    ],
    "n_step 999": lambda m, lr, r, v, nv, na: [
        m.compute_n_step_returns(r, nv, *split(m, na, 0.97), 999)
    ],
    "gae": lambda m, lr, r, v, nv, na: [m.compute_gae(r, v, nv, *split(m, na, 0.97), 0.9)],
    "lambda": lambda m, lr, r, v, nv, na: [
        m.compute_lambda_returns(r, nv, *split(m, na, 0.97), 0.9)
    ],
    "vtrace": lambda m, lr, r, v, nv, na: [*m.compute_vtrace(lr, r, v, nv, *split(m, na, 0.97))],
    "vtrace, all settings": lambda m, lr, r, v, nv, na: [
        *m.compute_vtrace(lr, r, v, nv, *split(m, na, 0.97), 2.0, 0.5, 0.9)
    ],
}


def make_rollout(seed, steps, slots):
    rng = np.random.default_rng(seed)
    log_ratios, rewards, values, next_values = rng.standard_normal((4, steps, slots))
    next_alive = rng.choice([ALIVE, TERMINATED, TRUNCATED], (steps, slots), p=[0.9, 0.05, 0.05])
    goes_on = next_alive[:-1] == ALIVE
    next_values[:-1][goes_on] = values[1:][goes_on]
    arrays = (log_ratios, rewards, values, next_values, next_alive)
    return [a.astype(np.float32) for a in arrays]


def assert_twins(name, function, rollout):
    got = function(*map(tf.constant, rollout))
    want = ESTIMATORS[name](np_form, *rollout)
    for result, expected in zip(got, want, strict=True):
        assert result.dtype == tf.float32
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("jit", [True, False], ids=["XLA", "graph"])
@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize(("steps", "slots"), [(1, 1), (1, 3), (2, 1), (7, 3), (512, 2)], ids=str)
def test_both_forms_give_the_same_numbers(name, steps, slots, jit):
    function = tf.function(lambda *a: ESTIMATORS[name](tf_form, *a), jit_compile=jit)
    assert_twins(name, function, make_rollout(steps, steps, slots))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_lengths_may_be_unknown_until_it_is_compiled(name):
    specs = [tf.TensorSpec([None, None], tf.float32)] * 5
    function = tf.function(
        lambda *a: ESTIMATORS[name](tf_form, *a), jit_compile=True, input_signature=specs
    )
    for steps, slots in ((3, 2), (6, 1)):
        assert_twins(name, function, make_rollout(steps, steps, slots))


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from(sorted(ESTIMATORS)))
def test_any_rollout_gives_the_same_numbers_eagerly(seed, name):
    function = lambda *a: ESTIMATORS[name](tf_form, *a)  # noqa: E731
    assert_twins(name, function, make_rollout(seed, 5, 3))


@pytest.mark.parametrize("jit", [True, False], ids=["XLA", "graph"])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_no_gradient_flows_through_them(name, jit):
    rollout = [tf.constant(a) for a in make_rollout(0, 6, 2)]

    @tf.function(jit_compile=jit)
    def differentiate(*arrays):
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            # What they are used for keeps its own gradient.
            total = sum(tf.reduce_sum(x * arrays[1]) for x in ESTIMATORS[name](tf_form, *arrays))
        return tape.gradient(total, arrays)

    gradients = differentiate(*rollout)
    assert [g is not None for g in gradients] == [False, True, False, False, False]
    np.testing.assert_allclose(gradients[1], sum(ESTIMATORS[name](tf_form, *rollout)), rtol=1e-5)


def learn_value(name, at_time_limit):
    """Learns the one value of an endless task that pays 1 per step and is cut each 5th step."""
    next_alive = np.ones((10, 2), np.float32)
    next_alive[4::5] = at_time_limit
    ones = tf.ones((10, 2))

    @tf.function(jit_compile=True)
    def update(value):
        arrays = (0 * ones, ones, value * ones, value * ones, tf.constant(next_alive))
        estimate = tf.reduce_mean(ESTIMATORS[name](tf_form, *arrays)[0])
        return estimate + value if name == "gae" else estimate

    value = tf.constant(0.0)
    for _ in range(1000):
        value = update(value)
    return float(value)


@pytest.mark.parametrize("name", ["n_step 4", "n_step 999", "gae", "lambda", "vtrace"])
def test_value_of_an_endless_task_is_right_only_when_time_limits_bootstrap(name):
    # 1 / (1 - 0.97)
    assert learn_value(name, TRUNCATED) == pytest.approx(100 / 3, rel=1e-3)
    assert learn_value(name, TERMINATED) < 10


def test_vtrace_on_policy_is_the_n_step_return():
    _, rewards, values, next_values, next_alive = map(tf.constant, make_rollout(3, 20, 3))
    arrays = (tf.zeros_like(rewards), rewards, values, next_values)
    n_step = tf_form.compute_n_step_returns(
        rewards, next_values, *split(tf_form, next_alive, 0.97), 20
    )
    got = tf_form.compute_vtrace(*arrays, *split(tf_form, next_alive, 0.97))
    np.testing.assert_allclose(got.targets, n_step, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got.advantages, n_step - values, rtol=1e-5, atol=1e-5)


def test_a_ratio_that_overflows_counts_as_its_bound():
    _, *arrays, next_alive = map(tf.constant, make_rollout(3, 5, 2))
    arrays += split(tf_form, next_alive, 0.9)
    huge = tf_form.compute_vtrace(tf.fill((5, 2), 1e4), *arrays)
    bound = tf_form.compute_vtrace(tf.zeros((5, 2)), *arrays)
    np.testing.assert_array_equal(huge.targets, bound.targets)
    np.testing.assert_array_equal(huge.advantages, bound.advantages)


def test_n_step_of_zero_is_refused():
    with pytest.raises(ValueError, match="n_step is 0, expected 1 or more"):
        tf_form.compute_n_step_returns(*[tf.ones((3, 1))] * 4, 0)
