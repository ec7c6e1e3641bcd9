"""What a run starts from."""

import numpy as np

from relaax_like.core.manifest import Variable

from .config import Config


def make_initial_values(config: Config, seed: int) -> list[Variable]:
    """Returns one row of four weights, drawn from the seed."""
    weights = np.random.default_rng(seed).normal(0, 0.01, (1, 4)).astype(np.float32)
    return [Variable("W", weights)]
