"""Optimizer steps on flat float32 vectors: read from one buffer, written to another.

Each kernel has two forms in one table: a fused loop that numba compiles (single-threaded: a
parallel one aborts the process when two threads call it), and blocks of NumPy operations, for short
vectors and for use without numba. Both do the same operations in the same order.

`python -m relaax_like.parameter_server.kernels` compiles them once, so that servers that start
later load them from numba's cache.
"""

import functools
import importlib.util
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.loops import LoopType, compile_loop

_LOG = logging.getLogger(__name__)
# Elements of a block: two float32 blocks of scratch fit into the second-level cache.
_BLOCK = 32 * 1024
# Elements: for a vector of at most this size, numba would save ten microseconds per step. Importing
# it takes 0.2 s of processor time at each start, and loading a kernel takes a little more.
_SMALL = 1024

Array = np.ndarray
Step = Callable[[Array, Array, Array, Array, Array, Array], None]
"""(weights [n], gradient [n], slots [s, n], out_weights [n], out_slots [s, n], coefficients [c]),
all float32; the out arrays share no memory with the others."""


_VECTOR, _SLOTS = LoopType("float32", 1), LoopType("float32", 2)
_ARGUMENTS = (
    *(_VECTOR, _VECTOR, _SLOTS),
    *(LoopType("float32", 1, True), LoopType("float32", 2, True), _VECTOR),
)


class _Block(NamedTuple):
    """The arguments of a step for one block, and room for intermediate results.

    Attributes:
      weights: [n].
      gradient: [n].
      slots: [s, n].
      out_weights: [n].
      out_slots: [s, n].
      c: the coefficients, [c].
      scratch: [n].
    """

    weights: Array
    gradient: Array
    slots: Array
    out_weights: Array
    out_slots: Array
    c: Array
    scratch: Array


@dataclass(frozen=True)
class Kernel:
    """One row of the table of kernels.

    Attributes:
      loop: the fused form, to be compiled by numba. Never called uncompiled.
      blocked: the NumPy form for one block.
    """

    loop: Step
    blocked: Callable[[_Block], None]


# The loops. They contain no literals: a Python number would widen float32 to float64. `c` is
# unpacked into names before the loop, which LLVM can then vectorise.


def _adam_loop(
    weights: Array, gradient: Array, slots: Array, out_weights: Array, out_slots: Array, c: Array
) -> None:
    m, v, out_m, out_v = slots[0], slots[1], out_slots[0], out_slots[1]
    beta1, rest1, beta2, rest2, rate, epsilon, decay = c[0], c[1], c[2], c[3], c[4], c[5], c[6]
    for i in range(weights.size):
        g = gradient[i]
        first = beta1 * m[i] + rest1 * g
        second = beta2 * v[i] + rest2 * (g * g)
        out_m[i] = first
        out_v[i] = second
        out_weights[i] = decay * weights[i] - rate * (first / (np.sqrt(second) + epsilon))


def _rmsprop_loop(
    weights: Array, gradient: Array, slots: Array, out_weights: Array, out_slots: Array, c: Array
) -> None:
    square, out_square = slots[0], out_slots[0]
    rho, rest, rate, epsilon = c[0], c[1], c[2], c[3]
    for i in range(weights.size):
        g = gradient[i]
        mean = rho * square[i] + rest * (g * g)
        out_square[i] = mean
        out_weights[i] = weights[i] - rate * (g / np.sqrt(mean + epsilon))


def _rmsprop_momentum_loop(
    weights: Array, gradient: Array, slots: Array, out_weights: Array, out_slots: Array, c: Array
) -> None:
    square, velocity, out_square, out_velocity = slots[0], slots[1], out_slots[0], out_slots[1]
    rho, rest, rate, epsilon, momentum = c[0], c[1], c[2], c[3], c[4]
    for i in range(weights.size):
        g = gradient[i]
        mean = rho * square[i] + rest * (g * g)
        speed = momentum * velocity[i] + rate * (g / np.sqrt(mean + epsilon))
        out_square[i] = mean
        out_velocity[i] = speed
        out_weights[i] = weights[i] - speed


def _sgd_loop(
    weights: Array, gradient: Array, slots: Array, out_weights: Array, out_slots: Array, c: Array
) -> None:
    rate = c[0]
    for i in range(weights.size):
        out_weights[i] = weights[i] - rate * gradient[i]


