"""Distributions: numbers worked out by hand, twins held together, draws against their law."""

# covers F4

import math
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from relaax_like.nn import distributions

RNG = np.random.default_rng(0)
N = [3, 2, 4]
LOW = np.array([-2.0, 0.0], np.float32)
HIGH = np.array([2.0, 10.0], np.float32)
INF = math.inf


def normal(*shape, scale=1.0):
    return (scale * RNG.standard_normal(shape)).astype(np.float32)


# name: (class, extra arguments, parameters of one distribution, of another, some actions)
CASES = {
    "Deterministic": ("Deterministic", (), (normal(5, 2),), (normal(5, 2),), normal(5, 2)),
    "Categorical": (
        "Categorical",
        (),
        (normal(5, 4, scale=3),),
        (normal(5, 4),),
        RNG.integers(0, 4, 5),
    ),
    "Categorical [T, k]": (
        "Categorical",
        (),
        (normal(3, 5, 4),),
        (normal(3, 5, 4),),
        RNG.integers(0, 4, (3, 5)),
    ),
    "MultiCategorical": (
        "MultiCategorical",
        (N,),
        (normal(5, 9),),
        (normal(5, 9),),
        RNG.integers(0, N, (5, 3)),
    ),
    "MultiCategorical, all alike": (
        "MultiCategorical",
        ([3, 3],),
        (normal(5, 6),),
        (normal(5, 6),),
        RNG.integers(0, 3, (5, 2)),
    ),
    "Bernoulli": (
        "Bernoulli",
        (),
        (normal(5, 3, scale=4),),
        (normal(5, 3),),
        RNG.integers(0, 2, (5, 3)),
    ),
    "DiagonalGaussian": (
        "DiagonalGaussian",
        (),
        (normal(5, 2), normal(5, 2, scale=0.5)),
        (normal(5, 2), normal(5, 2, scale=0.5)),
        normal(5, 2),
    ),
    "DiagonalGaussian, one log_std for all rows": (
        "DiagonalGaussian",
        (),
        (normal(5, 2), normal(2, scale=0.5)),
        (normal(5, 2), normal(2, scale=0.5)),
        normal(5, 2),
    ),
    "DiagonalGaussian [T, k]": (
        "DiagonalGaussian",
        (),
        (normal(3, 5, 2), normal(2, scale=0.5)),
        (normal(3, 5, 2), normal(2, scale=0.5)),
        normal(3, 5, 2),
    ),
    "ClippedGaussian": (
        "ClippedGaussian",
        (LOW, HIGH),
        (RNG.uniform(LOW, HIGH, (5, 2)).astype(np.float32), np.exp(normal(5, 2))),
        (RNG.uniform(LOW, HIGH, (5, 2)).astype(np.float32), np.exp(normal(2))),
        normal(5, 2),
    ),
    "TanhGaussian": (
        "TanhGaussian",
        (LOW, HIGH),
        (normal(5, 2), normal(5, 2, scale=0.3)),
        (normal(5, 2), normal(5, 2, scale=0.3)),
        np.vstack([LOW, HIGH, RNG.uniform(LOW, HIGH, (3, 2))]).astype(np.float32),
    ),
    "TanhGaussian, one log_std for all rows": (
        "TanhGaussian",
        (),
        (normal(5, 2), normal(2, scale=0.3)),
        (normal(5, 2), normal(2, scale=0.3)),
        RNG.uniform(-1, 1, (5, 2)).astype(np.float32),
    ),
}


def make_numpy(name, parameters):
    kind, extra, *_ = CASES[name]
    return getattr(distributions, kind)(*parameters, *extra)


def make_tf(name, parameters):
    kind, extra, *_ = CASES[name]
    return getattr(distributions, kind)(*map(tf.convert_to_tensor, parameters), *extra)


def run_numpy(name):
    _, _, first, second, actions = CASES[name]
    distribution = make_numpy(name, first)
    return [
        distribution.mode(),
        distribution.log_prob(actions),
        distribution.entropy(),
        distribution.kl(make_numpy(name, second)),
        distribution.kl(distribution),
    ]


