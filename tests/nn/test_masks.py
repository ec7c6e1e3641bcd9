"""Masks of legal choices: against a slow reference, in NumPy and in TensorFlow. covers PE20"""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from relaax_like.nn.distributions import (
    Bernoulli,
    Categorical,
    DrawnEpsilonGreedy,
    EpsilonGreedy,
    MultiCategorical,
    restrict,
)
from relaax_like.wire.errors import InvalidInputError

SIZES = [3, 1, 4]
ROWS = 6
# Float32, which policies compute with, has seven digits, and log-probabilities here reach -25.
TOLERANCES = {np.float32: 1e-5, np.float64: 1e-6}


def draw_case(seed: int, n: int, dtype: type = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Returns logits and a mask with a legal choice in each row."""
    random = np.random.default_rng(seed)
    mask = random.random((ROWS, n)) < 0.4
    mask[np.arange(ROWS), random.integers(n, size=ROWS)] = True
    return random.normal(0, 4, (ROWS, n)).astype(dtype), mask


def compute_slowly(logits: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Returns the probabilities of one row, in double precision."""
    weights = [
        np.exp(float(x) - float(logits.max())) if ok else 0.0
        for x, ok in zip(logits, mask, strict=True)
    ]
    return np.array(weights) / sum(weights)


def to_forms(logits: np.ndarray, mask: np.ndarray) -> list:
    return [(logits, mask), (tf.constant(logits), tf.constant(mask))]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.sampled_from(list(TOLERANCES)))
def test_a_restricted_categorical_is_the_one_over_legal_choices(seed, n, dtype):
    logits, mask = draw_case(seed, n, dtype)
    atol = TOLERANCES[dtype]
    probs = np.array([compute_slowly(*row) for row in zip(logits, mask, strict=True)])
    for own, its_mask in to_forms(logits, mask):
        policy = Categorical(own).restrict(its_mask)
        for choice in range(n):
            log_prob = np.asarray(policy.log_prob(np.full(ROWS, choice)))
            legal = mask[:, choice]
            assert (log_prob[~legal] == -np.inf).all()
            np.testing.assert_allclose(log_prob[legal], np.log(probs[legal, choice]), atol=atol)
        entropy = -np.sum(probs * np.log(np.where(probs > 0, probs, 1)), -1)
        np.testing.assert_allclose(policy.entropy(), entropy, atol=atol)
        assert mask[np.arange(ROWS), np.asarray(policy.mode())].all()
        twice = policy.restrict(its_mask)
        np.testing.assert_array_equal(twice.logits, policy.logits)
        np.testing.assert_allclose(policy.kl(twice), 0, atol=1e-6)


@pytest.mark.parametrize("kind", ["plain", "greedy", "drawn"])
def test_only_legal_choices_are_drawn(kind):
    logits, mask = draw_case(1, 5)
    logits[~mask] += 20  # illegal ones are the best
    for own, its_mask in to_forms(logits, mask):
        in_numpy = isinstance(own, np.ndarray)
        random = np.random.default_rng(0) if in_numpy else tf.random.Generator.from_seed(0)
        policy = {
            "plain": lambda own=own: Categorical(own),
            "greedy": lambda own=own: EpsilonGreedy(own, np.float32(0.5)),
            "drawn": lambda own=own: DrawnEpsilonGreedy(own, lambda _: own + 1, np.float32(0.5)),
        }[kind]().restrict(its_mask)
        for _ in range(200):
            action, log_prob = policy.sample_with_log_prob(random)
            assert mask[np.arange(ROWS), np.asarray(action)].all()
            assert np.isfinite(log_prob).all()


def test_epsilon_greedy_divides_epsilon_among_legal_choices():
    values = np.array([[1.0, 5.0, 3.0, 2.0]], np.float32)
    mask = np.array([[True, False, True, True]])
    for own, its_mask in to_forms(values, mask):
        policy = EpsilonGreedy(own, np.float32(0.3)).restrict(its_mask)
        probs = [float(np.exp(policy.log_prob(np.array([a])))[0]) for a in range(4)]
        np.testing.assert_allclose(probs, [0.1, 0, 0.8, 0.1], atol=1e-6)
        np.testing.assert_array_equal(policy.restrict(its_mask).logits, policy.logits)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(list(TOLERANCES)))
def test_components_are_restricted_each_by_its_part(seed, dtype):
    parts = [draw_case(seed + i, n, dtype) for i, n in enumerate(SIZES)]
    logits, mask = (np.concatenate(one, -1) for one in zip(*parts, strict=True))
    for own, its_mask in to_forms(logits, mask):
        # Of several components, arrays are always float32.
        atol = TOLERANCES[np.float32 if isinstance(own, np.ndarray) else dtype]
        policy = MultiCategorical(own, SIZES).restrict(its_mask)
        apart = [Categorical(x).restrict(m) for x, m in parts]
        actions = np.stack([np.asarray(one.mode()) for one in apart], -1)
        np.testing.assert_array_equal(policy.mode(), actions)
        want = sum(one.log_prob(actions[:, i]) for i, one in enumerate(apart))
        np.testing.assert_allclose(policy.log_prob(actions), want, atol=atol)
        np.testing.assert_allclose(policy.entropy(), sum(a.entropy() for a in apart), atol=atol)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_gradients_are_those_of_the_legal_choices_alone(dtype):
    logits, mask = draw_case(3, 5, dtype)
    action = mask.argmax(-1)
    with tf.GradientTape() as tape:
        own = tf.Variable(logits)
        policy = Categorical(own).restrict(tf.constant(mask))
        cost = tf.reduce_sum(policy.log_prob(action) + 0.1 * policy.entropy())
    found = tape.gradient(cost, own).numpy()
    assert np.isfinite(found).all()
    assert (found[~mask] == 0).all()
    for row in range(ROWS):
        probs = compute_slowly(logits[row], mask[row])
        entropy = -sum(p * np.log(p) for p in probs if p > 0)
        logs = np.log(np.where(probs > 0, probs, 1))
        want = np.eye(5)[action[row]] * 1 - probs - 0.1 * probs * (logs + entropy)
        np.testing.assert_allclose(found[row], np.where(mask[row], want, 0), atol=TOLERANCES[dtype])


def test_a_row_without_a_legal_choice_is_not_restricted():
    """Nothing depends on such rows, which padding and absent slots have; but NaN would spread."""
    values = np.array([[1.0, 2.0, 3.0, 4.0]], np.float32)
    mask = np.array([[False, False, False, True]])
    for own, its_mask in to_forms(values, mask):
        np.testing.assert_array_equal(restrict(own, its_mask & ~its_mask), values)
        np.testing.assert_array_equal(restrict(own, its_mask, [2, 2]), [[1, 2, -np.inf, 4]])


def test_other_actions_cannot_be_restricted():
    with pytest.raises(InvalidInputError) as caught:
        Bernoulli(np.zeros((1, 2), np.float32)).restrict(np.ones((1, 2), np.bool_))
    assert caught.value.field == "mask"
