"""The optimizers in TensorFlow against the parameter server's kernels. covers R2"""

import numpy as np
import pytest
import tensorflow as tf

from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.nn.optimizers import Optimizer, compute_learning_rate
from relaax_like.parameter_server import kernels, schedules

STEPS = 40
SHAPES = ((3, 50), (), (50,), (7, 1, 20))
LINEAR = {"schedule": "linear", "learning_rate_end": 1e-4, "schedule_env_steps": 1000}
CASES = {
    "adam": OptimizerConfig(),
    "adam_inside": OptimizerConfig(adam_epsilon="inside", epsilon=1e-3),
    "adam_outside": OptimizerConfig(epsilon=1e-3, beta1=0.5, beta2=0.9),
    "adam_without_beta1": OptimizerConfig(beta1=0.0),
    "adam_linear": OptimizerConfig(**LINEAR),
    "adamw": OptimizerConfig(name="adamw", weight_decay=0.1),
    "adamw_linear": OptimizerConfig(name="adamw", **LINEAR),
    "rmsprop": OptimizerConfig(name="rmsprop", epsilon=1e-4),
    "rmsprop_momentum": OptimizerConfig(name="rmsprop", momentum=0.9),
    "sgd": OptimizerConfig(name="sgd", learning_rate=0.1),
    "sgd_momentum": OptimizerConfig(name="sgd", momentum=0.9, **LINEAR),
}


def make_problem():
    random = np.random.default_rng(3)
    size = sum(int(np.prod(shape)) for shape in SHAPES)
    # Sizes of gradients over many orders of magnitude, zeros among them.
    scale = 10.0 ** random.uniform(-6, 1, size)
    scale[::10] = 0
    gradients = [(random.normal(size=size) * scale).astype(np.float32) for _ in range(STEPS)]
    return random.normal(size=size).astype(np.float32), gradients


def split(flat):
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES])
    parts = np.split(flat, ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, SHAPES, strict=True)]


def run_kernel(config, weights, gradients):
    """Takes the server's steps; one step is 50 environment steps."""
    step = kernels.make_step(config.rule, "numpy")
    slots = np.zeros((len(config.slot_names), weights.size), np.float32)
    for t, gradient in enumerate(gradients, start=1):
        new_weights, new_slots = np.empty_like(weights), np.empty_like(slots)
        rate = schedules.compute_learning_rate(config, 50 * (t - 1))
        numbers = kernels.compute_coefficients(config, rate, t)
        step(weights, gradient, slots, new_weights, new_slots, numbers)
        weights, slots = new_weights, new_slots
    return weights, slots


@pytest.mark.parametrize("xla", [False, True], ids=["plain", "xla"])
@pytest.mark.parametrize("name", CASES)
def test_many_steps_are_those_of_the_servers_kernel(name, xla):
    config = CASES[name]
    weights, gradients = make_problem()
    variables = [tf.Variable(part) for part in split(weights)]
    optimizer = Optimizer(config, variables)

    @tf.function(jit_compile=xla, autograph=False)
    def apply(parts, step, global_t):
        optimizer.apply(parts, step, global_t)

    for t, gradient in enumerate(gradients, start=1):
        parts = [tf.constant(part) for part in split(gradient)]
        apply(parts, tf.constant(t, tf.int64), tf.constant(50 * (t - 1), tf.int64))
    want, want_slots = run_kernel(config, weights, gradients)
    got = np.concatenate([variable.numpy().ravel() for variable in variables])
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(optimizer.slots.numpy(), want_slots, rtol=1e-5, atol=1e-7)
    assert optimizer.slot_names == config.slot_names
    assert np.abs(got - weights).max() > 1e-3


@pytest.mark.parametrize("global_t", [0, 1, 333, 999, 1000, 1001, 10**12])
@pytest.mark.parametrize("name", ["adam", "adam_linear"])
def test_learning_rates_are_those_of_the_servers_schedules(name, global_t):
    want = schedules.compute_learning_rate(CASES[name], global_t)
    got = compute_learning_rate(CASES[name], tf.constant(global_t, tf.int64))
    assert float(got) == pytest.approx(want, rel=1e-12)


def test_the_first_step_of_adam_is_the_learning_rate():
    variable = tf.Variable([1.0, -1.0])
    Optimizer(OptimizerConfig(learning_rate=0.25), [variable]).apply(
        [tf.constant([8.0, -0.5])], 1, 0
    )
    np.testing.assert_allclose(variable.numpy(), [0.75, -0.75], rtol=1e-5)