def compile_all(compute, arguments, **options):
    """Calls one compiled graph of all cases, `compute(name, *arguments of the case)`.

    A graph of each case alone takes longer than all else here.
    """

    @tf.function(jit_compile=True, autograph=False, **options)
    def run(arguments):
        return {name: compute(name, *own) for name, own in arguments.items()}

    return run(arguments)


def compute_all_numbers(name, first, second, actions):
    distribution = make_tf(name, first)
    return [
        distribution.mode(),
        distribution.log_prob(actions),
        distribution.entropy(),
        distribution.kl(make_tf(name, second)),
        distribution.kl(distribution),
    ]


def to_arguments(name):
    _, _, first, second, actions = CASES[name]
    return tuple(map(tf.constant, first)), tuple(map(tf.constant, second)), tf.constant(actions)


@pytest.fixture(scope="module")
def compiled_numbers():
    return compile_all(compute_all_numbers, {name: to_arguments(name) for name in CASES})


@pytest.mark.parametrize("jit", [True, False], ids=["XLA", "eager"])
@pytest.mark.parametrize("name", CASES)
def test_both_forms_give_the_same_numbers(name, jit, compiled_numbers):
    got = compiled_numbers[name] if jit else compute_all_numbers(name, *to_arguments(name))
    want = run_numpy(name)
    for result, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
        assert result.dtype.as_numpy_dtype == expected.dtype
    batch = np.shape(CASES[name][2][0])[:-1]
    for expected in want[1:]:
        assert expected.shape == batch
        assert expected.dtype == np.float32


@pytest.mark.parametrize("name", [n for n in CASES if "[T" not in n])
def test_one_row_alone_gives_what_it_gives_in_a_batch(name):
    _, _, first, _, actions = CASES[name]
    together = make_numpy(name, first)
    for row in range(5):
        one = make_numpy(name, [p[row : row + 1] if p.ndim == 2 else p for p in first])
        for method, args in (("log_prob", [actions[row : row + 1]]), ("entropy", []), ("mode", [])):
            full = [actions] if args else []
            np.testing.assert_allclose(
                getattr(one, method)(*args)[0], getattr(together, method)(*full)[row], atol=1e-6
            )


@pytest.mark.parametrize("name", CASES)
def test_a_numpy_draws_log_prob_is_the_one_that_the_learner_finds(name):
    first = CASES[name][2]
    actions, log_prob = make_numpy(name, first).sample_with_log_prob(np.random.default_rng(3))
    np.testing.assert_allclose(
        make_tf(name, first).log_prob(actions), log_prob, rtol=1e-5, atol=1e-5
    )
    mode = make_tf(name, first).mode()
    assert actions.shape == mode.shape
    assert actions.dtype == mode.dtype.as_numpy_dtype


def test_compiled_draws_have_the_shape_of_the_mode_and_its_log_prob():
    generator = tf.random.Generator.from_seed(0, alg="philox")

    def draw(name, *parameters):
        distribution = make_tf(name, parameters)
        return *distribution.sample_with_log_prob(generator), distribution.mode()

    drawn = compile_all(draw, {name: tuple(map(tf.constant, CASES[name][2])) for name in CASES})
    assert drawn.keys() == CASES.keys()
    for name, (actions, log_prob, mode) in drawn.items():
        assert actions.shape == mode.shape, name
        assert actions.dtype == mode.dtype, name
        want = make_numpy(name, CASES[name][2]).log_prob(actions.numpy())
        np.testing.assert_allclose(want, log_prob, rtol=1e-4, atol=1e-4, err_msg=name)


def test_batch_size_may_be_unknown_until_it_is_compiled():
    def spec(array):
        return tf.TensorSpec([None, *array.shape[1:]], array.dtype)

    def compute(name, first, second, actions):
        distribution, other = make_tf(name, first), make_tf(name, second)
        return distribution.log_prob(actions), distribution.entropy(), distribution.kl(other)

    arguments = {name: to_arguments(name) for name in CASES}
    specs = tf.nest.map_structure(spec, arguments)
    computed = compile_all(compute, arguments, input_signature=[specs])
    assert computed.keys() == CASES.keys()
    for name, results in computed.items():
        for result, want in zip(results, run_numpy(name)[1:4], strict=True):
            np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-5, err_msg=name)


