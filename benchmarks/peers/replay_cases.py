"""The steps that `benchmarks.peers.replay_updates` learns from, in NumPy for all libraries."""

from dataclasses import dataclass

import numpy as np

from benchmarks.peers.update_cases import ACTION, OBSERVATION

STEPS = 10_000
ALGORITHMS = ("dqn", "sac", "td3", "crossq")
# Units of two layers -> minibatch.
SIZES = {64: 64, 256: 256}


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Steps of one slot, of one episode that does not end.

    Attributes:
      observations: [T + 1, 17] float32.
      actions: [T, 6] float32, in [-1, 1]; or [T] int64, 0 to 5.
      rewards: [T] float32.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray


def draw(algorithm: str) -> Steps:
    """Draws steps; always the same."""
    random = np.random.default_rng(0)
    actions = random.uniform(-1, 1, (STEPS, ACTION)).astype(np.float32)
    return Steps(
        observations=random.standard_normal((STEPS + 1, OBSERVATION)).astype(np.float32),
        actions=random.integers(0, ACTION, STEPS) if algorithm == "dqn" else actions,
        rewards=random.standard_normal(STEPS).astype(np.float32),
    )
