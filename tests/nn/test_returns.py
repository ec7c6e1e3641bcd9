"""Returns in compiled graphs: the numbers of the NumPy forms, which have slow references."""

# covers F22, P5

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from support import returns as np_form

from relaax_like.nn import returns as tf_form

ALIVE, TERMINATED, TRUNCATED = 1.0, 0.0, -1.0


def split(m, next_alive, gamma):
    """The last arguments of either form: what next_alive and the discount say."""
    if m is np_form:
        return next_alive, gamma
    return gamma * tf.abs(next_alive), tf.cast(next_alive > 0, tf.float32)


# name: of either module, [log_ratios, rewards, values, next_values, next_alive] -> arrays
ESTIMATORS = {
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


def run_all(*arrays):
    """All estimators in one graph: compiling each alone takes longer than all else here."""
    return {name: estimate(tf_form, *arrays) for name, estimate in ESTIMATORS.items()}


def assert_twins(got, rollout):
    for name, results in got.items():
        want = ESTIMATORS[name](np_form, *rollout)
        for result, expected in zip(results, want, strict=True):
            assert result.dtype == tf.float32, name
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("jit", [True, False], ids=["XLA", "graph"])
@pytest.mark.parametrize(("steps", "slots"), [(1, 1), (1, 3), (2, 1), (7, 3), (512, 2)], ids=str)
def test_both_forms_give_the_same_numbers(steps, slots, jit):
    rollout = make_rollout(steps, steps, slots)
    got = tf.function(run_all, jit_compile=jit, autograph=False)(*map(tf.constant, rollout))
    assert got.keys() == ESTIMATORS.keys()
    assert_twins(got, rollout)


def test_lengths_may_be_unknown_until_it_is_compiled():
    specs = [tf.TensorSpec([None, None], tf.float32)] * 5
    function = tf.function(run_all, specs, autograph=False, jit_compile=True)
    for steps, slots in ((3, 2), (6, 1)):
        rollout = make_rollout(steps, steps, slots)
        assert_twins(function(*map(tf.constant, rollout)), rollout)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from(sorted(ESTIMATORS)))
def test_any_rollout_gives_the_same_numbers_eagerly(seed, name):
    rollout = make_rollout(seed, 5, 3)
    assert_twins({name: ESTIMATORS[name](tf_form, *map(tf.constant, rollout))}, rollout)


@pytest.mark.parametrize("jit", [True, False], ids=["XLA", "graph"])
def test_no_gradient_flows_through_them(jit):
    rollout = [tf.constant(a) for a in make_rollout(0, 6, 2)]

    def differentiate(estimate, arrays):
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            # What they are used for keeps its own gradient.
            total = sum(tf.reduce_sum(x * arrays[1]) for x in estimate(tf_form, *arrays))
        return tape.gradient(total, arrays)

    @tf.function(jit_compile=jit, autograph=False)
    def differentiate_all(*arrays):
        return {name: differentiate(estimate, arrays) for name, estimate in ESTIMATORS.items()}

    for name, gradients in differentiate_all(*rollout).items():
        flows = [g is not None for g in gradients]
        assert flows == [False, True, False, False, False], name
        want = sum(ESTIMATORS[name](tf_form, *rollout))
        np.testing.assert_allclose(gradients[1], want, rtol=1e-5, err_msg=name)


ENDLESS = ("gae", "lambda", "vtrace")


@tf.function(jit_compile=True, autograph=False)
def update_all(values, next_alive):
    """Gives each estimator's next value of an endless task that pays 1 per step."""
    ones = tf.ones_like(next_alive)
    new = {}
    for name, value in values.items():
        arrays = (0 * ones, ones, value * ones, value * ones, next_alive)
        estimate = tf.reduce_mean(ESTIMATORS[name](tf_form, *arrays)[0])
        new[name] = estimate + value if name == "gae" else estimate
    return new


def learn_values(at_time_limit):
    """Learns the one value of an endless task that is cut each 5th step."""
    next_alive = np.ones((10, 2), np.float32)
    next_alive[4::5] = at_time_limit
    values = {name: tf.constant(0.0) for name in ENDLESS}
    for _ in range(1000):
        values = update_all(values, tf.constant(next_alive))
    return {name: float(value) for name, value in values.items()}


def test_value_of_an_endless_task_is_right_only_when_time_limits_bootstrap():
    # 1 / (1 - 0.97)
    assert learn_values(TRUNCATED) == pytest.approx(dict.fromkeys(ENDLESS, 100 / 3), rel=1e-3)
    assert all(value < 10 for value in learn_values(TERMINATED).values())


def test_vtrace_on_policy_is_the_n_step_return():
    rollout = make_rollout(3, 20, 3)
    n_step = np_form.compute_n_step_returns(rollout[1], *rollout[3:], 0.97, 20)
    _, rewards, values, next_values, next_alive = map(tf.constant, rollout)
    arrays = (tf.zeros_like(rewards), rewards, values, next_values)
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
