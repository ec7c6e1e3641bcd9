"""Initial values of weight matrices, drawn in NumPy: the same draws from a seed on every machine.

An orthogonal matrix can differ by rounding between versions of the linear algebra library.
"""

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

logger = logging.getLogger(__name__)
# A matrix of more weights is a warning before it is built, as is a model before it is stored.
LARGE = 50_000_000
InitializerName = Literal["glorot", "orthogonal"]
# Of inputs, outputs and a source of random numbers; draws a matrix `[inputs, outputs] float64`.
Initializer = Callable[[int, int, np.random.Generator], np.ndarray]


def make_glorot(inputs: int, outputs: int, random: np.random.Generator) -> np.ndarray:
    """Draws uniformly within +-sqrt(6 / (inputs + outputs)) (Glorot & Bengio 2010; Xavier)."""
    _warn_if_large(inputs, outputs)
    limit = (6.0 / (inputs + outputs)) ** 0.5
    return random.uniform(-limit, limit, (inputs, outputs))


def make_orthogonal(inputs: int, outputs: int, random: np.random.Generator) -> np.ndarray:
    """Draws orthonormal columns, or rows if there are fewer rows than columns.

    Saxe et al. 2014, https://arxiv.org/abs/1312.6120.
    """
    _warn_if_large(inputs, outputs)
    tall = random.standard_normal((max(inputs, outputs), min(inputs, outputs)))
    q, r = np.linalg.qr(tall)
    # Signs of the diagonal make the distribution uniform (Mezzadri 2007).
    q *= np.sign(np.diag(r))
    return q if inputs >= outputs else q.T


@functools.cache  # once
def _warn_if_large(inputs: int, outputs: int) -> None:
    if inputs * outputs > LARGE:
        logger.warning(
            "a layer of %d inputs and %d outputs has %d million weights: %.1f GB in memory and in "
            "each snapshot, and as much again for each array that the optimizer keeps (Adam: two); "
            "make the observations smaller, or set algorithm.image if they are images",
            *(inputs, outputs, inputs * outputs // 10**6, inputs * outputs * 4 / 1e9),
        )


INITIALIZERS: Mapping[InitializerName, Initializer] = {
    "glorot": make_glorot,
    "orthogonal": make_orthogonal,
}