def test_categorical_by_hand():
    logits = np.log(np.array([[0.5, 0.25, 0.25]], np.float32)) + 7
    uniform = np.zeros((1, 3), np.float32)
    distribution = distributions.Categorical(logits)
    assert distribution.log_prob(np.array([1])) == pytest.approx(math.log(0.25))
    # 0.5 log 2 + 2 * 0.25 log 4 = 1.5 log 2
    assert distribution.entropy() == pytest.approx(1.5 * math.log(2))
    # log 3 - entropy
    want = math.log(3) - 1.5 * math.log(2)
    assert distribution.kl(distributions.Categorical(uniform)) == pytest.approx(want, abs=1e-6)
    assert distribution.mode() == [0]


def test_multi_categorical_by_hand():
    # Components of 2 and 3 choices: P(1) = 3/4 and P(2) = 1/2.
    logits = np.log(np.array([[1, 3, 1, 1, 2]], np.float32))
    distribution = distributions.MultiCategorical(logits, [2, 3])
    assert distribution.log_prob(np.array([[1, 2]])) == pytest.approx(math.log(3 / 8))
    want = -0.25 * math.log(0.25) - 0.75 * math.log(0.75) + 1.5 * math.log(2)
    assert distribution.entropy() == pytest.approx(want)
    np.testing.assert_array_equal(distribution.mode(), [[1, 2]])


def test_bernoulli_by_hand():
    # P(on) = 3/4 and 1/5.
    logits = np.log(np.array([[3, 0.25]], np.float32))
    distribution = distributions.Bernoulli(logits)
    assert distribution.log_prob(np.array([[1, 0]])) == pytest.approx(math.log(0.75 * 0.8))
    want = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25) + 0.2 * math.log(0.2))
    want -= 0.8 * math.log(0.8)
    assert distribution.entropy() == pytest.approx(want)
    even = distributions.Bernoulli(np.zeros((1, 2), np.float32))
    assert distribution.kl(even) == pytest.approx(2 * math.log(2) - want, abs=1e-6)
    np.testing.assert_array_equal(distribution.mode(), [[1, 0]])


def test_gaussian_by_hand():
    mean, log_std = np.array([[1.0, 0.0]], np.float32), np.log(np.array([2.0, 1.0], np.float32))
    distribution = distributions.DiagonalGaussian(mean, log_std)
    # (3 - 1) / 2 = 1 and (0 - 0) / 1 = 0 standard deviations away.
    want = -0.5 - math.log(2) - math.log(2 * math.pi)
    assert distribution.log_prob(np.array([[3, 0]], np.float32)) == pytest.approx(want)
    assert distribution.entropy() == pytest.approx(math.log(2) + 1 + math.log(2 * math.pi))
    # log(1 / 2) + (4 + 1) / 2 - 1 / 2 in the first component, nothing in the second
    other = distributions.DiagonalGaussian(np.zeros((1, 2), np.float32), np.zeros(2, np.float32))
    assert distribution.kl(other) == pytest.approx(2 - math.log(2))


def test_kl_of_two_nearly_equal_gaussians_is_not_lost_in_rounding():
    mean, step = np.zeros((1, 1), np.float32), np.float32(1e-4)
    first = distributions.DiagonalGaussian(mean, np.array([step]))
    second = distributions.DiagonalGaussian(mean, np.zeros(1, np.float32))
    # (exp(2 e) - 1 - 2 e) / 2 = e^2 + ...
    assert first.kl(second)[0] == pytest.approx(1e-8, rel=1e-2)


