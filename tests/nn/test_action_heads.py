"""Action heads: every kind of leaf, both forms, and the way to the wire."""

# covers F4

import math
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from relaax_like.nn import distributions
from relaax_like.nn.action_heads import (
    actions_to_wire,
    fit_actions,
    make_action_spec,
    make_policy,
    num_parameters,
)
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space


def box(low, high, shape=(2, 3), dtype="float32"):
    low, high = (np.full(shape, x, dtype) for x in (low, high))
    return Box(dtype=dtype, shape=shape, low=low, high=high)


BOX = box(-2, 3)
# name: (space, keywords, number of parameters, class, shape of one action)
CASES = {
    "Discrete": (Discrete(n=5), {}, 5, "Categorical", []),
    "Discrete from 3": (Discrete(n=5, start=3, dtype="int32"), {}, 5, "Categorical", []),
    "Discrete from -1": (Discrete(n=3, start=-1), {}, 3, "Categorical", []),
    "MultiDiscrete": (
        MultiDiscrete(n=(2, 3, 4, 5), shape=(2, 2), dtype="uint8"),
        {},
        14,
        "MultiCategorical",
        [4],
    ),
    "MultiBinary": (MultiBinary(shape=(2, 3)), {}, 6, "Bernoulli", [6]),
    "MultiBinary of bool": (MultiBinary(shape=(4,), dtype="bool"), {}, 4, "Bernoulli", [4]),
    "Box": (BOX, {}, 12, "DiagonalGaussian", [6]),
    "Box without bounds": (
        Box(dtype="float64", shape=(2,)),
        {},
        4,
        "DiagonalGaussian",
        [2],
    ),
    "Box of shape []": (box(-1, 1, ()), {}, 2, "DiagonalGaussian", [1]),
    "bounded Box": (BOX, {"bounded": True}, 12, "TanhGaussian", [6]),
    "bounded Box of float64": (
        box(-0.1, 0.1, (2,), "float64"),
        {"bounded": True},
        4,
        "TanhGaussian",
        [2],
    ),
}
NAMES = list(CASES)
BOXES = [name for name in NAMES if "Box" in name]


def make_parameters(name, rows=7):
    columns = CASES[name][2]
    return np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)