def _sgd_momentum_loop(
    weights: Array, gradient: Array, slots: Array, out_weights: Array, out_slots: Array, c: Array
) -> None:
    velocity, out_velocity = slots[0], out_slots[0]
    rate, momentum = c[0], c[1]
    for i in range(weights.size):
        speed = momentum * velocity[i] + gradient[i]
        out_velocity[i] = speed
        out_weights[i] = weights[i] - rate * speed


# The same in NumPy, block by block and without temporaries.


def _decayed_mean(
    mean: Array, value: Array, decay: np.float32, rest: np.float32, out: Array, scratch: Array
) -> None:
    """Writes `decay * mean + rest * value` to `out`; `value` can be `scratch`."""
    np.multiply(mean, decay, out=out)
    np.multiply(value, rest, out=scratch)
    out += scratch


def _adam_blocked(block: _Block) -> None:
    beta1, rest1, beta2, rest2, rate, epsilon, decay = block.c
    first, second = block.out_slots
    gradient, out, scratch = block.gradient, block.out_weights, block.scratch
    _decayed_mean(block.slots[0], gradient, beta1, rest1, first, scratch)
    np.multiply(gradient, gradient, out=scratch)
    _decayed_mean(block.slots[1], scratch, beta2, rest2, second, scratch)
    np.sqrt(second, out=scratch)
    scratch += epsilon
    np.divide(first, scratch, out=scratch)
    scratch *= rate
    np.multiply(block.weights, decay, out=out)
    out -= scratch


def _rmsprop_step(block: _Block) -> None:
    """Writes the new mean square to its slot, and `rate * gradient / root` to `scratch`."""
    rho, rest, rate, epsilon = block.c[:4]
    gradient, square, scratch = block.gradient, block.out_slots[0], block.scratch
    np.multiply(gradient, gradient, out=scratch)
    _decayed_mean(block.slots[0], scratch, rho, rest, square, scratch)
    np.add(square, epsilon, out=scratch)
    np.sqrt(scratch, out=scratch)
    np.divide(gradient, scratch, out=scratch)
    scratch *= rate


def _rmsprop_blocked(block: _Block) -> None:
    _rmsprop_step(block)
    np.subtract(block.weights, block.scratch, out=block.out_weights)


def _rmsprop_momentum_blocked(block: _Block) -> None:
    _rmsprop_step(block)
    velocity = block.out_slots[1]
    np.multiply(block.slots[1], block.c[4], out=velocity)
    velocity += block.scratch
    np.subtract(block.weights, velocity, out=block.out_weights)


def _sgd_blocked(block: _Block) -> None:
    np.multiply(block.gradient, block.c[0], out=block.scratch)
    np.subtract(block.weights, block.scratch, out=block.out_weights)


def _sgd_momentum_blocked(block: _Block) -> None:
    velocity = block.out_slots[0]
    np.multiply(block.slots[0], block.c[1], out=velocity)
    velocity += block.gradient
    np.multiply(velocity, block.c[0], out=block.scratch)
    np.subtract(block.weights, block.scratch, out=block.out_weights)


# By `OptimizerConfig.rule`. Adam and adamw share a kernel: without weight decay, the weights are
# multiplied by exactly 1.
KERNELS: dict[str, Kernel] = {
    "adam": Kernel(_adam_loop, _adam_blocked),
    "rmsprop": Kernel(_rmsprop_loop, _rmsprop_blocked),
    "rmsprop_momentum": Kernel(_rmsprop_momentum_loop, _rmsprop_momentum_blocked),
    "sgd": Kernel(_sgd_loop, _sgd_blocked),
    "sgd_momentum": Kernel(_sgd_momentum_loop, _sgd_momentum_blocked),
}


