"""Initial values of weight matrices, drawn in NumPy: the same draws from a seed on every machine.

An orthogonal matrix can differ by rounding between versions of the linear algebra library.
"""

from collections.abc import Mapping
from typing import Literal, Protocol

import numpy as np

InitializerName = Literal["glorot", "orthogonal"]


class Initializer(Protocol):
    """Draws a matrix `[inputs, outputs] float64`."""

    def __call__(self, inputs: int, outputs: int, random: np.random.Generator) -> np.ndarray:
        """Draws the matrix."""


def make_glorot(inputs: int, outputs: int, random: np.random.Generator) -> np.ndarray:
    """Draws uniformly within +-sqrt(6 / (inputs + outputs)) (Glorot & Bengio 2010; Xavier)."""
    limit = (6.0 / (inputs + outputs)) ** 0.5
    return random.uniform(-limit, limit, (inputs, outputs))


def make_orthogonal(inputs: int, outputs: int, random: np.random.Generator) -> np.ndarray:
    """Draws orthonormal columns, or rows if there are fewer rows than columns.

    Saxe et al. 2014, https://arxiv.org/abs/1312.6120.
    """
    tall = random.standard_normal((max(inputs, outputs), min(inputs, outputs)))
    q, r = np.linalg.qr(tall)
    # Signs of the diagonal make the distribution uniform (Mezzadri 2007).
    q *= np.sign(np.diag(r))
    return q if inputs >= outputs else q.T


INITIALIZERS: Mapping[InitializerName, Initializer] = {
    "glorot": make_glorot,
    "orthogonal": make_orthogonal,
}