@pytest.mark.parametrize("form", [np.asarray, tf.constant], ids=["NumPy", "TensorFlow"])
def test_a_clipped_gaussian_is_a_gaussian_but_for_its_draws(form):
    mean, std = np.array([[1.0, 9.0]], np.float32), np.array([2.0, 3.0], np.float32)
    log_std = form(np.log(std))
    clipped = distributions.ClippedGaussian(form(mean), form(std), LOW, HIGH)
    plain = distributions.DiagonalGaussian(form(mean), log_std)
    np.testing.assert_array_equal(clipped.mode(), mean)
    for outside in ([[1.0, 9.0]], [[-7.0, 40.0]]):
        action = np.array(outside, np.float32)
        np.testing.assert_allclose(clipped.log_prob(action), plain.log_prob(action), rtol=1e-6)
    np.testing.assert_allclose(clipped.entropy(), plain.entropy(), rtol=1e-6)

    def draw(distribution):
        if form is np.asarray:
            return distribution.sample(np.random.default_rng(0))
        return distribution.sample(tf.random.Generator.from_seed(0, alg="philox"))

    many = form(np.repeat(mean, 1000, 0))
    drawn = draw(distributions.ClippedGaussian(many, form(std), LOW, HIGH))
    want = np.clip(draw(distributions.DiagonalGaussian(many, log_std)), LOW, HIGH)
    np.testing.assert_allclose(drawn, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", [np.asarray, tf.constant], ids=["NumPy", "TensorFlow"])
def test_tanh_gaussian_density_is_the_derivative_of_its_probability(form):
    """P(A <= a) = Phi((atanh(y) - mean) / std), y = 2 (a - low) / (high - low) - 1, in float64."""
    mean, std, low, high = 0.4, 0.7, -1.0, 3.0

    def probability(a):
        u = math.atanh(2 * (a - low) / (high - low) - 1)
        return 0.5 * math.erf((u - mean) / (std * math.sqrt(2)))

    actions = np.array([-0.95, -0.5, 0.0, 1.0, 2.5, 2.95])
    step = 1e-5
    want = [math.log((probability(a + step) - probability(a - step)) / (2 * step)) for a in actions]
    distribution = distributions.TanhGaussian(
        form(np.full((6, 1), mean, np.float32)),
        form(np.full(1, math.log(std), np.float32)),
        low,
        high,
    )
    got = distribution.log_prob(actions[:, None].astype(np.float32))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", [np.asarray, tf.constant], ids=["NumPy", "TensorFlow"])
@pytest.mark.parametrize(
    ("low", "high"), [(-1, 1), (0, 1), (-2, 2), (1000, 1001), (-3e4, 1e-3)], ids=str
)
def test_actions_on_the_bounds_have_finite_and_small_log_prob(form, low, high):
    actions = np.array([[low], [high]], np.float32)
    distribution = distributions.TanhGaussian(
        form(np.zeros((2, 1), np.float32)), form(np.zeros(1, np.float32)), low, high
    )
    on_bounds = np.asarray(distribution.log_prob(actions))
    assert np.isfinite(on_bounds).all()
    middle = np.full((2, 1), (low + high) / 2, np.float32)
    assert (on_bounds < np.asarray(distribution.log_prob(middle)) - 10).all()


def test_log_prob_on_a_bound_has_a_finite_gradient():
    mean, log_std = tf.Variable([[9.0], [0.0]]), tf.Variable([0.5])
    with tf.GradientTape() as tape:
        log_prob = distributions.TanhGaussian(mean, log_std).log_prob(tf.constant([[1.0], [-1.0]]))
    for gradient in tape.gradient(log_prob, [mean, log_std]):
        assert np.isfinite(gradient).all()
        assert np.any(gradient)


def test_actions_outside_the_box_count_as_on_its_bound():
    distribution = distributions.TanhGaussian(np.zeros((2, 1), np.float32), np.zeros(1, np.float32))
    inside, outside = distribution.log_prob(np.array([[1.0], [1.5]], np.float32))
    assert inside == outside


@pytest.mark.parametrize("mean", [0.3, 20.0, -15.0, 40.0])
def test_log_probs_of_draws_are_those_of_u_where_the_action_is_on_a_bound(mean):
    """Against float64; the slope with respect to the mean is that of -sum log(da/du)."""
    low, high = np.array([-2.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32)
    where = tf.Variable(np.full((3, 2), mean, np.float32))
    log_std = tf.constant([-2.0, 0.5])
    with tf.GradientTape() as tape:
        distribution = distributions.TanhGaussian(where, log_std, low, high)
        actions, log_prob = distribution.sample_with_log_prob(tf.random.Generator.from_seed(1))
    noise = tf.random.Generator.from_seed(1).normal((3, 2)).numpy().astype(np.float64)
    u = mean + np.exp([-2.0, 0.5]) * noise
    normal = -0.5 * noise**2 - np.array([-2.0, 0.5]) - 0.5 * np.log(2 * np.pi)
    log_slope = 2 * np.log(2) - 2 * np.logaddexp(u, -u) + np.log((high - low) / 2.0)
    np.testing.assert_allclose(log_prob, (normal - log_slope).sum(1), rtol=1e-5)
    np.testing.assert_allclose(tape.gradient(log_prob, where), 2 * np.tanh(u), rtol=1e-5)
    if abs(mean) < 1:
        np.testing.assert_allclose(log_prob, distribution.log_prob(actions), rtol=1e-4)


@pytest.mark.parametrize("mean", [100.0, -100.0])
def test_saturated_draws_stay_in_the_box_and_agree_with_the_learner(mean):
    low, high = np.float32(-3.2), np.float32(-1.0)
    half = np.float32(0.5) * (high - low)
    assert low + half + half > high, "the middle plus half of the width must round out of the box"
    parameters = np.full((50, 1), mean, np.float32), np.ones(1, np.float32)
    distribution = distributions.TanhGaussian(*parameters, low, high)
    actions, log_prob = distribution.sample_with_log_prob(np.random.default_rng(0))
    assert ((actions >= low) & (actions <= high)).all()
    learner = distributions.TanhGaussian(*map(tf.constant, parameters), low, high)
    np.testing.assert_allclose(learner.log_prob(actions), log_prob, rtol=1e-5)
    drawn = learner.sample(tf.random.Generator.from_seed(0)).numpy()
    assert ((drawn >= low) & (drawn <= high)).all()


@pytest.mark.parametrize("form", [np.asarray, tf.constant], ids=["NumPy", "TensorFlow"])
@pytest.mark.parametrize(("std", "error"), [(0.1, 2e-4), (1.0, 2e-4), (2.0, 2e-4), (3.0, 3e-3)])
def test_tanh_gaussian_entropy_is_as_near_as_promised(form, std, error):
    means = np.array([-3, -1, -0.3, 0, 0.5, 2, 5], np.float32)[:, None]
    z = np.linspace(-10, 10, 20_001)
    weights = np.exp(-(z**2) / 2)
    weights /= weights.sum()
    u = means.astype(np.float64) + std * z
    # log(da/du) = log(5 / 2) + log(1 - tanh(u)^2), cosh as exponentials that cannot overflow
    log_cosh = np.abs(u) + np.log1p(np.exp(-2 * np.abs(u))) - math.log(2)
    want = (weights * (math.log(2.5) - 2 * log_cosh)).sum(1)
    want += math.log(std) + 0.5 * math.log(2 * math.pi * math.e)
    log_std = np.full(1, math.log(std), np.float32)
    got = distributions.TanhGaussian(form(means), form(log_std), 0.0, 5.0).entropy()
    np.testing.assert_allclose(got, want, atol=error)


def test_tanh_gaussian_kl_does_not_depend_on_the_box():
    mean, log_std, zero = normal(4, 2), normal(2), np.zeros(2, np.float32)
    plain = distributions.DiagonalGaussian(mean, log_std).kl(
        distributions.DiagonalGaussian(mean * 0, zero)
    )
    first = distributions.TanhGaussian(mean, log_std, LOW, HIGH)
    np.testing.assert_array_equal(
        first.kl(distributions.TanhGaussian(mean * 0, zero, LOW, HIGH)), plain
    )


def test_deterministic_is_certain_of_its_mean_alone():
    mean = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    other = np.array([[1.0, 2.0], [3.0, 5.0]], np.float32)
    distribution = distributions.Deterministic(mean)
    np.testing.assert_array_equal(distribution.sample(RNG), mean)
    np.testing.assert_array_equal(distribution.log_prob(other), [0, -INF])
    np.testing.assert_array_equal(distribution.kl(distributions.Deterministic(other)), [0, INF])
    np.testing.assert_array_equal(distribution.entropy(), [0, 0])


MASKED = np.array([[1.0, -INF, 0.0], [-INF, -INF, 2.0]], np.float32)


def test_an_impossible_action_is_never_drawn():
    logits = np.repeat(MASKED, 5000, axis=0)
    for drawn in (
        distributions.Categorical(logits).sample(np.random.default_rng(0)),
        distributions.Categorical(tf.constant(logits))
        .sample(tf.random.Generator.from_seed(0))
        .numpy(),
    ):
        assert set(drawn[:5000]) == {0, 2}
        assert set(drawn[5000:]) == {2}


class ZeroRng:
    """Draws the exponential 0 that a real generator draws once in 16 million times."""

    def standard_exponential(self, shape, dtype):
        return np.zeros(shape, dtype)


def test_an_exponential_draw_of_zero_does_not_let_an_impossible_action_win():
    np.testing.assert_array_equal(distributions.Categorical(MASKED).sample(ZeroRng()), [0, 2])


@pytest.mark.parametrize("jit", [True, False], ids=["XLA", "eager"])
def test_an_impossible_action_leaves_numbers_and_gradients_finite(jit):
    @tf.function(jit_compile=jit)
    def compute(logits, other):
        with tf.GradientTape() as tape:
            tape.watch([logits, other])
            first, second = distributions.Categorical(logits), distributions.Categorical(other)
            parts = [first.log_prob(tf.constant([2, 2])), first.entropy(), first.kl(second)]
            total = tf.add_n(parts)
        return parts, tape.gradient(total, [logits, other])

    other = np.where(np.isinf(MASKED), MASKED, 0.5 * MASKED)
    parts, gradients = compute(tf.constant(MASKED), tf.constant(other))
    first = distributions.Categorical(MASKED)
    e = math.e
    entropy = math.log(1 + e) - e / (1 + e)  # -p log p - q log q, p = e / (1 + e)
    np.testing.assert_allclose(parts[0], [-math.log(1 + e), 0], atol=1e-6)
    np.testing.assert_allclose(parts[1], [entropy, 0], atol=1e-6)
    np.testing.assert_allclose(first.entropy(), [entropy, 0], atol=1e-6)
    np.testing.assert_allclose(parts[2], first.kl(distributions.Categorical(other)), atol=1e-6)
    for gradient in gradients:
        assert np.isfinite(gradient).all()
        assert (np.asarray(gradient)[np.isinf(MASKED)] == 0).all()
    assert np.abs(gradients[0]).max() > 0.1


def test_kl_is_infinite_where_the_other_rules_an_action_out():
    free, masked = np.zeros((1, 3), np.float32), MASKED[:1]
    assert distributions.Categorical(free).kl(distributions.Categorical(masked)) == INF
    free, masked = map(distributions.Categorical, map(tf.constant, (free, masked)))
    assert free.kl(masked).numpy() == INF


def slow_expectation(name, function, draws=40_000):
    """Means of a function of `draws` actions, and five of its standard errors."""
    first = CASES[name][2]
    wide = [np.repeat(p[:1], draws, 0) if p.ndim == 2 else p for p in first]
    distribution = make_numpy(name, wide)
    values = function(distribution, distribution.sample(np.random.default_rng(5)))
    return values.mean(0), 5 * values.std(0) / math.sqrt(draws) + 1e-4


@pytest.mark.parametrize("name", [n for n in CASES if "[T" not in n])
def test_entropy_is_the_mean_of_minus_log_prob(name):
    got, error = slow_expectation(name, lambda d, a: -d.log_prob(a).astype(np.float64))
    assert run_numpy(name)[2][0] == pytest.approx(got, abs=error)


@pytest.mark.parametrize("name", [n for n in CASES if "[T" not in n and n != "Deterministic"])
def test_kl_is_the_mean_difference_of_log_probs(name):
    second = CASES[name][3]

    def difference(distribution, actions):
        rows = len(actions)
        other = make_numpy(name, [np.repeat(p[:1], rows, 0) if p.ndim == 2 else p for p in second])
        return (distribution.log_prob(actions) - other.log_prob(actions)).astype(np.float64)

    got, error = slow_expectation(name, difference)
    assert run_numpy(name)[3][0] == pytest.approx(got, abs=error)


def draw_both(name, draws=40_000):
    first = CASES[name][2]
    wide = [np.repeat(p[:1], draws, 0) if p.ndim == 2 else p for p in first]
    yield make_numpy(name, wide).sample(np.random.default_rng(1))
    yield make_tf(name, wide).sample(tf.random.Generator.from_seed(1, alg="philox")).numpy()


def assert_proportion(drawn, probability):
    error = 5 * math.sqrt(probability * (1 - probability) / len(drawn))
    assert np.mean(drawn) == pytest.approx(probability, abs=error)


def softmax(logits):
    weights = np.exp(logits.astype(np.float64))
    return weights / weights.sum()


def test_categorical_frequencies():
    want = softmax(CASES["Categorical"][2][0][0])
    for drawn in draw_both("Categorical"):
        for action, probability in enumerate(want):
            assert_proportion(drawn == action, probability)


def test_multi_categorical_frequencies_of_all_combinations():
    first, second, third = np.split(CASES["MultiCategorical"][2][0][0], [3, 5])
    want = np.einsum("a,b,c->abc", softmax(first), softmax(second), softmax(third))
    for drawn in draw_both("MultiCategorical"):
        for combination in np.ndindex(*N):
            assert_proportion((drawn == combination).all(1), want[combination])


def test_bernoulli_frequencies_and_independence():
    want = 1 / (1 + np.exp(-CASES["Bernoulli"][2][0][0].astype(np.float64)))
    for drawn in draw_both("Bernoulli"):
        for i in range(3):
            assert_proportion(drawn[:, i], want[i])
        assert_proportion(drawn[:, 0] & drawn[:, 1], want[0] * want[1])


def assert_normal(drawn, mean, std):
    scaled = (drawn - mean) / std
    root = math.sqrt(len(drawn))
    # Standard errors of mean, variance and third moment of standard normal draws.
    np.testing.assert_allclose(scaled.mean(0), 0, atol=5 / root)
    np.testing.assert_allclose((scaled**2).mean(0), 1, atol=5 * math.sqrt(2) / root)
    np.testing.assert_allclose((scaled**3).mean(0), 0, atol=5 * math.sqrt(15) / root)
    assert abs((scaled[:, 0] * scaled[:, 1]).mean()) < 5 / root


@pytest.mark.parametrize("name", ["DiagonalGaussian", "DiagonalGaussian, one log_std for all rows"])
def test_gaussian_moments_and_independence(name):
    mean, log_std = CASES[name][2]
    std = np.exp(log_std[0] if log_std.ndim == 2 else log_std)
    for drawn in draw_both(name):
        assert_normal(drawn.astype(np.float64), mean[0], std)


def test_tanh_gaussian_moments_before_squashing():
    mean, log_std = CASES["TanhGaussian"][2]
    for drawn in draw_both("TanhGaussian"):
        y = 2 * (drawn.astype(np.float64) - LOW) / (HIGH - LOW) - 1
        assert_normal(np.arctanh(y), mean[0], np.exp(log_std[0]))


def test_bounds_whose_sum_exceeds_float32_can_be_squashed_into():
    low, high = np.array([2e38, -3e38], np.float32), np.array([3e38, -2e38], np.float32)
    u, want = np.array([[0, 0], [-9, 9]], np.float32), [[2.5e38, -2.5e38], [2e38, -2e38]]
    np.testing.assert_allclose(distributions.squash(u, low, high), want, rtol=1e-6)
    np.testing.assert_allclose(distributions.squash(tf.constant(u), low, high), want, rtol=1e-6)


@pytest.mark.parametrize("name", [n for n in CASES if n != "Deterministic"])
def test_draws_depend_on_the_seed_alone(name):
    distribution = make_numpy(
        name, [np.repeat(p, 20, 0) if p.ndim > 1 else p for p in CASES[name][2]]
    )
    first = distribution.sample(np.random.default_rng(1))
    np.testing.assert_array_equal(first, distribution.sample(np.random.default_rng(1)))
    assert (first != distribution.sample(np.random.default_rng(2))).any()


def test_gaussian_draws_carry_the_gradient_to_mean_and_std():
    mean, log_std = tf.Variable([[0.5, 1.0]]), tf.Variable([0.0, 0.3])
    with tf.GradientTape() as tape:
        drawn = distributions.DiagonalGaussian(mean, log_std).sample(
            tf.random.Generator.from_seed(0)
        )
    gradients = tape.gradient(drawn, [mean, log_std])
    np.testing.assert_allclose(gradients[0], [[1, 1]])
    np.testing.assert_allclose(gradients[1], (drawn - mean)[0], rtol=1e-5)


@pytest.mark.parametrize("name", [n for n in CASES if n != "Deterministic"])
def test_the_gradient_of_the_entropy_is_its_slope(name):
    """Along a random direction, against a difference of the NumPy form in small steps."""
    first = CASES[name][2]
    directions = [RNG.standard_normal(p.shape).astype(np.float32) for p in first]
    variables = [tf.Variable(p) for p in first]
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(make_tf(name, variables).entropy())
    gradients = tape.gradient(total, variables, unconnected_gradients="zero")
    slope = sum(
        float(np.sum(np.float64(g) * d)) for g, d in zip(gradients, directions, strict=True)
    )
    step = 0.01

    def entropy(sign):
        moved = [p + np.float32(sign * step) * d for p, d in zip(first, directions, strict=True)]
        return make_numpy(name, moved).entropy().astype(np.float64).sum()

    assert slope == pytest.approx((entropy(1) - entropy(-1)) / (2 * step), rel=2e-2, abs=2e-2)


finite = hnp.arrays(
    np.float32, (3, 5), elements=st.floats(-30, 30, width=32, allow_subnormal=False)
)


@settings(max_examples=50)
@given(finite, finite)
def test_any_logits_have_probabilities_that_add_up_and_kl_of_at_least_zero(logits, other):
    distribution = distributions.Categorical(logits)
    total = sum(np.exp(distribution.log_prob(np.full(3, a))) for a in range(5))
    np.testing.assert_allclose(total, 1, rtol=1e-5)
    for kind in (distributions.Categorical, distributions.Bernoulli):
        assert (kind(logits).kl(kind(other)) >= -1e-5).all()
        assert (kind(logits).entropy() >= -1e-6).all()


@settings(max_examples=50)
@given(finite, st.integers(0, 2**32 - 1))
def test_any_mean_draws_inside_the_box_with_finite_log_prob(mean, seed):
    distribution = distributions.TanhGaussian(mean, np.zeros(5, np.float32), -0.3, 0.1)
    actions, log_prob = distribution.sample_with_log_prob(np.random.default_rng(seed))
    assert ((actions >= np.float32(-0.3)) & (actions <= np.float32(0.1))).all()
    assert np.isfinite(log_prob).all()


def test_the_numpy_form_does_not_import_tensorflow():
    code = """
import sys, numpy as np
from relaax_like.nn import distributions
distribution = distributions.TanhGaussian(np.zeros((1, 2), np.float32), np.zeros(2, np.float32))
actions, _ = distribution.sample_with_log_prob(np.random.default_rng(0))
distribution.entropy(), distribution.kl(distribution), distribution.log_prob(actions)
distributions.EpsilonGreedy(np.ones((1, 3), np.float32), 0.5).log_prob(np.array([1]))
assert "tensorflow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("form", [np.asarray, tf.constant], ids=["NumPy", "TensorFlow"])
def test_epsilon_greedy_by_hand(form):
    values = form(np.array([[1.0, 3.0, 2.0], [5.0, 4.0, 3.0]], np.float32))
    policy = distributions.EpsilonGreedy(values, np.array([0.3, 1.0], np.float32))
    actions = np.array([[1, 0], [0, 0]])
    want = np.log([[0.8, 1 / 3], [0.1, 1 / 3]])
    for row, log_probs in zip(actions, want, strict=True):
        np.testing.assert_allclose(policy.log_prob(row), log_probs, rtol=1e-5)
    # The best action also where all are drawn alike.
    np.testing.assert_array_equal(policy.mode(), [1, 0])
    greedy = distributions.EpsilonGreedy(values, np.float32(0.0))
    np.testing.assert_array_equal(greedy.mode(), [1, 0])
    assert np.isneginf(np.asarray(greedy.log_prob(np.array([0, 1])))).all()
