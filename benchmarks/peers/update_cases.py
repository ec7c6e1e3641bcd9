"""The experience that `benchmarks.peers.updates` learns from; NumPy only, for every library."""

from dataclasses import dataclass

import numpy as np

# As HalfCheetah-v5 has them.
OBSERVATION, ACTION = 17, 6
UNITS = 64
EPOCHS = 4
DISCOUNT, GAE_LAMBDA = 0.99, 0.95
CLIP, VALUE_COEFF, GRAD_CLIP = 0.2, 0.5, 0.5
LEARNING_RATE, EPSILON = 3e-4, 1e-5


@dataclass(frozen=True, kw_only=True)
class Case:
    """One iteration.

    Attributes:
      name: in the table.
      steps: T of each rollout.
      slots: k, rollouts.
      minibatch: rows of an update; of a recurrent network, rollouts.
      recurrent: an LSTM of 64 units for actor and critic each, instead of two dense layers of 64.
    """

    name: str
    steps: int
    slots: int
    minibatch: int
    recurrent: bool


CASES = {
    "mlp": Case(
        name="2 x 64, 2 048 rows in 256", steps=128, slots=16, minibatch=256, recurrent=False
    ),
    "lstm-32": Case(name="LSTM, 32 x 300 in 32", steps=300, slots=32, minibatch=32, recurrent=True),
    "lstm-8": Case(name="LSTM, 32 x 300 in 8", steps=300, slots=32, minibatch=8, recurrent=True),
}


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """Rollouts of a policy that draws from a standard normal distribution; no episode ends.

    Attributes:
      observations: [T + 1, k, 17] float32.
      actions: [T, k, 6] float32.
      log_probs: [T, k] float32, of the actions.
      rewards: [T, k] float32.
    """

    observations: np.ndarray
    actions: np.ndarray
    log_probs: np.ndarray
    rewards: np.ndarray


def draw(case: Case) -> Iteration:
    """Draws an iteration; always the same."""
    random = np.random.default_rng(0)
    shape = (case.steps, case.slots)
    observations = random.standard_normal((case.steps + 1, case.slots, OBSERVATION))
    actions = random.standard_normal((*shape, ACTION))
    return Iteration(
        observations=observations.astype(np.float32),
        actions=actions.astype(np.float32),
        log_probs=(-0.5 * (actions**2 + np.log(2 * np.pi)).sum(-1)).astype(np.float32),
        rewards=random.standard_normal(shape).astype(np.float32),
    )
