"""Heads of a policy: log_std within the parameters, means; several actions at once."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from relaax_like.nn.distributions import Bernoulli, Categorical, DiagonalGaussian, Joint
from relaax_like.nn.layers import Constant, Parameter
from relaax_like.nn.policy_head import PolicyHead
from relaax_like.wire.spaces import Box, Discrete, MultiBinary, MultiDiscrete

BOX = Box(dtype="float32", shape=(2,))
LOG_STD = np.array([-0.5, 0.3], np.float32)
BOUNDED = Box(dtype="float32", shape=(2,), low=-2.0, high=np.array([0.0, 4.0], np.float32))
# name: (head, outputs, size of all parameters)
HEADS = {
    "discrete": (PolicyHead(Discrete(n=3)), 3, 3),
    "several choices": (PolicyHead(MultiDiscrete(n=(2, 3), shape=(2,))), 5, 5),
    "switches": (PolicyHead(MultiBinary(shape=(4,))), 4, 4),
    "continuous": (PolicyHead(BOX, log_std=Parameter("log_std", LOG_STD)), 2, 4),
    "fixed": (PolicyHead(BOX, log_std=Constant(LOG_STD)), 2, 4),
    "bounded": (PolicyHead(BOUNDED, bounded=True, log_std=Constant(LOG_STD)), 2, 4),
}


@pytest.mark.parametrize(("head", "outputs", "size"), HEADS.values(), ids=HEADS)
def test_acting_and_learning_have_one_distribution(head, outputs, size):
    assert (head.outputs, head.size) == (outputs, size)
    if isinstance(head.log_std, Parameter):
        head.log_std.arrays = {"variable": LOG_STD}
    x = np.random.default_rng(0).standard_normal((3, 5, outputs)).astype(np.float32)
    in_numpy = head(x)
    actions = in_numpy.sample(np.random.default_rng(1))
    want = in_numpy.log_prob(actions)
    np.testing.assert_allclose(head(tf.constant(x)).log_prob(actions), want, atol=1e-5)
    parameters = head.complete(tf.constant(x))
    assert parameters.shape == (3, 5, size)
    np.testing.assert_allclose(
        head.make_distribution(parameters).log_prob(actions), want, atol=1e-5
    )


def test_only_a_learned_deviation_is_a_variable():
    variables = {name: len(head.find_variables()) for name, (head, *_) in HEADS.items()}
    assert {name: number for name, number in variables.items() if number} == {"continuous": 1}


def test_means_by_hand():
    def compute(name, outputs):
        head = HEADS[name][0]
        return head.compute_means(head.complete(tf.constant([outputs], tf.float32)))[0]

    thirds = [math.log(1), math.log(2), math.log(3)]
    np.testing.assert_allclose(compute("discrete", thirds), [1 / 6, 2 / 6, 3 / 6], atol=1e-6)
    np.testing.assert_allclose(
        compute("several choices", [0, 0, *thirds]), [1 / 2, 1 / 2, 1 / 6, 2 / 6, 3 / 6], atol=1e-6
    )
    np.testing.assert_allclose(
        compute("switches", [0, math.log(3), -math.log(3), 0]), [0.5, 0.75, 0.25, 0.5], atol=1e-6
    )
    np.testing.assert_allclose(compute("continuous", [0.5, -2]), [0.5, -2], atol=1e-6)
    # tanh(0) is the middle of -2 .. 0, and tanh(1) = 0.761594 of -2 .. 4.
    np.testing.assert_allclose(compute("bounded", [0, 1]), [-1, 1 + 3 * 0.761594], atol=1e-5)


def test_of_several_actions_at_once_the_terms_add_up_by_hand():
    """One of four and two switches, all alike; a normal number."""
    parts = {
        "move": Categorical(tf.zeros((1, 4))),
        "grip": Bernoulli(tf.zeros((1, 2))),
        "aim": DiagonalGaussian(tf.zeros((1, 1)), tf.zeros(1)),
    }
    joint = Joint(parts)
    actions = {
        "move": tf.constant([3], tf.int64),
        "grip": tf.constant([[0, 1]], tf.int64),
        "aim": tf.constant([[2.0]]),
        "of somebody else": tf.constant([7]),
    }
    discrete = math.log(4) + 2 * math.log(2)
    half = math.log(2 * math.pi) / 2
    np.testing.assert_allclose(joint.log_prob(actions), [-discrete - half - 2], atol=1e-6)
    np.testing.assert_allclose(joint.entropy(), [discrete + half + 0.5], atol=1e-6)
    shifted = Joint({**parts, "aim": DiagonalGaussian(tf.ones((1, 1)), tf.zeros(1))})
    np.testing.assert_allclose(joint.kl(joint), [0], atol=1e-6)
    np.testing.assert_allclose(joint.kl(shifted), [0.5], atol=1e-6)
    mode = joint.mode()
    assert list(mode) == ["move", "grip", "aim"]
    drawn, log_prob = joint.sample_with_log_prob(tf.random.Generator.from_seed(0))
    assert drawn.keys() == mode.keys()
    np.testing.assert_allclose(log_prob, joint.log_prob(drawn))


def test_entropy_and_divergence_are_those_of_the_table_of_all_actions():
    """A slow reference: the probability of each combination of actions."""
    random = np.random.default_rng(3)

    def make():
        logits, switches = random.standard_normal((1, 3)), random.standard_normal((1, 2))
        return Joint(
            {
                "move": Categorical(tf.constant(logits, tf.float32)),
                "grip": Bernoulli(tf.constant(switches, tf.float32)),
            }
        )

    def tabulate(joint):
        combinations = itertools.product(range(3), range(2), range(2))
        return np.array(
            [
                joint.log_prob(
                    {"move": tf.constant([move]), "grip": tf.constant([[one, other]])}
                ).numpy()[0]
                for move, one, other in combinations
            ],
            np.float64,
        )

    one, other = make(), make()
    p, q = tabulate(one), tabulate(other)
    assert np.exp(p).sum() == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(one.entropy(), [-(np.exp(p) * p).sum()], atol=1e-5)
    np.testing.assert_allclose(one.kl(other), [(np.exp(p) * (p - q)).sum()], atol=1e-5)