@pytest.mark.parametrize("name", NAMES)
def test_leaf_gets_its_distribution_with_so_many_parameters(name):
    space, keywords, number, kind, shape = CASES[name]
    assert num_parameters(space, **keywords) == number
    parameters = make_parameters(name)
    numpy_form = make_policy(space, parameters, **keywords)
    tf_form = make_policy(space, tf.constant(parameters), **keywords)
    assert type(numpy_form) is getattr(distributions, kind)
    assert type(tf_form) is getattr(distributions, kind)
    actions, log_prob = numpy_form.sample_with_log_prob(np.random.default_rng(0))
    spec = make_action_spec(space)
    assert [*actions.shape] == [7, *shape] == [7, *spec["shape"]]
    assert actions.dtype == spec["dtype"]
    np.testing.assert_allclose(tf_form.log_prob(actions), log_prob, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(tf_form.mode(), numpy_form.mode(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_draws_are_valid_on_the_wire_and_come_back_the_same(name):
    space, keywords, *_ = CASES[name]
    distribution = make_policy(space, make_parameters(name, 500), **keywords)
    actions = distribution.sample(np.random.default_rng(1))
    wire = actions_to_wire(space, actions)
    space.validate(wire, 500, "action")
    start = space.start if isinstance(space, Discrete) else 0
    back = (wire.astype(actions.dtype) - start).reshape(actions.shape)
    if "Box" in name and "bounded" not in name and space.low is not None:
        actions = np.clip(actions, space.low.ravel(), space.high.ravel())
    np.testing.assert_allclose(back, actions, rtol=1e-6)


def test_discrete_actions_on_the_wire_begin_at_start():
    space = Discrete(n=3, start=10, dtype="int32")
    wire = actions_to_wire(space, np.array([0, 1, 2]))
    np.testing.assert_array_equal(wire, [10, 11, 12])
    assert wire.dtype == np.int32


def test_small_integers_far_above_their_start_do_not_wrap_around():
    space = Discrete(n=200, start=-100, dtype="int8")
    np.testing.assert_array_equal(actions_to_wire(space, np.array([0, 199])), [-100, 99])


def test_components_keep_their_order_in_the_spaces_shape():
    space = MultiDiscrete(n=(1, 2, 3, 4), shape=(2, 2))
    np.testing.assert_array_equal(
        actions_to_wire(space, np.array([[0, 1, 2, 3]])), [[[0, 1], [2, 3]]]
    )


def test_gaussian_actions_are_clipped_into_the_box_on_the_wire():
    low, high = np.array([-1.0, 0.0], np.float32), np.array([1.0, np.inf], np.float32)
    space = Box(dtype="float32", shape=(2,), low=low, high=high)
    actions = np.array([[-5, -5], [5, 5], [0.5, 0.5]], np.float32)
    np.testing.assert_array_equal(actions_to_wire(space, actions), [[-1, 0], [1, 5], [0.5, 0.5]])
    assert actions[0, 0] == -5, "what is learned from must stay as it was drawn"


def test_a_float32_action_does_not_leave_a_float64_box_by_rounding():
    space = box(-0.1, 0.1, (1,), "float64")  # float32(0.1) > 0.1
    wire = actions_to_wire(space, np.array([[0.1], [-0.1]], np.float32))
    assert (np.abs(wire) <= 0.1).all()


def test_bounded_actions_fill_the_box_and_stay_inside():
    low, high = np.array([-3.0, 10.0], np.float32), np.array([-1.0, 30.0], np.float32)
    space = Box(dtype="float32", shape=(2,), low=low, high=high)
    parameters = np.zeros((20_000, 4), np.float32)
    parameters[:, 2:] = math.log(1.5)
    drawn = make_policy(space, parameters, bounded=True).sample(np.random.default_rng(0))
    assert ((drawn >= low) & (drawn <= high)).all()
    np.testing.assert_allclose(drawn.min(0), low, atol=0.2)
    np.testing.assert_allclose(drawn.max(0), high, atol=0.2)


@pytest.mark.parametrize("name", BOXES)
def test_log_std_may_come_apart_from_the_means(name):
    space, keywords, number, *_ = CASES[name]
    half = number // 2
    assert num_parameters(space, separate_log_std=True, **keywords) == half
    parameters = make_parameters(name)
    parameters[:, half:] = parameters[0, half:]
    means, log_std = parameters[:, :half], parameters[0, half:]
    actions = make_policy(space, parameters, **keywords).sample(np.random.default_rng(0))
    want = make_policy(space, parameters, **keywords).log_prob(actions)
    numpy_form = make_policy(space, means, log_std, **keywords)
    tf_form = make_policy(space, tf.constant(means), tf.constant(log_std), **keywords)
    np.testing.assert_array_equal(numpy_form.log_prob(actions), want)
    np.testing.assert_allclose(tf_form.log_prob(actions), want, rtol=1e-5, atol=1e-5)


def test_a_network_with_the_wrong_number_of_outputs_is_refused():
    with pytest.raises(InvalidInputError, match="length 5, expected 12 for a Box"):
        make_policy(BOX, tf.zeros((1, 5)))
    with pytest.raises(InvalidInputError, match="length 12, expected 6 for a Box"):
        make_policy(BOX, tf.zeros((1, 12)), tf.zeros(6))
    with pytest.raises(InvalidInputError, match="length 3, expected 5 for a Discrete"):
        make_policy(Discrete(n=5), tf.zeros((1, 3)))


@pytest.mark.parametrize(
    ("space", "keywords", "message"),
    [
        (Box(dtype="uint8", shape=(2,)), {}, "Box of uint8, expected a floating-point dtype"),
        (Box(dtype="float32", shape=(0,)), {}, "Box of shape .0. has no components"),
        (MultiBinary(shape=(0,)), {}, "MultiBinary of shape .0. has no components"),
        (MultiDiscrete(n=(), shape=(0,)), {}, "MultiDiscrete of shape .0. has no components"),
        (
            Box(dtype="float32", shape=(2,)),
            {"bounded": True},
            "cannot be squashed, because low and high are missing; set both",
        ),
        (box(-1, np.inf), {"bounded": True}, "expected low < high .*, and a finite difference"),
        (box(1, 1), {"bounded": True}, "expected low < high .*, and a finite difference"),
        (box(-3e38, 3e38), {"bounded": True}, "expected low < high .*, and a finite difference"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_spaces_that_cannot_be_acted_in_are_refused(space, keywords, message):
    with pytest.raises(InvalidInputError, match=message):
        num_parameters(space, **keywords)
    with pytest.raises(InvalidInputError, match=message):
        make_policy(space, tf.zeros((1, 4)), **keywords)


def test_acting_does_not_import_tensorflow():
    code = """
import sys
import numpy as np
from relaax_like.nn.action_heads import make_policy, num_parameters
from relaax_like.wire.spaces import Discrete
space = Discrete(n=3)
parameters = np.zeros((2, num_parameters(space)), np.float32)
make_policy(space, parameters).sample(np.random.default_rng(0))
assert "tensorflow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_actions_of_an_unknown_kind_are_not_exported():
    class Other(Space):
        """A kind that an export does not know."""

    with pytest.raises(InvalidInputError, match=r"Other of float32, shape \[4\].*exported"):
        fit_actions(Other(dtype="float32", shape=(4,)), np.zeros(4))