def compute_coefficients(config: OptimizerConfig, learning_rate: float, step: int) -> np.ndarray:
    """Computes the coefficients of one step, in double precision.

    Adam (https://arxiv.org/abs/1412.6980, section 2): with epsilon outside the bias correction,
    `w -= rate * m / (sqrt(v) + epsilon)` with `rate = learning_rate * sqrt(1 - beta2^t) /
    (1 - beta1^t)`; inside it, `epsilon` is multiplied by `sqrt(1 - beta2^t)`. AdamW
    (https://arxiv.org/abs/1711.05101) also multiplies the weights by `1 - learning_rate *
    weight_decay`. RMSProp has epsilon inside the root, and its velocity includes the learning rate;
    the velocity of SGD does not.

    Args:
      config: the optimizer.
      learning_rate: the learning rate of this step.
      step: 1 for the first step.

    Returns:
      The coefficients, [c] float32, in the order in which the optimizer's kernel reads them.
    """
    if config.name in ("adam", "adamw"):
        numbers = _adam_coefficients(config, learning_rate, step)
    elif config.name == "rmsprop":
        numbers = [config.rho, 1 - config.rho, learning_rate, config.epsilon, config.momentum]
    else:
        numbers = [learning_rate, config.momentum]
    return np.array(numbers, np.float32)


def _adam_coefficients(config: OptimizerConfig, learning_rate: float, step: int) -> list[float]:
    beta1, beta2 = config.beta1, config.beta2
    correction2 = math.sqrt(1 - beta2**step)
    rate = learning_rate * correction2 / (1 - beta1**step)
    epsilon = config.epsilon * (correction2 if config.adam_epsilon == "inside" else 1.0)
    decay = 1 - learning_rate * config.weight_decay if config.name == "adamw" else 1.0
    return [beta1, 1 - beta1, beta2, 1 - beta2, rate, epsilon, decay]


def make_step(name: str, form: str | None = None) -> Step:
    """Builds the callable form of a kernel.

    Args:
      name: key in `KERNELS`.
      form: "numba" or "numpy"; None: numba if it is installed and can be imported, otherwise
        NumPy. See also `choose_form`.

    Returns:
      A function that can be called from any thread; it holds no state.

    Raises:
      ImportError: `form` is "numba", which cannot be imported.
    """
    blocked = _make_blocked(KERNELS[name].blocked)
    if (form or default_form()) == "numpy":
        return blocked
    try:
        return _compile(name)
    except ImportError as error:  # numba is installed, but broken or too old for this NumPy
        if form is not None:
            raise
        _LOG.warning("cannot import numba, using the slower NumPy kernels: %s", error)
        return blocked


def make_late_step(name: str, form: str | None = None) -> Step:
    """Builds the callable form of a kernel when it is first called; see `make_step`."""

    @functools.cache
    def make() -> Step:
        return make_step(name, form)

    def step(*arrays: np.ndarray) -> None:
        make()(*arrays)

    return step


def choose_form(size: int) -> str | None:
    """Returns the `form` of `make_step` for vectors of `size` elements.

    It is "numpy" for short vectors, otherwise None: the default form. It depends only on `size`, so
    that a restarted server computes exactly the same values.
    """
    return "numpy" if size <= _SMALL else None


def default_form() -> str:
    """Returns "numba" if it is installed, otherwise "numpy". Does not import numba."""
    return "numba" if importlib.util.find_spec("numba") else "numpy"


def _make_blocked(blocked: Callable[[_Block], None]) -> Step:
    def step(*arrays: Array) -> None:
        weights, gradient, slots, out_weights, out_slots, c = arrays
        scratch = np.empty(min(_BLOCK, weights.size), np.float32)
        for start in range(0, weights.size, _BLOCK):
            part = slice(start, min(start + _BLOCK, weights.size))
            block = _Block(
                weights[part],
                gradient[part],
                slots[:, part],
                out_weights[part],
                out_slots[:, part],
                c,
                scratch[: part.stop - start],
            )
            blocked(block)

    return step


@functools.cache
def _compile(name: str) -> Step:
    return compile_loop(KERNELS[name].loop, _ARGUMENTS)


def main() -> None:
    """Compiles every kernel into numba's cache, if numba is installed, and prints one line."""
    started = time.perf_counter()
    form = default_form()
    for name in KERNELS:
        make_step(name, form)
    took = time.perf_counter() - started
    if form == "numba":
        print(f"kernels: {len(KERNELS)} compiled with numba in {took:.1f} s")
    else:
        print("kernels: numba is not installed, using the slower NumPy versions")


if __name__ == "__main__":
    # By its real name: numba's cache entries must not belong to a module called __main__.
    from relaax_like.parameter_server import kernels

    kernels.main()
