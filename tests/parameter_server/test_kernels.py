"""The optimizer kernels against slow references in float64. covers R2"""

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.parameter_server import kernels

STEPS = 7
# Longer than a block of the NumPy form, and no multiple of it.
SIZE = 3 * 32 * 1024 + 17
Reference = Callable[[OptimizerConfig, np.ndarray, list[np.ndarray]], np.ndarray]


def reference_adam(c: OptimizerConfig, w: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    """Kingma & Ba 2015, algorithm 1; TensorFlow's epsilon: the text after algorithm 1.

    adamw: Loshchilov & Hutter 2019, algorithm 2, with the learning rate in front of the decay.
    """
    m = np.zeros_like(w)
    v = np.zeros_like(w)
    for t, g in enumerate(gradients, start=1):
        m = c.beta1 * m + (1 - c.beta1) * g
        v = c.beta2 * v + (1 - c.beta2) * g**2
        if c.adam_epsilon == "inside":
            m_hat = m / (1 - c.beta1**t)
            v_hat = v / (1 - c.beta2**t)
            step = c.learning_rate * m_hat / (np.sqrt(v_hat) + c.epsilon)
        else:
            alpha_t = c.learning_rate * math.sqrt(1 - c.beta2**t) / (1 - c.beta1**t)
            step = alpha_t * m / (np.sqrt(v) + c.epsilon)
        decay = c.learning_rate * c.weight_decay * w if c.name == "adamw" else 0.0
        w = w - step - decay
    return w


def reference_rmsprop(c: OptimizerConfig, w: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    """Hinton 2012, lecture 6e, with TensorFlow's momentum and epsilon."""
    mean_square = np.zeros_like(w)
    velocity = np.zeros_like(w)
    for g in gradients:
        mean_square = c.rho * mean_square + (1 - c.rho) * g**2
        velocity = c.momentum * velocity + c.learning_rate * g / np.sqrt(mean_square + c.epsilon)
        w = w - velocity
    return w


def reference_sgd(c: OptimizerConfig, w: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    """Sutskever et al. 2013, equations 1 and 2, with the rate outside of the velocity."""
    velocity = np.zeros_like(w)
    for g in gradients:
        velocity = c.momentum * velocity + g
        w = w - c.learning_rate * velocity
    return w


CASES: list[tuple[str, OptimizerConfig, Reference]] = [
    ("adam", OptimizerConfig(), reference_adam),
    ("adam_inside", OptimizerConfig(adam_epsilon="inside", epsilon=1e-3), reference_adam),
    ("adam_outside", OptimizerConfig(epsilon=1e-3, beta1=0.5, beta2=0.9), reference_adam),
    ("adam_without_beta1", OptimizerConfig(beta1=0.0), reference_adam),
    ("adamw", OptimizerConfig(name="adamw", weight_decay=0.1), reference_adam),
    ("rmsprop", OptimizerConfig(name="rmsprop", epsilon=1e-4), reference_rmsprop),
    ("rmsprop_momentum", OptimizerConfig(name="rmsprop", momentum=0.9), reference_rmsprop),
    ("sgd", OptimizerConfig(name="sgd", learning_rate=0.1), reference_sgd),
    ("sgd_momentum", OptimizerConfig(name="sgd", momentum=0.9), reference_sgd),
]
NAMES = [name for name, _, _ in CASES]


def run(
    config: OptimizerConfig, form: str, weights: np.ndarray, gradients: list[np.ndarray]
) -> np.ndarray:
    step = kernels.make_step(config.rule, form)
    slots = np.zeros((len(config.slot_names), weights.size), np.float32)
    for t, gradient in enumerate(gradients, start=1):
        new_weights, new_slots = np.full_like(weights, np.nan), np.full_like(slots, np.nan)
        for array in (weights, gradient, slots):
            array.flags.writeable = False  # a kernel must not need to write to its inputs
        numbers = kernels.compute_coefficients(config, config.learning_rate, t)
        step(weights, gradient, slots, new_weights, new_slots, numbers)
        weights, slots = new_weights, new_slots
    return weights


def make_problem(size: int = SIZE) -> tuple[np.ndarray, list[np.ndarray]]:
    random = np.random.default_rng(3)
    weights = random.normal(size=size).astype(np.float32)
    # Sizes of gradients over many orders of magnitude, zeros among them.
    scale = 10.0 ** random.uniform(-6, 1, size)
    scale[::10] = 0
    gradients = [(random.normal(size=size) * scale).astype(np.float32) for _ in range(STEPS)]
    return weights, gradients


@pytest.mark.parametrize("form", ["numba", "numpy"])
@pytest.mark.parametrize(("name", "config", "reference"), CASES, ids=NAMES)
def test_kernel_follows_the_paper(
    name: str, config: OptimizerConfig, reference: Reference, form: str
) -> None:
    weights, gradients = make_problem()
    want = reference(config, weights.astype(np.float64), [g.astype(np.float64) for g in gradients])
    got = run(config, form, weights, gradients)
    # Where a weight is close to zero, relative to the size of the other weights.
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    assert not np.array_equal(got, weights)


@pytest.mark.parametrize(("name", "config", "reference"), CASES, ids=NAMES)
def test_numba_and_numpy_forms_agree(
    name: str, config: OptimizerConfig, reference: Reference
) -> None:
    weights, gradients = make_problem()
    numba_form = run(config, "numba", weights, gradients)
    np.testing.assert_allclose(
        numba_form, run(config, "numpy", weights, gradients), rtol=3e-7, atol=1e-8
    )


@pytest.mark.parametrize("form", ["numba", "numpy"])
@pytest.mark.parametrize("size", [1, 32 * 1024, 32 * 1024 + 1])
def test_sizes_around_a_block(form: str, size: int) -> None:
    weights, gradients = make_problem(size)
    config = OptimizerConfig(name="sgd", learning_rate=0.5)
    want = weights - np.float32(0.5) * gradients[0]
    np.testing.assert_array_equal(run(config, form, weights, gradients[:1]), want)


def test_epsilon_inside_and_outside_of_the_bias_correction_differ() -> None:
    # One step with a gradient as small as epsilon. Outside: m = g/10, v = g^2/1000, so that
    # the step is lr * sqrt(0.001)/0.1 * 0.1 g / (sqrt(0.001) g + g); inside: lr * g / (g + g).
    g = 1e-3
    weights, gradients = np.zeros(1, np.float32), [np.full(1, g, np.float32)]
    outside = run(OptimizerConfig(epsilon=g), "numba", weights, gradients)
    inside = run(OptimizerConfig(epsilon=g, adam_epsilon="inside"), "numba", weights, gradients)
    root = math.sqrt(0.001)
    np.testing.assert_allclose(outside, [-1e-3 * root / (root + 1)], rtol=1e-5)
    np.testing.assert_allclose(inside, [-1e-3 / 2], rtol=1e-5)


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_loads_neither_numba_nor_tensorflow() -> None:
    modules = ["store", "snapshots", "statistics", "parameter_server", "initial_values"]
    code = f"""
import importlib, sys
for name in {modules}:
    importlib.import_module("relaax_like.parameter_server." + name)
print([name for name in ("numba", "tensorflow", "keras", "grpc") if name in sys.modules])
"""
    assert run_python(code) == "[]"


def test_short_vectors_are_stepped_without_numba_and_long_ones_with_it() -> None:
    code = """
import sys
import numpy as np
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.parameter_server.store import Store
for size in (1024, 1025):
    manifest = make_manifest([Variable("W", np.zeros(size, np.float32))])
    Store(manifest, np.zeros(manifest.total_bytes, np.uint8), {"default": OptimizerConfig()})
    print("numba" in sys.modules)
"""
    assert run_python(code).split() == ["False", "True"]


def test_numba_missing_or_broken_falls_back_to_numpy() -> None:
    code = """
import sys
sys.modules["numba"] = None  # import numba raises ImportError
import importlib.util
importlib.util.find_spec = lambda name: FOUND
from relaax_like.parameter_server import kernels
import numpy as np
out = np.empty(1, np.float32)
none = np.empty((0, 1), np.float32)
kernels.make_step("sgd")(np.ones(1, np.float32), np.ones(1, np.float32), none, out, none,
                         np.array([0.25, 0], np.float32))
print(out[0])
"""
    for found in ("None", "object()"):
        assert run_python(code.replace("FOUND", found)) == "0.75"


def test_cache_that_cannot_be_written_to_does_not_fail(tmp_path: Path) -> None:
    code = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # as on a full disk
import numpy as np
from relaax_like.parameter_server import kernels
out = np.empty(1, np.float32)
none = np.empty((0, 1), np.float32)
kernels.make_step("sgd", "numba")(np.ones(1, np.float32), np.ones(1, np.float32), none, out, none,
                                  np.array([0.25, 0], np.float32))
print(out[0])
"""
    assert run_python(code, NUMBA_CACHE_DIR=str(tmp_path)) == "0.75"
    assert not any(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())


def test_warming_up_prints_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "relaax_like.parameter_server.kernels"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("kernels: 5 compiled with numba")
    assert done.stdout.count("\n") == 1
